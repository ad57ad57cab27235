
#include "cli/commands.h"
#include "core/cpu.h"
#include "core/output.h"

namespace quire::cli {

Action add_version(Flags&) {
  return []() -> Status {
    print_out("quire {}\ncpu: {}\n", QUIRE_VERSION, describe(cpu_features()));
    return {};
  };
}

}  // namespace quire::cli
