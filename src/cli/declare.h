// The options of a command, with those that all commands have that take models.
#pragma once

#include "cli/command.h"

namespace quire::cli {

// Declares the command's options. Where its models may be on a hub, also the flags for that, and the action first
// fetches those that are named so. `app` must outlive the action.
Action declare(const Command& command, CLI::App& app);

}  // namespace quire::cli
