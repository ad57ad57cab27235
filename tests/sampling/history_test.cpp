// What sampling keeps from step to step: histories, and the tokens that the next step reads.
#include "ops/sampling/history.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <random>
#include <set>

#include "sampling/support.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;
using testing_sampling::HistoryMemory;
using testing_sampling::Seen;
using testing_sampling::StepArrays;

class TokenHistories : public testing_sampling::SamplingFixture {
 protected:
  // The token of one row whose history is made from these tokens here and now.
  int32_t from_scratch(const std::vector<float>& logits, const SamplingParams& p, const Seen& seen, int64_t position) {
    const auto vocab = std::ssize(logits);
    const HistoryMemory history(1, vocab, vocab);
    set(history.view(), 0, seen);
    StepArrays step({vocab, 0, 1, 0, 0}, 1);
    EXPECT_TRUE(step.list.add(p, {.position = position, .history = 0}).ok());
    launch(step.args(logits, history.view()));
    return step.tokens[0];
  }
};

SamplingParams penalised(float temperature = 0.0f) {
  SamplingParams p;
  p.temperature = temperature;
  p.repetition_penalty = 1.3f;
  p.presence_penalty = 0.4f;
  p.frequency_penalty = 0.25f;
  return p;
}

std::vector<float> random_logits(std::mt19937& gen, size_t n) {
  std::normal_distribution<float> normal(0.0f, 1.5f);
  std::vector<float> logits(n);
  for (float& x : logits) x = normal(gen);
  return logits;
}

std::vector<int32_t> random_tokens(std::mt19937& gen, int count, int vocab) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& t : tokens) t = static_cast<int32_t>(gen() % static_cast<unsigned>(vocab));
  return tokens;
}

// Sequences that come and go at a few batch slots and still fewer histories.
struct Traffic {
  static constexpr int kVocab = 90, kBatchSlots = 6, kHistories = 4;
  struct Running {
    SamplingParams params;
    Seen seen;
    size_t noted = 0;  // of the prompt
    int32_t batch_slot = -1, history = -1;
    size_t length = 0;
  };

  // One of the indices below `count` that no running sequence has as its `member`, or -1.
  int32_t free_index(int count, int32_t Running::*member) {
    std::set<int32_t> free;
    for (int32_t i = 0; i < count; ++i) free.insert(i);
    for (const Running& s : running) free.erase(s.*member);
    return free.empty() ? -1 : *std::next(free.begin(), static_cast<int64_t>(gen() % free.size()));
  }
  // Fills the batch slots, and changes the order of the rows.
  void admit() {
    while (running.size() < kBatchSlots) {
      Running s{.params = penalised(gen() % 2 == 0 ? 0.0f : 0.8f)};
      s.history = free_index(kHistories, &Running::history);
      if (s.history < 0) s.params = SamplingParams{.temperature = 0.7f};
      s.batch_slot = free_index(kBatchSlots, &Running::batch_slot);
      s.params.seed = gen();
      s.seen.prompt = random_tokens(gen, 1 + static_cast<int>(gen() % 60), kVocab);
      s.length = 1 + gen() % 40;
      running.push_back(s);
    }
    std::shuffle(running.begin(), running.end(), gen);
  }
  // The next chunk of every prompt, in one array with tokens of others between them.
  void next_chunks(std::vector<int32_t>& tokens, std::vector<HistoryUpdate>& ranges) {
    for (Running& s : running) {
      const size_t noted = s.noted, chunk = std::min<size_t>(s.seen.prompt.size() - noted, 16);
      s.noted += chunk;
      if (chunk == 0 || s.history < 0) continue;
      tokens.push_back(5);
      const auto count = static_cast<int32_t>(chunk);
      ranges.push_back({.history = s.history,
                        .begin = static_cast<int32_t>(tokens.size()),
                        .count = count,
                        .prompt = count,
                        .reset = noted == 0 ? 1 : 0});
      const auto from = s.seen.prompt.begin() + static_cast<int64_t>(noted);
      tokens.insert(tokens.end(), from, from + count);
    }
  }

  std::mt19937 gen{3};
  std::vector<Running> running;
};

