// Engines that prefer a GPU and take the CPU where there is none that will do.
#include <gtest/gtest.h>

#include "engine/cuda_device.h"
#include "engine/engine_rig.h"

namespace quire::test {
namespace {

TEST(AutoDevice, TakesTheCpuWhereNoGpuWillDo) {
  if (open_gpu(0).ok()) GTEST_SKIP() << "there is a GPU";
  EngineOptions options{.device = Device::kCuda, .threads = 2, .context = 64, .max_sequences = 1};
  const auto refused = Engine::create(tiny("tiny-llama"), options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().fault, Fault::kRequest);
  options.or_cpu = true;
  const auto made = Engine::create(tiny("tiny-llama"), options);
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ((*made)->plan().device, Device::kCpu);
}

TEST(AutoDevice, KeepsErrorsThatACpuWouldNotMend) {
  EngineOptions options{.device = Device::kCuda, .or_cpu = true};
  EXPECT_TRUE(options.cpu_instead(Fault::kRequest));
  EXPECT_TRUE(options.cpu_instead(Fault::kCapacity));
  EXPECT_FALSE(options.cpu_instead(Fault::kModelFile));
  EXPECT_FALSE(options.cpu_instead(Fault::kBug));
  options.or_cpu = false;
  EXPECT_FALSE(options.cpu_instead(Fault::kRequest));
  options = {.device = Device::kCpu, .or_cpu = true};
  EXPECT_FALSE(options.cpu_instead(Fault::kRequest));
}

}  // namespace
}  // namespace quire::test
