// A step's sampling arrays in host memory, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "ops/sampling/history.h"
#include "ops/sampling/rows.h"

namespace quire::testing_sampling {

// Empty histories.
class HistoryMemory {
 public:
  HistoryMemory(int64_t rows, int64_t vocab, int64_t capacity) {
    const auto bytes = static_cast<size_t>(token_history_bytes(rows, vocab, capacity));
    memory_.reset(std::aligned_alloc(64, bytes));
    std::memset(memory_.get(), 0, bytes);
    view_ = lay_out_token_history(memory_.get(), rows, vocab, capacity);
  }
  const TokenHistory& view() const { return view_; }
  int32_t count(int32_t history, int32_t token) const { return view_.counts[int64_t{history} * view_.vocab + token]; }
  std::vector<int32_t> seen(int32_t history) const {
    const int32_t* const list = view_.seen + int64_t{history} * view_.capacity;
    return {list, list + view_.seen_count[history]};
  }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> memory_;
  TokenHistory view_;
};

// The arrays of steps of up to `rows` rows, filled by the same lists that the engine uses.
struct StepArrays {
  StepArrays(const SampleLimits& limits, int32_t rows)
      : row(static_cast<size_t>(rows)),
        bias_ids(static_cast<size_t>(rows * limits.max_bias)),
        bias_values(bias_ids.size()),
        tokens(row.size()),
        top_count(row.size()),
        top_ids(row.size() * static_cast<size_t>(limits.max_top)),
        sampled(static_cast<size_t>(limits.batch_slots), -7),
        logprobs(row.size()),
        top_logprobs(top_ids.size()),
        max_top(limits.max_top),
        list(limits, {row, bias_ids, bias_values}) {}

  // The arguments for as many rows as the list holds now.
  SampleArgs args(const std::vector<float>& logits, const TokenHistory& history = {}) const {
    const int64_t n = list.rows();
    const auto vocab = n == 0 ? std::ssize(logits) : std::ssize(logits) / n;
    return {.logits = make_tensor(logits.data(), {n, vocab}),
            .rows = row.data(),
            .bias_ids = bias_ids.data(),
            .bias_values = bias_values.data(),
            .suppressed = suppressed.data(),
            .suppressed_count = static_cast<int32_t>(suppressed.size()),
            .history = history,
            .out = {.tokens = make_tensor(tokens.data(), {n}),
                    .logprobs = make_tensor(logprobs.data(), {n}),
                    .top_ids = make_tensor(top_ids.data(), {n, max_top}),
                    .top_logprobs = make_tensor(top_logprobs.data(), {n, max_top}),
                    .top_count = make_tensor(top_count.data(), {n}),
                    .sampled = make_tensor(sampled.data(), {std::ssize(sampled)})}};
  }

  std::vector<SampleRow> row;
  std::vector<int32_t> bias_ids;
  std::vector<float> bias_values;
  std::vector<int32_t> suppressed;
  std::vector<int32_t> tokens, top_count, top_ids, sampled;
  std::vector<float> logprobs, top_logprobs;
  int64_t max_top;
  SampleRowList list;
};

// What a row looks back on, from its tokens.
struct Seen {
  std::vector<int32_t> prompt, output;
};

template <class Args>
const Kernel<Args>& kernel_named(std::string_view name, std::span<const Kernel<Args>> table) {
  for (const Kernel<Args>& k : table)
    if (k.name == name) return k;
  return table.back();
}

// Fixture over the kernels of `sample`; update_history runs the kernel of the same name.
class SamplingFixture : public testing::TestWithParam<Kernel<SampleArgs>> {
 protected:
  // A kernel for newer CPUs would end the program on an older one.
  void SetUp() override {
    if (!reaches(Machine{}, GetParam().needs)) GTEST_SKIP() << "not for this machine: " << GetParam().name;
  }
  void note(const TokenHistory& history, const std::vector<int32_t>& tokens, const std::vector<HistoryUpdate>& ranges) {
    kernel_named(GetParam().name, kUpdateHistoryOp.kernels)
        .launch(context(), {.tokens = tokens.data(),
                            .token_count = std::ssize(tokens),
                            .ranges = ranges.data(),
                            .range_count = static_cast<int32_t>(ranges.size()),
                            .history = history});
  }
  // Makes a history what these tokens make of it, whatever it was.
  void set(const TokenHistory& history, int32_t row, const Seen& seen) {
    std::vector<int32_t> tokens = seen.prompt;
    tokens.insert(tokens.end(), seen.output.begin(), seen.output.end());
    note(history, tokens,
         {{.history = row,
           .count = static_cast<int32_t>(tokens.size()),
           .prompt = static_cast<int32_t>(seen.prompt.size()),
           .reset = 1}});
  }
  void launch(const SampleArgs& a) { GetParam().launch(context(), a); }
  OpContext context() { return {pool_, workspace_}; }

  ThreadPool pool_{1};
  Workspace workspace_;
};

}  // namespace quire::testing_sampling
