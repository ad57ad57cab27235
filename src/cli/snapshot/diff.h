// What differs between two snapshots beyond noise.
#pragma once

#include <string>
#include <vector>

#include "cli/snapshot/record.h"
#include "cli/snapshot/statistics.h"

namespace quire::cli::snapshot {

struct SnapshotDiff {
  std::vector<FigureChange> changes;  // of all figures that both have
  std::vector<std::string> left_out;  // figures that only one has, or that were read too seldom
  std::vector<std::string> gates;     // "conformance: passed, then failed"
  int newly_failed = 0;               // of these
  std::vector<std::string> remarks;   // other machines, models, devices: what makes figures incomparable

  int count(Verdict v) const;
};

SnapshotDiff diff(const Snapshot& before, const Snapshot& after);

// A table and what it comes to, for a terminal.
std::string diff_table(const SnapshotDiff& d);
std::string changes_table(const std::vector<FigureChange>& changes);

}  // namespace quire::cli::snapshot
