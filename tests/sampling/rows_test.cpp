// The lists that write what a step says of its rows.
#include "ops/sampling/rows.h"

#include <gmock/gmock.h>

#include "sampling/support.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_sampling::StepArrays;

constexpr SampleLimits kLimits{.vocab = 100, .batch_slots = 4, .histories = 2, .max_top = 5, .max_bias = 3};

void expect_error(const Status& s, Fault fault, const char* says) {
  ASSERT_FALSE(s.ok()) << says;
  EXPECT_EQ(s.error().fault, fault) << s.error().message;
  EXPECT_THAT(s.error().message, HasSubstr(says));
}

SamplingParams with_penalties() {
  SamplingParams p;
  p.presence_penalty = 1.0f;
  return p;
}

TEST(SampleLimits, RefuseARequestThatNoStepHasRoomFor) {
  SamplingParams p;
  p.logprobs = 5;
  p.logit_bias = {{1, 1.0f}, {2, 1.0f}, {3, 1.0f}};
  EXPECT_TRUE(kLimits.check(p).ok());
  p.logprobs = 6;
  expect_error(kLimits.check(p), Fault::kRequest, "logprobs is 6, but this engine reports at most 5");
  p.logprobs = -1;
  p.logit_bias[99] = 1.0f;
  expect_error(kLimits.check(p), Fault::kRequest, "logit_bias names 4 tokens, but this engine takes at most 3");
}

TEST(SampleRowList, WritesEveryParameter) {
  StepArrays step(kLimits, 3);
  SamplingParams p{.temperature = 0.5f,
                   .top_k = 40,
                   .top_p = 0.9f,
                   .min_p = 0.1f,
                   .typical_p = 0.8f,
                   .repetition_penalty = 1.1f,
                   .presence_penalty = 0.2f,
                   .frequency_penalty = 0.3f,
                   .logit_bias = {{7, 1.5f}, {3, -100.0f}},
                   .seed = 123456789012345678u,
                   .logprobs = 4};
  ASSERT_TRUE(step.list.add({.logit_bias = {{50, 2.0f}}}, {.position = 9}).ok());
  ASSERT_TRUE(step.list.add(p, {.position = 77, .batch_slot = 3, .history = 1, .tentative = true}).ok());
  ASSERT_TRUE(step.list.pad(3).ok());
  EXPECT_EQ(step.list.rows(), 3);
  EXPECT_EQ(step.list.biases(), 3);
  EXPECT_THAT(std::vector(step.bias_ids.begin(), step.bias_ids.begin() + 3), ElementsAre(50, 3, 7));
  EXPECT_THAT(std::vector(step.bias_values.begin(), step.bias_values.begin() + 3), ElementsAre(2.0f, -100.0f, 1.5f));
  const SampleRow &plain = step.row[0], &row = step.row[1];
  EXPECT_EQ(plain.position, 9);
  EXPECT_EQ(plain.batch_slot, -1);
  EXPECT_EQ(plain.history, -1);
  EXPECT_EQ(plain.logprobs, -1);
  EXPECT_EQ(plain.bias_begin, 0);
  EXPECT_EQ(plain.bias_count, 1);
  EXPECT_EQ(plain.flags, 0u);
  EXPECT_FALSE(has_penalties(plain));
  EXPECT_EQ(row.seed, p.seed);
  EXPECT_EQ(row.position, 77);
  EXPECT_EQ(row.temperature, 0.5f);
  EXPECT_EQ(row.top_k, 40);
  EXPECT_EQ(row.top_p, 0.9f);
  EXPECT_EQ(row.min_p, 0.1f);
  EXPECT_EQ(row.typical_p, 0.8f);
  EXPECT_EQ(row.repetition_penalty, 1.1f);
  EXPECT_EQ(row.presence_penalty, 0.2f);
  EXPECT_EQ(row.frequency_penalty, 0.3f);
  EXPECT_EQ(row.logprobs, 4);
  EXPECT_EQ(row.batch_slot, 3);
  EXPECT_EQ(row.history, 1);
  EXPECT_EQ(row.bias_begin, 1);
  EXPECT_EQ(row.bias_count, 2);
  EXPECT_EQ(row.flags, kSampleTentative);
  EXPECT_TRUE(has_penalties(row));
  EXPECT_EQ(step.row[2].flags, kSampleIdle);
}

TEST(SampleRowList, ForbiddenTokensAreBiasesOfMinusInfinity) {
  StepArrays step(kLimits, 2);
  const int32_t forbidden[] = {7, 20};
  ASSERT_TRUE(step.list.add({.logit_bias = {{7, 1.5f}, {8, 2.0f}}}, {.forbidden = forbidden}).ok());
  EXPECT_EQ(step.row[0].bias_count, 3);
  EXPECT_THAT(std::vector(step.bias_ids.begin(), step.bias_ids.begin() + 3), ElementsAre(8, 7, 20));
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_THAT(std::vector(step.bias_values.begin(), step.bias_values.begin() + 3), ElementsAre(2.0f, -kInf, -kInf));
  const int32_t unknown[] = {100};
  expect_error(step.list.add({}, {.forbidden = unknown}), Fault::kBug, "token 100 of 100 is forbidden");
  const int32_t many[] = {1, 2, 3, 4};
  expect_error(step.list.add({}, {.forbidden = many}), Fault::kCapacity, "the biases of a step's rows exceed 6");
}

