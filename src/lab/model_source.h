// Which model a benchmark measures: a file, or random weights in known shapes that are made in memory.
#pragma once

#include "command/flags.h"
#include "engine/loaded_model.h"
#include "lab/synth_model.h"

namespace quire::cli {

struct ModelSource {
  std::string file, preset;
  SynthOptions synth;

  // -m, --synth, and what of `quire synth` says more of it.
  void add(Flags& flags);
  Status check() const;
  Result<std::shared_ptr<const LoadedModel>> load(Device device) const;
  std::string name() const;
};

}  // namespace quire::cli
