#include "engine/step_stage.h"

#include <algorithm>

#include "ops/sampling/history.h"

namespace quire {

StepStage::StepStage(std::shared_ptr<const LoadedModel> model, const EnginePlan& plan, const StepLayout& layout,
                     std::unique_ptr<ComputeDevice> device)
    : model_(std::move(model)),
      plan_(plan),
      layout_(layout),
      device_(std::move(device)),
      result_layout_(layout.capacity()),
      page_bytes_(plan.page_bytes(config())) {
  static_assert(kMostDepth * kMarks <= ComputeDevice::kFences);
  if (plan_.encoder.any() && first()) encoder_memory_ = EncoderMemory(model_->vision->tower->config(), plan_.encoder);
  device_->set_compute(
      [this](const OpContext& ctx, const StepShape& shape, StepPart part) { compute(ctx, shape, part); });
}

void StepStage::bring(int buffer, const std::byte* staging, const StepShape& shape, const StepShape& padded,
                      std::span<const int> before) {
  Buffer& b = buffers_[buffer];
  b.staging = staging;
  b.shape = shape;
  device_->copy(step_.data(), staging, layout_.used_bytes(padded), "copying a step to the device");
  move(buffer, before);
}

void StepStage::bring_masks(const std::byte* staging, const StepShape& shape) {
  const int64_t at = layout_.later_begin();
  device_->copy(step_.data() + at, staging + at, layout_.later_bytes(shape), "copying masks to the device");
}

void StepStage::move(int buffer, std::span<const int> before) {
  Buffer& b = buffers_[buffer];
  b.moves.clear();
  if (b.shape.swap_outs == 0 && b.shape.swap_ins == 0) return;
  use_.clear();
  const auto base = [](const Buffer& of) { return const_cast<std::byte*>(of.staging); };  // that is only read
  for (const int other : before) {
    const Buffer& of = buffers_[other];
    use_.note(layout_.batch(base(of), of.shape, nullptr), counts_[kKvPool], state_count(pools(), counts_));
  }
  const StepArrays a = layout_.arrays(base(b));
  const auto add = [&](std::span<const HostMove> moves, bool out) {
    add_moves(moves, out, views_, host_.data(), page_bytes_, use_, b.moves);
  };
  add({a.swap_outs, static_cast<size_t>(b.shape.swap_outs)}, true);
  add({a.swap_ins, static_cast<size_t>(b.shape.swap_ins)}, false);
  // The newest of them ends after the others.
  device_->move(b.moves, before.empty() ? std::nullopt : std::optional(fence(before.back(), kEnd)));
}

// With a batch's first slice comes what the tower reads of it.
void StepStage::encode(int buffer, const EncoderSlice& slice) {
  Buffer& b = buffers_[buffer];
  b.encode = slice;
  if (slice.batch == nullptr) return;
  const EncoderBatch& of = *slice.batch;
  const VisionArrays host = of.batch.arrays(), device = encoder_memory_.arrays(encoder_.data(), host);
  const auto to_device = [&](const void* to, const void* from, int64_t bytes) {
    device_->copy(static_cast<std::byte*>(const_cast<void*>(to)), static_cast<const std::byte*>(from), bytes,
                  "copying pictures to the device");
  };
  if (slice.blocks.begin == 0) {
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
    compute_slice(ctx, b.encode.blocks, b.encode.batch->batch.arrays(), b.encode.batch->first_row);
  };
  device_->call(b.call);
}

// `host`: the batch's arrays there, as copied.
void StepStage::compute_slice(const OpContext& ctx, const VisionSlice& blocks, const VisionArrays& host,
                              int64_t first_row) {
  std::byte* const base = encoder_.data();
  const VisionArrays arrays = encoder_memory_.arrays(base, host);
  device_->tower()->forward_slice(ctx, blocks, encoder_memory_.patches(base, arrays.patches), arrays,
                                  encoder_memory_.stream(base, arrays.patches),
                                  encoder_memory_.output(base, first_row, arrays.tokens));
}

// Of one device alone the stream is in scratch memory.
StreamRows StepStage::stream_rows(int64_t rows) const {
  if (first() && last()) return {};
  const int64_t d = config().d_model, all = stream_width() - d;
  StreamRows s{.x = make_tensor(stream_.data(), DType::kF32, {rows, d}), .per_layer = {}};
  if (all > 0) s.per_layer = make_tensor(stream_.data() + rows * d * 4, DType::kF32, {rows, all});
  return s;
}

void StepStage::compute(const OpContext& ctx, const StepShape& shape, StepPart part) {
  auto* const sampled = reinterpret_cast<int32_t*>(sampled_.data());
  const StepCapacity& c = layout_.capacity();
  SampleOutputs out, scored;
  Tensor hidden;
  if (last()) {
    out = result_layout_.outputs(results_.data(), shape.logit_rows);
    scored = result_layout_.scored(results_.data(), shape.scored_rows);
    hidden = result_layout_.hidden(results_.data(), shape.hidden_rows);
  }
  const bool dry = ctx.pool.dry() || (ctx.gpu != nullptr && ctx.gpu->dry);
  StepBatch batch = layout_.batch(step_.data(), shape, sampled);
  batch.stream = stream_rows(shape.rows);
  if (shape.pictures && first()) {
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
       .scored = scored,
       .hidden = hidden},
      part);
}

std::byte* StepStage::unit(int pool, int32_t number) const {
  if (is_on_host(pool)) return host_.data() + number * page_bytes_;
  return views_.units(pool).bytes_at(0) + number * pools()[static_cast<size_t>(pool)].bytes;
}

Status StepStage::read(int pool, int32_t number, std::span<std::byte> to) const {
  const std::byte* const from = unit(pool, number);
  if (!is_on_host(pool)) return device_->read(to, {&from, 1});
  std::copy_n(from, to.size(), to.data());
  return {};
}

Status StepStage::write(int pool, int32_t number, std::span<const std::byte> from) {
  std::byte* const to = unit(pool, number);
  if (!is_on_host(pool)) return device_->write({&to, 1}, from);
  std::copy_n(from.data(), from.size(), to);
  return {};
}

BackendMemory StepStage::memory() const {
  return {.repacked = device_->weight_bytes(),
          .kv_and_state = device_->resident_bytes(caches_),
          .workspace = scratch_.bytes() + (encoder_.bytes() > 0 ? device_->resident_bytes(encoder_) : 0)};
}

}  // namespace quire
