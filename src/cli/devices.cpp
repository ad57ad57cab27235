// quire devices: the GPUs that `--device cuda` could use.
#include <cstdio>

#include "cli/command.h"
#include "engine/cuda_backend.h"

namespace quire::cli {
namespace {

Status devices() {
  QUIRE_TRY(const std::vector<GpuInfo> gpus, list_gpus());
  const auto gib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
  int i = 0;
  for (const GpuInfo& g : gpus) {
    std::printf("cuda:%d  %s, compute capability %d.%d, %d multiprocessors, %.1f GiB (%.1f GiB free), ", i++,
                g.name.c_str(), g.major, g.minor, g.multiprocessors, gib(g.memory), gib(g.free));
    if (g.unusable.empty())
      std::printf("copies %.2f TB/s, products by %s\n", g.copy_bandwidth * 1e-12, g.kernels.c_str());
    else
      std::printf("cannot be used: %s\n", g.unusable.c_str());
  }
  if (gpus.empty()) std::printf("no GPU\n");
  return {};
}

}  // namespace

Action add_devices(CLI::App&) {
  return [] { return devices(); };
}

}  // namespace quire::cli
