#include "engine/dry_step.h"

#include <algorithm>
#include <optional>

#include "engine/compute_step.h"
#include "engine/gpu_placement.h"
#include "model/memory.h"
#include "model/step.h"

namespace quire {
namespace {

// Addresses that nothing is read from, aligned like memory.
std::byte* nowhere() {
  return reinterpret_cast<std::byte*>(uintptr_t{1} << 20);
}

class FirstRefusal final : public LaunchObserver {
 public:
  void begin(const Launch&) override {}
  void refused(const Error& error) override {
    if (!first_) first_ = error;
  }
  Status status() const { return first_ ? Status(*first_) : Status(); }

 private:
  std::optional<Error> first_;
};

}  // namespace

void dry_step(const Decoder& decoder, const Machine& machine, const DryStep& step, LaunchObserver& observer) {
  const auto prompt = static_cast<int32_t>(step.prompt_rows);
  const int64_t longest = std::max<int64_t>(step.sequences > 0 ? step.context : 1, prompt);
  StepShape shape{.rows = step.sequences + prompt,
                  .decode_rows = step.sequences,
                  .segments = step.sequences + (prompt > 0 ? 1 : 0),
                  .decodes = step.sequences};
  shape.logit_rows = shape.segments;
  shape.decode_logit_rows = step.sequences;
  shape.table_width = static_cast<int32_t>((longest + kBlockTokens - 1) / kBlockTokens);
  shape.longest = static_cast<int32_t>(longest);
  shape.decode_keys = step.sequences * step.context;
  const StepCapacity capacity{.rows = shape.rows,
                              .segments = shape.segments,
                              .table_width = shape.table_width,
                              .logit_rows = shape.logit_rows,
                              .width = static_cast<int32_t>(decoder.config().d_model),
                              .batch_slots = shape.segments,
                              .max_top = 1};
  const StepLayout layout(capacity);
  const ResultLayout results(capacity);
  CacheShape cache = cache_shape(decoder.config(), activation_type(machine.device), step.kv_cache);
  const AttentionSpec& attention = decoder.config().attention;  // of a block for multi-token prediction: one more layer
  cache.add_attention(decoder.kv_layers() - cache.attention_layers(), attention.kv_heads, attention.head_dim);
  const CacheViews caches(cache, nowhere(), cache.counts(1, 1));
  ThreadPool pool(1);
  Workspace workspace;
  const OpContext ctx{.pool = pool,
                      .workspace = workspace,
                      .machine = machine,
                      .choice = step.choice,
                      .launches = &observer,
                      .only_chooses = true};
  StepBatch batch = layout.batch(nowhere(), shape, reinterpret_cast<int32_t*>(nowhere()));
  batch.hidden = make_tensor(nowhere(), DType::kF32, {shape.rows, capacity.width});
  compute_step(ctx, {decoder}, batch, {}, {.latency = step.latency, .prompts = step.prompts},
               {.cache = caches,
                .kept = {},
                .history = {},
                .suppressed = {},
                .out = results.outputs(nowhere(), shape.logit_rows),
                .scored = results.scored(nowhere(), 0),
                .hidden = results.hidden(nowhere(), 0)});
}

Status check_gpu_kernels(const Decoder& decoder, const Machine& machine, KvCacheType kv_cache) {
  FirstRefusal refusal;
  // Generated tokens and a prompt at once: every operator of a step is called, and both kinds of segments are there.
  dry_step(placed_in_thought(decoder), machine,
           {.sequences = 1, .context = kChunkTokens, .prompt_rows = kChunkTokens, .kv_cache = kv_cache}, refusal);
  return refusal.status();
}

Status check_gpu_kernels(const VisionTower& tower, const Machine& machine) {
  const VisionConfig& c = tower.config();
  const ImageGrid grid{1, c.fixed_size() ? c.side() : c.merge, c.fixed_size() ? c.side() : c.merge};
  QUIRE_TRY(const VisionBatch batch, VisionBatch::make(c, {&grid, 1}));
  const VisionArrays arrays = batch.arrays();
  FirstRefusal refusal;
  ThreadPool pool(1);
  Workspace workspace;
  const OpContext ctx{
      .pool = pool, .workspace = workspace, .machine = machine, .launches = &refusal, .only_chooses = true};
  const auto matrix = [](DType type, int64_t rows, int64_t width) {
    return make_tensor(nowhere(), type, {rows, width});
  };
  const auto f32 = DType::kF32;
  VisionOutput out{.rows = matrix(f32, arrays.tokens, c.out_width), .deepstack = {}};
  if (const int64_t levels = std::ssize(c.deepstack); levels > 0)
    out.deepstack = make_tensor(nowhere(), f32, {levels, arrays.tokens, c.out_width});
  placed_in_thought(tower)->forward_slice(ctx, {0, c.blocks}, matrix(DType::kI8, arrays.patches, c.patch_bytes()),
                                          arrays, matrix(f32, arrays.patches, c.width), out);
  return refusal.status();
}

}  // namespace quire
