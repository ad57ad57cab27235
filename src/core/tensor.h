// Non-owning tensor views for operators, and shape checks by dimension name.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "core/dtype.h"
#include "core/float.h"
#include "core/result.h"

namespace quire {

// The element type that a C++ type stands for.
template <class T>
inline constexpr DType dtype_of = [] { static_assert(sizeof(T) == 0, "no element type"); }();
template <>
inline constexpr DType dtype_of<float> = DType::kF32;
template <>
inline constexpr DType dtype_of<bf16> = DType::kBF16;
template <>
inline constexpr DType dtype_of<int32_t> = DType::kI32;
template <>
inline constexpr DType dtype_of<uint8_t> = DType::kF8E4M3;  // as codes

// A view of up to 4 dimensions, outermost first. Strides in elements; the innermost stride is always 1. The
// element type is a run-time value because activations are bf16 for the fast kernels and f32 for the
// reference.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, 4> shape{};
  std::array<int64_t, 4> stride{};

  bool empty() const { return data == nullptr; }
  int64_t dim(int i) const { return shape[static_cast<size_t>(i)]; }
  int64_t elems() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dim(i);
    return n;
  }
  int64_t bytes() const { return empty() ? 0 : dtype_bytes(dtype, elems()); }
  // Pointer to row i of the outermost dimension. T must match dtype.
  template <class T>
  T* row(int64_t i) const {
    QUIRE_CHECK(dtype == dtype_of<T>, "tensor is {}", dtype_name(dtype));
    return static_cast<T*>(data) + i * stride[0];
  }
  template <class T>
  T* as() const {
    return row<T>(0);
  }
  std::byte* bytes_at(int64_t elem) const { return static_cast<std::byte*>(data) + dtype_bytes(dtype, elem); }

  // Rows [begin, begin + count) of the outermost dimension.
  Tensor rows(int64_t begin, int64_t count) const {
    Tensor t = *this;
    t.data = bytes_at(begin * stride[0]);
    t.shape[0] = count;
    return t;
  }
  // Columns [begin, begin + count) of a matrix; keeps the row stride.
  Tensor cols(int64_t begin, int64_t count) const {
    Tensor t = *this;
    t.data = bytes_at(begin);
    t.shape[static_cast<size_t>(rank - 1)] = count;
    return t;
  }
  // The same memory with another shape; needs a contiguous tensor.
  Tensor reshaped(std::initializer_list<int64_t> dims) const;
};

inline Tensor make_tensor(void* data, DType dtype, std::initializer_list<int64_t> dims) {
  Tensor t{data, dtype, static_cast<int>(dims.size()), {}, {}};
  int i = 0;
  for (int64_t d : dims) t.shape[static_cast<size_t>(i++)] = d;
  int64_t s = 1;
  for (int j = t.rank - 1; j >= 0; --j) {
    t.stride[static_cast<size_t>(j)] = s;
    s *= t.dim(j);
  }
  return t;
}
template <class T>
Tensor make_tensor(T* data, std::initializer_list<int64_t> dims) {
  return make_tensor(const_cast<std::remove_const_t<T>*>(data), dtype_of<std::remove_const_t<T>>, dims);
}
inline Tensor Tensor::reshaped(std::initializer_list<int64_t> dims) const {
  Tensor t = make_tensor(data, dtype, dims);
  QUIRE_CHECK(t.elems() == elems() && (rank == 0 || stride[0] * shape[0] == elems()), "cannot reshape");
  return t;
}

// Element i of a row of activations, whatever its type: for references, where clarity comes first.
inline float load_float(const Tensor& t, int64_t elem) {
  if (t.dtype == DType::kF32) return static_cast<const float*>(t.data)[elem];
  QUIRE_CHECK(t.dtype == DType::kBF16, "activations are f32 or bf16, not {}", dtype_name(t.dtype));
  return to_float(static_cast<const bf16*>(t.data)[elem]);
}
inline void store_float(const Tensor& t, int64_t elem, float x) {
  if (t.dtype == DType::kF32) {
    static_cast<float*>(t.data)[elem] = x;
    return;
  }
  QUIRE_CHECK(t.dtype == DType::kBF16, "activations are f32 or bf16, not {}", dtype_name(t.dtype));
  static_cast<bf16*>(t.data)[elem] = to_bf16(x);
}

// A named dimension binds on first use and must agree afterwards; the message speaks in the contract's words.
struct Dim {
  std::string_view name;
  int64_t value = -1;
  operator int64_t() const { return value; }  // NOLINT(google-explicit-constructor)
};

namespace detail {
void expect_dim(std::string_view tensor, int index, int64_t got, Dim& want);
inline void expect_dim(std::string_view tensor, int index, int64_t got, int64_t want) {
  QUIRE_CHECK(got == want, "{}: dim {} is {}, but {} is required", tensor, index, got, want);
}
}  // namespace detail

// expect_shape("state", a.state, slots, Hv, D, D): each argument a Dim (bound or checked) or a number.
template <class... Dims>
void expect_shape(std::string_view name, const Tensor& t, Dims&&... dims) {
  QUIRE_CHECK(t.rank == static_cast<int>(sizeof...(dims)), "{}: rank is {}, but {} is required", name, t.rank,
              sizeof...(dims));
  int i = 0;
  ((detail::expect_dim(name, i, t.dim(i), dims), ++i), ...);
}

}  // namespace quire
