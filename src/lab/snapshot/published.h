// What a snapshot prints of its speeds, and what others have published for the same card.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "lab/snapshot/record.h"

namespace quire::cli::snapshot {

// One speed that somebody else has published, in tokens a second; where a range was, from `least` to `most`.
struct PublishedSpeed {
  std::string_view card;    // as in the GPU's name: "GB10"
  std::string_view model;   // and the type of its weights
  std::string_view engine;  // and what was switched on
  std::string_view what;
  double least = 0, most = 0;
};

// Those for a card of this name; none for most.
std::span<const PublishedSpeed> published_for(std::string_view gpu);

// The medians of a snapshot's speeds, a line each; and for a card that there are published ones of, those below.
std::string speeds_text(const Snapshot& s);

}  // namespace quire::cli::snapshot
