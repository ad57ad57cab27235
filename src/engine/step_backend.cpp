#include "engine/step_backend.h"

#include <algorithm>
#include <cstring>

#include "engine/graph_sizes.h"
#include "ops/sampling/history.h"

namespace quire {

StepBackend::StepBackend(std::shared_ptr<const LoadedModel> model, const EnginePlan& plan,
                         std::unique_ptr<ComputeDevice> device)
    : model_(std::move(model)),
      plan_(plan),
      device_(std::move(device)),
      layout_(plan.step_capacity(model_->model->config())),
      result_layout_(layout_.capacity()) {
  if (plan_.encoder.any()) encoder_memory_ = EncoderMemory(model_->vision->tower->config(), plan_.encoder);
  int fence = 0;
  for (Buffer& b : buffers_) b.begin = fence++, b.drafted = fence++, b.end = fence++;
  QUIRE_CHECK(fence <= ComputeDevice::kFences, "{} fences are too few", ComputeDevice::kFences);
  device_->set_compute(
      [this](const OpContext& ctx, const StepShape& shape, StepPart part) { compute(ctx, shape, part); });
}

// The memory goes before the device does; what is under way uses both.
StepBackend::~StepBackend() {
  device_->stop();
}

void StepBackend::submit(int buffer, const StepShape& shape, const EncoderSlice& encode) {
  Buffer& b = buffers_[buffer];
  b.encode = encode;
  const StepBatch step = layout_.batch(b.staging.data(), shape, nullptr);
  const int32_t blocks = counts_[kKvPool], states = state_count(pools(), counts_);
  check_segments(step.segments, shape.rows, blocks, states);
  if (!step.ends.empty()) check_ends(step.segments, step.ends.as<int32_t>());
  for (int pool = kKvPool + 1; pool < block_pools(pools()); ++pool)
    check_segments(step.segments_in(pool), shape.rows, static_cast<int32_t>(views_.units(pool).dim(0)), 0);
  check_copies(step.arrays, shape, {blocks, states, host_pages_.all(), pools()[kKvPool].bytes, state_bytes(pools())});
  b.shape = shape;
  b.status = {};
  enqueue_pass(b);
  if (b.ready && shape.masks == 0) copy_results(b);
  note_status(b);
  last_ = &b;
}

// All of a step without masks, and the parts before the sampling of one with them.
void StepBackend::enqueue_pass(Buffer& b) {
  b.padded = device_->replays() && replayable(b.shape) ? pad_step(layout_, b.staging.data(), b.shape) : b.shape;
  device_->mark(b.begin);
  device_->copy(step_.data(), b.staging.data(), layout_.used_bytes(b.padded), "copying a step to the device");
  move(b);
  enqueue_encoder(b);
  note_status(b);
  b.ready = b.status.ok();
  if (!b.ready) return;  // the arrays on the device are those of the step before
  if (b.shape.masks == 0) return device_->run(b.shape, b.padded, StepPart::kAll);
  device_->run(b.shape, b.padded, StepPart::kBegin);
  if (b.shape.draft_passes > 0) copy_drafts(b);
  device_->mark(b.drafted);
  device_->run(b.shape, b.padded, StepPart::kPass);
}

// With a batch's first slice comes what the tower reads of it.
void StepBackend::enqueue_encoder(Buffer& b) {
  if (b.encode.batch == nullptr) return;
  const EncoderBatch& of = *b.encode.batch;
  const VisionArrays host = of.batch.arrays(), device = encoder_memory_.arrays(encoder_.data(), host);
  const auto to_device = [&](const void* to, const void* from, int64_t bytes) {
    device_->copy(static_cast<std::byte*>(const_cast<void*>(to)), static_cast<const std::byte*>(from), bytes,
                  "copying pictures to the device");
  };
  if (b.encode.blocks.begin == 0) {
    std::byte* to = encoder_memory_.patches(encoder_.data(), 0).bytes_at(0);
    for (const auto& picture : of.pictures) {
      to_device(to, picture->bytes().data(), std::ssize(picture->bytes()));
      to += picture->bytes().size();
    }
    to_device(device.positions.data, host.positions.data, host.positions.bytes());
    to_device(device.mixed.data, host.mixed.data, host.mixed.bytes());
    to_device(device.mix_weights.data, host.mix_weights.data, host.mix_weights.bytes());
    if (!host.pooled.empty()) {
      to_device(device.pooled.data, host.pooled.data, host.pooled.bytes());
      to_device(device.pool_weights.data, host.pool_weights.data, host.pool_weights.bytes());
    }
    to_device(device.spans.data, host.spans.data, host.spans.count * static_cast<int64_t>(sizeof(RowSpan)));
  }
  b.call = [this, &b](const OpContext& ctx) {
    encode(ctx, b.encode.blocks, b.encode.batch->batch.arrays(), b.encode.batch->first_row);
  };
  device_->call(b.call);
}

// `host`: the batch's arrays there, as copied.
void StepBackend::encode(const OpContext& ctx, const VisionSlice& blocks, const VisionArrays& host, int64_t first_row) {
  std::byte* const base = encoder_.data();
  const VisionArrays arrays = encoder_memory_.arrays(base, host);
  device_->tower()->forward_slice(ctx, blocks, encoder_memory_.patches(base, arrays.patches), arrays,
                                  encoder_memory_.stream(base, arrays.patches),
                                  encoder_memory_.output(base, first_row, arrays.tokens));
}

bool StepBackend::masks_written(int buffer) {
  Buffer& b = buffers_[buffer];
  if (!b.status.ok()) return false;
  const bool waited = device_->idle();
  const int64_t at = layout_.later_begin();
  device_->copy(step_.data() + at, b.staging.data() + at, layout_.later_bytes(b.shape), "copying masks to the device");
  device_->run(b.shape, b.padded, StepPart::kSampling);
  copy_results(b);
  note_status(b);
  return waited;
}

Result<Tensor> StepBackend::await_drafts(int buffer) {
  const Buffer& b = buffers_[buffer];
  if (!b.status.ok()) return b.status.error();
  QUIRE_CHECKED(device_->wait(b.drafted, "drafting"));
  return result_layout_.drafts(b.results.data());
}

void StepBackend::copy_drafts(const Buffer& b) {
  const Tensor drafts = result_layout_.drafts(b.results.data());
  device_->copy(static_cast<std::byte*>(drafts.data),
                sampled_.data() + layout_.capacity().batch_slots * static_cast<int64_t>(sizeof(int32_t)),
                drafts.bytes(), "copying drafts from the device");
}

void StepBackend::copy_results(const Buffer& b) {
  const auto back = [&](int64_t at, int64_t bytes, std::string_view what) {
    device_->copy(b.results.data() + at, results_.data() + at, bytes, what);
  };
  const StepArrays host = layout_.arrays(b.staging.data());
  back(0, result_layout_.used_bytes(reports_tops(host.sample_rows, b.shape.logit_rows)),
       "copying results from the device");
  if (b.shape.hidden_rows > 0)
    back(result_layout_.hidden_begin(), result_layout_.hidden_bytes(b.shape.hidden_rows),
         "copying hidden states from the device");
  if (b.shape.scored_rows > 0)
    back(result_layout_.scored_begin(), result_layout_.scored_bytes(reports_tops(host.score_rows, b.shape.scored_rows)),
         "copying log-probabilities of prompts from the device");
  if (b.shape.draft_passes > 0 && b.shape.masks == 0) copy_drafts(b);
  device_->mark(b.end);
}

void StepBackend::move(Buffer& b) {
  b.moves.clear();
  if (b.shape.swap_outs == 0 && b.shape.swap_ins == 0) return;
  use_.clear();
  const Buffer* const before = last_ == &b ? nullptr : last_;  // a buffer that is used again was waited for
  if (before != nullptr)
    use_.note(layout_.batch(before->staging.data(), before->shape, nullptr), counts_[kKvPool],
              state_count(pools(), counts_));
  const StepArrays a = layout_.arrays(b.staging.data());
  add_moves({a.swap_outs, static_cast<size_t>(b.shape.swap_outs)}, true, views_, host_.data(), use_, b.moves);
  add_moves({a.swap_ins, static_cast<size_t>(b.shape.swap_ins)}, false, views_, host_.data(), use_, b.moves);
  device_->move(b.moves, before != nullptr ? std::optional(before->end) : std::nullopt);
}

// The first thing that went wrong with the step.
void StepBackend::note_status(Buffer& b) {
  Status s = device_->enqueued();
  if (b.status.ok()) b.status = std::move(s);
}

Result<StepResults> StepBackend::wait(int buffer) {
  Buffer& b = buffers_[buffer];
  if (!b.status.ok()) return failed(b, b.status.error());
  if (Status s = device_->wait(b.end, "computing a step"); !s.ok()) return failed(b, s.error());
  const Result<double> seconds = device_->seconds(b.begin, b.end);
  if (!seconds.ok()) return failed(b, seconds.error());
  return StepResults{.out = result_layout_.outputs(b.results.data(), b.shape.logit_rows),
                     .hidden = result_layout_.hidden(b.results.data(), b.shape.hidden_rows),
                     .scored = result_layout_.scored(b.results.data(), b.shape.scored_rows),
                     .drafts = result_layout_.drafts(b.results.data()),
                     .seconds = *seconds};
}

// A device that is sound has refused this step alone; but its copies and moves must have been taken.
Error StepBackend::failed(const Buffer& b, Error error) {
  lost_ |= !device_->is_sound() || !b.ready;
  return error;
}

void StepBackend::compute(const OpContext& ctx, const StepShape& shape, StepPart part) {
  auto* const sampled = reinterpret_cast<int32_t*>(sampled_.data());
  const StepCapacity& c = layout_.capacity();
  const SampleOutputs out = result_layout_.outputs(results_.data(), shape.logit_rows);
  const bool dry = ctx.pool.dry() || (ctx.gpu != nullptr && ctx.gpu->dry);
  StepBatch batch = layout_.batch(step_.data(), shape, sampled);
  if (shape.pictures) {
    batch.pictures = encoder_memory_.rows(encoder_.data());
    batch.deepstack = encoder_memory_.deepstack(encoder_.data());
  }
  compute_step(
      ctx, device_->decoders(), batch, layout_.drafts(step_.data(), shape, sampled, out.tokens),
      device_->forward_options(dry),
      {.cache = views_,
       .kept = make_tensor(kept_.data(), DType::kF32, {c.kept(), c.width}),
       .history = token_history_,
       .suppressed = {reinterpret_cast<const int32_t*>(suppressed_.data()), static_cast<size_t>(suppressed_count_)},
       .out = out,
       .scored = result_layout_.scored(results_.data(), shape.scored_rows),
       .hidden = result_layout_.hidden(results_.data(), shape.hidden_rows)},
      part);
}

std::byte* StepBackend::unit(int pool, int32_t number) const {
  std::byte* const first = pool == kHostPages ? host_.data() : views_.units(pool).bytes_at(0);
  return first + number * static_cast<int64_t>(unit_bytes(pool));
}

size_t StepBackend::unit_bytes(int pool) const {
  return static_cast<size_t>(pools()[static_cast<size_t>(pool == kHostPages ? kKvPool : pool)].bytes);
}

Status StepBackend::read(int pool, std::span<const int32_t> units, std::span<std::byte> to) {
  const size_t each = unit_bytes(pool);
  for (size_t i = 0; i < units.size() && i * each < to.size(); ++i) {
    if (units[i] < 0) continue;
    const std::byte* const from = unit(pool, units[i]);
    const std::span<std::byte> part = to.subspan(i * each, std::min(each, to.size() - i * each));
    if (pool == kHostPages)
      std::copy_n(from, part.size(), part.data());
    else
      QUIRE_CHECKED(device_->read(part, {&from, 1}));
  }
  return {};
}

Status StepBackend::write(int pool, std::span<const int32_t> units, std::span<const std::byte> from) {
  const size_t each = unit_bytes(pool);
  for (size_t i = 0; i < units.size() && i * each < from.size(); ++i) {
    if (units[i] < 0) continue;
    std::byte* const to = unit(pool, units[i]);
    const std::span<const std::byte> part = from.subspan(i * each, std::min(each, from.size() - i * each));
    if (pool == kHostPages)
      std::copy_n(part.data(), part.size(), to);
    else
      QUIRE_CHECKED(device_->write({&to, 1}, part));
  }
  return {};
}

BackendMemory StepBackend::memory() const {
  return {.repacked = device_->weight_bytes(),
          .kv_and_state = device_->resident_bytes(caches_),
          .workspace = scratch_.bytes() + (encoder_.bytes() > 0 ? device_->resident_bytes(encoder_) : 0)};
}

}  // namespace quire
