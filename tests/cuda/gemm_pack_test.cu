// Packing: what the products see of a weight is what the file says.
#include "cuda/gemm_support.h"

namespace quire::cuda_test {
namespace {

std::vector<float> unpacked(const gemm::PackedWeight& w, int32_t expert, int32_t second) {
  DeviceBuffer<float> out(static_cast<size_t>(w.rows) * w.cols);
  gemm::UnpackParams p;
  p.weight = w;
  p.expert = expert;
  p.second = second;
  p.out = out.data();
  must_succeed(launch_unpack(nullptr, p));
  must(cudaDeviceSynchronize(), "unpacking");
  EXPECT_TRUE(out.guards_intact());
  return out.download();
}

void expect_matrix(const HostMatrix& m, int32_t expert, const std::vector<float>& got, const char* what) {
  const size_t count = static_cast<size_t>(m.rows) * m.cols, at = expert * count;
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) wrong += !(got[i] == m.values[at + i]);
  EXPECT_EQ(wrong, 0u) << what << " " << dtype_name(m.dtype) << " " << m.rows << " x " << m.cols << " expert "
                       << expert;
}

constexpr DType kAll[] = {DType::kBF16, DType::kNVFP4, DType::kQ8_0, DType::kMXFP4,  DType::kQ4_K,   DType::kQ6_K,
                          DType::kF32,  DType::kF16,   DType::kQ4_0, DType::kQ4_1,   DType::kQ5_0,   DType::kQ5_1,
                          DType::kQ5_K, DType::kQ2_K,  DType::kQ3_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kFP8};

TEST(GemmPack, EveryTypeDecodesToTheFilesValues) {
  std::mt19937_64 rng(1);
  for (const DType type : kAll)
    for (const int32_t rows : {1, 15, 16, 33, 64})
      for (const int32_t blocks : {1, 2, 5}) {
        const int32_t cols = blocks * std::max(dtype_info(type).block_elems, 8);
        const HostMatrix m(rng, type, rows, cols, 2);
        const DeviceWeight w(m);
        for (int32_t e = 0; e < 2; ++e) expect_matrix(m, e, unpacked(w.weight, e, 0), "plain");
      }
}

TEST(GemmPack, GateAndUpInterleaved) {
  std::mt19937_64 rng(2);
  for (const DType type :
       {DType::kBF16, DType::kNVFP4, DType::kQ8_0, DType::kMXFP4, DType::kQ4_K, DType::kQ6_K, DType::kFP8})
    for (const int32_t rows : {8, 9, 40}) {
      const HostMatrix gate(rng, type, rows, 512, 3), up(rng, type, rows, 512, 3);
      const DeviceWeight w(gate, &up);
      for (int32_t e = 0; e < 3; ++e) {
        expect_matrix(gate, e, unpacked(w.weight, e, 0), "gate");
        expect_matrix(up, e, unpacked(w.weight, e, 1), "up");
      }
    }
}

// Any bytes: scales of every code, zero, subnormal, NaN codes and set sign bits.
TEST(GemmPack, EveryNvfp4AndMxfp4Scale) {
  std::mt19937_64 rng(3);
  for (const DType type : {DType::kNVFP4, DType::kMXFP4}) {
    HostMatrix m(rng, type, 64, 256);
    const size_t block = static_cast<size_t>(dtype_info(type).block_bytes);
    for (size_t i = 0; i < m.bytes.size(); ++i) {
      const bool scale = i % block < (type == DType::kNVFP4 ? 4u : 1u);
      // MXFP4: where neither bf16 nor float32 overflows or loses bits.
      m.bytes[i] = static_cast<std::byte>(scale && type == DType::kMXFP4 ? 20 + rng() % 110 : rng() % 256);
    }
    for (int32_t r = 0; r < m.rows; ++r)
      quant::decode_row(type, m.bytes.data() + r * dtype_bytes(type, m.cols), m.cols,
                        m.values.data() + static_cast<size_t>(r) * m.cols);
    expect_matrix(m, 0, unpacked(DeviceWeight(m).weight, 0, 0), "scales");
  }
}

// Two sources into one weight, one row tile apart, and experts one by one, as a loader does.
TEST(GemmPack, PartByPart) {
  std::mt19937_64 rng(4);
  const HostMatrix a(rng, DType::kNVFP4, 32, 128, 2), b(rng, DType::kNVFP4, 20, 128, 2);
  gemm::PackedWeight whole;
  whole.format = gemm::TileFormat::kNvfp4;
  whole.rows = 52;
  whole.cols = 128;
  whole.experts = 2;
  DeviceBuffer<std::byte> memory(static_cast<size_t>(whole.bytes()));
  whole.data = memory.data();
  const DeviceBuffer<std::byte> source_a(a.bytes), source_b(b.bytes);
  for (int32_t e = 0; e < 2; ++e)
    for (const auto* m : {&a, &b}) {
      gemm::PackParams p;
      p.dtype = m->dtype;
      p.source = (m == &a ? source_a : source_b).data() + static_cast<size_t>(e) * m->bytes.size() / 2;
      p.rows = m->rows;
      p.cols = 128;
      p.packed = memory.data();
      p.destination = whole;
      p.first_row_tile = m == &a ? 0 : 2;
      p.first_expert = e;
      must_succeed(launch_pack(nullptr, p));
    }
  for (int32_t e = 0; e < 2; ++e) {
    const auto got = unpacked(whole, e, 0);
    expect_matrix(a, e, {got.begin(), got.begin() + 32 * 128}, "first part");
    expect_matrix(b, e, {got.begin() + 32 * 128, got.end()}, "second part");
  }
  EXPECT_TRUE(memory.guards_intact());
}

TEST(GemmPack, MisfitsAreErrors) {
  gemm::PackParams p;
  p.dtype = DType::kNVFP4;
  p.rows = 16;
  p.cols = 128;
  p.destination.format = gemm::TileFormat::kBf16;
  p.destination.rows = 16;
  p.destination.cols = 128;
  EXPECT_FALSE(launch_pack(nullptr, p).ok());  // format
  p.destination.format = gemm::TileFormat::kNvfp4;
  p.rows = 17;
  EXPECT_FALSE(launch_pack(nullptr, p).ok());  // rows
  p.rows = 16;
  p.cols = p.destination.cols = 96;
  EXPECT_FALSE(launch_pack(nullptr, p).ok());  // not whole blocks
}

}  // namespace
}  // namespace quire::cuda_test
