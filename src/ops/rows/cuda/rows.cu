#include "ops/rows/cuda/rows.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/cuda/dependent_launch.cuh"
#include "core/cuda/launch.h"
#include "ops/gemm/cuda/problem.cuh"

namespace quire::cuda {
namespace {

constexpr int kThreads = 128;

// E2M1: sign, two bits of exponent, one of mantissa.
__device__ __forceinline__ float decode_e2m1(uint32_t code) {
  const uint32_t magnitude = code & 7;
  const float x = magnitude < 2 ? static_cast<float>(magnitude) * 0.5f
                                : __uint_as_float((magnitude >> 1) + 126 << 23 | (magnitude & 1) << 22);
  return (code & 8) != 0 ? -x : x;
}
// UE4M3; bit 7 is ignored and 0x7f is 0, as on the CPU.
__device__ __forceinline__ float decode_ue4m3(uint32_t code) {
  const uint32_t magnitude = code & 0x7f;
  if (magnitude == 0x7f) return 0.0f;
  if (magnitude < 8) return static_cast<float>(magnitude) * 0x1p-9f;
  return __uint_as_float((magnitude << 20) + (120u << 23));
}

__device__ __forceinline__ float bf16_bits(uint32_t bits) {
  return __uint_as_float(bits << 16);
}
__device__ __forceinline__ float half_bits(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

__device__ __forceinline__ void store4(float* to, float a, float b, float c, float d, float scale) {
  *reinterpret_cast<float4*>(to) = make_float4(a * scale, b * scale, c * scale, d * scale);
}

// Four elements at i.
template <DType kType>
__device__ __forceinline__ void decode4(const char* row, int i, float* x, float scale) {
  if constexpr (kType == DType::kF32) {
    const auto v = *reinterpret_cast<const float4*>(row + i * 4);
    store4(x + i, v.x, v.y, v.z, v.w, scale);
  } else if constexpr (kType == DType::kQ8_0) {
    const char* block = row + i / 32 * 34;  // f16 d, i8 q[32]: 2-byte aligned
    const float d = half_bits(*reinterpret_cast<const uint16_t*>(block));
    const auto* q = reinterpret_cast<const uint16_t*>(block + 2 + i % 32);
    const auto low = [](uint16_t pair) { return static_cast<float>(static_cast<int8_t>(pair & 255)); };
    const auto high = [](uint16_t pair) { return static_cast<float>(static_cast<int8_t>(pair >> 8)); };
    store4(x + i, d * low(q[0]), d * high(q[0]), d * low(q[1]), d * high(q[1]), scale);
  } else {
    const auto v = *reinterpret_cast<const uint2*>(row + i * 2);
    if constexpr (kType == DType::kBF16) {
      store4(x + i, bf16_bits(v.x & 0xffff), bf16_bits(v.x >> 16), bf16_bits(v.y & 0xffff), bf16_bits(v.y >> 16),
             scale);
    } else {
      store4(x + i, half_bits(v.x & 0xffff), half_bits(v.x >> 16), half_bits(v.y & 0xffff), half_bits(v.y >> 16),
             scale);
    }
  }
}

// Word w of the codes of an NVFP4 row: eight elements, four of either half of a sub-block of 16.
__device__ __forceinline__ void decode_nvfp4(const char* row, int w, float* x, float scale) {
  const char* block = row + w / 8 * 36;  // u8 d[4], u8 qs[32]
  const int sub = w % 8 / 2, first = w / 8 * 64 + sub * 16 + w % 2 * 4;
  const float d = decode_ue4m3(static_cast<uint8_t>(block[sub]));
  const uint32_t codes = *reinterpret_cast<const uint32_t*>(block + 4 + w % 8 * 4);
  const auto value = [&](int shift) { return decode_e2m1(codes >> shift & 15) * d; };
  store4(x + first, value(0), value(8), value(16), value(24), scale);
  store4(x + first + 8, value(4), value(12), value(20), value(28), scale);
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) embed(const __grid_constant__ EmbedParams p, int64_t row_bytes) {
  begin_kernel(p);
  const int64_t r = blockIdx.x;
  const int32_t source = p.sources == nullptr ? -1 : p.sources[r];
  int32_t token = source < 0 ? p.tokens[r] : max(0, p.sampled[source]);
  if (token < 0 || token >= p.vocab) token = 0;
  const char* row = static_cast<const char*>(p.table) + token * row_bytes;
  float* x = p.x + r * p.width;
  if constexpr (kType == DType::kNVFP4) {
    for (int w = threadIdx.x; w < p.width / 8; w += kThreads) decode_nvfp4(row, w, x, p.scale);
  } else {
    for (int i = threadIdx.x * 4; i < p.width; i += kThreads * 4) decode4<kType>(row, i, x, p.scale);
  }
}

__device__ __forceinline__ float add(float a, float b) {
  return __fadd_rn(a, b);
}
__device__ __forceinline__ float4 add(float4 a, float4 b) {
  return make_float4(add(a.x, b.x), add(a.y, b.y), add(a.z, b.z), add(a.w, b.w));
}
__device__ __forceinline__ float multiply(float a, float b) {
  return __fmul_rn(a, b);
}
__device__ __forceinline__ float4 multiply(float4 a, float b) {
  return make_float4(multiply(a.x, b), multiply(a.y, b), multiply(a.z, b), multiply(a.w, b));
}

// One block for a row. Copies are of any T; T: float or float4 where rows are added.
template <class T, bool kAdds>
__global__ void __launch_bounds__(kThreads) gather_rows(const __grid_constant__ GatherRowsParams p) {
  begin_kernel(p);
  const int64_t i = blockIdx.x;
  const int32_t row = p.rows[i];
  if (row < 0 || row >= p.x_rows) return;
  const auto* from = reinterpret_cast<const T*>(static_cast<const char*>(p.x) + row * p.x_stride);
  auto* to = reinterpret_cast<T*>(static_cast<char*>(p.y) + i * p.y_stride);
  const int64_t n = p.row_bytes / static_cast<int64_t>(sizeof(T));
  for (int64_t c = threadIdx.x; c < n; c += kThreads) {
    if constexpr (kAdds)
      to[c] = add(to[c], from[c]);
    else
      to[c] = from[c];
  }
}

// One element, or four, to y[at] as float or bf16.
__device__ __forceinline__ void store(void* y, int64_t at, bool as_bf16, float v) {
  if (as_bf16)
    static_cast<__nv_bfloat16*>(y)[at] = __float2bfloat16_rn(v);
  else
    static_cast<float*>(y)[at] = v;
}
__device__ __forceinline__ void store(void* y, int64_t at, bool as_bf16, float4 v) {
  if (!as_bf16) {
    *reinterpret_cast<float4*>(static_cast<float*>(y) + at) = v;
    return;
  }
  __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
  *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(y) + at) = *reinterpret_cast<const uint2*>(pairs);
}

// T: float or float4. One block for kThreads vectors of a row.
template <class T>
__global__ void __launch_bounds__(kThreads) reduce_partials(const __grid_constant__ ReducePartialsParams p) {
  begin_kernel(p);
  constexpr int kElems = sizeof(T) / sizeof(float);
  const int64_t t = blockIdx.x;
  const int d = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * kElems;
  if (d >= p.width) return;
  const float* first = p.partials + t * p.row_stride + d;
  T* const x = reinterpret_cast<T*>(p.x + t * p.x_stride + d);
  T sum = *reinterpret_cast<const T*>(first);
  for (int i = 1; i < p.count; ++i) sum = add(sum, *reinterpret_cast<const T*>(first + i * p.partial_stride));
  sum = multiply(p.add_to_x ? add(*x, sum) : sum, p.scale);
  *x = sum;
  if (p.h != nullptr) store(p.h, t * p.h_stride + d, p.h_bf16, sum);
}

// With y = |x| / cap, cap (1 - e^-2y) / (1 + e^-2y) under the sign of x. A NaN stays one.
__device__ __forceinline__ float soft_cap(float x, float cap, float twice) {
  const float e = expf(__fmul_rn(fabsf(x), twice));
  return copysignf(__fmul_rn(cap, __fdiv_rn(__fsub_rn(1.0f, e), __fadd_rn(1.0f, e))), x);
}
__device__ __forceinline__ float4 soft_cap(float4 x, float cap, float twice) {
  return make_float4(soft_cap(x.x, cap, twice), soft_cap(x.y, cap, twice), soft_cap(x.z, cap, twice),
                     soft_cap(x.w, cap, twice));
}

// T: float or float4. One block for kThreads vectors of a row.
template <class T>
__global__ void __launch_bounds__(kThreads) soft_cap(const __grid_constant__ SoftCapParams p) {
  begin_kernel(p);
  const int i = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * static_cast<int>(sizeof(T) / sizeof(float));
  if (i >= p.width) return;
  T* const x = reinterpret_cast<T*>(p.x + static_cast<int64_t>(blockIdx.x) * p.x_stride + i);
  *x = soft_cap(*x, p.cap, __fdiv_rn(-2.0f, p.cap));
}

__device__ __forceinline__ float gate_value(GateActivation activation, float gate, float up) {
  return gemm::gated(activation, gate, up);
}
__device__ __forceinline__ float4 gate_value(GateActivation activation, float4 gate, float4 up) {
  float g[4] = {gate.x, gate.y, gate.z, gate.w}, u[4] = {up.x, up.y, up.z, up.w};
  gemm::gate_all(activation, g, u);
  return make_float4(g[0], g[1], g[2], g[3]);
}

// T: float or float4. One block for kThreads vectors of a row.
template <class T>
__global__ void __launch_bounds__(kThreads) gated_product(const __grid_constant__ GatedProductParams p) {
  begin_kernel(p);
  const int64_t t = blockIdx.x;
  const int i = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * static_cast<int>(sizeof(T) / sizeof(float));
  if (i >= p.width) return;
  const T gate = *reinterpret_cast<const T*>(p.gate + t * p.gate_stride + i);
  const T up = *reinterpret_cast<const T*>(p.up + t * p.up_stride + i);
  store(p.y, t * p.y_stride + i, p.y_bf16, gate_value(p.activation, gate, up));
}

bool aligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

}  // namespace

Status launch_embed(cudaStream_t stream, const EmbedParams& p) {
  if (p.rows <= 0) return {};
  const auto run = [&](auto* kernel) {
    return launch(stream, "embed", kernel, dim3(static_cast<unsigned>(p.rows)), kThreads, 0, p,
                  dtype_bytes(p.dtype, p.width));
  };
  switch (p.dtype) {
    case DType::kF32:
      return run(embed<DType::kF32>);
    case DType::kBF16:
      return run(embed<DType::kBF16>);
    case DType::kF16:
      return run(embed<DType::kF16>);
    case DType::kQ8_0:
      return run(embed<DType::kQ8_0>);
    default:
      return run(embed<DType::kNVFP4>);
  }
}

Status launch_gather_rows(cudaStream_t stream, const GatherRowsParams& p) {
  if (p.count <= 0 || p.row_bytes == 0) return {};
  const bool vectors =
      aligned(p.x) && aligned(p.y) && p.row_bytes % 16 == 0 && p.x_stride % 16 == 0 && p.y_stride % 16 == 0;
  const auto copies = vectors ? gather_rows<uint4, false> : gather_rows<uint16_t, false>;
  const auto adds = vectors ? gather_rows<float4, true> : gather_rows<float, true>;
  return launch(stream, "gather_rows", p.add_to_y ? adds : copies, dim3(static_cast<unsigned>(p.count)), kThreads, 0,
                p);
}

Status launch_reduce_partials(cudaStream_t stream, const ReducePartialsParams& p) {
  if (p.rows <= 0 || p.width == 0) return {};
  const bool fours = aligned(p.partials) && aligned(p.x) && aligned(p.h) && p.width % 4 == 0 &&
                     p.partial_stride % 4 == 0 && p.row_stride % 4 == 0 && p.x_stride % 4 == 0 && p.h_stride % 4 == 0;
  const int vectors = fours ? p.width / 4 : p.width;
  const dim3 grid(static_cast<unsigned>(p.rows), static_cast<unsigned>((vectors + kThreads - 1) / kThreads));
  return launch(stream, "reduce_partials", fours ? reduce_partials<float4> : reduce_partials<float>, grid, kThreads, 0,
                p);
}

Status launch_soft_cap(cudaStream_t stream, const SoftCapParams& p) {
  if (p.rows <= 0 || p.width == 0) return {};
  const bool fours = aligned(p.x) && p.width % 4 == 0 && p.x_stride % 4 == 0;
  const int vectors = fours ? p.width / 4 : p.width;
  const dim3 grid(static_cast<unsigned>(p.rows), static_cast<unsigned>((vectors + kThreads - 1) / kThreads));
  return launch(stream, "soft_cap", fours ? soft_cap<float4> : soft_cap<float>, grid, kThreads, 0, p);
}

Status launch_gated_product(cudaStream_t stream, const GatedProductParams& p) {
  if (p.rows <= 0 || p.width == 0) return {};
  const bool fours = aligned(p.gate) && aligned(p.up) && aligned(p.y) && p.width % 4 == 0 && p.gate_stride % 4 == 0 &&
                     p.up_stride % 4 == 0 && p.y_stride % 4 == 0;
  const int vectors = fours ? p.width / 4 : p.width;
  const dim3 grid(static_cast<unsigned>(p.rows), static_cast<unsigned>((vectors + kThreads - 1) / kThreads));
  return launch(stream, "gated_product", fours ? gated_product<float4> : gated_product<float>, grid, kThreads, 0, p);
}

}  // namespace quire::cuda
