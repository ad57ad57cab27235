// What an engine does: options with everything chosen that they leave open.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "engine/options.h"
#include "model/layer_range.h"

namespace quire {

// How many blocks a pool of windows needs; 0 of another pool.
struct WindowNeeds {
  int32_t sequence = 0;  // that one running sequence holds at most, but for the rows of steps in flight
  int32_t steps = 0;     // for all of those rows
  int32_t place = 0;     // for a place where a later prompt can go on
  // The least: one sequence can always run.
  int32_t least() const { return sequence + steps; }
};

// What of pictures there is room for on the device of a model with a vision tower; 0: it takes none.
struct EncoderRoom {
  int64_t patches = 0;  // that the tower takes at a time
  int64_t tokens = 0;   // of the rows that it puts out and that are kept for prompts
  // Where a picture's tokens attend to each other in both directions: how many the largest has, which one step computes
  // together. 0: steps may end within a picture
  int32_t whole = 0;

  bool any() const { return tokens > 0; }
};

// A device that has some of the layers.
struct PlannedStage {
  int gpu = 0;
  LayerRange layers;
};

// Options of which nothing is open, and what follows from them. Made by resolve().
struct EnginePlan : EngineOptions {
  bool mtp = false;  // the model's block for multi-token prediction drafts
  EncoderRoom encoder;
  bool kv_is_bound = false;  // a GPU's KV pool has what is left of its memory, kv_tokens at most
  // Where several devices have the layers: those, in their order; and which one a plan is of that is a device's.
  std::vector<PlannedStage> stages;
  int stage = 0;

  int stage_count() const { return stages.empty() ? 1 : static_cast<int>(stages.size()); }
  // The plan of one of the devices.
  EnginePlan of_stage(int i) const;
  bool is_first_stage() const { return stage == 0; }
  bool is_last_stage() const { return stage + 1 == stage_count(); }
  LayerRange own_layers(const ModelConfig& model) const;
  // How many stages its GPU has: one, unless somebody tries a split on a single card.
  int stages_on_gpu() const;
  // "stage 1, GPU 3, layers 20 to 39".
  std::string stage_text(const ModelConfig& model) const;
  // Steps that are under way at most, and buffers of the backend for them.
  int steps_in_flight() const { return depth * stage_count(); }
  int step_buffers() const { return std::max(2, steps_in_flight()); }

  bool for_latency() const { return quire::for_latency(arithmetic, max_sequences); }
  // Of a sequence in a step, at most.
  int32_t most_drafts() const { return speculative.enabled() ? speculative.tokens : 0; }
  // Rows of a step that are sampled, at most: one of each sequence, and drafts as far as there is room for them.
  int32_t sampled_rows() const;
  // What the caches of this model look like; and those of the plan's own layers.
  CacheShape cache_shape(const ModelConfig& model) const;
  CacheShape own_cache_shape(const ModelConfig& model) const;
  // Of a page of the host for what leaves the plan's own layers: a block, or a piece of a state.
  int64_t page_bytes(const ModelConfig& model) const;
  // What a pool of theirs needs.
  WindowNeeds window_needs(const CachePoolSpec& pool) const;
  // How many units each of these pools should have: as many blocks as hold kv_tokens; of windows what running sequences
  // need and the places of the prefix cache, but no more than that, unless few sequences need more; states of the
  // sequences, then those of the prefix cache. A GPU may have room for fewer, or for more tokens than were asked for.
  PoolCounts wanted_units(const CachePools& pools) const;
  // Rows that a step needs for a prompt to go on.
  int32_t least_rows() const { return std::max(kChunkTokens, encoder.whole); }
  int32_t kv_blocks() const { return static_cast<int32_t>((kv_tokens + kBlockTokens - 1) / kBlockTokens); }
  // Blocks of sequences that one step may move to the host, and back.
  int32_t most_swaps() const;
  // Of the host's memory for the prefix cache: pages that a recurrent state of this model takes, and moves that one
  // step may make each way, at least one whole context's; 0: there is no such memory.
  int32_t state_pages(const ModelConfig& model) const;
  int32_t cache_moves(const ModelConfig& model) const;
  // What a step of this model may hold.
  StepCapacity step_capacity(const ModelConfig& model) const;
  // "16 sequences of up to 4096 tokens, steps of 512 tokens".
  std::string text() const;
};

// Bytes of a GPU.
struct GpuMemory {
  int64_t total = 0;
  int64_t used = 0;     // by anybody, the weights among it
  int64_t weights = 0;  // the model's, placed already
  // What stays free of a memory that the machine and the GPU share: taking the last of it takes the machine down.
  // 0: the GPU has its own.
  int64_t reserve = 0;

  bool shared_with_host() const { return reserve > 0; }
  // What may be used of it, by anybody.
  int64_t bound(double utilization) const {
    return std::min(static_cast<int64_t>(static_cast<double>(total) * utilization), total - reserve);
  }
};
// Of an integrated GPU, where Linux says that so many bytes of the machine's memory are available (core/memory.h): what
// CUDA calls free there leaves out the page cache, which gives way to whoever needs memory.
constexpr GpuMemory memory_shared_with_host(int64_t total, int64_t available, int64_t weights) {
  // 8 GiB or a tenth, and of a small machine a quarter.
  const int64_t reserve = std::max(total / 10, std::min(int64_t{8} << 30, total / 4));
  return {
      .total = total, .used = total - std::clamp<int64_t>(available, 0, total), .weights = weights, .reserve = reserve};
}
// Whether weights of so many bytes may be brought into a memory that the machine shares, before any of them is: there
// no allocation fails in time. Fault::kCapacity, with numbers. A GPU with its own memory says so itself.
Status check_room_for_weights(const GpuMemory& memory, int64_t weights);

// What an engine can have.
struct EngineMemory {
  int64_t host = INT64_MAX;  // of an engine on the CPU: beside the model's file
  GpuMemory gpu;
  EncoderRoom encoder;  // what the model's largest pictures need
  // Measures what steps by such a plan take beside the caches. Empty: it is estimated.
  std::function<Result<int64_t>(const EnginePlan&)> step_bytes;
};

// The same of a device that has some of the layers.
struct StageMemory {
  PlannedStage stage;
  EngineMemory memory;
};

// The one place where what options leave open is chosen. `mtp`: whether the model has a block for multi-token
// prediction that should draft. Errors: those of check_options(), and what does not fit.
Result<EnginePlan> resolve(const EngineOptions& options, const ModelConfig& model, const EngineMemory& memory = {},
                           bool mtp = false);
// The same for several devices, each of which has memory of its own, or for a CPU's, which share `memory`: what all of
// them have room for.
Result<EnginePlan> resolve_stages(const EngineOptions& options, const ModelConfig& model, const EngineMemory& memory,
                                  const std::vector<StageMemory>& stages, bool mtp);

}  // namespace quire
