// How an operator's table of kernels is put together from rows: those that every program has, those of a GPU, which a
// program compiled without CUDA leaves out, and those of one kind of CPU.
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

// Rows that every program has. A kernel named kBaseLevel is written in AVX2's intrinsics, which core/m256.h has for ARM
// as well.
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

// Rows that only a program for x86-64 has, or only one for ARM.
template <class Args, size_t kCount>
consteval auto x86_rows(const Kernel<Args> (&rows)[kCount]) {
  if constexpr (kOnX86)
    return std::to_array(rows);
  else
    return std::array<Kernel<Args>, 0>{};
}
template <class Args, size_t kCount>
consteval auto arm_rows(const Kernel<Args> (&rows)[kCount]) {
  if constexpr (kOnArm)
    return std::to_array(rows);
  else
    return std::array<Kernel<Args>, 0>{};
}

// The rows of several tables in one, in this order.
template <class Args, size_t... kSizes>
consteval auto joined(const std::array<Kernel<Args>, kSizes>&... tables) {
  return std::apply([](const auto&... k) { return std::array<Kernel<Args>, (0 + ... + kSizes)>{k...}; },
                    std::tuple_cat(tables...));
}

}  // namespace quire
