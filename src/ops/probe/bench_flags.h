// --cpu for operator benchmarks. Google Benchmark's own flags are left for its Initialize().
#pragma once

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "core/cpu.h"

namespace quire::bench {

// Takes --cpu=LEVEL (as `quire --cpu`) out of the arguments: what is registered after this is what such a CPU
// can run. False, and said on standard error, if there is no such level here.
inline bool take_cpu_flag(int& argc, char** argv) {
  constexpr std::string_view kFlag = "--cpu=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (!argument.starts_with(kFlag)) continue;
    if (const Status s = limit_cpu(argument.substr(kFlag.size())); !s.ok()) {
      std::fprintf(stderr, "%s: %s\n", argv[0], s.error().message.c_str());
      return false;
    }
    std::rotate(argv + i, argv + i + 1, argv + argc);
    argv[--argc] = nullptr;
    --i;
  }
  return true;
}

}  // namespace quire::bench
