// The engines that serve a model: one, or several side by side (--data-parallel-size).
#pragma once

#include <memory>
#include <vector>

#include "engine/engine.h"

namespace quire::server {

// As many engines as `gpus` has entries, or for each EngineOptions::pipeline_parallel of these one, with weights that
// are mapped once. On GPUs, one on each of them, made at the same time; on a CPU, which pays no heed to the numbers,
// threads, swap space and the host's memory are divided among them. Errors: those of Engine::create; a GPU that is
// named twice; engines whose texts would not be the same.
Result<std::vector<std::unique_ptr<Engine>>> create_engines(const std::shared_ptr<const LoadedModel>& model,
                                                            const EngineOptions& options, const std::vector<int>& gpus);

// What all of them can do: the shortest context, and places and tokens added up.
struct Capacity {
  int64_t context = 0;
  int32_t sequences = 0;
  int64_t kv_tokens = 0;
};
Capacity capacity_of(const std::vector<std::unique_ptr<Engine>>& engines);

}  // namespace quire::server