// Prompts arrive in chunks, rows in any order. At every step each token is the one that the sequence's tokens
// give when its history is made from them anew.
TEST_P(TokenHistories, AcrossStepsEqualThoseMadeFromScratch) {
  constexpr int kVocab = Traffic::kVocab, kBatchSlots = Traffic::kBatchSlots, kHistories = Traffic::kHistories;
  Traffic traffic;
  const HistoryMemory history(kHistories, kVocab, kVocab);
  StepArrays step({kVocab, kBatchSlots, kHistories, 0, 0}, kBatchSlots);
  int finished = 0, compared = 0;
  for (int n = 0; n < 400; ++n) {
    traffic.admit();
    std::vector<int32_t> tokens;
    std::vector<HistoryUpdate> ranges;
    traffic.next_chunks(tokens, ranges);
    note(history.view(), tokens, ranges);

    step.list.clear();
    std::vector<Traffic::Running*> rows;
    for (Traffic::Running& s : traffic.running) {
      if (s.noted < s.seen.prompt.size()) continue;
      const auto position = static_cast<int64_t>(s.seen.prompt.size() + s.seen.output.size());
      ASSERT_TRUE(
          step.list.add(s.params, {.position = position, .batch_slot = s.batch_slot, .history = s.history}).ok());
      rows.push_back(&s);
    }
    if (rows.empty()) continue;
    const std::vector<float> logits = random_logits(traffic.gen, rows.size() * kVocab);
    launch(step.args(logits, history.view()));
    for (size_t r = 0; r < rows.size(); ++r) {
      Traffic::Running& s = *rows[r];
      const auto at = logits.begin() + static_cast<int64_t>(r * kVocab);
      ASSERT_EQ(step.tokens[r], from_scratch({at, at + kVocab}, s.params, s.seen, step.row[r].position));
      ASSERT_EQ(step.sampled[static_cast<size_t>(s.batch_slot)], step.tokens[r]);
      s.seen.output.push_back(step.tokens[r]);
      compared += s.history >= 0;
    }
    finished += static_cast<int>(
        std::erase_if(traffic.running, [](const Traffic::Running& s) { return s.seen.output.size() >= s.length; }));
  }
  EXPECT_GT(finished, 60) << "batch_slots and histories were used again";
  EXPECT_GT(compared, 800);
}

TEST_P(TokenHistories, APlaceUsedAgainRemembersNothing) {
  const HistoryMemory history(3, 100, 100);
  std::mt19937 gen(8);
  set(history.view(), 0, {random_tokens(gen, 50, 100), {}});
  const std::vector<int32_t> neighbour = history.seen(0);
  set(history.view(), 1, {random_tokens(gen, 500, 100), random_tokens(gen, 500, 100)});
  note(history.view(), {7, 3, 7}, {{.history = 1, .count = 3, .prompt = 1, .reset = 1}});
  EXPECT_THAT(history.seen(1), UnorderedElementsAre(7, 3));
  for (int32_t t = 0; t < 100; ++t)
    EXPECT_EQ(history.count(1, t), t == 7 ? kInPrompt + 1 : t == 3 ? 1 : 0) << "token " << t;
  EXPECT_EQ(history.seen(0), neighbour);
  EXPECT_TRUE(history.seen(2).empty());
  note(history.view(), {}, {{.history = 1, .reset = 1}});
  EXPECT_TRUE(history.seen(1).empty());
  EXPECT_EQ(history.count(1, 7), 0);
}

TEST_P(TokenHistories, PromptAndOutputOfOneRange) {
  const HistoryMemory history(1, 10, 10);
  note(history.view(), {9, 1, 2, 1, 2, 2, 9}, {{.history = 0, .begin = 1, .count = 5, .prompt = 3}});
  EXPECT_EQ(history.count(0, 1), kInPrompt);
  EXPECT_EQ(history.count(0, 2), kInPrompt + 2);
  EXPECT_EQ(history.count(0, 9), 0) << "outside of the range";
}

TEST_P(TokenHistories, SkipWhatIsNotAToken) {
  const HistoryMemory history(2, 10, 10);
  note(history.view(), {-1, 10, 4, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()},
       {{}, {.history = 1, .count = 5}, {.history = -1, .begin = 1000, .count = 1000, .reset = 1}});
  EXPECT_THAT(history.seen(1), ElementsAre(4));
  EXPECT_TRUE(history.seen(0).empty());
}

TEST_P(TokenHistories, NewTokensBeyondTheCapacityAreNotNoted) {
  const HistoryMemory history(2, 10, 3);
  note(history.view(), {5, 6, 7, 8, 5, 9}, {{.history = 0, .count = 6}});
  EXPECT_THAT(history.seen(0), UnorderedElementsAre(5, 6, 7));
  EXPECT_EQ(history.count(0, 5), 2) << "tokens that are listed still count";
  EXPECT_EQ(history.count(0, 8), 0);
  EXPECT_TRUE(history.seen(1).empty()) << "the next history's memory is untouched";
  note(history.view(), {}, {{.history = 0, .reset = 1}});
  for (int32_t t = 0; t < 10; ++t) EXPECT_EQ(history.count(0, t), 0);
}

TEST_P(TokenHistories, ARowNotesItsTokenWhereItIsTracked) {
  const HistoryMemory history(4, 4, 4);
  StepArrays step({4, 4, 4, 0, 0}, 4);
  ASSERT_TRUE(step.list.add({}, {.batch_slot = 2, .history = 1}).ok());
  ASSERT_TRUE(step.list.add({}, {.batch_slot = 3}).ok());
  ASSERT_TRUE(step.list.add({}, {.batch_slot = 0, .history = 3, .tentative = true}).ok());
  ASSERT_TRUE(step.list.pad(4).ok());
  const std::vector<float> logits{1, 2, 9, 3, 9, 2, 1, 3, 1, 9, 2, 3, 9, 1, 1, 1};
  launch(step.args(logits, history.view()));
  EXPECT_THAT(step.tokens, ElementsAre(2, 0, 1, -1));
  EXPECT_THAT(step.sampled, ElementsAre(-7, -7, 2, 0)) << "a tentative row's batch_slot and those of no row stay";
  EXPECT_THAT(history.seen(1), ElementsAre(2));
  EXPECT_EQ(history.count(1, 2), 1);
  for (const int32_t h : {0, 2, 3}) EXPECT_TRUE(history.seen(h).empty()) << "history " << h;
}