TEST(SampleRowList, ARowBeginsAnewAfterClear) {
  StepArrays step(kLimits, 2);
  for (int n = 0; n < 3; ++n) {
    step.list.clear();
    EXPECT_EQ(step.list.rows(), 0);
    ASSERT_TRUE(step.list.add({.logit_bias = {{n, 1.0f}}}, {.batch_slot = 0, .history = 0}).ok());
    EXPECT_EQ(step.list.biases(), 1);
    EXPECT_EQ(step.bias_ids[0], n);
  }
}

TEST(SampleRowList, SaysWhenItIsFull) {
  StepArrays step(kLimits, 2);
  SamplingParams biased;
  for (int32_t id = 0; id < 7; ++id) biased.logit_bias[id] = 1.0f;
  expect_error(step.list.add(biased, {}), Fault::kCapacity, "the biases of a step's rows exceed 6");
  ASSERT_TRUE(step.list.add({}, {}).ok());
  expect_error(step.list.pad(3), Fault::kCapacity, "at most 2 rows, not 3");
  ASSERT_TRUE(step.list.pad(2).ok());
  expect_error(step.list.add({}, {}), Fault::kCapacity, "at most 2 rows");
  EXPECT_EQ(step.list.rows(), 2);
  EXPECT_EQ(step.list.biases(), 0);
}

TEST(SampleRowList, RefusesTargetsThatDoNotExistOrAreTaken) {
  StepArrays step(kLimits, 8);
  expect_error(step.list.add({}, {.batch_slot = 4}), Fault::kBug, "batch_slot 4 of 4");
  expect_error(step.list.add({}, {.batch_slot = -2}), Fault::kBug, "batch_slot -2 of 4");
  expect_error(step.list.add({}, {.history = 2}), Fault::kBug, "history 2 of 2");
  expect_error(step.list.add({}, {.position = -1}), Fault::kBug, "position -1");
  expect_error(step.list.add(with_penalties(), {.batch_slot = 0}), Fault::kBug, "penalties without a history");
  expect_error(step.list.add({.logprobs = 6}, {}), Fault::kBug, "6 logprobs, but room for 5");
  expect_error(step.list.add({.logit_bias = {{5, 1.0f}, {100, 1.0f}}}, {}), Fault::kBug, "token 100 of 100");
  EXPECT_EQ(step.list.rows(), 0);
  EXPECT_EQ(step.list.biases(), 0) << "an error leaves the list as it was";

  ASSERT_TRUE(step.list.add(with_penalties(), {.batch_slot = 0, .history = 1}).ok());
  expect_error(step.list.add({}, {.batch_slot = 0}), Fault::kBug, "batch_slot 0 is named twice");
  expect_error(step.list.add({}, {.batch_slot = 1, .history = 1}), Fault::kBug, "history 1 is named twice");
  expect_error(step.list.add({}, {.history = 1, .tentative = true}), Fault::kBug, "history 1 is named twice");
  ASSERT_TRUE(step.list.add({}, {.batch_slot = 2, .history = 0, .tentative = true}).ok());
  ASSERT_TRUE(step.list.add({}, {.batch_slot = 2, .history = 0, .tentative = true}).ok()) << "drafts share";
  expect_error(step.list.add({}, {.batch_slot = 2}), Fault::kBug, "batch_slot 2 is named twice");
  ASSERT_TRUE(step.list.add({}, {}).ok());
  ASSERT_TRUE(step.list.add({}, {}).ok()) << "nowhere may be many times";
}

TEST(HistoryUpdateList, ChecksWhatTheKernelsRelyOn) {
  std::vector<HistoryUpdate> memory(3);
  HistoryUpdateList list(2, memory);
  expect_error(list.add({.history = 2}, 10), Fault::kBug, "history 2 of 2");
  expect_error(list.add({.history = 0, .begin = 8, .count = 3}, 10), Fault::kBug, "tokens 8 + 3 of 10");
  expect_error(list.add({.history = 0, .begin = -1, .count = 3}, 10), Fault::kBug, "tokens -1 + 3");
  expect_error(list.add({.history = 0, .begin = 2147483647, .count = 2147483647}, 10), Fault::kBug, "tokens");
  ASSERT_TRUE(list.add({.history = 0, .begin = 7, .count = 3}, 10).ok());
  expect_error(list.add({.history = 0}, 10), Fault::kBug, "history 0 is named twice");
  ASSERT_TRUE(list.pad(3).ok());
  EXPECT_EQ(memory[2].history, -1);
  expect_error(list.add({.history = 1}, 10), Fault::kCapacity, "at most 3 ranges");
  expect_error(list.pad(4), Fault::kCapacity, "at most 3 ranges, not 4");
  list.clear();
  EXPECT_TRUE(list.add({.history = 0}, 10).ok());
}

}  // namespace
}  // namespace quire
