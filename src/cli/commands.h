// The commands of quire: commands.cpp lists them.
#pragma once

#include "command/command.h"

namespace quire::cli {

extern const Program kQuire;

Action add_chat(Flags& flags);
Action add_convert(Flags& flags);
Action add_devices(Flags& flags);
Action add_health(Flags& flags);
Action add_imatrix(Flags& flags);
Action add_inspect(Flags& flags);
Action add_list(Flags& flags);
Action add_pull(Flags& flags);
Action add_quantize(Flags& flags);
Action add_rm(Flags& flags);
Action add_run(Flags& flags);
Action add_serve(Flags& flags);
Action add_tokenize(Flags& flags);
Action add_version(Flags& flags);

}  // namespace quire::cli
