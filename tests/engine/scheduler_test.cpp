// plan_step on states written by hand, and on thousands of random requests whose every step is simulated.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <ostream>
#include <random>

#include "ops/op.h"

namespace quire {

void PrintTo(const Work& w, std::ostream* out) {
  *out << "{" << w.seq.v << ": " << w.begin << "+" << w.count << "}";
}

namespace {

ScheduledSequence seq(int32_t id, int64_t prompt, int64_t total, int64_t computed, int32_t max_blocks = 1) {
  return {.id = SeqId{id}, .prompt = prompt, .total = total, .computed = computed, .max_blocks = max_blocks};
}
ScheduledSequence fresh(int32_t id, int64_t prompt, int32_t max_blocks = 1) {
  return seq(id, prompt, prompt, 0, max_blocks);
}
SchedulerState state(std::vector<ScheduledSequence> running, std::vector<ScheduledSequence> waiting,
                     int32_t total_blocks = 1000, int32_t free_slots = 16, bool needs_slots = true) {
  return {std::move(running), std::move(waiting), total_blocks, free_slots, needs_slots};
}
Work work(int32_t id, int64_t begin, int32_t count) {
  return {SeqId{id}, begin, count};
}

struct Literal {
  const char* name;
  SchedulerState now;
  SchedulerLimits limits;
  std::vector<int32_t> admit;
  std::vector<Work> work;
};

void PrintTo(const Literal& l, std::ostream* out) {
  *out << l.name;
}

class PlanStep : public testing::TestWithParam<Literal> {};

TEST_P(PlanStep, PlansExactlyThis) {
  const StepPlan plan = plan_step(GetParam().now, GetParam().limits);
  std::vector<int32_t> admitted;
  for (const SeqId id : plan.admit) admitted.push_back(id.v);
  EXPECT_EQ(admitted, GetParam().admit);
  EXPECT_EQ(plan.work, GetParam().work);
}

INSTANTIATE_TEST_SUITE_P(
    Literals, PlanStep,
    testing::Values(
        Literal{"nothing", state({}, {}), {512, 16}, {}, {}},
        Literal{
            "a prompt that fits goes whole", state({}, {fresh(1, 100)}), {512, 16}, {1}, {work(1, 0, 100)}},
        Literal{
            "a prompt of exactly the budget", state({}, {fresh(1, 512)}), {512, 16}, {1}, {work(1, 0, 512)}},
        Literal{
            "a long prompt is cut at a 64-token boundary",
            state({}, {fresh(1, 500)}),
            {200, 16},
            {1},
            {work(1, 0, 192)},
        },
        Literal{"the cut after a cut is one too",
                state({seq(1, 500, 500, 192)}, {}),
                {200, 16},
                {},
                {work(1, 192, 192)}},
        Literal{
            "the rest of a prompt", state({seq(1, 500, 500, 384)}, {}), {200, 16}, {}, {work(1, 384, 116)}},
        Literal{"decodes come before prompts, whatever the order of admission",
                state({seq(1, 500, 500, 64), seq(2, 10, 13, 12), seq(3, 7, 8, 7)}, {}),
                {130, 16},
                {},
                {work(2, 12, 1), work(3, 7, 1), work(1, 64, 128)}},
        Literal{"decodes shrink a chunk to the boundary before",
                state({seq(2, 10, 13, 12), seq(1, 500, 500, 64)}, {}),
                {128, 16},
                {},
                {work(2, 12, 1), work(1, 64, 64)}},
        Literal{"a prompt that cannot reach a boundary waits, and nobody passes it",
                state({seq(2, 10, 13, 12), seq(1, 500, 500, 64)}, {fresh(3, 5)}),
                {64, 16},
                {},
                {work(2, 12, 1)}},
        Literal{"running prompts share the budget in order of admission",
                state({seq(5, 100, 100, 0), seq(4, 300, 300, 128)}, {}),
                {200, 16},
                {},
                {work(5, 0, 100), work(4, 128, 64)}},
        Literal{"several are admitted in order of arrival",
                state({}, {fresh(9, 10), fresh(3, 20), fresh(5, 30)}),
                {512, 16},
                {9, 3, 5},
                {work(9, 0, 10), work(3, 0, 20), work(5, 0, 30)}},
        Literal{"no place left", state({seq(1, 5, 6, 5)}, {fresh(2, 5)}), {512, 1}, {}, {work(1, 5, 1)}},
        Literal{"one place left",
                state({seq(1, 5, 6, 5)}, {fresh(2, 5), fresh(3, 5)}),
                {512, 2},
                {2},
                {work(1, 5, 1), work(2, 0, 5)}},
        Literal{"no state slot left", state({}, {fresh(2, 5)}, 1000, 0), {512, 4}, {}, {}},
        Literal{"a model without recurrent layers needs none",
                state({}, {fresh(2, 5)}, 1000, 0, false),
                {512, 4},
                {2},
                {work(2, 0, 5)}},
        Literal{"blocks for the longest output must be left",
                state({seq(1, 5, 6, 5, 6)}, {fresh(2, 5, 5)}, 10),
                {512, 4},
                {},
                {work(1, 5, 1)}},
        Literal{"exactly enough blocks",
                state({seq(1, 5, 6, 5, 6)}, {fresh(2, 5, 4)}, 10),
                {512, 4},
                {2},
                {work(1, 5, 1), work(2, 0, 5)}},
        Literal{"a small request does not pass a large one that waits for blocks",
                state({seq(1, 5, 6, 5, 6)}, {fresh(2, 5, 5), fresh(3, 5, 1)}, 10),
                {512, 4},
                {},
                {work(1, 5, 1)}},
        Literal{"a sequence whose token is being sampled has no work",
                state({seq(1, 5, 5, 5)}, {}),
                {512, 4},
                {},
                {}}),
    [](const auto& literal) { return std::to_string(literal.index); });

// What the engine does with plans, in numbers only.
class Simulation {
 public:
  Simulation(uint64_t seed, SchedulerLimits limits, int32_t blocks, int32_t slots, bool hybrid)
      : rng_(seed), limits_(limits), blocks_(blocks), slots_(slots), hybrid_(hybrid) {}

