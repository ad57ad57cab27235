// The list of suites. A new operator adds a declaration and a line here.
#include "ops/conformance/conformance.h"

namespace quire::conformance {

void copy_slots_conformance(Suite& s);

namespace {

constexpr SuiteEntry kSuites[] = {
    {"copy_slots", copy_slots_conformance},
};

}  // namespace

std::span<const SuiteEntry> suites() {
  return kSuites;
}

}  // namespace quire::conformance
