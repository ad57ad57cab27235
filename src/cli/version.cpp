#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "core/cpu.h"
#include "core/output.h"
#include "engine/cuda_device.h"

namespace quire::cli {
namespace {

void print_version(bool json) {
  const std::string cpu = describe(cpu_features());
  if (json)
    print_out("{}\n", nlohmann::ordered_json{{"version", QUIRE_VERSION}, {"cpu", cpu}, {"cuda", has_cuda()}}.dump());
  else
    print_out("quire {}\ncpu: {}\n", QUIRE_VERSION, cpu);
}

}  // namespace

Action add_version(Flags& flags) {
  auto json = std::make_shared<bool>(false);
  flags.add("--json", json.get(), "As JSON, with whether code for GPUs is inside");
  return [json]() -> Status {
    print_version(*json);
    return {};
  };
}

}  // namespace quire::cli
