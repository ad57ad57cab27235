// What a step says about each row that is sampled, and about the tokens that penalties look back on: plain
// data in the memory of the device that reads it, so that it can be uploaded as it is and read by captured
// graphs. Includes nothing that CUDA sources could not read.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/mask_words.h"

namespace quire {

// Bits of SampleRow::flags.
//   kSampleIdle       padding: nothing of the row is read, and only its own outputs are written (token -1)
//   kSampleTentative  a draft's row, which may yet be rejected, or one before it: it reads its history but is not noted
//                     in it, and leaves `sampled` alone. Whoever accepts the token does both
inline constexpr uint32_t kSampleIdle = 1, kSampleTentative = 2;

// How one row is sampled. What the numbers mean, and their ranges: SamplingParams (sampling.h), whose neutral
// values are the defaults here.
struct SampleRow {
  uint64_t seed = 0;
  int64_t position = 0;  // of the token being sampled: the counter of the random generator
  float temperature = 0.0f;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float typical_p = 1.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  int32_t top_k = 0;
  int32_t logprobs = -1;    // -1: none; n: the token's, and those of the n likeliest
  int32_t batch_slot = -1;  // the sequence's: sampled[batch_slot] becomes the token. -1: nowhere
  // The row of TokenHistory that penalties read and that the token is noted in. -1: the sequence is not
  // tracked, and has no penalties. An index of its own, so that there may be fewer histories than batch slots:
  // each takes memory for the whole vocabulary.
  int32_t history = -1;
  int32_t bias_begin = 0;  // [bias_begin, bias_begin + bias_count) of the step's biases: distinct ids
  int32_t bias_count = 0;
  uint32_t flags = 0;
  // Not -1: nothing is sampled. The row's token is this one, in [0, V), and what is reported is how likely it was. Only
  // `logprobs`, which is at least 0, means something then; batch slot and history are -1.
  int32_t target = -1;
  int32_t mask = -1;  // which of the step's masks says what the token may be; -1: any
  // With penalties: tokens behind the prompt that the history lacks, counted as if they were in it.
  int32_t unnoted_begin = 0, unnoted_count = 0;  // of the ids of the step's biases
  int32_t drafts_begin = 0, drafts_count = 0;    // of `sampled`: drafts before this row that only the device knows
};
static_assert(std::is_trivially_copyable_v<SampleRow> && std::is_standard_layout_v<SampleRow> &&
              sizeof(SampleRow) == 96);

// Whether any of the rows reports likeliest tokens.
constexpr bool reports_tops(const SampleRow* rows, int32_t count) {
  for (int32_t i = 0; i < count; ++i)
    if (rows[i].logprobs > 0) return true;
  return false;
}

constexpr bool has_penalties(const SampleRow& r) {
  return r.history >= 0 && (r.repetition_penalty != 1.0f || r.presence_penalty != 0.0f || r.frequency_penalty != 0.0f);
}

// Which tokens sequences have seen, one row each, so that penalties touch the distinct tokens and nothing
// else. The memory begins as zeros, and is written by update_history and sample alone.
//   counts      [rows, vocab]     0: not seen. Else how often the token is in the output, plus kInPrompt if
//                                 it is in the prompt
//   seen        [rows, capacity]  the distinct tokens, those whose count is not 0, in any order: results do
//                                 not depend on it, so that a GPU may append with atomics
//   seen_count  [rows]            how many they are
// A history is emptied by undoing its list, in time that depends on the list and not on the vocabulary. A
// capacity of min(vocab, longest sequence) is always enough; beyond it a token that is new is not noted.
struct TokenHistory {
  int32_t* counts = nullptr;
  int32_t* seen = nullptr;
  int32_t* seen_count = nullptr;
  int32_t rows = 0;
  int32_t vocab = 0;
  int32_t capacity = 0;
};
static_assert(std::is_trivially_copyable_v<TokenHistory> && std::is_standard_layout_v<TokenHistory>);

// Distinct tokens that a row's history may lack.
inline constexpr int32_t kMostUnnoted = 64;

inline constexpr int32_t kInPrompt = 1 << 30;  // above any count of the output

// Tokens [begin, begin + count) of the call's array, to be added to a history: the first `prompt` of them as
// the prompt's, the others as output. A range may be a segment's rows, or a whole sequence that is resumed.
struct HistoryUpdate {
  int32_t history = -1;  // -1: padding, the range is skipped
  int32_t begin = 0;
  int32_t count = 0;
  int32_t prompt = 0;
  int32_t reset = 0;  // not 0: the history is emptied first
};
static_assert(std::is_trivially_copyable_v<HistoryUpdate> && std::is_standard_layout_v<HistoryUpdate> &&
              sizeof(HistoryUpdate) == 20);

}  // namespace quire
