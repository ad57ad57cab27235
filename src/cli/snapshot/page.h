// A snapshot as one HTML page that needs nothing else: no network, no script.
#pragma once

#include <string>

#include "cli/snapshot/record.h"

namespace quire::cli::snapshot {

std::string snapshot_page(const Snapshot& s);

}  // namespace quire::cli::snapshot
