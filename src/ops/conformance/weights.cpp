// Random weights for the suites.
#include <cstring>

#include "ops/conformance/conformance.h"

namespace quire::conformance {
namespace {

constexpr DType kWeightTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

template <class T>
void put(std::byte* out, int64_t i, float x) {
  const T v = from_float<T>(x);
  std::memcpy(out + i * static_cast<int64_t>(sizeof v), &v, sizeof v);
}
template <class T>
float get(const std::byte* in, int64_t i) {
  T v;
  std::memcpy(&v, in + i * static_cast<int64_t>(sizeof v), sizeof v);
  return to_float(v);
}

}  // namespace

RandomWeight random_weight(Rng& rng, DType dtype, int64_t rows, int64_t cols, int64_t experts, float sd) {
  RandomWeight w;
  const int64_t n = experts * rows * cols;
  w.bytes.resize(static_cast<size_t>(dtype_bytes(dtype, n)));
  for (int64_t i = 0; i < n; ++i) {
    const float x = rng.normal(sd);
    if (dtype == DType::kF32)
      put<float>(w.bytes.data(), i, x);
    else if (dtype == DType::kF16)
      put<half>(w.bytes.data(), i, x);
    else if (dtype == DType::kBF16)
      put<bf16>(w.bytes.data(), i, x);
    else
      QUIRE_CHECK(false, "no random weights of type {}", dtype_name(dtype));
  }
  w.weight = {dtype, w.bytes.data(), rows, cols, experts, nullptr};
  return w;
}

std::vector<float> decode_all(const Weight& w) {
  const int64_t n = w.experts * w.rows * w.cols;
  std::vector<float> v(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i)
    v[static_cast<size_t>(i)] = w.dtype == DType::kF32   ? get<float>(w.data, i)
                                : w.dtype == DType::kF16 ? get<half>(w.data, i)
                                                         : get<bf16>(w.data, i);
  return v;
}

std::span<const DType> weight_types() {
  return kWeightTypes;
}

}  // namespace quire::conformance
