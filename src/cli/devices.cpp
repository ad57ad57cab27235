// quire devices: the GPUs that `--device cuda` could use.

#include "cli/commands.h"
#include "core/escape.h"
#include "core/output.h"
#include "engine/cuda_device.h"

namespace quire::cli {
namespace {

Status devices() {
  QUIRE_TRY(const std::vector<GpuInfo> gpus, list_gpus());
  const auto gib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
  int i = 0;
  for (const GpuInfo& g : gpus) {
    print_out("cuda:{}  {}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB{} ({:.1f} GiB free), ", i++,
              escaped(g.name), g.major, g.minor, g.multiprocessors, gib(g.memory),
              g.shares_memory ? " shared with the machine" : "", gib(g.free));
    if (g.unusable.empty())
      print_out("copies {:.2f} TB/s, products by {}\n", g.copy_bandwidth * 1e-12, g.kernels);
    else
      print_out("cannot be used: {}\n", g.unusable);
  }
  if (gpus.empty()) write_out("no GPU\n");
  return {};
}

}  // namespace

Action add_devices(Flags&) {
  return [] { return devices(); };
}

}  // namespace quire::cli
