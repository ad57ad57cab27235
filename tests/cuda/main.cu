// cuda_checks: every test that needs a GPU.  cuda_checks [gtest flags] runs the tests; cuda_checks --bench the
// benchmarks (tests whose suite's name ends in Bench), which print bytes, FLOPs and shares of this run's limits.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "core/cuda/check.h"

int main(int argc, char** argv) {
  bool bench = false;
  for (int i = 1; i < argc; ++i) bench |= std::strcmp(argv[i], "--bench") == 0;
  testing::GTEST_FLAG(filter) = bench ? "*Bench.*" : "-*Bench.*";
  testing::InitGoogleTest(&argc, argv);
  cudaDeviceProp device{};
  const quire::Status found =
      quire::cuda::check(cudaGetDeviceProperties(&device, 0), "cuda_checks: looking for a GPU");
  if (!found.ok()) {
    std::fprintf(stderr, "%s\n", found.error().message.c_str());
    return 3;
  }
  std::printf("%s, compute capability %d.%d, %d multiprocessors\n", device.name, device.major, device.minor,
              device.multiProcessorCount);
  return RUN_ALL_TESTS();
}
