// A step is data: everything that one forward pass and its sampling read besides weights and caches, as arrays of plain
// values in the memory of the backend that runs it. The host fills one block of memory of its own with the same layout
// (StepLayout), and one copy brings it over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/host_move.h"
#include "core/tensor.h"
#include "ops/sampling/sampling.h"
#include "ops/segments.h"

namespace quire {

// How much a step may hold: fixed when an engine is made.
struct StepCapacity {
  int32_t rows = 0;         // tokens
  int32_t segments = 0;     // sequences
  int32_t table_width = 0;  // blocks of the longest sequence
  int32_t tables = 1;       // of a sequence: one of each pool of blocks
  int32_t logit_rows = 0;
  int32_t hidden_rows = 0;     // whose final hidden states come back
  int32_t width = 0;           // of a hidden state
  int32_t scored_rows = 0;     // tokens of prompts whose log-probabilities are wanted
  int32_t max_scored_top = 0;  // likeliest tokens that are reported beside one
  int32_t slot_copies = 0;
  int32_t swaps = 0;        // blocks and pieces of states that move to the host, and so many that come back
  int32_t past = 0;         // tokens that were computed before and go into histories
  int32_t batch_slots = 0;  // sequences that run at once
  int32_t biases = 0;       // logit biases of all rows together
  int32_t masks = 0;        // of rows whose token must be one of a set
  int64_t vocab = 0;        // tokens that a mask tells of
  int32_t max_top = 0;      // likeliest tokens that are reported of a row
  int32_t drafts = 0;       // with a block for multi-token prediction: drafts of a sequence. 0: there is none
  int32_t coordinates = 0;  // of a row: 3 where images may stand in prompts, or 0
  bool ends = false;        // rows of an image attend to each other in both directions
  int64_t parts = 0;        // SchedulerLimits::max_parts: of generated tokens' keys; 0: any number

  // Entries of StepBatch::sampled: a token of each batch slot, and behind them the drafts, slot by slot.
  int32_t sampled() const { return batch_slots * (1 + drafts); }
  int32_t draft_entry(int32_t slot, int32_t draft) const { return batch_slots + slot * drafts + draft; }
  // From one sequence's block tables to the next one's, where a table is so wide.
  int32_t table_pitch(int32_t table) const { return tables * table; }
  // Hidden states that are kept from step to step: of each batch slot's last rows, at most one more than drafts.
  int32_t kept() const { return drafts == 0 ? 0 : batch_slots * (1 + drafts); }

  bool operator==(const StepCapacity&) const = default;
};

// What of it a step uses: known to the host, so that grids are sized and captured steps are found by it. Rows that no
// segment mentions and segments without rows are padding.
struct StepShape {
  int32_t rows = 0;
  int32_t decode_rows = 0;  // rows of generated tokens (and drafts): the first ones
  int32_t segments = 0;
  int32_t decodes = 0;  // segments of generated tokens: the first ones
  int32_t logit_rows = 0;
  int32_t decode_logit_rows = 0;  // of them, those of decode segments: the first ones
  int32_t hidden_rows = 0;        // rows of prompts whose final hidden states come back
  int32_t scored_rows = 0;        // rows of prompts whose next token, which is known, is looked up in their logits
  int32_t slot_copies = 0;
  int32_t swap_outs = 0, swap_ins = 0;
  int32_t history_updates = 0;                // ranges of tokens that are added to histories
  int32_t past_updates = 0, past_tokens = 0;  // the same of tokens that this step does not compute
  int32_t biases = 0;
  int32_t masks = 0;
  int32_t table_width = 0;  // blocks of the longest sequence, rounded up
  int32_t longest = 0;      // positions of the longest sequence after the step
  int64_t decode_keys = 0;  // positions of all decode segments after the step, added up
  int32_t most_rows = 1;    // of a decode segment: a generated token and its drafts
  // Of the block for multi-token prediction.
  int32_t draft_passes = 0;  // drafts of the sequence that has the most
  bool pictures = false;     // some rows are those of a vision tower
  bool follows = false;      // it follows the step: its keys and values, and the hidden states that it begins with

