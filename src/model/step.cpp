#include "model/step.h"

#include <algorithm>
#include <type_traits>
#include <utility>

namespace quire {
namespace {

constexpr int64_t kAlign = 256;

int64_t after(int64_t offset, int64_t bytes) {
  return (offset + bytes + kAlign - 1) / kAlign * kAlign;
}

using Capacity = const StepCapacity&;
using Shape = const StepShape&;

template <auto kMember>
constexpr StepArrayRow row(int64_t (*most)(Capacity), int64_t (*used)(Capacity, Shape),
                           StepArrayRow::Copied copied = StepArrayRow::Copied::kWithStep) {
  using Element = std::remove_pointer_t<std::remove_cvref_t<decltype(std::declval<StepArrays&>().*kMember)>>;
  return {.set = [](StepArrays& a, std::byte* at) { a.*kMember = reinterpret_cast<Element*>(at); },
          .element_bytes = sizeof(Element),
          .most = most,
          .used = used,
          .copied = copied};
}

int64_t draft_entries(Capacity c) {
  return int64_t{c.drafts} * c.segments;
}
int64_t used_draft_entries(Capacity c, Shape s) {
  return int64_t{s.draft_passes} * c.segments;
}
int64_t drafting_sequences(Capacity c) {
  return c.drafts > 0 ? c.segments : 0;
}
int64_t used_drafting_sequences(Capacity, Shape s) {
  return s.draft_passes > 0 ? s.decodes : 0;
}
int64_t followed_rows(Capacity c) {
  return c.drafts > 0 ? c.rows : 0;
}
int64_t used_followed_rows(Capacity, Shape s) {
  return s.follows ? s.rows : 0;
}

int64_t coordinates_of_rows(Capacity c) {
  return int64_t{c.coordinates} * c.rows;
}

using A = StepArrays;
constexpr StepArrayRow kRows[] = {
    row<&A::tokens>([](Capacity c) -> int64_t { return c.rows; }, [](Capacity, Shape s) -> int64_t { return s.rows; }),
    row<&A::sources>([](Capacity c) -> int64_t { return c.rows; }, [](Capacity, Shape s) -> int64_t { return s.rows; }),
    row<&A::segments>([](Capacity c) -> int64_t { return c.segments; },
                      [](Capacity, Shape s) -> int64_t { return s.segments; }),
    row<&A::logit_rows>([](Capacity c) -> int64_t { return c.logit_rows; },
                        [](Capacity, Shape s) -> int64_t { return s.logit_rows; }),
    row<&A::coordinates>(coordinates_of_rows,
                         [](Capacity c, Shape s) -> int64_t { return int64_t{c.coordinates} * s.rows; }),
    row<&A::draft_tokens>(draft_entries, used_draft_entries),
    row<&A::draft_sources>(draft_entries, used_draft_entries),
    row<&A::draft_segments>(draft_entries, used_draft_entries),
    row<&A::draft_samples>(draft_entries, used_draft_entries),
    row<&A::draft_rows>(drafting_sequences, used_drafting_sequences),
    row<&A::kept_rows>(drafting_sequences, used_drafting_sequences),
    row<&A::draft_coordinates>([](Capacity c) -> int64_t { return c.coordinates * draft_entries(c); },
                               [](Capacity c, Shape s) -> int64_t { return c.coordinates * used_draft_entries(c, s); }),
    row<&A::next_tokens>(followed_rows, used_followed_rows),
    row<&A::next_sources>(followed_rows, used_followed_rows),
    row<&A::keep>([](Capacity c) -> int64_t { return c.kept(); },
                  [](Capacity c, Shape s) -> int64_t { return s.follows ? c.kept() : 0; }),
    row<&A::slot_copies>([](Capacity c) -> int64_t { return int64_t{2} * c.slot_copies; },
                         [](Capacity, Shape s) -> int64_t { return int64_t{2} * s.slot_copies; }),
    row<&A::history_updates>([](Capacity c) -> int64_t { return c.segments; },
                             [](Capacity, Shape s) -> int64_t { return s.history_updates; }),
    row<&A::past_updates>([](Capacity c) -> int64_t { return c.segments; },
                          [](Capacity, Shape s) -> int64_t { return s.past_updates; }),
    row<&A::sample_rows>([](Capacity c) -> int64_t { return c.logit_rows; },
                         [](Capacity, Shape s) -> int64_t { return s.logit_rows; }),
    row<&A::hidden_rows>([](Capacity c) -> int64_t { return c.hidden_rows; },
                         [](Capacity, Shape s) -> int64_t { return s.hidden_rows; }),
    row<&A::scored_rows>([](Capacity c) -> int64_t { return c.scored_rows; },
                         [](Capacity, Shape s) -> int64_t { return s.scored_rows; }),
    row<&A::picture_rows>([](Capacity c) -> int64_t { return c.coordinates > 0 ? c.rows : 0; },
                          [](Capacity, Shape s) -> int64_t { return s.pictures ? s.rows : 0; }),
    row<&A::ends>([](Capacity c) -> int64_t { return c.ends ? c.rows : 0; },
                  [](Capacity c, Shape s) -> int64_t { return c.ends && s.pictures ? s.rows : 0; }),
    // As long as the contexts of all sequences, and used from its beginning on: what most steps have lies before it.
    row<&A::tables>([](Capacity c) -> int64_t { return int64_t{c.segments} * c.table_pitch(c.table_width); },
                    [](Capacity c, Shape s) -> int64_t { return int64_t{s.segments} * c.table_pitch(s.table_width); }),
    row<&A::bias_ids>([](Capacity c) -> int64_t { return c.biases; },
                      [](Capacity, Shape s) -> int64_t { return s.biases; }),
    row<&A::bias_values>([](Capacity c) -> int64_t { return c.biases; },
                         [](Capacity, Shape s) -> int64_t { return s.biases; }),
    row<&A::score_rows>([](Capacity c) -> int64_t { return c.scored_rows; },
                        [](Capacity, Shape s) -> int64_t { return s.scored_rows; }),
    row<&A::past_tokens>([](Capacity c) -> int64_t { return c.past; },
                         [](Capacity, Shape s) -> int64_t { return s.past_tokens; }),
    row<&A::swap_outs>([](Capacity c) -> int64_t { return c.swaps; },
                       [](Capacity, Shape s) -> int64_t { return s.swap_outs; }, StepArrayRow::Copied::kNever),
    row<&A::swap_ins>([](Capacity c) -> int64_t { return c.swaps; },
                      [](Capacity, Shape s) -> int64_t { return s.swap_ins; }, StepArrayRow::Copied::kNever),
    row<&A::masks>([](Capacity c) -> int64_t { return c.masks * mask_words(c.vocab); },
                   [](Capacity c, Shape s) -> int64_t { return s.masks * mask_words(c.vocab); },
                   StepArrayRow::Copied::kLater),
};

static_assert(std::size(kRows) == sizeof(StepArrays) / sizeof(void*), "each member of StepArrays has one row");

}  // namespace

std::span<const StepArrayRow> step_array_rows() {
  return kRows;
}

StepLayout::StepLayout(const StepCapacity& c) : capacity_(c) {
  offsets_.reserve(std::size(kRows));
  for (const StepArrayRow& r : kRows) {
    offsets_.push_back(bytes_);
    bytes_ = after(bytes_, r.most(c) * r.element_bytes);
  }
}

StepArrays StepLayout::arrays(std::byte* base) const {
  StepArrays a;
  for (size_t i = 0; i < offsets_.size(); ++i) kRows[i].set(a, base + offsets_[i]);
  return a;
}

int64_t StepLayout::end_of(const StepShape& shape, StepArrayRow::Copied copied) const {
  int64_t end = 0;
  for (size_t i = 0; i < offsets_.size(); ++i) {
    const int64_t used = kRows[i].copied == copied ? kRows[i].used(capacity_, shape) : 0;
    if (used > 0) end = std::max(end, offsets_[i] + used * kRows[i].element_bytes);
  }
  return end;
}

int64_t StepLayout::later_begin() const {
  for (size_t i = 0; i < offsets_.size(); ++i)
    if (kRows[i].copied == StepArrayRow::Copied::kLater) return offsets_[i];
  return bytes_;
}

int64_t StepLayout::later_bytes(const StepShape& shape) const {
  return std::max<int64_t>(0, end_of(shape, StepArrayRow::Copied::kLater) - later_begin());
}

DraftBatch StepLayout::drafts(std::byte* base, const StepShape& shape, int32_t* sampled, const Tensor& results) const {
  const StepArrays a = arrays(base);
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
    pass.arrays = {.tokens = a.draft_tokens + at,
                   .sources = a.draft_sources + at,
                   .segments = a.draft_segments + at,
                   .logit_rows = a.draft_rows,
                   .sample_rows = a.draft_samples + at,
                   .tables = a.tables};
    pass.sampled = step.sampled;
    if (capacity_.coordinates > 0)
      pass.coordinates = make_tensor(a.draft_coordinates + at * capacity_.coordinates, {rows, capacity_.coordinates});
    const int32_t pitch = capacity_.table_pitch(shape.table_width);
    pass.segments = {pass.arrays.segments, rows, rows, a.tables, pitch, rows, 0, shape.decode_keys};
  }
  d.kept_rows = make_tensor(a.kept_rows, {rows});
  d.follow = step;
  d.follow.shape.logit_rows = d.follow.shape.decode_logit_rows = d.follow.shape.scored_rows = 0;
  d.follow.arrays.tokens = a.next_tokens;
  d.follow.arrays.sources = a.next_sources;
  d.follow.sampled = results;
  d.keep = make_tensor(a.keep, {capacity_.kept()});
  return d;
}

StepBatch StepLayout::batch(std::byte* base, const StepShape& shape, int32_t* sampled) const {
  StepArrays a = arrays(base);
  if (capacity_.masks == 0) a.masks = nullptr;
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
          .arrays = a,
          .sampled = make_tensor(sampled, {capacity_.sampled()}),
          .hidden = {},
          .stream = {},
          .pictures = {},
          .deepstack = {},
          .coordinates =
              capacity_.coordinates > 0 ? make_tensor(a.coordinates, {shape.rows, capacity_.coordinates}) : Tensor{},
          .ends = capacity_.ends && shape.pictures ? make_tensor(a.ends, {shape.rows}) : Tensor{},
          .segments = segments};
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
