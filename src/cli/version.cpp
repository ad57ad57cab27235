#include <cstdio>

#include "cli/command.h"
#include "core/cpu.h"

namespace quire::cli {

Action add_version(CLI::App&) {
  return []() -> Status {
    std::printf("quire %s\ncpu: %s\n", QUIRE_VERSION, describe(cpu_features()).c_str());
    return {};
  };
}

}  // namespace quire::cli
