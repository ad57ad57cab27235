// What a backend allocates, and how much that is.
#include <algorithm>
#include <chrono>

#include "core/log.h"
#include "engine/graph_sizes.h"
#include "engine/memory_plan.h"
#include "engine/pool_units.h"
#include "engine/step_backend.h"
#include "ops/sampling/history.h"

namespace quire {
namespace {

using Where = ComputeDevice::Where;

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

Result<std::unique_ptr<StepBackend>> StepBackend::create(const std::shared_ptr<const LoadedModel>& model,
                                                         const EnginePlan& plan,
                                                         std::unique_ptr<ComputeDevice> device) {
  std::unique_ptr<StepBackend> b(new StepBackend(model, plan, std::move(device)));
  QUIRE_CHECKED(b->allocate());
  return b;
}

Result<int64_t> StepBackend::step_bytes(const std::shared_ptr<const LoadedModel>& model, const EnginePlan& plan,
                                        std::unique_ptr<ComputeDevice> device) {
  StepBackend b(model, plan, std::move(device));
  QUIRE_CHECKED(b.device_->place(0));
  QUIRE_TRY(const int64_t scratch, b.measure());
  return scratch + b.fixed_bytes() + b.device_->overhead_bytes(b.layout_.capacity());
}

Status StepBackend::allocate() {
  using Clock = std::chrono::steady_clock;
  Clock::time_point last = Clock::now();
  const auto seconds = [&last] {
    const Clock::time_point now = Clock::now();
    return std::chrono::duration<double>(now - std::exchange(last, now)).count();
  };
  const CacheShape shape = plan_.cache_shape(model_->model->config());
  const std::optional<CachePools> pools = shape.pools();
  if (!pools) return capacity_error("the caches of this model are larger than any memory");
  counts_ = plan_.wanted_units(*pools);
  QUIRE_CHECKED(device_->place(CacheViews::bytes(shape, counts_).value_or(0)));
  // The host's are addresses, which take nothing, and which dry passes look at.
  if (device_->is_host()) QUIRE_CHECKED(allocate_caches());
  QUIRE_CHECKED(allocate_fixed());
  const double fixed = seconds();
  if (!device_->is_host()) {
    QUIRE_CHECKED(device_->rehearse(rehearsed()));
    QUIRE_TRY(const DeviceRoom room, device_->room(layout_.capacity()));
    QUIRE_TRY(counts_, counts_within(room, *pools));
    QUIRE_CHECKED(allocate_caches());
  }
  const double caches = seconds();
  const std::string prepared = device_->start(layout_.capacity());
  if (!device_->is_host())
    log_info(fmt::format("{}: arrays and scratch {:.2f} s ({:.2f} GiB), caches {:.2f} s ({:.2f} GiB), {} {:.2f} s",
                         device_->machine().device == Device::kCuda ? "cuda" : "device", fixed, gib(scratch_.bytes()),
                         caches, gib(caches_.bytes()), prepared, seconds()));
  return {};
}

int64_t StepBackend::fixed_bytes() const {
  const StepCapacity& c = layout_.capacity();
  const int64_t vocab = model_->model->config().vocab, seen = std::min(vocab, plan_.context);
  return layout_.bytes() + result_layout_.bytes() + c.sampled() * int64_t{4} + int64_t{c.kept()} * c.width * 4 +
         token_history_bytes(c.batch_slots, vocab, seen) + encoder_memory_.bytes();
}

// Everything but the caches.
Status StepBackend::allocate_fixed() {
  const StepCapacity& c = layout_.capacity();
  const int64_t vocab = model_->model->config().vocab, seen = std::min(vocab, plan_.context);
  for (Buffer& b : buffers_) {
    QUIRE_TRY(b.staging, device_->allocate(Where::kHost, layout_.bytes(), "the arrays of a step"));
    QUIRE_TRY(b.results, device_->allocate(Where::kHost, result_layout_.bytes(), "the results of a step"));
    b.moves.reserve(static_cast<size_t>(2 * c.swaps));
  }
  const auto own = [&](int64_t bytes, std::string_view what) { return device_->allocate(Where::kOwn, bytes, what); };
  QUIRE_TRY(step_, own(layout_.bytes(), "the arrays of a step"));
  QUIRE_TRY(results_, own(result_layout_.bytes(), "the results of a step"));
  QUIRE_TRY(sampled_, own(c.sampled() * int64_t{4}, "sampled tokens"));
  QUIRE_TRY(kept_, own(int64_t{c.kept()} * c.width * 4, "hidden states for drafts"));
  QUIRE_TRY(history_, own(token_history_bytes(c.batch_slots, vocab, seen), "the history of penalties"));
  token_history_ = lay_out_token_history(history_.data(), c.batch_slots, vocab, seen);
  std::span<const TokenId> suppressed;
  if (model_->tokenizer) suppressed = model_->tokenizer->suppress_tokens();
  suppressed_count_ = static_cast<int32_t>(suppressed.size());
  QUIRE_TRY(suppressed_, own(static_cast<int64_t>(suppressed.size_bytes()), "suppressed tokens"));
  if (suppressed_count_ > 0) {
    std::byte* const to = suppressed_.data();
    QUIRE_CHECKED(device_->write({&to, 1}, std::as_bytes(suppressed)));
  }
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

// Of caches with one unit in each pool.
CacheViews StepBackend::views_of_one(std::byte* base) const {
  const CacheShape shape = plan_.cache_shape(model_->model->config());
  return CacheViews(shape, base, shape.counts(1, 1));
}

// Units of the caches from what all else leaves of the device.
Result<PoolCounts> StepBackend::counts_within(const DeviceRoom& room, const CachePools& pools) const {
  const ModelConfig& model = model_->model->config();
  UnitsWithin units = units_within(plan_, pools, room.bytes);
  if (units.fits) return std::move(units.counts);
  return capacity_error(
      "{} do not fit the GPU: of {:.1f} GiB, {:.0f}% may be used, {:.1f} GiB are in use with weights ({:.1f} GiB) and "
      "scratch memory for steps of {} tokens and {} sequences ({:.1f} GiB), and {} tokens of keys and values need "
      "{:.2f} GiB beside {} recurrent states of {:.3f} GiB; use a shorter --context, fewer sequences, smaller steps, "
      "or "
      "a higher --gpu-memory-utilization",
      model.name.empty() ? "the model and its caches" : model.name, gib(room.memory.total),
      plan_.gpu_memory_utilization * 100, gib(room.memory.used), gib(room.memory.weights), plan_.max_batch_tokens,
      plan_.max_sequences, gib(scratch_.bytes()), units.least_tokens, gib(units.least_bytes),
      state_count(pools, units.counts), gib(state_bytes(pools)));
}

Status StepBackend::allocate_caches() {
  const CacheShape shape = plan_.cache_shape(model_->model->config());
  const std::optional<int64_t> bytes = CacheViews::bytes(shape, counts_);
  if (!bytes) return capacity_error("the caches of this model are larger than any memory");
  QUIRE_TRY(caches_, device_->allocate(Where::kOwn, *bytes, "KV blocks and recurrent states"));
  views_ = CacheViews(shape, caches_.data(), counts_);
  const int64_t page = pools()[kKvPool].bytes;
  host_pages_ = host_pages_of(plan_, page);
  QUIRE_TRY(host_, device_->allocate(Where::kHost, host_pages_.all() * page,
                                     "what leaves the caches (--swap-space, --kv-offloading-size)"));
  use_.reserve(counts_[kKvPool], state_count(pools(), counts_));
  return {};
}

// Scratch memory of the largest steps. On a device that is the host's, operators look at segments and at what is
// sampled.
Result<int64_t> StepBackend::measure() {
  if (caches_.data() == nullptr) views_ = views_of_one(nullptr);
  int64_t needed = 0;
  for (const StepShape& shape : largest_steps(layout_.capacity(), plan_.most_drafts())) {
    QUIRE_TRY(const int64_t bytes, scratch_of(shape, segments_of(shape, static_cast<int32_t>(plan_.context))));
    needed = std::max(needed, bytes);
  }
  if (!plan_.encoder.any()) return needed;
  QUIRE_TRY(const int64_t bytes, encoder_scratch());
  return std::max(needed, bytes);
}

// Of pictures of any shape, however many fill a pass: as if one had all patches, in one row, and there were others
// beside. Fewer patches may take kernels that need more for each.
Result<int64_t> StepBackend::encoder_scratch() {
  const VisionConfig& c = model_->vision->tower->config();
  const int64_t of_token = c.merge * c.merge;
  int64_t needed = 0;
  for (int64_t tokens = 1, most = plan_.encoder.patches / of_token;; tokens = std::min(4 * tokens, most)) {
    const ImageGrid grid = c.fixed_size() ? ImageGrid{1, c.side(), c.side()} : ImageGrid{1, c.merge, c.merge * tokens};
    QUIRE_TRY(const VisionBatch batch, VisionBatch::make(c, {&grid, 1}));
    VisionArrays arrays = batch.arrays();
    arrays.spans.count = static_cast<int32_t>(EncoderBatch::kMostPictures);
    QUIRE_TRY(const int64_t bytes, device_->measure([&](const OpContext& ctx) {
      encode(ctx, {0, c.blocks}, arrays, 0);
    }));
    needed = std::max(needed, bytes);
    if (tokens >= most || c.fixed_size()) return needed;
  }
}

Result<int64_t> StepBackend::scratch_of(const StepShape& shape, std::span<const Segment> segments) {
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
std::vector<StepShape> StepBackend::rehearsed() const {
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