  bool operator==(const StepShape&) const = default;
};

// The arrays of a step that the host fills. Each has one row in the table of step.cpp, which says how long it is; here
// is what stands in it.
struct StepArrays {
  int32_t* tokens = nullptr;   // [rows], each in the vocabulary
  int32_t* sources = nullptr;  // [rows]: entry of `sampled` that the row's token is; -1: tokens[row]
  Segment* segments = nullptr;
  int32_t* logit_rows = nullptr;  // rows whose next-token logits are wanted
  // Pairs (from, to), copied before everything else of the step. No entry is both read and written, none is written
  // twice; a pair with a negative number is padding.
  int32_t* slot_copies = nullptr;            // [slot_copies, 2]: recurrent states, to save and to restore them
  HistoryUpdate* history_updates = nullptr;  // over `tokens`
  HistoryUpdate* past_updates = nullptr;     // over `past_tokens`; before `history_updates`
  SampleRow* sample_rows = nullptr;          // [logit_rows]
  int32_t* tables = nullptr;  // [segments][capacity.tables][shape.table_width]: one of each pool of blocks
  int32_t* bias_ids = nullptr;
  float* bias_values = nullptr;
  int32_t* hidden_rows = nullptr;   // rows whose hidden states after the final norm are wanted
  int32_t* scored_rows = nullptr;   // rows whose logits are looked at a slice at a time, and not kept
  SampleRow* score_rows = nullptr;  // [scored_rows]: each with a target
  int32_t* past_tokens = nullptr;   // of prompts that were found in the cache
  // Of a DraftBatch. The first four have capacity.segments entries for each pass.
  int32_t *draft_tokens = nullptr, *draft_sources = nullptr;
  Segment* draft_segments = nullptr;
  SampleRow* draft_samples = nullptr;
  int32_t* draft_rows = nullptr;                            // [decodes]: 0, 1, ...
  int32_t* kept_rows = nullptr;                             // [decodes]: kept hidden states that the first pass takes
  int32_t *next_tokens = nullptr, *next_sources = nullptr;  // [rows]
  int32_t* keep = nullptr;  // [kept]: row of the step whose hidden state an entry takes; -1: none, it stays as it is
  int32_t* coordinates = nullptr;        // [rows, 3]: where rows stand for the rotation (ops/attention)
  int32_t* draft_coordinates = nullptr;  // [drafts][capacity.segments, 3]
  int32_t* picture_rows = nullptr;       // [rows]: of what a vision tower put out, the one that is the row's input; -1:
                                         // its token's embedding is
  int32_t* ends = nullptr;  // [rows]: of a picture's rows, where its tokens end in the sequence; 0 of all others
  // What leaves for the host, and what comes back. Carried out one after the other in this order before anything else
  // of the step, and read where the host wrote them.
  HostMove *swap_outs = nullptr, *swap_ins = nullptr;
  // [masks][mask_words(vocab)]: what rows may sample. Null in a batch where there can be none.
  uint32_t* masks = nullptr;
};

// Rows of a step between two parts of a model that several devices have: the residual stream, and where layers have
// embeddings of their own, these of all layers. Both float32.
struct StreamRows {
  Tensor x;          // [rows, D]; empty: the pass has it in its scratch memory
  Tensor per_layer;  // [rows, L P]
};

// The arrays of a step in one memory, as a pass reads them.
struct StepBatch {
  StepShape shape;
  StepArrays arrays;
  // [batch_slots] i32: what each batch slot sampled last, written by `sample`; with multi-token prediction the drafts
  // of each are behind them (StepCapacity::draft_entry)
  Tensor sampled;
  Tensor hidden;  // [rows, D] f32: of a pass of the block for multi-token prediction, which takes it beside the tokens
  StreamRows stream;   // of a part of a model, which goes on with it where it does not begin the model
  Tensor pictures;     // [any number, D] f32: what a vision tower put out, where rows of the step are of it
  Tensor deepstack;    // [levels, as many, D] f32: what the first layers add to those rows; empty: nothing
  Tensor coordinates;  // [rows, 3] i32; empty: rows stand at their positions
  Tensor ends;         // [rows] i32: ops/attention, PagedAttentionArgs::ends; empty: all attend to what is before them
  SegmentArray segments;  // with the block tables of the pool kKvPool
  // The same with those of another pool of blocks. In one of windows, entries of positions before a window name any
  // block that holds numbers.
  SegmentArray segments_in(int pool) const {
    SegmentArray s = segments;
    s.tables += int64_t{pool} * shape.table_width;
    return s;
  }

  int64_t rows() const { return shape.rows; }
  Tensor tokens() const { return make_tensor(arrays.tokens, {shape.rows}); }
  Tensor sources() const { return make_tensor(arrays.sources, {shape.rows}); }
  Tensor logit_rows() const { return make_tensor(arrays.logit_rows, {shape.logit_rows}); }
  Tensor hidden_rows() const { return make_tensor(arrays.hidden_rows, {shape.hidden_rows}); }
  int64_t deepstack_levels() const { return deepstack.empty() ? 0 : deepstack.dim(0); }
  Tensor deepstack_level(int64_t level) const {
    return make_tensor(deepstack.bytes_at(level * deepstack.stride[0]), deepstack.dtype,
                       {deepstack.dim(1), deepstack.dim(2)});
  }
  Tensor picture_rows() const { return make_tensor(arrays.picture_rows, {shape.rows}); }
  Tensor scored_rows() const { return make_tensor(arrays.scored_rows, {shape.scored_rows}); }
  Tensor slot_copies() const { return make_tensor(arrays.slot_copies, {shape.slot_copies, 2}); }
};

// What of a step is the multi-token-prediction block's.
//   passes  before the step's own pass, one for each draft. Row i is segment i's, one of the step's decode segments, or
//           padding. The first takes the newest token and the hidden state that was kept of the position before it;
//           each of the others the draft before it and the block's own hidden state. The step's rows read the drafts
//           through their `sources`
//   follow  behind the sampling: the step's rows, each with the token after it, for the block's keys and values. After
//           the rows of generated tokens and the last one of a prompt that is what they sampled: of a wrong draft the
//           entry is wrong, and the next step's takes its place
struct DraftBatch {
  StepBatch passes[kMostDrafts];
  Tensor kept_rows;  // [decodes] i32
  StepBatch follow;  // `sampled` are the step's results, by logit row
  Tensor keep;       // [kept] i32
};

// One of StepArrays: a row of the table that all else about it follows from. A new array is a member above and a row.
struct StepArrayRow {
  // When it comes to the backend: with the step, once it has been written behind Backend::submit(), or never, because
  // the host's copy is read.
  enum class Copied : uint8_t { kWithStep, kLater, kNever };

