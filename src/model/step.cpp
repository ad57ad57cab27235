#include "model/step.h"

namespace quire {
namespace {

constexpr int64_t kAlign = 256;

int64_t after(int64_t offset, int64_t bytes) {
  return (offset + bytes + kAlign - 1) / kAlign * kAlign;
}

}  // namespace

StepLayout::StepLayout(const StepCapacity& c) : capacity_(c) {
  constexpr int64_t kInt = sizeof(int32_t);
  sources_ = after(0, c.rows * kInt);
  segments_ = after(sources_, c.rows * kInt);
  logit_rows_ = after(segments_, c.segments * static_cast<int64_t>(sizeof(Segment)));
  slot_copies_ = after(logit_rows_, c.logit_rows * kInt);
  updates_ = after(slot_copies_, c.slot_copies * 2 * kInt);
  past_updates_ = after(updates_, c.segments * static_cast<int64_t>(sizeof(HistoryUpdate)));
  sample_rows_ = after(past_updates_, c.segments * static_cast<int64_t>(sizeof(HistoryUpdate)));
  tables_ = after(sample_rows_, c.logit_rows * static_cast<int64_t>(sizeof(SampleRow)));
  bias_ids_ = after(tables_, int64_t{c.segments} * c.table_pitch(c.table_width) * kInt);
  bias_values_ = after(bias_ids_, c.biases * kInt);
  hidden_rows_ = after(bias_values_, c.biases * kInt);
  scored_rows_ = after(hidden_rows_, c.hidden_rows * kInt);
  score_rows_ = after(scored_rows_, c.scored_rows * kInt);
  past_tokens_ = after(score_rows_, c.scored_rows * static_cast<int64_t>(sizeof(SampleRow)));
  draft_tokens_ = after(past_tokens_, c.past * kInt);
  const int64_t passes = int64_t{c.drafts} * c.segments, rows = c.drafts > 0 ? c.rows : 0;
  draft_sources_ = after(draft_tokens_, passes * kInt);
  draft_segments_ = after(draft_sources_, passes * kInt);
  draft_samples_ = after(draft_segments_, passes * static_cast<int64_t>(sizeof(Segment)));
  draft_rows_ = after(draft_samples_, passes * static_cast<int64_t>(sizeof(SampleRow)));
  kept_rows_ = after(draft_rows_, c.segments * kInt);
  next_tokens_ = after(kept_rows_, c.segments * kInt);
  next_sources_ = after(next_tokens_, rows * kInt);
  keep_ = after(next_sources_, rows * kInt);
  drafts_end_ = after(keep_, c.kept() * kInt);
  swap_outs_ = drafts_end_;
  swap_ins_ = after(swap_outs_, c.swaps * static_cast<int64_t>(sizeof(HostMove)));
  masks_ = after(swap_ins_, c.swaps * static_cast<int64_t>(sizeof(HostMove)));
  bytes_ = after(masks_, c.masks * sample_mask_words(c.vocab) * kInt);
}

StepLayout::Arrays StepLayout::arrays(std::byte* base) const {
  const auto at = [&]<class T>(T*, int64_t offset) { return reinterpret_cast<T*>(base + offset); };
  int32_t* const ints = nullptr;
  return {.tokens = at(ints, 0),
          .sources = at(ints, sources_),
          .segments = at(static_cast<Segment*>(nullptr), segments_),
          .tables = at(ints, tables_),
          .logit_rows = at(ints, logit_rows_),
          .slot_copies = at(ints, slot_copies_),
          .history_updates = at(static_cast<HistoryUpdate*>(nullptr), updates_),
          .past_updates = at(static_cast<HistoryUpdate*>(nullptr), past_updates_),
          .sample_rows = at(static_cast<SampleRow*>(nullptr), sample_rows_),
          .bias_ids = at(ints, bias_ids_),
          .bias_values = at(static_cast<float*>(nullptr), bias_values_),
          .hidden_rows = at(ints, hidden_rows_),
          .scored_rows = at(ints, scored_rows_),
          .score_rows = at(static_cast<SampleRow*>(nullptr), score_rows_),
          .past_tokens = at(ints, past_tokens_),
          .swap_outs = at(static_cast<HostMove*>(nullptr), swap_outs_),
          .swap_ins = at(static_cast<HostMove*>(nullptr), swap_ins_),
          .masks = at(static_cast<uint32_t*>(nullptr), masks_),
          .drafts = {.tokens = at(ints, draft_tokens_),
                     .sources = at(ints, draft_sources_),
                     .segments = at(static_cast<Segment*>(nullptr), draft_segments_),
                     .samples = at(static_cast<SampleRow*>(nullptr), draft_samples_),
                     .rows = at(ints, draft_rows_),
                     .kept_rows = at(ints, kept_rows_),
                     .next_tokens = at(ints, next_tokens_),
                     .next_sources = at(ints, next_sources_),
                     .keep = at(ints, keep_)}};
}

SegmentArray StepLayout::window_tables(SegmentArray segments, const StepShape& shape) const {
  if (capacity_.tables > 1) segments.tables += shape.table_width;
  return segments;
}

DraftBatch StepLayout::drafts(std::byte* base, const StepShape& shape, int32_t* sampled, const Tensor& results) const {
  const Arrays all = arrays(base);
  const Arrays::Drafts& a = all.drafts;
  const StepBatch step = batch(base, shape, sampled);
  DraftBatch d;
  const int32_t rows = shape.decodes;
  for (int32_t j = 0; j < shape.draft_passes; ++j) {
    const int64_t at = int64_t{j} * capacity_.segments;
    StepBatch& pass = d.passes[j];
    pass.shape = {.rows = rows,
                  .decode_rows = rows,
                  .segments = rows,
                  .decodes = rows,
                  .logit_rows = rows,
                  .decode_logit_rows = rows,
                  .table_width = shape.table_width,
                  .longest = shape.longest,
                  .decode_keys = shape.decode_keys};
    pass.tokens = make_tensor(a.tokens + at, {rows});
    pass.sources = make_tensor(a.sources + at, {rows});
    pass.sampled = step.sampled;
    const int32_t pitch = capacity_.table_pitch(shape.table_width);
    pass.segments = {a.segments + at, rows, rows, all.tables, pitch, rows, 0, shape.decode_keys};
    pass.windows = window_tables(pass.segments, shape);
    pass.logit_rows = make_tensor(a.rows, {rows});
    pass.sample_rows = a.samples + at;
  }
  d.kept_rows = make_tensor(a.kept_rows, {rows});
  d.follow = step;
  d.follow.shape.logit_rows = d.follow.shape.decode_logit_rows = d.follow.shape.scored_rows = 0;
  d.follow.tokens = make_tensor(a.next_tokens, {shape.rows});
  d.follow.sources = make_tensor(a.next_sources, {shape.rows});
  d.follow.sampled = results;
  d.keep = make_tensor(a.keep, {capacity_.kept()});
  return d;
}

StepBatch StepLayout::batch(std::byte* base, const StepShape& shape, int32_t* sampled) const {
  const Arrays a = arrays(base);
  const SegmentArray segments{a.segments,
                              shape.segments,
                              shape.decodes,
                              a.tables,
                              capacity_.table_pitch(shape.table_width),
                              shape.decode_rows,
                              shape.rows - shape.decode_rows,
                              shape.decode_keys,
                              shape.most_rows};
  return {.shape = shape,
          .tokens = make_tensor(a.tokens, {shape.rows}),
          .sources = make_tensor(a.sources, {shape.rows}),
          .sampled = make_tensor(sampled, {capacity_.sampled()}),
          .hidden = {},
          .segments = segments,
          .windows = window_tables(segments, shape),
          .logit_rows = make_tensor(a.logit_rows, {shape.logit_rows}),
          .hidden_rows = make_tensor(a.hidden_rows, {shape.hidden_rows}),
          .scored_rows = make_tensor(a.scored_rows, {shape.scored_rows}),
          .slot_copies = make_tensor(a.slot_copies, {shape.slot_copies, 2}),
          .history_updates = a.history_updates,
          .past_updates = a.past_updates,
          .past_tokens = a.past_tokens,
          .sample_rows = a.sample_rows,
          .score_rows = a.score_rows,
          .bias_ids = a.bias_ids,
          .bias_values = a.bias_values,
          .masks = capacity_.masks > 0 ? a.masks : nullptr};
}

ResultLayout::ResultLayout(const StepCapacity& c)
    : max_top_(c.max_top), width_(c.width), batch_slots_(c.batch_slots), max_drafts_(c.drafts) {
  const int64_t row = int64_t{c.logit_rows} * 4, tops = row * c.max_top;
  logprobs_ = after(0, row);
  top_count_ = after(logprobs_, row);
  top_ids_ = after(top_count_, row);
  top_logprobs_ = after(top_ids_, tops);
  hidden_ = after(top_logprobs_, tops);
  const int64_t scored = int64_t{c.scored_rows} * 4;
  scored_.max_top = c.max_scored_top;
  scored_.tokens = after(hidden_, int64_t{c.hidden_rows} * c.width * 4);
  scored_.logprobs = after(scored_.tokens, scored);
  scored_.top_count = after(scored_.logprobs, scored);
  scored_.ranks = after(scored_.top_count, scored);
  scored_.top_ids = after(scored_.ranks, scored);
  scored_.top_logprobs = after(scored_.top_ids, scored * c.max_scored_top);
  drafts_ = after(scored_.top_logprobs, scored * c.max_scored_top);
  bytes_ = after(drafts_, int64_t{c.batch_slots} * c.drafts * 4);
}

SampleOutputs ResultLayout::outputs(std::byte* base, int64_t rows) const {
  return {.tokens = make_tensor(base, DType::kI32, {rows}),
          .logprobs = make_tensor(base + logprobs_, DType::kF32, {rows}),
          .top_ids = make_tensor(base + top_ids_, DType::kI32, {rows, max_top_}),
          .top_logprobs = make_tensor(base + top_logprobs_, DType::kF32, {rows, max_top_}),
          .top_count = make_tensor(base + top_count_, DType::kI32, {rows}),
          .ranks = {},
          .sampled = {}};
}

SampleOutputs ResultLayout::scored(std::byte* base, int64_t rows) const {
  const Scored& s = scored_;
  return {.tokens = make_tensor(base + s.tokens, DType::kI32, {rows}),
          .logprobs = make_tensor(base + s.logprobs, DType::kF32, {rows}),
          .top_ids = make_tensor(base + s.top_ids, DType::kI32, {rows, s.max_top}),
          .top_logprobs = make_tensor(base + s.top_logprobs, DType::kF32, {rows, s.max_top}),
          .top_count = make_tensor(base + s.top_count, DType::kI32, {rows}),
          .ranks = make_tensor(base + s.ranks, DType::kI32, {rows}),
          .sampled = {}};
}

}  // namespace quire
