// What the tests of packed weights share: random matrices in file formats, packed on the device, and products in
// float64.
#pragma once

#include <cmath>
#include <cstring>
#include <memory>

#include "core/cuda/device.h"
#include "core/float.h"
#include "cuda/support.h"
#include "ops/cuda/context.h"
#include "ops/gemm/cuda/gemm.h"
#include "ops/gemm/cuda/pack.h"
#include "quant/format.h"

namespace quire::cuda_test {

inline void must_succeed(const Status& s) {
  QUIRE_CHECK(s.ok(), "{}", s.error().message);
}

inline std::vector<bf16> random_bf16(std::mt19937_64& rng, size_t count, float scale = 1.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<bf16> v(count);
  for (bf16& x : v) x = to_bf16(normal(rng));
  return v;
}
inline std::vector<float> random_floats(std::mt19937_64& rng, size_t count, float scale = 1.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> v(count);
  for (float& x : v) x = normal(rng);
  return v;
}
inline const __nv_bfloat16* device_bf16(const DeviceBuffer<bf16>& b) {
  return reinterpret_cast<const __nv_bfloat16*>(b.data());
}

// experts x rows x cols of random values in a file's format, and what kernels multiply by: the decoded values rounded
// to bf16, except for F32 and F16.
struct HostMatrix {
  DType dtype;
  int32_t rows, cols, experts;
  std::vector<std::byte> bytes;
  std::vector<float> values;  // [experts, rows, cols]

  HostMatrix(std::mt19937_64& rng, DType type, int32_t n, int32_t k, int32_t e = 1, float scale = 0.0f)
      : dtype(type), rows(n), cols(k), experts(e) {
    const int64_t all = static_cast<int64_t>(e) * n;
    const int64_t row_bytes = dtype_bytes(type, k);
    bytes.resize(static_cast<size_t>(all * row_bytes));
    values.resize(static_cast<size_t>(all * k));
    const auto source =
        random_floats(rng, values.size(), scale != 0.0f ? scale : 1.0f / std::sqrt(static_cast<float>(k)));
    if (!quant::can_encode(type)) fill_blocks(rng);
    for (int64_t r = 0; r < all; ++r) {
      if (quant::can_encode(type)) quant::encode_row(type, source.data() + r * k, k, bytes.data() + r * row_bytes);
      quant::decode_row(type, bytes.data() + r * row_bytes, k, values.data() + r * k);
    }
    if (type != DType::kF32 && type != DType::kF16)
      for (float& v : values) v = to_float(to_bf16(v));
  }
  const float* row(int64_t expert, int64_t r) const { return values.data() + (expert * rows + r) * cols; }

 private:
  // Any bytes are blocks of Q2_K, IQ4_XS and FP8, which are only read, but for their scales, which are small numbers,
  // and FP8's codes that are no numbers.
  void fill_blocks(std::mt19937_64& rng) {
    const auto block = static_cast<size_t>(dtype_info(dtype).block_bytes);
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
    if (dtype == DType::kFP8) {
      for (std::byte& b : bytes)
        if ((b & std::byte{0x7f}) == std::byte{0x7f}) b ^= std::byte{1};
      for (size_t at = 0; at < bytes.size(); at += block) {
        const float scale = std::ldexp(1.0f + static_cast<float>(rng() % 4096) / 4096, -12);
        std::memcpy(bytes.data() + at, &scale, sizeof scale);
      }
      return;
    }
    for (size_t at = 0; at < bytes.size(); at += block)
      for (const size_t half_at : dtype == DType::kQ2_K ? std::vector<size_t>{80, 82} : std::vector<size_t>{0})
        bytes[at + half_at + 1] = static_cast<std::byte>(0x10 + rng() % 16 + (rng() % 2) * 128);  // 2^-11 to 2^-7
  }
};

// The packed matrix on the device; gate and up together if `up` is given.
struct DeviceWeight {
  gemm::PackedWeight weight;
  std::unique_ptr<DeviceBuffer<std::byte>> memory;

