// What the machine can do, measured: the roofs that benchmarks print their shares of.
#pragma once

#include "core/thread_pool.h"

namespace quire {

// Bytes per second that the pool's threads together read from memory: the median of five reads in the best of
// several ways (streams side by side, with and without prefetching), because one plain stream per core does
// not reach what good kernels do. Touches 256 MiB; takes about a quarter of a second.
double measure_read_bandwidth(ThreadPool& pool);

// Floating-point operations per second of the widest bf16 multiply-add there is (AMX, else AVX-512 BF16, else
// float32 FMA), from registers, the median of 41 runs: no kernel is faster. About twenty milliseconds.
double measure_bf16_peak(ThreadPool& pool);

}  // namespace quire
