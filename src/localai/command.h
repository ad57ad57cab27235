// quire-localai: the program of one command, which is also a door of quire's.
#pragma once

#include "command/command.h"

namespace quire::cli {

extern const Program kLocalAi;

}  // namespace quire::cli
