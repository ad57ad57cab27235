// The plot of `quire compare`: KL divergence by position in the window, as a self-contained SVG.
#pragma once

#include <span>
#include <string>

#include "eval/divergence.h"

namespace quire::cli {

// Mean and 90th percentile, on a logarithmic axis as far as the values are positive and finite. Title and
// subtitle may be any text.
std::string divergence_plot(std::span<const PositionBin> bins, const std::string& title, const std::string& subtitle);

}  // namespace quire::cli