  void submit() {
    const int64_t most = int64_t{blocks_} * kBlockTokens;
    const int64_t prompt = std::min<int64_t>(most - 1, number(0, 3) == 0 ? number(1, 900) : number(1, 80));
    const int64_t output = std::min<int64_t>(most - prompt, number(1, 60));
    const auto need = static_cast<int32_t>((prompt + output + kBlockTokens - 1) / kBlockTokens);
    now_.waiting.push_back(seq(next_id_, prompt, prompt, 0, need));
    ends_[next_id_++] = prompt + output;
  }

  bool idle() const { return now_.running.empty() && now_.waiting.empty(); }
  int64_t longest_wait() const { return longest_wait_; }

  // One step: checks the plan, and carries it out.
  void step() {
    now_.total_blocks = blocks_;
    now_.free_slots = slots_ - static_cast<int32_t>(now_.running.size());
    now_.needs_slots = hybrid_;
    const StepPlan plan = plan_step(now_, limits_);
    ASSERT_FALSE(plan.work.empty() && !idle()) << "no progress";
    admit(plan);
    if (testing::Test::HasFatalFailure()) return;
    carry_out(plan);
    end_step();
  }

  int64_t number(int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(rng_); }

 private:
  void admit(const StepPlan& plan) {
    for (size_t i = 0; i < plan.admit.size(); ++i) {
      ASSERT_EQ(plan.admit[i], now_.waiting.front().id) << "in order of arrival";
      now_.running.push_back(now_.waiting.front());
      now_.waiting.erase(now_.waiting.begin());
    }
    int64_t need = 0;
    for (const ScheduledSequence& s : now_.running) need += s.max_blocks;
    ASSERT_LE(need, blocks_);
    ASSERT_LE(now_.running.size(), static_cast<size_t>(limits_.max_sequences));
    if (hybrid_) {
      ASSERT_LE(now_.running.size(), static_cast<size_t>(slots_));
    }
  }

