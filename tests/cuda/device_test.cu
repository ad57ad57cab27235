// What launches know of the device: that it is what kernels themselves say, and that its limits hold.
#include "core/cuda/device.h"

#include "core/cuda/launch.h"
#include "core/cuda/target.cuh"
#include "cuda/support.h"

namespace quire::cuda_test {
namespace {

__global__ void say(int* to) {
  to[0] = cuda::kForSm90 ? 1 : 0;
  to[1] = cuda::kForWgmma ? 1 : 0;
}
__global__ void touch(int* to) {
  extern __shared__ int memory[];
  memory[threadIdx.x] = 7;
  *to = memory[threadIdx.x];
}

cuda::DeviceLimits limits() {
  const auto found = cuda::device_limits();
  QUIRE_CHECK(found.ok(), "{}", found.error().message);
  return *found;
}

// Puts back what --shared-kib has set.
class Cap {
 public:
  explicit Cap(int bytes) : before_(limits().shared_bytes) { cuda::cap_shared_memory(bytes); }
  ~Cap() { cuda::cap_shared_memory(before_); }

 private:
  int before_;
};

TEST(CudaDevice, KernelsAreOfTheArchitectureThatTheHostTakesThemFor) {
  DeviceBuffer<int> said(2);
  say<<<1, 1>>>(said.data());
  CUDA_OK(cudaDeviceSynchronize());
  const std::vector<int> got = said.download();
  const cuda::DeviceLimits device = limits();
  EXPECT_EQ(got[0] != 0, device.dependent_launch);
  EXPECT_EQ(got[1] != 0, device.wgmma);
  EXPECT_GE(device.major, cuda::kOldestMajor);
  EXPECT_GE(device.shared_bytes, 64 << 10);
}

TEST(CudaDevice, BlocksGetNoMoreSharedMemoryThanTheLimit) {
  DeviceBuffer<int> to(1);
  const auto ask = [&](int bytes) {
    return cuda::launch(nullptr, "touching memory", touch, dim3(1), 1, bytes, to.data());
  };
  const Cap cap(80 << 10);
  EXPECT_EQ(limits().shared_bytes, 80 << 10);
  EXPECT_TRUE(ask(80 << 10).ok());
  CUDA_OK(cudaDeviceSynchronize());
  EXPECT_EQ(to.download()[0], 7);
  const Status refused = ask((80 << 10) + 16);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "touching memory: 81936 bytes of shared memory, and blocks can have 81920");
  {
    const Cap none(0);
    EXPECT_GT(limits().shared_bytes, 80 << 10);
  }
  EXPECT_EQ(limits().shared_bytes, 80 << 10);
}

}  // namespace
}  // namespace quire::cuda_test
