// What a device allocates for steps, and how much that is.
#include <algorithm>
#include <chrono>
#include <utility>

#include "core/log.h"
#include "engine/graph_sizes.h"
#include "engine/memory_plan.h"
#include "engine/pool_units.h"
#include "engine/step_stage.h"
#include "ops/sampling/history.h"

namespace quire {
namespace {

using Where = ComputeDevice::Where;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double gib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

// The rows of a step's segments, as largest_steps() means them: positions at the end of the context, and generated
// tokens with as many drafts as there are rows for.
std::vector<Segment> segments_of(const StepShape& shape, int32_t context) {
  std::vector<Segment> segments(static_cast<size_t>(shape.segments));
  int32_t row = 0, drafts = shape.logit_rows - shape.segments;
  for (Segment& s : segments) {
    const bool decodes = shape.decodes > 0;
    const int32_t tentative = decodes ? std::max(0, std::min({shape.most_rows - 1, drafts, context - 1})) : 0;
    const int32_t count = decodes ? 1 + tentative : std::min(shape.rows - row, context);
    const int32_t position = decodes ? context - count : (context - count) / kChunkTokens * kChunkTokens;
    s = {.row = row, .count = count, .position = position, .state_slot = 0, .anchor = position, .tentative = tentative};
    row += count;
    drafts -= tentative;
  }
  return segments;
}

}  // namespace

Result<int64_t> StepStage::step_bytes() {
  QUIRE_CHECKED(device_->place(0));
  QUIRE_TRY(const int64_t scratch, measure());
  return scratch + fixed_bytes() + device_->overhead_bytes(layout_.capacity());
}

Status StepStage::prepare() {
  const Clock::time_point begin = Clock::now();
  const CacheShape shape = cache_shape();
  const std::optional<CachePools> pools = shape.pools();
  if (!pools) return capacity_error("the caches of this model are larger than any memory");
  const PoolCounts counts = plan_.wanted_units(*pools);
  QUIRE_CHECKED(device_->place(CacheViews::bytes(shape, counts).value_or(0)));
  // The host's are addresses, which take nothing, and which dry passes look at.
  if (device_->is_host()) QUIRE_CHECKED(allocate_caches(counts, 0));
  QUIRE_CHECKED(allocate_fixed());
  fixed_seconds_ = seconds_since(begin);
  return device_->is_host() ? Status() : device_->rehearse(rehearsed());
}

Result<PoolCounts> StepStage::room() {
  if (device_->is_host()) return counts_;
  QUIRE_TRY(const DeviceRoom room, device_->room(layout_.capacity()));
  return counts_within(room);
}

void StepStage::start() {
  const Clock::time_point begin = Clock::now();
  const std::string prepared = device_->start(layout_.capacity());
  if (device_->is_host()) return;
  log_info(fmt::format("{}{}: arrays and scratch {:.2f} s ({:.2f} GiB), caches {:.2f} s ({:.2f} GiB), {} {:.2f} s",
                       device_->machine().device == Device::kCuda ? "cuda" : "device",
                       first() && last() ? "" : fmt::format(" {}", plan_.stage_text(config())), fixed_seconds_,
                       gib(scratch_.bytes()), caches_seconds_, gib(caches_.bytes()), prepared, seconds_since(begin)));
}

int64_t StepStage::fixed_bytes() const {
  const StepCapacity& c = layout_.capacity();
  const int64_t vocab = config().vocab, seen = std::min(vocab, plan_.context);
  int64_t bytes = layout_.bytes() + c.sampled() * int64_t{4} + encoder_memory_.bytes();
  if (last())
    bytes += result_layout_.bytes() + int64_t{c.kept()} * c.width * 4 + token_history_bytes(c.batch_slots, vocab, seen);
  // What arrives has memory for each step in flight besides.
  if (!first() || !last()) bytes += stream_bytes(c.rows) * (first() ? 1 : 1 + plan_.step_buffers());
  return bytes;
}

// Everything but the caches.
Status StepStage::allocate_fixed() {
  const StepCapacity& c = layout_.capacity();
  for (int i = 0; i < plan_.step_buffers(); ++i) buffers_[i].moves.reserve(static_cast<size_t>(2 * c.swaps));
  const auto own = [&](int64_t bytes, std::string_view what) { return device_->allocate(Where::kOwn, bytes, what); };
  QUIRE_TRY(step_, own(layout_.bytes(), "the arrays of a step"));
  QUIRE_TRY(sampled_, own(c.sampled() * int64_t{4}, "sampled tokens"));
  if (!first() || !last()) {
    QUIRE_TRY(stream_, own(stream_bytes(c.rows), "rows between devices"));
  }
  if (last()) QUIRE_CHECKED(allocate_for_sampling());
  if (encoder_memory_.bytes() > 0) {
    QUIRE_TRY(encoder_, own(encoder_memory_.bytes(), "pictures"));
  }
  QUIRE_TRY(largest_scratch_, measure());
  QUIRE_CHECKED(device_->check_scratch(c, largest_scratch_));
  QUIRE_TRY(scratch_, device_->allocate(Where::kScratch, largest_scratch_, "activations and scratch"));
  device_->set_scratch(scratch_.span());
  // For steps that are gone through before there are caches: addresses that nothing is read from.
  if (caches_.data() == nullptr) views_ = views_of_one(scratch_.data());
  return {};
}

Status StepStage::allocate_for_sampling() {
  const StepCapacity& c = layout_.capacity();
  const int64_t vocab = config().vocab, seen = std::min(vocab, plan_.context);
  const auto own = [&](int64_t bytes, std::string_view what) { return device_->allocate(Where::kOwn, bytes, what); };
  QUIRE_TRY(results_, own(result_layout_.bytes(), "the results of a step"));
  QUIRE_TRY(kept_, own(int64_t{c.kept()} * c.width * 4, "hidden states for drafts"));
  QUIRE_TRY(history_, own(token_history_bytes(c.batch_slots, vocab, seen), "the history of penalties"));
  token_history_ = lay_out_token_history(history_.data(), c.batch_slots, vocab, seen);
  std::span<const TokenId> suppressed;
  if (model_->tokenizer) suppressed = model_->tokenizer->suppress_tokens();
  suppressed_count_ = static_cast<int32_t>(suppressed.size());
  QUIRE_TRY(suppressed_, own(static_cast<int64_t>(suppressed.size_bytes()), "suppressed tokens"));
  if (suppressed_count_ == 0) return {};
  std::byte* const to = suppressed_.data();
  return device_->write({&to, 1}, std::as_bytes(suppressed));
}

// Of caches with one unit in each pool.
CacheViews StepStage::views_of_one(std::byte* base) const {
  const CacheShape shape = cache_shape();
  return CacheViews(shape, base, shape.counts(1, 1));
}

// Units of the caches from what all else leaves of the device.
Result<PoolCounts> StepStage::counts_within(const DeviceRoom& room) const {
  const ModelConfig& model = config();
  const CachePools pools = cache_shape().pools().value_or(CachePools{{}});
  UnitsWithin units = units_within(plan_, pools, room.bytes);
  if (units.fits) return std::move(units.counts);
  return capacity_error(
      "{} do not fit the GPU{}: of {:.1f} GiB, {:.0f}% may be used, {:.1f} GiB are in use with weights ({:.1f} GiB) "
      "and "
      "scratch memory for steps of {} tokens and {} sequences ({:.1f} GiB), and {} tokens of keys and values need "
      "{:.2f} GiB beside {} recurrent states of {:.3f} GiB; use a shorter --context, fewer sequences, smaller steps, "
      "or "
      "a higher --gpu-memory-utilization",
      model.name.empty() ? "the model and its caches" : model.name,
      first() && last() ? "" : fmt::format(" ({})", plan_.stage_text(model)), gib(room.memory.total),
      plan_.gpu_memory_utilization * 100, gib(room.memory.used), gib(room.memory.weights), plan_.max_batch_tokens,
      plan_.max_sequences, gib(scratch_.bytes()), units.least_tokens, gib(units.least_bytes),
      state_count(pools, units.counts), gib(state_bytes(pools)));
}

Status StepStage::allocate_caches(PoolCounts units, int32_t host_pages) {
  const Clock::time_point begin = Clock::now();
  const CacheShape shape = cache_shape();
  units.resize(shape.pools().value_or(CachePools{{}}).size());
  const std::optional<int64_t> bytes = CacheViews::bytes(shape, units);
  if (!bytes) return capacity_error("the caches of this model are larger than any memory");
  if (caches_.data() == nullptr || units != counts_) {
    QUIRE_TRY(caches_, device_->allocate(Where::kOwn, *bytes, "KV blocks and recurrent states"));
    counts_ = units;
    views_ = CacheViews(shape, caches_.data(), counts_);
  }
  QUIRE_TRY(host_, device_->allocate(Where::kHost, host_pages * page_bytes_,
                                     "what leaves the caches (--swap-space, --kv-offloading-size)"));
  use_.reserve(counts_[kKvPool], state_count(pools(), counts_));
  caches_seconds_ = seconds_since(begin);
  return {};
}

// Scratch memory of the largest steps. On a device that is the host's, operators look at segments and at what is
// sampled.
Result<int64_t> StepStage::measure() {
  if (caches_.data() == nullptr) views_ = views_of_one(nullptr);
  int64_t needed = 0;
  for (const StepShape& shape : largest_steps(layout_.capacity(), plan_.most_drafts())) {
    QUIRE_TRY(const int64_t bytes, scratch_of(shape, segments_of(shape, static_cast<int32_t>(plan_.context))));
    needed = std::max(needed, bytes);
  }
  if (!plan_.encoder.any() || !first()) return needed;
  QUIRE_TRY(const int64_t bytes, encoder_scratch());
  return std::max(needed, bytes);
}

// Of pictures of any shape, however many fill a pass: as if one had all patches, in one row, and there were others
// beside. Fewer patches may take kernels that need more for each.
Result<int64_t> StepStage::encoder_scratch() {
  const VisionConfig& c = model_->vision->tower->config();
  const int64_t of_token = c.merge * c.merge;
  int64_t needed = 0;
  for (int64_t tokens = 1, most = plan_.encoder.patches / of_token;; tokens = std::min(4 * tokens, most)) {
    const ImageGrid grid = c.fixed_size() ? ImageGrid{1, c.side(), c.side()} : ImageGrid{1, c.merge, c.merge * tokens};
    QUIRE_TRY(const VisionBatch batch, VisionBatch::make(c, {&grid, 1}));
    VisionArrays arrays = batch.arrays();
    arrays.spans.count = static_cast<int32_t>(EncoderBatch::kMostPictures);
    QUIRE_TRY(const int64_t bytes, device_->measure([&](const OpContext& ctx) {
      compute_slice(ctx, {0, c.blocks}, arrays, 0);
    }));
    needed = std::max(needed, bytes);
    if (tokens >= most || c.fixed_size()) return needed;
  }
}

Result<int64_t> StepStage::scratch_of(const StepShape& shape, std::span<const Segment> segments) {
  if (!device_->is_host()) return device_->measure(shape);
  const StepArrays a = layout_.arrays(step_.data());
  const StepCapacity& c = layout_.capacity();
  std::ranges::copy(segments, a.segments);
  const SampleRow row{.temperature = 1.0f,
                      .top_p = 0.5f,
                      .typical_p = 0.5f,
                      .repetition_penalty = 2.0f,
                      .top_k = 10,
                      .logprobs = 1,
                      .history = 0};
  std::fill_n(a.sample_rows, shape.logit_rows, row);
  std::fill_n(a.score_rows, shape.scored_rows, SampleRow{.logprobs = 1, .target = 0});
  SampleRow draft = row;  // has no history and reports nothing
  draft.history = draft.logprobs = -1;
  for (int32_t j = 0; j < shape.draft_passes; ++j) {
    Segment* const pass = a.draft_segments + int64_t{j} * c.segments;
    std::ranges::copy(segments, pass);
    for (int32_t i = 0; i < shape.decodes; ++i) pass[i].row = i, pass[i].count = 1, pass[i].tentative = 0;
    std::fill_n(a.draft_samples + int64_t{j} * c.segments, shape.decodes, draft);
  }
  Result<int64_t> bytes = device_->measure(shape);
  std::fill_n(step_.data(), layout_.used_bytes(shape), std::byte{});
  return bytes;
}

// A step of prompts, one of generated tokens, one of both, and one with drafts.
std::vector<StepShape> StepStage::rehearsed() const {
  const StepCapacity& c = layout_.capacity();
  const GraphSize largest = graph_sizes(c).front();
  StepShape prompt{.rows = c.rows, .segments = 1, .logit_rows = 1, .table_width = c.table_width};
  prompt.hidden_rows = c.hidden_rows > 0 ? 1 : 0;
  std::vector<StepShape> steps = {shape_of(largest, c), shape_of({1, largest.width}, c), prompt};
  if (c.segments > 1) {
    StepShape both = prompt;
    both.segments = both.logit_rows = 2;
    both.decode_rows = both.decodes = both.decode_logit_rows = 1;
    both.decode_keys = most_keys(c, largest.width * int64_t{kBlockTokens}, 1);
    steps.push_back(both);
  }
  if (c.logit_rows > c.segments) {
    const int32_t drafts = plan_.most_drafts();
    steps.push_back(shape_of({1, largest.width, 1 + drafts, c.drafts > 0 ? drafts : 0}, c));
  }
  return steps;
}

}  // namespace quire
