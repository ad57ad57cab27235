// What a snapshot says of the machine that it was taken on.
#pragma once

#include "lab/snapshot/record.h"

namespace quire::cli::snapshot {

// Where Linux says so; tests have files of their own.
struct HardwareFiles {
  std::string cpuinfo = "/proc/cpuinfo";
  std::string cpus = "/sys/devices/system/cpu";
  std::string meminfo = "/proc/meminfo";
};

// Everything but the measured limits and the GPUs. What the system does not say stays empty.
Hardware look_at_machine(const HardwareFiles& files = {});

// Bandwidth and peak of the CPU with so many threads, and the GPUs: about half a second.
void measure_machine(Hardware& hardware, int threads);

// "32K", "2048K", "105M" as Linux writes sizes of caches; 0 for anything else.
int64_t parse_cache_size(std::string_view text);

}  // namespace quire::cli::snapshot
