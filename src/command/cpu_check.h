#pragma once

namespace quire::cli {

// Whether this CPU is one that the programs are compiled for (x86-64-v3; on ARM every one). If it is not, a line on
// standard error says what is needed. To be asked before anything else: cpu_check.cpp and a program's main.cpp alone
// run on any x86-64.
bool cpu_suffices();

}  // namespace quire::cli
