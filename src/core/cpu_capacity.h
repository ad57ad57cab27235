// CPUs of several speeds in one machine.
#pragma once

#include <span>

namespace quire {

// How many CPUs are worth a thread, of those with such capacities (what Linux calls cpu_capacity: 1024 has the fastest
// of all; 0: unknown). One with less than half of the fastest's is left out: the others would wait for it at the end of
// every operator. Where a capacity is unknown, all.
int worth_a_thread(std::span<const int> capacities);

}  // namespace quire
