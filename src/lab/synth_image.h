// A model of random weights in memory, as if its file were mapped.
#pragma once

#include "engine/loaded_model.h"
#include "lab/synth_model.h"

namespace quire::cli {

// How the weights' pages come about.
enum class SynthPages {
  // Each has memory of its own, like a file in the page cache: for computing on a CPU, whose caches would otherwise
  // hold
  // all of the model.
  kOwn,
  // Equal ones share memory: 20 GB of weights take some 30 MB. For a device, which copies them.
  kShared,
};

Result<std::shared_ptr<const LoadedModel>> load_synth_model(const SynthOptions& o, SynthPages pages);

}  // namespace quire::cli
