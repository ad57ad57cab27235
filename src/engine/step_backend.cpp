#include "engine/step_backend.h"

#include <algorithm>

#include "engine/graph_sizes.h"

namespace quire {

using Mark = StepStage::Mark;

StepBackend::StepBackend(std::shared_ptr<const LoadedModel> model, const EnginePlan& plan,
                         std::vector<std::unique_ptr<ComputeDevice>> devices)
    : model_(std::move(model)),
      plan_(plan),
      layout_(plan.step_capacity(model_->model->config())),
      result_layout_(layout_.capacity()),
      sampled_(static_cast<size_t>(layout_.capacity().batch_slots)) {
  QUIRE_CHECK(std::ssize(devices) == plan.stage_count(), "{} devices for {} stages", devices.size(),
              plan.stage_count());
  for (size_t i = 0; i < devices.size(); ++i)
    stages_.push_back(
        std::make_unique<StepStage>(model_, plan_.of_stage(static_cast<int>(i)), layout_, std::move(devices[i])));
  for (int i = 0; i < kMostDepth; ++i) buffers_[i].index = i;
  order_.reserve(kMostDepth);
}

// The memory goes before the devices do; what is under way uses both.
StepBackend::~StepBackend() {
  for (const auto& stage : stages_) stage->device().stop();
}

void StepBackend::check(const Buffer& b) const {
  const StepShape& shape = b.shape;
  const StepBatch step = layout_.batch(b.staging.data(), shape, nullptr);
  const int32_t blocks = counts_[kKvPool], states = state_count(pools_, counts_);
  check_segments(step.segments, shape.rows, blocks, states);
  if (!step.ends.empty()) check_ends(step.segments, step.ends.as<int32_t>());
  for (int pool = kKvPool + 1; pool < block_pools(pools_); ++pool) {
    const int32_t units = counts_[static_cast<size_t>(pool)];
    check_segments(step.segments_in(pool), shape.rows, units + (units > 0 ? 1 : 0), 0);  // with the filler
  }
  check_copies(step.arrays, shape, {blocks, states, host_pages_.all(), pools_[kKvPool].bytes, state_bytes(pools_)});
}

void StepBackend::submit(int buffer, const StepShape& shape, const EncoderSlice& encode) {
  Buffer& b = buffers_[buffer];
  b.shape = shape;
  b.encode = encode;
  b.status = {};
  b.ready = true;
  check(b);
  b.padded = likes_even_rows() && replayable(shape) ? pad_step(layout_, b.staging.data(), shape) : shape;
  // Drafts are rows of the step, which the first stage takes in.
  const bool drafts_first = several() && shape.draft_passes > 0;
  if (drafts_first) {
    bring(last(), b);
    if (b.ready) begin_last(b), send_tokens(b);
  }
  for (size_t i = 0; i < stages_.size() && b.ready; ++i) enqueue(i, b, drafts_first && i + 1 == stages_.size());
  if (b.ready && shape.masks == 0) finish(b);
  note_status(b);
  note_sampled(b);
  order_.push_back(buffer);
}

void StepBackend::bring(StepStage& stage, Buffer& b) {
  stage.bring(b.index, b.staging.data(), b.shape, b.padded, order_);
  if (stage.first()) stage.encode(b.index, b.encode);
  note_status(b);
  b.ready = b.status.ok();  // else the arrays on the device are those of the step before
}

// Copies, and drafts.
void StepBackend::begin_last(Buffer& b) {
  last().run(b.shape, b.padded, StepPart::kBegin);
  if (b.shape.draft_passes > 0) copy_drafts(b);
  last().mark(b.index, Mark::kDrafted);
}

void StepBackend::send_tokens(const Buffer& b) {
  if (!several()) return;
  tokens_->send(b.index, last().sampled(), layout_.capacity().sampled() * int64_t{4},
                StepStage::fence(b.index, Mark::kTokensSent));
}

// What the first stage's rows are tokens of that the last one samples: in this step (drafts), or in one that may be
// under way.
void StepBackend::take_tokens(const Buffer& b) {
  const StepArrays a = layout_.arrays(b.staging.data());
  Sampled newest;
  for (int32_t i = 0; i < b.shape.rows; ++i) {
    const int32_t source = a.sources[i];
    if (source < 0) continue;
    if (source >= layout_.capacity().batch_slots) {
      newest = {submitted_ + 1, b.index};
      break;
    }
    const Sampled& s = sampled_[static_cast<size_t>(source)];
    if (s.step > newest.step) newest = s;
  }
  if (newest.buffer < 0) return;
  tokens_->receive(newest.buffer, first().sampled(), layout_.capacity().sampled() * int64_t{4},
                   StepStage::fence(newest.buffer, Mark::kTokensSent));
}

void StepBackend::note_sampled(const Buffer& b) {
  ++submitted_;
  const StepArrays a = layout_.arrays(b.staging.data());
  for (int32_t i = 0; i < b.shape.logit_rows; ++i)
    if (const int32_t slot = a.sample_rows[i].batch_slot; slot >= 0 && slot < std::ssize(sampled_))
      sampled_[static_cast<size_t>(slot)] = {submitted_, b.index};
}

// All that a stage does of a step without masks; of one with masks what comes before the sampling. `begun`: the step is
// there, and drafted.
void StepBackend::enqueue(size_t i, Buffer& b, bool begun) {
  StepStage& stage = *stages_[i];
  const bool rows = b.shape.rows > 0, masks = stage.last() && b.shape.masks > 0;
  const int64_t bytes = several() ? stage.stream_bytes(b.padded.rows) : 0;
  if (stage.first()) stage.mark(b.index, Mark::kBegin);
  if (!begun) bring(stage, b);
  if (!b.ready) return;
  if (stage.first() && several()) take_tokens(b);
  if (!stage.first()) {
    if (rows) rows_[i - 1].receive(b.index, stage.stream(), bytes, StepStage::fence(b.index, Mark::kRowsSent));
    stage.mark(b.index, Mark::kBegin);
  }
  if (masks && !begun) begin_last(b);
  stage.run(b.shape, b.padded, masks ? StepPart::kPass : begun ? StepPart::kRest : StepPart::kAll);
  if (stage.last()) return;
  if (rows) rows_[i].send(b.index, stage.stream(), bytes, StepStage::fence(b.index, Mark::kRowsSent));
  stage.mark(b.index, Mark::kEnd);
}

bool StepBackend::masks_written(int buffer) {
  Buffer& b = buffers_[buffer];
  if (!b.status.ok()) return false;
  const bool waited = last().device().idle();
  last().bring_masks(b.staging.data(), b.shape);
  last().run(b.shape, b.padded, StepPart::kSampling);
  finish(b);
  note_status(b);
  return waited;
}

Result<Tensor> StepBackend::await_drafts(int buffer) {
  const Buffer& b = buffers_[buffer];
  if (!b.status.ok()) return b.status.error();
  QUIRE_CHECKED(last().device().wait(StepStage::fence(buffer, Mark::kDrafted), "drafting"));
  return result_layout_.drafts(b.results.data());
}

void StepBackend::copy_drafts(const Buffer& b) {
  const Tensor drafts = result_layout_.drafts(b.results.data());
  last().device().copy(static_cast<std::byte*>(drafts.data),
                       last().sampled() + layout_.capacity().batch_slots * static_cast<int64_t>(sizeof(int32_t)),
                       drafts.bytes(), "copying drafts from the device");
}

// What comes back, to the first stage and to the host.
void StepBackend::finish(Buffer& b) {
  send_tokens(b);
  const auto back = [&](int64_t at, int64_t bytes, std::string_view what) {
    last().device().copy(b.results.data() + at, last().results() + at, bytes, what);
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
  if (b.shape.draft_passes > 0 && b.shape.masks == 0 && !several()) copy_drafts(b);
  last().mark(b.index, Mark::kEnd);
}

// The first thing that went wrong with the step.
void StepBackend::note_status(Buffer& b) {
  for (const auto& stage : stages_) {
    Status s = stage->device().enqueued();
    if (b.status.ok()) b.status = std::move(s);
  }
}

Result<StepResults> StepBackend::wait(int buffer) {
  Buffer& b = buffers_[buffer];
  std::erase(order_, buffer);
  if (!b.status.ok()) return failed(b, b.status.error());
  const auto fence = [&](Mark m) { return StepStage::fence(buffer, m); };
  double computed = 0.0;
  for (const auto& stage : stages_) {
    ComputeDevice& device = stage->device();
    if (Status s = device.wait(fence(Mark::kEnd), "computing a step"); !s.ok()) return failed(b, s.error());
    const Result<double> seconds = device.seconds(fence(Mark::kBegin), fence(Mark::kEnd));
    if (!seconds.ok()) return failed(b, seconds.error());
    computed += *seconds;
  }
  return StepResults{.out = result_layout_.outputs(b.results.data(), b.shape.logit_rows),
                     .hidden = result_layout_.hidden(b.results.data(), b.shape.hidden_rows),
                     .scored = result_layout_.scored(b.results.data(), b.shape.scored_rows),
                     .drafts = result_layout_.drafts(b.results.data()),
                     .seconds = computed};
}

// Devices that are sound have refused this step alone; but its copies and moves must have been taken.
Error StepBackend::failed(const Buffer& b, Error error) {
  // Of several the last one first: what waits for a device that is lost may wait for long.
  lost_ |= !b.ready || std::ranges::any_of(stages_.rbegin(), stages_.rend(),
                                           [](const auto& stage) { return !stage->device().is_sound(); });
  return error;
}

}  // namespace quire
