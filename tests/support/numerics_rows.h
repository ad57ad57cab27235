// Hashes of the bits that the program computes, to notice a change of them (tests/data/numerics/hashes.txt).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/result.h"
#include "ops/op.h"

namespace quire::test {

// Set by --print-hashes: the tests print the rows that they compute, for the table, and compare nothing.
inline bool print_hashes_of_flag = false;

struct NumericsRow {
  std::string machine;     // without blanks: "avx2", "avx2+avx_vnni", "cuda+sm_90"
  std::string arithmetic;  // of generated tokens: latency, throughput
  std::string kv_cache;    // bf16, fp8
  std::string model;
  uint64_t hash = 0;  // of the logits of 64 prompt tokens, then of 64 generated ones

  std::string key() const;
  std::string line() const;  // as in the table
};

// What this machine computes with its kernels on `device`, named `machine`. On the CPU the arithmetics are both; a GPU
// has one, "throughput". `fp8_caches`: whether it has kernels for caches of E4M3.
Result<std::vector<NumericsRow>> numerics_rows(Device device, const std::string& machine, bool fp8_caches = true);

// Holds the rows against the table: what differs, and which are not in it, as texts; both empty if all is well.
struct NumericsDifference {
  std::string changed, unknown;
};
NumericsDifference differences(const std::vector<NumericsRow>& rows);

}  // namespace quire::test
