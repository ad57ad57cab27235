// quire pull, list and rm.
#pragma once

#include "cli/command.h"

namespace quire::cli {

Action add_pull(CLI::App& app);
Action add_list(CLI::App& app);
Action add_rm(CLI::App& app);

}  // namespace quire::cli
