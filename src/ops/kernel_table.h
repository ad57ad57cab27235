// How an operator's table of kernels is put together from rows: those that every program has, and those of a GPU, which
// a program compiled without CUDA leaves out.
#pragma once

#include <array>
#include <tuple>

#include "ops/op.h"

namespace quire {

#ifdef QUIRE_CUDA
inline constexpr bool kHasCuda = true;
#else
inline constexpr bool kHasCuda = false;
#endif

// Rows that every program has.
template <class Args, size_t kCount>
consteval std::array<Kernel<Args>, kCount> kernel_rows(const Kernel<Args> (&rows)[kCount]) {
  return std::to_array(rows);
}

// Rows that only a program compiled with CUDA has. In another one the table is empty: evaluated while compiling, the
// rows leave no reference to kernels that are not there.
template <class Args, size_t kCount>
consteval auto cuda_rows(const std::array<Kernel<Args>, kCount>& rows) {
  if constexpr (kHasCuda)
    return rows;
  else
    return std::array<Kernel<Args>, 0>{};
}
template <class Args, size_t kCount>
consteval auto cuda_rows(const Kernel<Args> (&rows)[kCount]) {
  return cuda_rows(std::to_array(rows));
}

// The rows of several tables in one, in this order.
template <class Args, size_t... kSizes>
consteval auto joined(const std::array<Kernel<Args>, kSizes>&... tables) {
  return std::apply([](const auto&... k) { return std::array<Kernel<Args>, (0 + ... + kSizes)>{k...}; },
                    std::tuple_cat(tables...));
}

}  // namespace quire
