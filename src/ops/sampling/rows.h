// Writing the rows of a step that are sampled, from what requests say, into arrays of fixed size that the
// backend reads.
#pragma once

#include <span>
#include <vector>

#include "ops/sampling/sampling.h"

namespace quire {

// What the arrays of every step have room for.
struct SampleLimits {
  int64_t vocab = 0;
  int32_t batch_slots = 0;  // entries of `sampled`
  int32_t histories = 0;    // rows of TokenHistory
  int32_t max_top = 0;      // likeliest tokens of a row
  int32_t max_bias = 0;     // biases of a row. With rows * max_bias entries, a step always has room for them
  int32_t masks = 0;

  // For when a request arrives: its parameters, which are valid, are within these limits, or what is not
  // (Fault::kRequest).
  Status check(const SamplingParams& p) const;
};

// Where a row's token is, and where it goes; as the fields of SampleRow.
struct SampleTarget {
  int64_t position = 0;
  int32_t batch_slot = -1;
  int32_t history = -1;
  bool tentative = false;
  // Tokens that this row may not have: distinct ids in the vocabulary. Each takes the place of a bias.
  std::span<const int32_t> forbidden{};
  int32_t mask = -1;                             // of the step
  int32_t unnoted_begin = 0, unnoted_count = 0;  // from SampleRowList::add_unnoted
  int32_t drafts_begin = 0, drafts_count = 0;
};

// The row of a draft: drawn as the token of that position will be, as far as the logits agree and no penalty or bias
// changes them. `entry`: of `sampled`.
SampleRow draft_row(const SamplingParams& p, int64_t position, int32_t entry);

// Which entries of `sampled`, or of the histories, a step has named: each may be settled by one row alone.
class StepUses {
 public:
  StepUses(const char* what, int32_t count) : what_(what), uses_(static_cast<size_t>(count)) {}
  void clear() { ++step_; }
  // kBug if `index` (-1: none) is out of range or, should one of them settle it, is named already.
  Status check(int32_t index, bool settles) const;
  void add(int32_t index, bool settles);

 private:
  struct Use {
    uint64_t step = 0;
    bool settles = false;
  };
  const char* what_;
  uint64_t step_ = 1;
  std::vector<Use> uses_;
};

// The rows of one step. Allocates when it is created and not again; steps that are in flight together need
// one each.
class SampleRowList {
 public:
  // Memory that the backend reads, or that is copied there: as many ids as values. Outlives the list.
  struct Memory {
    std::span<SampleRow> rows;
    std::span<int32_t> bias_ids;
    std::span<float> bias_values;
  };
  SampleRowList(const SampleLimits& limits, const Memory& memory);

  void clear();  // begins a step
  // Adds a row for parameters that passed limits.check(). An error leaves the list as it was: kCapacity if
  // the arrays are full, kBug if the target is out of range, is another row's that settles it (see
  // SampleArgs), or has no history for its penalties.
  Status add(const SamplingParams& p, const SampleTarget& target);
  // Tokens that a history lacks, for the rows that follow: where they begin. kCapacity if there is no room.
  Result<int32_t> add_unnoted(std::span<const int32_t> first, std::span<const int32_t> then);
  // Idle rows up to `rows` in all: the padding of a bucket. kCapacity if there is no room.
  Status pad(int32_t rows);

  int32_t rows() const { return rows_; }  // so many entries of the memory are to be copied, and
  int32_t biases() const { return biases_; }

 private:
  SampleLimits limits_;
  Memory memory_;
  int32_t rows_ = 0, biases_ = 0;
  StepUses batch_slots_, histories_;
};

// The ranges of a step's update_history, likewise.
class HistoryUpdateList {
 public:
  HistoryUpdateList(int32_t histories, std::span<HistoryUpdate> memory);

  void clear() { count_ = 0, histories_.clear(); }
  // `tokens` is how many the array has that the range refers to. kCapacity if the memory is full, kBug if the
  // range reaches beyond that array, or its history is out of range or another range's.
  Status add(const HistoryUpdate& range, int64_t tokens);
  Status pad(int32_t count);

  int32_t count() const { return count_; }

 private:
  std::span<HistoryUpdate> memory_;
  int32_t count_ = 0;
  StepUses histories_;
};

}  // namespace quire
