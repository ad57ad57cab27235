// A step is data: everything that one forward pass and its sampling read besides weights and caches, as arrays of plain
// values in the memory of the backend that runs it. The host fills one block of memory of its own with the same layout
// (StepLayout), and one copy brings it over.
#pragma once

#include <cstddef>
#include <cstdint>

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
  int32_t max_top = 0;      // likeliest tokens that are reported of a row

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
  int32_t table_width = 0;  // blocks of the longest sequence, rounded up: the pitch of the block tables
  int32_t longest = 0;      // positions of the longest sequence after the step
  int64_t decode_keys = 0;  // positions of all decode segments after the step, added up

  bool operator==(const StepShape&) const = default;
};

// The arrays of a step, in one memory.
struct StepBatch {
  StepShape shape;
  Tensor tokens;   // [rows] i32, each in the vocabulary
  Tensor sources;  // [rows] i32: batch slot whose token, sampled in the step before, the row holds; -1: tokens[row]
  Tensor sampled;  // [batch_slots] i32: what each batch slot sampled last, written by `sample`
  SegmentArray segments;
  Tensor logit_rows;   // [logit_rows] i32: rows whose next-token logits are wanted
  Tensor hidden_rows;  // [hidden_rows] i32: rows whose hidden states after the final norm are wanted
  Tensor scored_rows;  // [scored_rows] i32: rows whose logits are looked at a slice at a time, and not kept
  // Pairs (from, to), copied before everything else of the step. No entry is both read and written, none is written
  // twice; a pair with a negative number is padding.
  Tensor slot_copies;  // [slot_copies, 2] i32: recurrent states, to save and to restore them
  const HistoryUpdate* history_updates = nullptr;  // [history_updates], over `tokens`
  const HistoryUpdate* past_updates = nullptr;     // [past_updates], over `past_tokens`; before `history_updates`
  const int32_t* past_tokens = nullptr;            // [past_tokens]: of prompts that were found in the cache
  const SampleRow* sample_rows = nullptr;          // [logit_rows]
  const SampleRow* score_rows = nullptr;           // [scored_rows]: each with a target
  const int32_t* bias_ids = nullptr;               // [biases]
  const float* bias_values = nullptr;              // [biases]

  int64_t rows() const { return shape.rows; }
};

// Where each array lies in a block of memory: in the host's and in the backend's at the same offsets.
class StepLayout {
 public:
  StepLayout() = default;
  explicit StepLayout(const StepCapacity& capacity);

  const StepCapacity& capacity() const { return capacity_; }
  int64_t bytes() const { return bytes_; }

  struct Arrays {  // for the host to fill
    int32_t* tokens = nullptr;
    int32_t* sources = nullptr;
    Segment* segments = nullptr;
    int32_t* tables = nullptr;  // [segments][shape.table_width]
    int32_t* logit_rows = nullptr;
    int32_t* slot_copies = nullptr;
    HistoryUpdate* history_updates = nullptr;
    HistoryUpdate* past_updates = nullptr;
    SampleRow* sample_rows = nullptr;
    int32_t* bias_ids = nullptr;
    float* bias_values = nullptr;
    int32_t* hidden_rows = nullptr;
    int32_t* scored_rows = nullptr;
    SampleRow* score_rows = nullptr;
    int32_t* past_tokens = nullptr;
    // What leaves for the host, and what comes back. Carried out one after the other in this order before anything else
    // of the step, and read where the host wrote them.
    HostMove* swap_outs = nullptr;
    HostMove* swap_ins = nullptr;
  };
  Arrays arrays(std::byte* base) const;
  // Views of the arrays at `base`, as far as `shape` uses them. `sampled` is the backend's own.
  StepBatch batch(std::byte* base, const StepShape& shape, int32_t* sampled) const;
  // How many of the bytes a backend needs of a step of this shape: block tables, biases, hidden and scored rows and
  // past tokens, which can be large and seldom are, come last.
  int64_t used_bytes(const StepShape& shape) const {
    if (shape.past_tokens > 0) return past_tokens_ + int64_t{shape.past_tokens} * 4;
    if (shape.scored_rows > 0) return past_tokens_;
    if (shape.hidden_rows > 0) return scored_rows_;
    return shape.biases > 0 ? hidden_rows_ : tables_ + int64_t{shape.segments} * shape.table_width * 4;
  }

 private:
  StepCapacity capacity_;
  int64_t sources_ = 0, segments_ = 0, tables_ = 0, logit_rows_ = 0, slot_copies_ = 0, updates_ = 0, past_updates_ = 0,
          sample_rows_ = 0, bias_ids_ = 0, bias_values_ = 0, hidden_rows_ = 0, scored_rows_ = 0, score_rows_ = 0,
          past_tokens_ = 0, swap_outs_ = 0, swap_ins_ = 0, bytes_ = 0;
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
  int64_t scored_bytes(bool tops) const { return (tops ? bytes_ : scored_.top_ids) - scored_.tokens; }
  // Hidden states [rows, width] f32, behind those: a step without any leaves them alone.
  Tensor hidden(std::byte* base, int64_t rows) const {
    return make_tensor(base + hidden_, DType::kF32, {rows, width_});
  }

 private:
  struct Scored {
    int64_t max_top = 0, tokens = 0, logprobs = 0, top_count = 0, ranks = 0, top_ids = 0, top_logprobs = 0;
  };
  int64_t max_top_ = 0, width_ = 0, logprobs_ = 0, top_count_ = 0, top_ids_ = 0, top_logprobs_ = 0, hidden_ = 0,
          bytes_ = 0;
  Scored scored_;
};

}  // namespace quire
