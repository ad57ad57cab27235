// cuda_checks: every test that needs a GPU.  cuda_checks [gtest flags] runs the tests; cuda_checks --bench the
// benchmarks (tests whose suite's name ends in Bench), which print bytes, FLOPs and shares of this run's limits.
// --print-hashes: print this GPU's rows for tests/data/numerics/hashes.txt (with --gtest_filter='Numerics.*').
// --shared-kib N: blocks get no more shared memory than that, as on other cards: 163 on compute capability 8.0, 99
// on 8.6, 8.9 and 12.x.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/cuda/device.h"
#include "support/numerics_rows.h"

int main(int argc, char** argv) {
  bool bench = false;
  for (int i = 1; i < argc; ++i) {
    bench |= std::strcmp(argv[i], "--bench") == 0;
    quire::test::print_hashes_of_flag |= std::strcmp(argv[i], "--print-hashes") == 0;
    if (std::strcmp(argv[i], "--shared-kib") == 0 && i + 1 < argc)
      quire::cuda::cap_shared_memory(std::atoi(argv[i + 1]) << 10);
  }
  testing::GTEST_FLAG(filter) = bench ? "*Bench.*" : "-*Bench.*";
  testing::InitGoogleTest(&argc, argv);
  cudaDeviceProp device{};
  const quire::Status found = quire::cuda::check(cudaGetDeviceProperties(&device, 0), "cuda_checks: looking for a GPU");
  if (!found.ok()) {
    std::fprintf(stderr, "%s\n", found.error().message.c_str());
    return 3;
  }
  const auto limits = quire::cuda::device_limits();
  if (!limits.ok()) {
    std::fprintf(stderr, "%s\n", limits.error().message.c_str());
    return 3;
  }
  std::printf("%s, compute capability %d.%d, %d multiprocessors, %d KiB of shared memory; products by %s\n",
              device.name, device.major, device.minor, device.multiProcessorCount, limits->shared_bytes >> 10,
              limits->wgmma ? "wgmma" : "mma.sync");
  return RUN_ALL_TESTS();
}
