// What must hold of the program and of a model, as gates of a snapshot.
#pragma once

#include "engine/engine.h"
#include "lab/snapshot/record.h"

namespace quire::cli::snapshot {

struct ConformanceRun {
  Gate gate;
  std::vector<ConformanceCount> counts;
};
// Every kernel of the device against the reference, as `quire test-ops`; with `quick` one case of each kernel.
ConformanceRun check_conformance(Device device, int gpu, int threads, bool quick);

// The name under which hashes.txt has this model: one of the demo models, or nothing.
std::string_view demo_model_name(uint64_t identity);

// The bits of a demo model's logits are those that the table has for such a machine (tests/data/numerics/hashes.txt):
// a gate for each arithmetic and type of KV cache. Another model has none, so there is one gate, skipped. `table`: the
// file's text.
std::vector<Gate> check_bits(const std::shared_ptr<const LoadedModel>& model, Device device, int gpu,
                             std::string_view table);
// The program's own.
std::string_view numerics_table();

// Requests alone, and all at once, have the same tokens.
Gate check_company(const std::shared_ptr<const LoadedModel>& model, EngineOptions options);

}  // namespace quire::cli::snapshot