  void (*set)(StepArrays& arrays, std::byte* at);
  int64_t element_bytes;
  int64_t (*most)(const StepCapacity& c);                      // elements that any step has
  int64_t (*used)(const StepCapacity& c, const StepShape& s);  // and that one of this shape has
  Copied copied = Copied::kWithStep;
};
// In the order in which they lie in memory: what can be large and seldom is comes last.
std::span<const StepArrayRow> step_array_rows();

// Where each array lies in a block of memory: in the host's and in the backend's at the same offsets.
class StepLayout {
 public:
  StepLayout() = default;
  explicit StepLayout(const StepCapacity& capacity);

  const StepCapacity& capacity() const { return capacity_; }
  int64_t bytes() const { return bytes_; }

  StepArrays arrays(std::byte* base) const;  // for the host to fill
  // Views of the arrays at `base`, as far as `shape` uses them. `sampled` is the backend's own.
  StepBatch batch(std::byte* base, const StepShape& shape, int32_t* sampled) const;
  // `results`: of the step's logit rows.
  DraftBatch drafts(std::byte* base, const StepShape& shape, int32_t* sampled, const Tensor& results) const;
  // How many of the bytes, from the first one on, a backend needs of a step of this shape when it is submitted.
  int64_t used_bytes(const StepShape& shape) const { return end_of(shape, StepArrayRow::Copied::kWithStep); }
  // What it needs besides, once that is written: masks.
  int64_t later_begin() const;
  int64_t later_bytes(const StepShape& shape) const;

 private:
  int64_t end_of(const StepShape& shape, StepArrayRow::Copied copied) const;

  StepCapacity capacity_;
  std::vector<int64_t> offsets_;  // of step_array_rows()
  int64_t bytes_ = 0;
};

// What comes back from a step, likewise: one block of memory.
class ResultLayout {
 public:
  ResultLayout() = default;
  explicit ResultLayout(const StepCapacity& capacity);
  int64_t bytes() const { return bytes_; }
  // For `rows` logit rows, without `sampled`, which stays with the backend.
  SampleOutputs outputs(std::byte* base, int64_t rows) const;
  // How many of the bytes hold anything of these, by whether likeliest tokens were asked for.
  int64_t used_bytes(bool tops) const { return tops ? hidden_ : top_ids_; }
  // For `rows` scored rows: where they lie, behind the hidden states, and how many of the bytes from there on hold
  // anything.
  SampleOutputs scored(std::byte* base, int64_t rows) const;
  int64_t scored_begin() const { return scored_.tokens; }
  int64_t scored_bytes(bool tops) const { return (tops ? drafts_ : scored_.top_ids) - scored_.tokens; }
  // All drafts that `sampled` holds, by batch slot [batch_slots, drafts]: at the end.
  Tensor drafts(std::byte* base) const { return make_tensor(base + drafts_, DType::kI32, {batch_slots_, max_drafts_}); }
  int64_t hidden_begin() const { return hidden_; }
  int64_t hidden_bytes(int64_t rows) const { return rows * width_ * 4; }
  // Hidden states [rows, width] f32, behind those: a step without any leaves them alone.
  Tensor hidden(std::byte* base, int64_t rows) const {
    return make_tensor(base + hidden_, DType::kF32, {rows, width_});
  }

 private:
  struct Scored {
    int64_t max_top = 0, tokens = 0, logprobs = 0, top_count = 0, ranks = 0, top_ids = 0, top_logprobs = 0;
  };
  int64_t max_top_ = 0, width_ = 0, batch_slots_ = 0, max_drafts_ = 0, drafts_ = 0, logprobs_ = 0, top_count_ = 0,
          top_ids_ = 0, top_logprobs_ = 0, hidden_ = 0, bytes_ = 0;
  Scored scored_;
};

}  // namespace quire
