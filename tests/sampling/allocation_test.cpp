// A step of sampling allocates nothing.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "sampling/support.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

// This program counts what it allocates. (Not inlined: GCC 12 then warns of a new that does not match its
// delete.)
[[gnu::noinline]] void* operator new(size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept {
  std::free(p);
}

namespace quire {
namespace {

using testing_sampling::HistoryMemory;
using testing_sampling::StepArrays;

// Building and sampling a step with everything in it, after the first of its size.
TEST(Sampling, AllocatesNothingInTheSteadyState) {
  constexpr int kVocab = 3000, kRows = 4;
  constexpr SampleLimits limits{.vocab = kVocab, .batch_slots = kRows, .histories = kRows, .max_top = 5, .max_bias = 3};
  SamplingParams p{.presence_penalty = 1.0f};
  p.temperature = 0.8f, p.top_k = 50, p.top_p = 0.9f, p.min_p = 0.01f, p.typical_p = 0.95f, p.logprobs = 5;
  p.logit_bias = {{1, 1.0f}, {2, -1.0f}};
  std::vector<float> logits(static_cast<size_t>(kRows * kVocab));
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 7919 % 1000) * 0.01f;
  const HistoryMemory history(kRows, kVocab, kVocab);
  StepArrays step(limits, kRows);
  std::vector<HistoryUpdate> memory(kRows);
  HistoryUpdateList ranges(kRows, memory);
  const std::vector<int32_t> tokens{1, 2, 3, 4, 5, 6, 7, 8};
  ThreadPool pool(2);
  Workspace workspace;
  const auto one_step = [&](int64_t n) {
    step.list.clear();
    ranges.clear();
    bool ok = true;
    for (int32_t r = 0; r < kRows; ++r) {
      ok &= ranges.add({.history = r, .begin = r, .count = 4, .prompt = 2, .reset = n % 8 == 0}, 8).ok();
      ok &= step.list.add(p, {.position = n, .batch_slot = r, .history = r}).ok();
    }
    update_history({pool, workspace}, {tokens.data(), 8, memory.data(), ranges.count(), history.view()});
    sample({pool, workspace}, step.args(logits, history.view()));
    return ok;
  };
  ASSERT_TRUE(one_step(0));
  const int64_t before = allocations.load();
  const size_t scratch = workspace.high_water();
  for (int64_t n = 1; n <= 100; ++n) ASSERT_TRUE(one_step(n));
  EXPECT_EQ(allocations.load() - before, 0);
  EXPECT_EQ(workspace.high_water(), scratch);
  EXPECT_EQ(static_cast<int64_t>(scratch), sample_workspace_bytes(kRows, kVocab, 2)) << "rows that ask for all";
  EXPECT_GT(before, 0) << "allocations are counted";
  EXPECT_GE(step.tokens[0], 0);
}

}  // namespace
}  // namespace quire