  explicit DeviceWeight(const HostMatrix& m, const HostMatrix* up = nullptr, int32_t k_slice = 0) {
    weight.format = gemm::tile_format(m.dtype);
    weight.paired = up != nullptr;
    weight.rows = m.rows;
    weight.cols = m.cols;
    weight.experts = m.experts;
    weight.k_slice = k_slice;
    memory = std::make_unique<DeviceBuffer<std::byte>>(static_cast<size_t>(weight.bytes()));
    weight.data = memory->data();
    const DeviceBuffer<std::byte> source(m.bytes);
    const DeviceBuffer<std::byte> source2(up != nullptr ? up->bytes : std::vector<std::byte>(1));
    gemm::PackParams p;
    p.dtype = m.dtype;
    p.source = source.data();
    p.source2 = up != nullptr ? source2.data() : nullptr;
    p.rows = m.rows;
    p.cols = m.cols;
    p.experts = m.experts;
    p.packed = memory->data();
    p.destination = weight;
    must_succeed(launch_pack(nullptr, p));
    must(cudaDeviceSynchronize(), "packing");
    QUIRE_CHECK(memory->guards_intact(), "packing wrote outside");
  }
};

// A sum of products in float64, and the sum of their magnitudes.
struct Exact {
  double value = 0, magnitude = 0;
};
inline Exact exact_dot(const float* w, const bf16* x, int32_t cols) {
  Exact e;
  for (int32_t c = 0; c < cols; ++c) {
    const double t = static_cast<double>(w[c]) * static_cast<double>(to_float(x[c]));
    e.value += t;
    e.magnitude += std::fabs(t);
  }
  return e;
}

// How far a sum may be: a tensor core keeps at least 2^-22 of the largest of the terms it adds at once, in 16ths of a
// K slice's steps; 2^-18 of the sum of magnitudes covers every walk of a K slice and the additions of K slices.
inline constexpr double kSumError = 0x1p-18;
inline constexpr double kHalfBf16 = 0x1p-8;  // rounding a result: half a unit in the last of eight bits, and some

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

inline cuda::DeviceLimits device_limits() {
  const auto limits = cuda::device_limits();
  QUIRE_CHECK(limits.ok(), "{}", limits.error().message);
  return *limits;
}

// As an operator's argument.
inline Weight weight_of(const HostMatrix& m, const DeviceWeight& w, const float* scale = nullptr) {
  return {
      .dtype = m.dtype, .data = w.weight.data, .rows = m.rows, .cols = m.cols, .experts = m.experts, .scale = scale};
}

// The entry of linear's and swiglu_mlp's tables; empty for kAuto.
inline std::string entry_of(gemm::Path path) {
  const bool wgmma = device_limits().wgmma;
  switch (path) {
    case gemm::Path::kAuto:
      return "";
    case gemm::Path::kStream:
      return "cuda_stream";
    case gemm::Path::kSweep:
      return "cuda_sweep";
    case gemm::Path::kTile:
      return wgmma ? "cuda_tiles_wgmma" : "cuda_tiles_mma";
    case gemm::Path::kSliced:
      return wgmma ? "cuda_sliced_wgmma" : "cuda_sliced_mma";
    case gemm::Path::kDealt:
      return wgmma ? "cuda_dealt" : "cuda_tiles_mma";
  }
  return "";
}

// Runs an operator as the engine does: a dry call that finds out how much scratch memory it takes, then the call. By
// this entry of its table where that takes it; empty: by the one that the table prefers.
template <class Run>
void run_operator(std::string_view op, const std::string& entry, const Run& run) {
  KernelChoice choice;
  if (!entry.empty()) choice.forced.emplace_back(op, entry);
  ThreadPool pool(1);
  cuda::Context context;
  must_succeed(context.create());
  must(cudaDeviceSynchronize(), "what fills the operands");  // in another stream
  const auto call = [&](Workspace& workspace) {
    run(OpContext{.pool = pool,
                  .workspace = workspace,
                  .machine = {.device = Device::kCuda, .gpu = device_limits()},
                  .choice = &choice,
                  .gpu = &context});
  };
  Workspace measured;
  context.dry = true;
  call(measured);
  context.dry = false;
  DeviceBuffer<std::byte> scratch(static_cast<size_t>(measured.high_water()));
  must(cudaDeviceSynchronize(), "clearing scratch memory");
  Workspace workspace = Workspace::over({scratch.data(), static_cast<size_t>(measured.high_water())});
  call(workspace);
  must_succeed(context.status);
  must(cudaDeviceSynchronize(), "running an operator");
  EXPECT_TRUE(scratch.guards_intact());
}
template <class Run>
void run_operator(std::string_view op, gemm::Path path, const Run& run) {
  run_operator(op, entry_of(path), run);
}

}  // namespace quire::cuda_test
