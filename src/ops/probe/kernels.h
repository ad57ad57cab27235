// The loops behind the probes, one file per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire::probe {

// Reads `streams` segments of `segment` bytes that lie one behind the other, side by side, prefetching the
// line `ahead` bytes further on (0: never). Returns a value that depends on the data.
uint64_t read_streams_avx512(const std::byte* data, int64_t segment, int streams, int64_t ahead);
uint64_t read_streams_avx2(const std::byte* data, int64_t segment, int streams, int64_t ahead);

// Runs `rounds` rounds of independent multiply-adds and returns how many operations that were.
double multiply_amx(int64_t rounds);
double multiply_avx512(int64_t rounds);
double multiply_avx2(int64_t rounds);

}  // namespace quire::probe
