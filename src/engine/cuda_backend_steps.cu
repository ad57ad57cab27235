// Steps on a GPU: enqueued, replayed as graphs where they are, waited for.
#include "engine/cuda_backend_impl.h"

namespace quire {

void CudaBackend::submit(int buffer, const StepShape& shape) {
  Buffer& b = buffers_[buffer];
  const StepBatch step = layout_.batch(b.staging.data(), shape, nullptr);
  check_segments(step.segments, shape.rows, blocks_, slots_);
  if (window_blocks_ > 0) check_segments(step.windows, shape.rows, window_blocks_ + 1, 0);
  check_copies(layout_.arrays(b.staging.data()), shape,
               {blocks_, slots_, host_pages_.all(), *views_.shape().block_bytes(), *views_.shape().state_bytes()});
  b.shape = shape;
  use_gpu();
  enqueue_pass(b);
  if (shape.masks == 0) copy_results(b);
  b.status = std::exchange(context_.status, Status{});
  last_ = &b;
}

bool CudaBackend::masks_written(int buffer) {
  Buffer& b = buffers_[buffer];
  if (!b.status.ok()) return false;
  use_gpu();
  const cudaError_t asked = cudaStreamQuery(context_.stream);
  if (asked == cudaErrorNotReady) (void)cudaGetLastError();  // no error, and yet remembered as one
  const bool waited = asked == cudaSuccess;
  enqueue_sampling(b);
  copy_results(b);
  b.status = std::exchange(context_.status, Status{});
  return waited;
}

Result<Tensor> CudaBackend::await_drafts(int buffer) {
  use_gpu();
  const Buffer& b = buffers_[buffer];
  if (!b.status.ok()) return b.status.error();
  QUIRE_CHECKED(cuda::check(cudaEventSynchronize(b.drafted), "the GPU drafting"));
  return result_layout_.drafts(b.results.data());
}

// All of a step without masks, and the parts before the sampling of one with them.
void CudaBackend::enqueue_pass(Buffer& b) {
  b.padded = replayable(b.shape) ? pad_step(layout_, b.staging.data(), b.shape) : b.shape;
  keep(cudaEventRecord(b.begin, context_.stream), "recording an event");
  keep(cudaMemcpyAsync(step_.data(), b.staging.data(), static_cast<size_t>(layout_.used_bytes(b.padded)),
                       cudaMemcpyHostToDevice, context_.stream),
       "copying a step to the GPU");
  move(b);
  b.ready = context_.status.ok();
  if (b.shape.masks == 0) return run(b, StepPart::kAll);
  run(b, StepPart::kBegin);
  if (b.shape.draft_passes > 0) copy_drafts(b);
  keep(cudaEventRecord(b.drafted, context_.stream), "recording an event");
  run(b, StepPart::kPass);
}

void CudaBackend::enqueue_sampling(Buffer& b) {
  keep(cudaMemcpyAsync(step_.data() + layout_.later_begin(), b.staging.data() + layout_.later_begin(),
                       static_cast<size_t>(layout_.later_bytes(b.shape)), cudaMemcpyHostToDevice, context_.stream),
       "copying masks to the GPU");
  compute(b.padded, *workspace_, StepPart::kSampling);
  log_.forget();
}

void CudaBackend::copy_drafts(const Buffer& b) {
  const Tensor drafts = result_layout_.drafts(b.results.data());
  keep(cudaMemcpyAsync(drafts.data, sampled_.data() + layout_.capacity().batch_slots * sizeof(int32_t),
                       static_cast<size_t>(drafts.bytes()), cudaMemcpyDeviceToHost, context_.stream),
       "copying drafts from the GPU");
}

void CudaBackend::copy_results(const Buffer& b) {
  const cudaStream_t stream = context_.stream;
  const StepBatch host = layout_.batch(b.staging.data(), b.shape, nullptr);
  const bool tops = reports_tops(host.arrays.sample_rows, b.shape.logit_rows);
  keep(cudaMemcpyAsync(b.results.data(), results_.data(), static_cast<size_t>(result_layout_.used_bytes(tops)),
                       cudaMemcpyDeviceToHost, stream),
       "copying results from the GPU");
  if (b.shape.hidden_rows > 0) {
    const Tensor hidden = result_layout_.hidden(results_.data(), b.shape.hidden_rows);
    keep(cudaMemcpyAsync(result_layout_.hidden(b.results.data(), 0).data, hidden.data,
                         static_cast<size_t>(hidden.bytes()), cudaMemcpyDeviceToHost, stream),
         "copying hidden states from the GPU");
  }
  if (b.shape.scored_rows > 0) {
    const int64_t at = result_layout_.scored_begin(),
                  bytes = result_layout_.scored_bytes(reports_tops(host.arrays.score_rows, b.shape.scored_rows));
    keep(cudaMemcpyAsync(b.results.data() + at, results_.data() + at, static_cast<size_t>(bytes),
                         cudaMemcpyDeviceToHost, stream),
         "copying log-probabilities of prompts from the GPU");
  }
  if (b.shape.draft_passes > 0 && b.shape.masks == 0) copy_drafts(b);
  keep(cudaEventRecord(b.end, stream), "recording an event");
}

// Outside of captured launches, and behind those of the step before as far as they must be.
void CudaBackend::move(const Buffer& b) {
  if (b.shape.swap_outs == 0 && b.shape.swap_ins == 0) return;
  use_.clear();
  const Buffer* const before = last_ == &b ? nullptr : last_;  // a buffer that is used again was waited for
  if (before != nullptr) use_.note(layout_.batch(before->staging.data(), before->shape, nullptr), blocks_, slots_);
  const StepArrays a = layout_.arrays(b.staging.data());
  moves_.enqueue(context_, {.outs = {a.swap_outs, static_cast<size_t>(b.shape.swap_outs)},
                            .ins = {a.swap_ins, static_cast<size_t>(b.shape.swap_ins)},
                            .cache = views_,
                            .before = use_,
                            .before_end = before != nullptr ? before->end : nullptr});
}

// Steps of generated tokens alone, as many rows of each sequence, all of them sampled: their launches depend on few
// numbers.
bool CudaBackend::replayable(const StepShape& s) const {
  return options_.graphs && s.rows > 0 && s.rows == s.decodes * s.most_rows && s.segments == s.decodes &&
         s.logit_rows == s.rows && s.slot_copies == 0 && s.history_updates == 0 && s.past_updates == 0;
}

// Null: kernels are launched one by one.
cudaGraphExec_t CudaBackend::graph_of(const GraphSize& size) {
  if (!context_.status.ok()) return nullptr;
  return graphs_.find_or_capture(context_.stream, size, [this](const GraphSize& s) { return capture(s); });
}

// By the graph of such a step, or kernel by kernel if there is none.
void CudaBackend::run(const Buffer& b, StepPart part) {
  GraphSize size = size_of(b.padded);
  size.part = part;
  const bool empty = part == StepPart::kBegin && size.passes == 0;
  const cudaGraphExec_t graph = replayable(b.shape) && !empty ? graph_of(size) : nullptr;
  if (graph == nullptr) {
    compute(b.padded, *workspace_, part);
    return log_.computed(b.padded.rows > b.padded.decode_rows);
  }
  log_.replayed(size, [&] { compute(b.shape, *workspace_, part, true); });
  keep(cudaGraphLaunch(graph, context_.stream), "replaying a step");
}

Status CudaBackend::capture(const GraphSize& size) {
  QUIRE_CHECKED(launch(shape_of(size, layout_.capacity()), size.part));
  log_.captured(size);
  return {};
}

// For captures: an error is what an operator or a launch said.
Status CudaBackend::launch(const StepShape& shape, StepPart part) {
  compute(shape, *workspace_, part);
  return std::exchange(context_.status, Status{});
}

void CudaBackend::compute(const StepShape& shape, Workspace& workspace, StepPart part, bool only_chooses) {
  context_.weights.begin_step(context_.dry);
  context_.states_at_rest = shape.slot_copies == 0;
  const OpContext ctx{.pool = pool_,
                      .workspace = workspace,
                      .machine = machine_,
                      .choice = &options_.kernels,
                      .forced = context_.dry || only_chooses ? nullptr : &forced_,
                      .launches = context_.dry ? nullptr : log_.observer(),
                      .only_chooses = only_chooses,
                      .gpu = &context_};
  auto* const sampled = reinterpret_cast<int32_t*>(sampled_.data());
  const StepCapacity& c = layout_.capacity();
  compute_step(
      ctx, {weights_->decoder(), weights_->mtp()}, layout_.batch(step_.data(), shape, sampled),
      layout_.drafts(step_.data(), shape, sampled, result_layout_.outputs(results_.data(), shape.logit_rows).tokens),
      {},
      {.cache = views_,
       .kept = make_tensor(kept_.data(), DType::kF32, {c.kept(), c.width}),
       .history = token_history_,
       .suppressed = {reinterpret_cast<const int32_t*>(suppressed_.data()), static_cast<size_t>(suppressed_count_)},
       .out = result_layout_.outputs(results_.data(), shape.logit_rows),
       .scored = result_layout_.scored(results_.data(), shape.scored_rows),
       .hidden = result_layout_.hidden(results_.data(), shape.hidden_rows)},
      part);
}

Result<StepResults> CudaBackend::wait(int buffer) {
  use_gpu();
  Buffer& b = buffers_[buffer];
  if (!b.status.ok()) return failed(b, b.status.error());
  if (Status s = cuda::check(cudaEventSynchronize(b.end), "the GPU computing a step"); !s.ok())
    return failed(b, s.error());
  float ms = 0;
  if (Status s = cuda::check(cudaEventElapsedTime(&ms, b.begin, b.end), "timing a step"); !s.ok())
    return failed(b, s.error());
  StepResults done;
  done.out = result_layout_.outputs(b.results.data(), b.shape.logit_rows);
  done.hidden = result_layout_.hidden(b.results.data(), b.shape.hidden_rows);
  done.scored = result_layout_.scored(b.results.data(), b.shape.scored_rows);
  done.drafts = result_layout_.drafts(b.results.data());
  done.seconds = static_cast<double>(ms) * 1e-3;
  return done;
}

// Whether the device still computes. What the driver refused before anything ran (a launch's shape, a missing resource)
// leaves it sound. What a kernel did (an illegal address, a trap, an uncorrectable memory error) is told by every later
// call, and stays until the process ends. So the device is asked, and no table of codes.
Error CudaBackend::failed(const Buffer& b, Error error) {
  const bool sound = cudaStreamSynchronize(context_.stream) == cudaSuccess;
  lost_ |= !sound || !b.ready;
  return error;
}

}  // namespace quire