  void carry_out(const StepPlan& plan) {
    int64_t rows = 0;
    bool prompts_begun = false;
    size_t decodes = 0;
    std::map<int32_t, int> times;
    for (const Work& w : plan.work) {
      const auto s = std::find_if(now_.running.begin(), now_.running.end(),
                                  [&](const ScheduledSequence& r) { return r.id == w.seq; });
      ASSERT_NE(s, now_.running.end());
      ASSERT_EQ(++times[w.seq.v], 1) << "once per step";
      ASSERT_EQ(w.begin, s->computed);
      ASSERT_GT(w.count, 0);
      rows += w.count;
      const bool decode = w.begin >= s->prompt;
      ASSERT_FALSE(decode && prompts_begun) << "decodes first";
      prompts_begun |= !decode;
      decodes += decode;
      const int64_t end = w.begin + w.count;
      ASSERT_TRUE(!decode || w.count == 1);
      ASSERT_TRUE(decode || end == s->prompt || end % kChunkTokens == 0) << "chunk ends at " << end;
      s->computed = end;
      waited_[w.seq.v] = -1;
      if (end == s->total) ++s->total;  // a token was sampled
    }
    ASSERT_EQ(plan.decodes, decodes);
    ASSERT_LE(rows, limits_.max_batch_tokens);
    for (const ScheduledSequence& s : now_.running)
      ASSERT_TRUE(s.computed < s.prompt || times.contains(s.id.v)) << "every decode runs in every step";
  }

  void end_step() {
    std::erase_if(now_.running, [&](const ScheduledSequence& s) { return s.total >= ends_[s.id.v]; });
    for (const ScheduledSequence& s : now_.running)
      longest_wait_ = std::max(longest_wait_, ++waited_[s.id.v]);
    if (!now_.waiting.empty()) {
      const int32_t head = now_.waiting.front().id.v;
      longest_wait_ = std::max(longest_wait_, ++waited_[head]);
    }
  }

  std::mt19937_64 rng_;
  SchedulerLimits limits_;
  int32_t blocks_, slots_;
  bool hybrid_;
  SchedulerState now_;
  std::map<int32_t, int64_t> ends_, waited_;
  int32_t next_id_ = 0;
  int64_t longest_wait_ = 0;
};

TEST(Scheduler, KeepsItsPromisesUnderRandomLoad) {
  const struct {
    SchedulerLimits limits;
    int32_t blocks, slots;
    bool hybrid;
  } settings[] = {
      {{512, 16}, 2000, 16, true}, {{64, 16}, 2000, 16, true},   {{64, 4}, 61, 4, true},
      {{100, 8}, 120, 8, false},   {{4096, 64}, 400, 64, false}, {{128, 1}, 70, 1, true},
  };
  uint64_t seed = 1;
  for (const auto& s : settings) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation sim(seed++, s.limits, s.blocks, s.slots, s.hybrid);
    // Requests come faster than they can be served, so that there is always somebody to be passed by.
    int submitted = 0;
    for (int64_t steps = 0; submitted < 1000 || !sim.idle(); ++steps) {
      for (int64_t n = sim.number(0, 2); n > 0 && submitted < 1000; --n, ++submitted) sim.submit();
      if (!sim.idle()) sim.step();
      if (HasFatalFailure()) return;
      ASSERT_LT(steps, 200000) << "never ends";
    }
    // Outputs have at most 60 tokens: a prompt held back, or the head of the queue, waits for that many steps
    // of the decodes in its way, and the head for the prompts before it.
    EXPECT_LT(sim.longest_wait(), 1500);
  }
}

// Decodes leave fewer than 64 rows, and short prompts keep arriving that would fit: the long one gets on.
TEST(Scheduler, ShortPromptsDoNotStarveALongOne) {
  SchedulerState now = state({seq(0, 300, 300, 64)}, {});
  int32_t next = 1;
  for (int step = 0; step < 100; ++step) {
    while (now.waiting.size() < 3) now.waiting.push_back(fresh(next++, 8));
    const StepPlan plan = plan_step(now, {64, 8});
    for (const SeqId id : plan.admit) {
      ASSERT_EQ(now.waiting.front().id, id);
      now.running.push_back(now.waiting.front());
      now.waiting.erase(now.waiting.begin());
    }
    for (const Work& w : plan.work)
      for (ScheduledSequence& s : now.running)
        if (s.id == w.seq) {
          s.computed += w.count;
          if (s.computed == s.total) ++s.total;
        }
    if (now.running.front().computed >= 300) return;
    std::erase_if(now.running, [](const ScheduledSequence& s) { return s.id.v != 0 && s.total > 16; });
  }
  FAIL() << "the prompt stands at " << now.running.front().computed << " after 100 steps";
}

}  // namespace
}  // namespace quire