TEST_P(TokenHistories, DraftsOfOneSequenceReadItsHistory) {
  const HistoryMemory history(1, 3, 3);
  set(history.view(), 0, {{}, {0}});
  StepArrays step({3, 1, 1, 0, 0}, 3);
  SamplingParams p;
  p.presence_penalty = 2.0f;
  for (int64_t i = 0; i < 3; ++i)
    ASSERT_TRUE(step.list.add(p, {.position = i, .batch_slot = 0, .history = 0, .tentative = true}).ok());
  launch(step.args({3, 2, 1, 3, 0, 0, 1, 0, 2}, history.view()));
  EXPECT_THAT(step.tokens, ElementsAre(1, 0, 2));
  EXPECT_THAT(history.seen(0), ElementsAre(0));
  EXPECT_EQ(history.count(0, 0), 1);
}

TEST_P(TokenHistories, ADamagedRowTellsTheNextStepAndNotesNothing) {
  const HistoryMemory history(2, 2, 2);
  StepArrays step({2, 2, 2, 1, 0}, 2);
  for (int32_t r = 0; r < 2; ++r) ASSERT_TRUE(step.list.add({.logprobs = 1}, {.batch_slot = r, .history = r}).ok());
  step.logprobs = {5, 5};
  step.top_count = {5, 5};
  launch(step.args({std::numeric_limits<float>::quiet_NaN(), 1, 0, 1}, history.view()));
  EXPECT_THAT(step.tokens, ElementsAre(-1, 1));
  EXPECT_THAT(step.sampled, ElementsAre(-1, 1));
  EXPECT_EQ(step.logprobs[0], 0.0f);
  EXPECT_THAT(step.top_count, ElementsAre(0, 1));
  EXPECT_TRUE(history.seen(0).empty());
}

// 100000 tokens of which 50 are distinct leave a list of 50, so that a row with such a history is sampled as
// fast as after 50 tokens. (Counting the tokens anew, as this operator once did, takes about 100 times as
// long.)
TEST_P(TokenHistories, PenaltiesCostTheDistinctTokensOnly) {
  constexpr int kVocab = 512, kDistinct = 50;
  std::mt19937 gen(2);
  const HistoryMemory history(2, kVocab, kVocab);
  std::vector<int32_t> tokens = random_tokens(gen, 100000, kDistinct);
  for (int32_t t = 0; t < kDistinct; ++t) tokens.push_back(t);
  set(history.view(), 0, {{}, tokens});
  set(history.view(), 1, {{}, {tokens.end() - kDistinct, tokens.end()}});
  EXPECT_EQ(history.seen(0).size(), 50u);

  const std::vector<float> logits = random_logits(gen, kVocab);
  const auto fastest = [&](int32_t row) {
    StepArrays step({kVocab, 0, 2, 0, 0}, 1);
    EXPECT_TRUE(step.list.add(penalised(), {.history = row, .tentative = true}).ok());
    const SampleArgs args = step.args(logits, history.view());
    auto best = std::chrono::steady_clock::duration::max();
    for (int i = 0; i < 500; ++i) {
      const auto start = std::chrono::steady_clock::now();
      launch(args);
      best = std::min(best, std::chrono::steady_clock::now() - start);
    }
    return std::chrono::duration<double, std::micro>(best).count();
  };
  EXPECT_LT(fastest(0), 4 * fastest(1) + 5);
}

INSTANTIATE_TEST_SUITE_P(Kernels, TokenHistories, testing::ValuesIn(kSampleOp.kernels.begin(), kSampleOp.kernels.end()),
                         [](const auto& k) { return std::string(k.param.name); });

TEST(TokenHistory, LiesInOnePieceOfMemoryWithoutOverlap) {
  for (const auto& [rows, vocab, capacity] : {std::array{1, 1, 1}, {3, 17, 5}, {0, 10, 10}, {16, 1000, 64}}) {
    const TokenHistory h = lay_out_token_history(nullptr, rows, vocab, capacity);
    const auto at = [](const int32_t* p) { return reinterpret_cast<uintptr_t>(p); };
    const auto ints = [](int64_t n) { return static_cast<uintptr_t>(n) * sizeof(int32_t); };
    EXPECT_EQ(at(h.counts), 0u);
    EXPECT_GE(at(h.seen), ints(int64_t{rows} * vocab));
    EXPECT_GE(at(h.seen_count), at(h.seen) + ints(int64_t{rows} * capacity));
    EXPECT_LE(at(h.seen_count) + ints(rows), static_cast<uintptr_t>(token_history_bytes(rows, vocab, capacity)));
    EXPECT_EQ(at(h.seen) % 64 + at(h.seen_count) % 64, 0u);
  }
}

}  // namespace
}  // namespace quire
