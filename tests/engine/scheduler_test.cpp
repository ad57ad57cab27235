// plan_step on states written by hand, and on thousands of random requests whose every step is simulated.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <ostream>
#include <random>

#include "engine/waiting_queue.h"
#include "ops/op.h"
#include "support/seeds.h"

namespace quire {

void PrintTo(const Preemption& p, std::ostream* out) {
  *out << "{" << p.seq.v << ": " << p.blocks << "}";
}
void PrintTo(const Work& w, std::ostream* out) {
  *out << "{" << w.seq.v << ": " << w.begin << "+" << w.count << "}";
}

namespace {

int32_t blocks_for(int64_t tokens) {
  return static_cast<int32_t>((tokens + kBlockTokens - 1) / kBlockTokens);
}

// A sequence that holds the blocks of what is computed, and may come to need one more than it has tokens, or `max_blocks`.
ScheduledSequence seq(int32_t id, int64_t prompt, int64_t total, int64_t computed, int32_t max_blocks = 0) {
  return {.id = SeqId{id},
          .prompt = prompt,
          .total = total,
          .computed = computed,
          .max_blocks = std::max(max_blocks, blocks_for(total) + 1),
          .held = blocks_for(computed),
          .sole = blocks_for(computed)};
}
ScheduledSequence fresh(int32_t id, int64_t prompt, int32_t max_blocks = 0) {
  return seq(id, prompt, prompt, 0, max_blocks);
}
ScheduledSequence with(ScheduledSequence s, void (*change)(ScheduledSequence&)) {
  change(s);
  return s;
}
ScheduledSequence hit(int32_t id, int64_t prompt, int64_t cached) {
  ScheduledSequence s = seq(id, prompt, prompt, cached);
  s.unused = s.held;
  return s;
}
SchedulerState state(std::vector<ScheduledSequence> running, std::vector<ScheduledSequence> waiting,
                     int32_t total_blocks = 1000, int32_t free_slots = 16, bool needs_slots = true,
                     int32_t host_blocks = 0) {
  SchedulerState now{.running = std::move(running),
                     .waiting = std::move(waiting),
                     .total_blocks = total_blocks,
                     .available_blocks = total_blocks,
                     .host_blocks = host_blocks,
                     .free_host_blocks = host_blocks,
                     .free_slots = free_slots,
                     .needs_slots = needs_slots};
  for (const ScheduledSequence& s : now.running) {
    now.available_blocks -= s.held - s.swapped;
    now.free_host_blocks -= s.swapped;
  }
  return now;
}
// Of these clients, who have so many requests running.
SchedulerState of_clients(SchedulerState now, std::vector<ScheduledClient> clients) {
  now.clients = std::move(clients);
  return now;
}
ScheduledSequence from(int32_t client, ScheduledSequence s) {
  s.client = client;
  s.arrival = s.id.v;
  return s;
}
SchedulerLimits limits(int32_t tokens, int32_t sequences) {
  return {.max_batch_tokens = tokens, .max_sequences = sequences, .max_swaps = 1000, .patience = 100};
}
// `prompts` that wait for a first token go before generated tokens, which wait for two steps in a row at most.
SchedulerLimits first_tokens(int32_t tokens, int32_t sequences, int32_t prompts) {
  SchedulerLimits l = limits(tokens, sequences);
  l.first_token_threshold = prompts;
  l.most_passed = 2;
  return l;
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
  std::vector<Preemption> preempt = {};
  std::vector<int32_t> resume = {};
  std::vector<int32_t> passed = {};
};

void PrintTo(const Literal& l, std::ostream* out) {
  *out << l.name;
}

class PlanStep : public testing::TestWithParam<Literal> {};

TEST_P(PlanStep, PlansExactlyThis) {
  const StepPlan plan = plan_step(GetParam().now, GetParam().limits);
  const auto numbers = [](const std::vector<SeqId>& ids) {
    std::vector<int32_t> all;
    for (const SeqId id : ids) all.push_back(id.v);
    return all;
  };
  EXPECT_EQ(numbers(plan.admit), GetParam().admit);
  EXPECT_EQ(plan.work, GetParam().work);
  EXPECT_EQ(plan.preempt, GetParam().preempt);
  EXPECT_EQ(numbers(plan.resume), GetParam().resume);
  EXPECT_EQ(numbers(plan.passed), GetParam().passed);
}

INSTANTIATE_TEST_SUITE_P(
    Literals, PlanStep,
    testing::Values(
        Literal{"nothing", state({}, {}), limits(512, 16), {}, {}},
        Literal{"a prompt that fits goes whole",
                state({}, {fresh(1, 100)}),
                limits(512, 16),
                {1},
                {work(1, 0, 100)}},
        Literal{"a prompt of exactly the budget",
                state({}, {fresh(1, 512)}),
                limits(512, 16),
                {1},
                {work(1, 0, 512)}},
        Literal{
            "a long prompt is cut at a 64-token boundary",
            state({}, {fresh(1, 500)}),
            limits(200, 16),
            {1},
            {work(1, 0, 192)},
        },
        Literal{"the cut after a cut is one too",
                state({seq(1, 500, 500, 192)}, {}),
                limits(200, 16),
                {},
                {work(1, 192, 192)}},
        Literal{"the rest of a prompt",
                state({seq(1, 500, 500, 384)}, {}),
                limits(200, 16),
                {},
                {work(1, 384, 116)}},
        Literal{"decodes come before prompts, whatever the order of admission",
                state({seq(1, 500, 500, 64), seq(2, 10, 13, 12), seq(3, 7, 8, 7)}, {}),
                limits(130, 16),
                {},
                {work(2, 12, 1), work(3, 7, 1), work(1, 64, 128)}},
        Literal{"decodes shrink a chunk to the boundary before",
                state({seq(2, 10, 13, 12), seq(1, 500, 500, 64)}, {}),
                limits(128, 16),
                {},
                {work(2, 12, 1), work(1, 64, 64)}},
        Literal{"a prompt that cannot reach a boundary waits, and nobody passes it",
                state({seq(2, 10, 13, 12), seq(1, 500, 500, 64)}, {fresh(3, 5)}),
                limits(64, 16),
                {},
                {work(2, 12, 1)}},
        Literal{"running prompts share the budget in order of admission",
                state({seq(5, 100, 100, 0), seq(4, 300, 300, 128)}, {}),
                limits(200, 16),
                {},
                {work(5, 0, 100), work(4, 128, 64)}},
        Literal{"several are admitted in order of arrival",
                state({}, {fresh(9, 10), fresh(3, 20), fresh(5, 30)}),
                limits(512, 16),
                {9, 3, 5},
                {work(9, 0, 10), work(3, 0, 20), work(5, 0, 30)}},
        Literal{
            "no place left", state({seq(1, 5, 6, 5)}, {fresh(2, 5)}), limits(512, 1), {}, {work(1, 5, 1)}},
        Literal{"one place left",
                state({seq(1, 5, 6, 5)}, {fresh(2, 5), fresh(3, 5)}),
                limits(512, 2),
                {2},
                {work(1, 5, 1), work(2, 0, 5)}},
        Literal{"no state slot left", state({}, {fresh(2, 5)}, 1000, 0), limits(512, 4), {}, {}},
        Literal{"a model without recurrent layers needs none",
                state({}, {fresh(2, 5)}, 1000, 0, false),
                limits(512, 4),
                {2},
                {work(2, 0, 5)}},
        Literal{"a whole prompt must fit beside one block for each that runs",
                state({seq(1, 5, 6, 5)}, {fresh(2, 130)}, 10),
                limits(512, 4),
                {},
                {work(1, 5, 1)}},
        Literal{"exactly enough blocks",
                state({seq(1, 5, 6, 5)}, {fresh(2, 120)}, 10),
                limits(512, 4),
                {2},
                {work(1, 5, 1), work(2, 0, 120)}},
        Literal{"what it could generate does not matter while the older one's end is certain",
                state({seq(1, 5, 6, 5, 2)}, {fresh(2, 5, 10)}, 10),
                limits(512, 4),
                {2},
                {work(1, 5, 1), work(2, 0, 5)}},
        Literal{"blocks that the older one could need are not promised to another",
                state({seq(1, 5, 6, 5, 10)}, {fresh(2, 5)}, 10),
                limits(512, 4),
                {},
                {work(1, 5, 1)}},
        Literal{"unless the host could take them",
                state({seq(1, 5, 6, 5, 10)}, {fresh(2, 5)}, 10, 16, true, 3),
                limits(512, 4),
                {2},
                {work(1, 5, 1), work(2, 0, 5)}},
        Literal{"the rest of running prompts counts as taken",
                state({seq(1, 128, 128, 64)}, {fresh(2, 40), fresh(3, 5)}, 11),
                limits(512, 4),
                {},
                {work(1, 64, 64)}},
        Literal{"a small request does not pass a large one that waits for blocks",
                state({seq(1, 5, 6, 5)}, {fresh(2, 150), fresh(3, 5)}, 10),
                limits(512, 4),
                {},
                {work(1, 5, 1)}},
        Literal{"what the cache has is not computed",
                state({}, {hit(1, 200, 128)}),
                limits(512, 4),
                {1},
                {work(1, 128, 72)}},
        Literal{"what the cache has and nobody uses leaves fewer blocks",
                state({}, {hit(1, 200, 128), hit(2, 160, 128)}, 23),
                limits(512, 4),
                {1},
                {work(1, 128, 72)}},
        Literal{"what others use already does not",
                state({}, {hit(1, 200, 128), with(hit(2, 160, 128), [](auto& s) { s.unused = 0; })}, 30),
                limits(512, 4),
                {1, 2},
                {work(1, 128, 72), work(2, 128, 32)}},
        Literal{"hits go before misses",
                state({}, {fresh(1, 100), hit(2, 200, 128), fresh(3, 50)}),
                limits(512, 4),
                {2, 1, 3},
                {work(2, 128, 72), work(1, 0, 100), work(3, 0, 50)}},
        Literal{
            "but not before those that waited too long",
            state({}, {fresh(1, 100), hit(2, 200, 128), with(fresh(3, 50), [](auto& s) { s.age = 101; })}),
            limits(512, 4),
            {3, 2, 1},
            {work(3, 0, 50), work(2, 128, 72), work(1, 0, 100)}},
        Literal{"nor before a more important request",
                state({}, {with(fresh(1, 100), [](auto& s) { s.priority = -1; }), hit(2, 200, 128)}),
                limits(512, 4),
                {1, 2},
                {work(1, 0, 100), work(2, 128, 72)}},
        Literal{"who waits for another's result lets others pass",
                state({}, {with(fresh(1, 100), [](auto& s) { s.deferred = true; }), fresh(2, 50)}),
                limits(512, 4),
                {2},
                {work(2, 0, 50)}},
        Literal{"clients take turns",
                of_clients(state({}, {from(0, fresh(1, 9)), from(0, fresh(2, 9)), from(0, fresh(3, 9)),
                                      from(1, fresh(4, 9)), from(1, fresh(5, 9))}),
                           {{}, {}}),
                limits(512, 8),
                {1, 4, 2, 5, 3},
                {work(1, 0, 9), work(4, 0, 9), work(2, 0, 9), work(5, 0, 9), work(3, 0, 9)}},
        Literal{"who has fewer requests running has the next place",
                of_clients(state({seq(8, 5, 6, 5), seq(9, 5, 6, 5)},
                                 {from(0, hit(1, 200, 128)), from(0, fresh(2, 9)), from(1, fresh(3, 9))}),
                           {{.running = 2}, {}}),
                limits(512, 4),
                {3, 1},
                {work(8, 5, 1), work(9, 5, 1), work(3, 0, 9), work(1, 128, 72)}},
        Literal{"of those with as many, who waits longer since one was admitted",
                of_clients(state({}, {from(0, fresh(1, 9)), from(1, fresh(2, 9))}),
                           {{.running = 1, .since = 7}, {.running = 1, .since = 5}}),
                limits(512, 1),
                {2},
                {work(2, 0, 9)}},
        Literal{"another client's hit goes before a miss",
                of_clients(state({}, {from(0, fresh(1, 9)), from(1, hit(2, 200, 128))}), {{}, {}}),
                limits(512, 1),
                {2},
                {work(2, 128, 72)}},
        Literal{"but not if that has waited too long, itself and since its client had a place",
                of_clients(state({}, {from(0, with(fresh(1, 9), [](auto& s) { s.age = 101; })),
                                      from(1, hit(2, 200, 128))}),
                           {{}, {}}),
                limits(512, 1),
                {1},
                {work(1, 0, 9)}},
        Literal{"whose client had one lately has not waited",
                of_clients(state({}, {from(0, with(fresh(1, 9), [](auto& s) { s.age = 101; })),
                                      from(1, hit(2, 200, 128))}),
                           {{.since = 1, .idle = 100}, {}}),
                limits(512, 1),
                {2},
                {work(2, 128, 72)}},
        Literal{"a better priority goes before a client's turn",
                of_clients(state({}, {from(0, with(fresh(1, 9), [](auto& s) { s.priority = -1; })),
                                      from(1, fresh(2, 9))}),
                           {{.running = 5, .since = 9}, {}}),
                limits(512, 1),
                {1},
                {work(1, 0, 9)}},
        Literal{"a client whose requests all wait for another's result takes no turn",
                of_clients(state({}, {from(0, with(fresh(1, 9), [](auto& s) { s.deferred = true; })),
                                      from(1, fresh(2, 9)), from(1, fresh(3, 9))}),
                           {{}, {}}),
                limits(512, 2),
                {2, 3},
                {work(2, 0, 9), work(3, 0, 9)}},
        Literal{"a chunk ends where the state is to be saved",
                state({with(seq(1, 500, 500, 64), [](auto& s) { s.cut = 192; })},
                      {with(fresh(2, 300), [](auto& s) { s.cut = 256; })}),
                limits(512, 4),
                {2},
                {work(1, 64, 128), work(2, 0, 256)}},
        Literal{"a cut beyond the budget changes nothing",
                state({with(seq(1, 500, 500, 64), [](auto& s) { s.cut = 448; })}, {}),
                limits(200, 4),
                {},
                {work(1, 64, 192)}},
        Literal{"the youngest makes room, by as many blocks as are missing",
                state({seq(1, 16, 17, 16), seq(2, 16, 17, 16), seq(3, 20, 40, 39)}, {}, 5, 16, true, 10),
                limits(64, 4),
                {},
                {work(1, 16, 1), work(2, 16, 1)},
                {{SeqId{3}, 2}}},
        Literal{"then the next one, and nobody is admitted",
                state({seq(1, 96, 97, 96), seq(2, 20, 40, 31),
                       with(seq(3, 16, 17, 16), [](auto& s) { s.sole = 0; })},
                      {fresh(4, 5)}, 9, 16, true, 10),
                limits(64, 8),
                {},
                {work(1, 96, 1)},
                {{SeqId{3}, 1}, {SeqId{2}, 1}}},
        Literal{
            "a sequence that has made room goes on making it",
            state({seq(1, 96, 97, 96), with(seq(2, 40, 41, 40), [](auto& s) { s.swapped = 1, s.sole = 2; })},
                  {}, 8, 16, true, 10),
            limits(64, 8),
            {},
            {work(1, 96, 1)},
            {{SeqId{2}, 1}}},
        Literal{"with a full host the younger one pauses",
                state({seq(1, 16, 18, 17, 3), seq(2, 16, 17, 16, 2)}, {fresh(3, 5)}, 3, 16, true, 0),
                limits(64, 4),
                {},
                {work(1, 17, 1)}},
        Literal{
            "who was swapped out comes back when there is room for it and one block for each other",
            state({seq(1, 16, 18, 17), with(seq(2, 40, 41, 40), [](auto& s) { s.swapped = 2, s.sole = 1; })},
                  {fresh(3, 5)}, 8, 16, true, 10),
            limits(64, 4),
            {3},
            {work(1, 17, 1), work(2, 40, 1), work(3, 0, 5)},
            {},
            {2}},
        Literal{
            "and not before",
            state({seq(1, 16, 18, 17), with(seq(2, 40, 41, 40), [](auto& s) { s.swapped = 3, s.sole = 0; })},
                  {fresh(3, 5)}, 5, 16, true, 10),
            limits(64, 4),
            {},
            {work(1, 17, 1)}},
        Literal{"the oldest one comes back as soon as it fits",
                state({with(seq(2, 40, 41, 40), [](auto& s) { s.swapped = 3, s.sole = 0; }),
                       with(seq(3, 40, 41, 40), [](auto& s) { s.swapped = 3, s.sole = 0; })},
                      {}, 3, 16, true, 10),
                limits(64, 4),
                {},
                {work(2, 40, 1)},
                {},
                {2}},
        Literal{"a sequence whose token is being sampled has no work",
                state({seq(1, 5, 5, 5)}, {}),
                limits(512, 4),
                {},
                {}},
        Literal{"as many prompts as the threshold go before all generated tokens but the oldest sequence's",
                state({seq(1, 5, 6, 5), seq(2, 5, 6, 5), seq(3, 300, 300, 64)}, {fresh(4, 63)}),
                first_tokens(128, 8, 2),
                {4},
                {work(1, 5, 1), work(3, 64, 64), work(4, 0, 63)},
                {},
                {},
                {2}},
        Literal{"one prompt fewer does not",
                state({seq(1, 5, 6, 5), seq(2, 5, 6, 5), seq(3, 300, 300, 64)}, {fresh(4, 63)}),
                first_tokens(128, 8, 3),
                {},
                {work(1, 5, 1), work(2, 5, 1), work(3, 64, 64)}},
        Literal{"rows that prompts leave go to generated tokens in order of admission",
                state({seq(1, 5, 6, 5), seq(2, 5, 6, 5), seq(3, 5, 6, 5), seq(4, 5, 6, 5)}, {fresh(5, 62)}),
                first_tokens(64, 8, 1),
                {5},
                {work(1, 5, 1), work(2, 5, 1), work(5, 0, 62)},
                {},
                {},
                {3, 4}},
        Literal{"who was passed too often has a row first",
                state({seq(1, 5, 6, 5), seq(2, 5, 6, 5), with(seq(3, 5, 6, 5), [](auto& s) { s.passed = 2; }),
                       with(seq(4, 5, 6, 5), [](auto& s) { s.passed = 1; })},
                      {fresh(5, 62)}),
                first_tokens(64, 8, 1),
                {5},
                {work(1, 5, 1), work(3, 5, 1), work(5, 0, 62)},
                {},
                {},
                {2, 4}},
        Literal{"prompts that nobody may compute take no rows from anybody",
                state({seq(1, 5, 6, 5), seq(2, 5, 6, 5)}, {fresh(5, 60), fresh(6, 60)}),
                first_tokens(64, 2, 1),
                {},
                {work(1, 5, 1), work(2, 5, 1)}},
        Literal{"the oldest that has not finished counts as the oldest",
                state({with(seq(1, 5, 6, 5), [](auto& s) { s.finished = true; }), seq(2, 5, 6, 5),
                       seq(3, 5, 6, 5)},
                      {fresh(5, 63)}),
                first_tokens(64, 8, 1),
                {5},
                {work(2, 5, 1), work(5, 0, 63)},
                {},
                {},
                {3}},
        Literal{"with few blocks left age decides, as always",
                state({seq(1, 5, 6, 5), seq(2, 5, 6, 5), seq(3, 128, 128, 64)}, {fresh(4, 63)}, 19),
                first_tokens(128, 8, 1),
                {},
                {work(1, 5, 1), work(2, 5, 1), work(3, 64, 64)}},
        Literal{"and with just enough it does not",
                state({seq(1, 5, 6, 5), seq(2, 5, 6, 5), seq(3, 128, 128, 64)}, {fresh(4, 63)}, 20),
                first_tokens(128, 8, 1),
                {4},
                {work(1, 5, 1), work(3, 64, 64), work(4, 0, 63)},
                {},
                {},
                {2}},
        Literal{"nor while somebody is swapped out",
                state({seq(1, 5, 6, 5), seq(2, 5, 6, 5), seq(3, 300, 300, 64),
                       with(seq(4, 40, 41, 40), [](auto& s) { s.swapped = 3, s.sole = 0; })},
                      {}, 1000, 16, true, 10),
                first_tokens(129, 8, 1),
                {},
                {work(1, 5, 1), work(2, 5, 1), work(4, 40, 1), work(3, 64, 64)},
                {},
                {4}}),
    [](const auto& literal) { return std::to_string(literal.index); });

TEST(Scheduler, SaysWhyNobodyMoreIsAdmitted) {
  const auto why = [](const SchedulerState& now, const SchedulerLimits& l) { return plan_step(now, l).stop; };
  EXPECT_EQ(why(state({}, {fresh(1, 5)}), limits(64, 4)), AdmissionStop::kNone);
  EXPECT_EQ(why(state({seq(1, 5, 6, 5)}, {}), limits(64, 4)), AdmissionStop::kNone) << "nobody waits";
  EXPECT_EQ(why(state({}, {with(fresh(1, 5), [](auto& s) { s.deferred = true; })}), limits(64, 4)),
            AdmissionStop::kNone);
  EXPECT_EQ(why(state({seq(1, 5, 6, 5)}, {fresh(2, 5)}), limits(64, 1)), AdmissionStop::kPlaces);
  EXPECT_EQ(why(state({}, {fresh(2, 5)}, 1000, 0), limits(64, 4)), AdmissionStop::kPlaces);
  EXPECT_EQ(why(state({seq(1, 5, 6, 5)}, {fresh(2, 130)}, 10), limits(512, 4)), AdmissionStop::kBlocks);
  EXPECT_EQ(why(state({}, {fresh(1, 64), fresh(2, 5)}), limits(64, 4)), AdmissionStop::kBudget);
  EXPECT_EQ(why(state({seq(2, 10, 13, 12), seq(1, 500, 500, 64)}, {fresh(3, 5)}), limits(64, 16)),
            AdmissionStop::kRunning);
}

// What the engine does with plans, in numbers only.
class Simulation {
 public:
  struct Setting {
    SchedulerLimits limits;
    int32_t blocks, slots, host;
    bool hybrid;
    int64_t prompt = 900, output = 60;  // the longest
  };
  Simulation(uint64_t seed, const Setting& setting) : rng_(seed), set_(setting) {}

  void submit() {
    const int64_t most = int64_t{set_.blocks} * kBlockTokens;
    const int64_t prompt = std::min<int64_t>(most - 1, number(1, number(0, 3) == 0 ? set_.prompt : 80));
    const int64_t output = std::min<int64_t>(most - prompt, number(1, set_.output));
    ScheduledSequence s = fresh(next_id_, prompt, blocks_for(prompt + output));
    s.max_blocks = blocks_for(prompt + output);
    // One client asks for more than all others.
    client_of_[next_id_] = static_cast<uint64_t>(number(0, 1) == 0 ? 1 : number(2, 5));
    queue_.add(next_id_, client_of_[next_id_], static_cast<int32_t>(number(0, 2)), step_);
    waiting_[next_id_] = s;
    ends_[next_id_++] = prompt + output;
  }

  bool idle() const { return now_.running.empty() && waiting_.empty(); }
  size_t waiting() const { return waiting_.size(); }
  int64_t ended() const { return ended_; }
  int64_t preemptions() const { return preemptions_; }
  int64_t pauses() const { return pauses_; }
  int64_t passes() const { return passes_; }

  // One step: checks the plan, and carries it out.
  void step() {
    begin();
    const StepPlan plan = plan_step(now_, set_.limits);
    lingering_ =
        std::any_of(now_.running.begin(), now_.running.end(), [](const auto& s) { return s.finished; });
    ASSERT_FALSE(plan.empty() && !idle() && !lingering_) << "no progress";
    std::erase_if(now_.running, [&](const ScheduledSequence& s) { return s.finished; });
    swap(plan);
    admit(plan);
    if (testing::Test::HasFatalFailure()) return;
    carry_out(plan);
    if (testing::Test::HasFatalFailure()) return;
    end_step();
  }

  int64_t number(int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(rng_); }

 private:
  // What the snapshot says of blocks, and now and then that the cache has some of a waiting prompt, or that it waits.
  void begin() {
    const SchedulerState counted = state(now_.running, {}, set_.blocks, 0, set_.hybrid, set_.host);
    now_.total_blocks = set_.blocks;
    now_.available_blocks = counted.available_blocks;
    now_.host_blocks = set_.host;
    now_.free_host_blocks = counted.free_host_blocks;
    now_.free_slots = set_.slots - static_cast<int32_t>(now_.running.size());
    now_.needs_slots = set_.hybrid;
    ASSERT_GE(now_.available_blocks, 0);
    ASSERT_GE(now_.free_host_blocks, 0);
    queue_.age(++step_);
    queue_.begin(step_);
    now_.waiting.clear();
    for (size_t i = 0; i < kWindow; ++i) {
      const auto next = queue_.next();
      if (!next) break;
      ScheduledSequence& s = now_.waiting.emplace_back(waiting_.at(static_cast<int32_t>(next->id)));
      s.priority = next->priority;
      s.age = next->age;
      s.client = next->client;
      s.arrival = next->arrival;
      const int64_t chunks = (s.prompt - 1) / kChunkTokens;
      s.computed = number(0, 2) == 0 ? number(0, chunks) * kChunkTokens : 0;
      s.held = s.unused = blocks_for(s.computed);
      s.deferred = i > 0 && number(0, 3) == 0;
      s.cut = number(0, 2) == 0 ? number(0, chunks) * kChunkTokens : 0;
    }
    now_.clients.assign(queue_.clients().begin(), queue_.clients().end());
  }

  ScheduledSequence& running(SeqId id) {
    return *std::find_if(now_.running.begin(), now_.running.end(), [&](const auto& r) { return r.id == id; });
  }

  void swap(const StepPlan& plan) {
    int32_t outs = 0, ins = 0;
    for (const Preemption& p : plan.preempt) {
      ScheduledSequence& s = running(p.seq);
      ASSERT_NE(s.id, now_.running.front().id) << "the oldest never makes room";
      preemptions_ += s.swapped == 0;
      s.swapped += p.blocks;
      outs += p.blocks;
      ASSERT_LE(s.swapped, s.held);
    }
    for (const SeqId id : plan.resume) ins += std::exchange(running(id).swapped, 0);
    ASSERT_LE(std::max(outs, ins), set_.limits.max_swaps);
    ASSERT_TRUE(outs == 0 || ins == 0);
    // The younger of two is swapped out first, whole.
    for (size_t i = 0; i + 1 < now_.running.size(); ++i) {
      if (now_.running[i].swapped > 0) {
        ASSERT_EQ(now_.running[i + 1].swapped, now_.running[i + 1].held);
      }
    }
  }

  void admit(const StepPlan& plan) {
    ASSERT_TRUE(plan.admit.empty() || std::all_of(now_.running.begin(), now_.running.end(),
                                                  [](const auto& s) { return s.swapped == 0; }));
    for (const SeqId id : plan.admit) {
      const auto at =
          std::find_if(now_.waiting.begin(), now_.waiting.end(), [&](const auto& w) { return w.id == id; });
      ASSERT_NE(at, now_.waiting.end());
      ASSERT_FALSE(at->deferred);
      const auto running_of = [&](const ScheduledSequence& s) {
        return now_.clients[static_cast<size_t>(s.client)].running;
      };
      for (const ScheduledSequence& other : now_.waiting) {
        ASSERT_TRUE(other.priority >= at->priority || other.deferred) << "before a more important one";
        ASSERT_TRUE(other.priority > at->priority || other.deferred || running_of(other) >= running_of(*at))
            << "before one of a client that has less";
      }
      ++now_.clients[static_cast<size_t>(at->client)].running;
      queue_.admit(id.v, step_);
      waiting_.erase(id.v);
      now_.running.push_back(*at);
      now_.running.back().sole = at->held;
      now_.waiting.erase(at);
    }
    ASSERT_LE(now_.running.size(), static_cast<size_t>(set_.limits.max_sequences));
    if (set_.hybrid) {
      ASSERT_LE(now_.running.size(), static_cast<size_t>(set_.slots));
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
      ASSERT_EQ(s->swapped, 0);
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
      ASSERT_TRUE(decode || s->cut <= w.begin || end <= s->cut) << "past the cut";
      s->computed = end;
      s->held = std::max(s->held, blocks_for(end));
      s->sole = s->held;
      if (end == s->total) ++s->total;  // a token was sampled
    }
    ASSERT_EQ(plan.decodes, decodes);
    ASSERT_LE(rows, set_.limits.max_batch_tokens);
    pass(plan, times, rows);
    if (testing::Test::HasFatalFailure()) return;
    for (const ScheduledSequence& s : now_.running) {
      const bool paused = s.computed >= s.prompt && !times.contains(s.id.v);
      pauses_ += paused && s.swapped == 0;
      ASSERT_FALSE(paused && !lingering_ && s.id == now_.running.front().id)
          << "the oldest runs in every step";
    }
  }

  // Nobody's next token waits for nothing, or too often in a row.
  void pass(const StepPlan& plan, const std::map<int32_t, int>& times, int64_t rows) {
    ASSERT_TRUE(plan.passed.empty() || (plan.first_tokens && rows == set_.limits.max_batch_tokens));
    for (ScheduledSequence& s : now_.running)
      if (times.contains(s.id.v)) s.passed = 0;
    for (const SeqId id : plan.passed) {
      ScheduledSequence& s = running(id);
      ASSERT_FALSE(times.contains(id.v));
      ASSERT_GE(s.computed, s.prompt);
      ASSERT_LE(++s.passed, set_.limits.most_passed);
      ++passes_;
    }
  }

  // Sequences end, or are cancelled wherever they are; some hold their memory for a step more.
  void end_step() {
    const auto cancelled = [&] { return number(0, 2000) == 0; };
    for (ScheduledSequence& s : now_.running) {
      if (s.finished) continue;
      s.finished = s.total >= ends_[s.id.v] || cancelled();
      ended_ += s.finished;
      if (s.finished) queue_.end(client_of_[s.id.v]);
    }
    std::erase_if(now_.running, [&](const ScheduledSequence& s) { return s.finished && number(0, 1) == 0; });
    ended_ += static_cast<int64_t>(std::erase_if(waiting_, [&](const auto& w) {
      const bool gives_up = number(0, 20000) == 0;
      if (gives_up) queue_.remove(w.first);
      return gives_up;
    }));
    for (ScheduledSequence& s : now_.running) s.sole = s.held - s.swapped;
  }

  std::mt19937_64 rng_;
  Setting set_;
  SchedulerState now_;
  static constexpr size_t kWindow = 30;  // fewer than may wait
  WaitingQueue queue_{{.ageing_steps = 50}};
  std::map<int32_t, ScheduledSequence> waiting_;
  std::map<int32_t, uint64_t> client_of_;
  std::map<int32_t, int64_t> ends_;
  int64_t step_ = 0;
  bool lingering_ = false;  // memory of finished ones was still held
  int32_t next_id_ = 0;
  int64_t ended_ = 0, preemptions_ = 0, pauses_ = 0, passes_ = 0;
};

TEST(Scheduler, KeepsItsPromisesUnderRandomLoad) {
  const Simulation::Setting settings[] = {
      {limits(512, 16), 2000, 16, 0, true},
      {limits(64, 16), 2000, 16, 500, true},
      {limits(64, 4), 61, 4, 0, true, 900, 300},
      {limits(64, 4), 61, 4, 10, true, 100, 600},
      {limits(64, 8), 64, 8, 64, true, 300, 700},
      {limits(100, 8), 120, 8, 1000, false, 500, 900},
      {limits(4096, 64), 400, 64, 200, false, 900, 900},
      {limits(128, 1), 70, 1, 50, true},
      {limits(256, 32), 90, 32, 90, false, 200, 400},
      {first_tokens(64, 16, 1), 2000, 16, 500, true},
      {first_tokens(64, 32, 4), 400, 32, 0, true, 300, 100},
      {first_tokens(128, 32, 2), 200, 32, 200, false, 200, 400},
      {first_tokens(100, 8, 1), 120, 8, 1000, true, 500, 900},
  };
  // More than 10^5 steps a seed; by hand 10^6 and more: --seeds=10.
  const test::Seeds seeds = test::seeds_or(1);
  int64_t all_steps = 0, preemptions = 0, pauses = 0, passes = 0;
  for (size_t i = 0; i < static_cast<size_t>(seeds.count()) * std::size(settings); ++i) {
    const Simulation::Setting& s = settings[i % std::size(settings)];
    const auto seed = static_cast<uint64_t>(seeds.first - 1) * std::size(settings) + i + 1;
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation sim(seed, s);
    // Requests come faster than they can be served, so that there is always somebody to be passed by.
    constexpr int kRequests = 500;
    int submitted = 0;
    for (int64_t steps = 0; submitted < kRequests || !sim.idle(); ++steps, ++all_steps) {
      for (int64_t n = sim.number(0, 2); n > 0 && submitted < kRequests && sim.waiting() < 40;
           --n, ++submitted)
        sim.submit();
      if (!sim.idle()) sim.step();
      if (HasFatalFailure()) return;
      ASSERT_LT(steps, 200000) << "never ends";
    }
    EXPECT_EQ(sim.ended(), kRequests) << "each once";
    preemptions += sim.preemptions();
    pauses += sim.pauses();
    EXPECT_EQ(sim.passes() > 0, s.limits.first_token_threshold > 0);
    passes += sim.passes();
  }
  RecordProperty("steps", std::to_string(all_steps));
  EXPECT_GT(all_steps, 100000 * seeds.count());
  EXPECT_GT(preemptions, 1000 * seeds.count());
  EXPECT_GT(pauses, 1000 * seeds.count());
  EXPECT_GT(passes, 1000 * seeds.count());
}

// Decodes leave fewer than 64 rows, and short prompts keep arriving that would fit: the long one gets on.
TEST(Scheduler, ShortPromptsDoNotStarveALongOne) {
  SchedulerState now = state({seq(0, 300, 300, 64)}, {});
  int32_t next = 1;
  for (int step = 0; step < 100; ++step) {
    while (now.waiting.size() < 3) now.waiting.push_back(fresh(next++, 8));
    const StepPlan plan = plan_step(now, limits(64, 8));
    for (const SeqId id : plan.admit) {
      ASSERT_EQ(now.waiting.front().id, id);
      now.running.push_back(now.waiting.front());
      now.waiting.erase(now.waiting.begin());
    }
    for (const Work& w : plan.work)
      for (ScheduledSequence& s : now.running)
        if (s.id == w.seq) {
          s.computed += w.count;
          s.held = blocks_for(s.computed);
          if (s.computed == s.total) ++s.total;
        }
    if (now.running.front().computed >= 300) return;
    std::erase_if(now.running, [](const ScheduledSequence& s) { return s.id.v != 0 && s.total > 16; });
  }
  FAIL() << "the prompt stands at " << now.running.front().computed << " after 100 steps";
}

// What one step admits of those that wait in a queue, into places that are all free.
std::vector<int64_t> admitted(WaitingQueue& queue, const std::vector<int64_t>& deferred, int32_t places) {
  SchedulerState now = state({}, {});
  queue.begin(1);
  while (const auto next = queue.next()) {
    ScheduledSequence& s = now.waiting.emplace_back(fresh(static_cast<int32_t>(next->id), 9));
    s.client = next->client;
    s.arrival = next->arrival;
    s.deferred = std::find(deferred.begin(), deferred.end(), next->id) != deferred.end();
  }
  now.clients.assign(queue.clients().begin(), queue.clients().end());
  std::vector<int64_t> ids;
  for (const SeqId id : plan_step(now, limits(512, places)).admit) ids.push_back(id.v);
  return ids;
}

// The first computes what the next fifteen can use; all come before those who can use nothing of it.
TEST(Scheduler, FifteenRequestsThatWaitForASharedPrefixHoldNoPlace) {
  for (const bool by_client : {false, true}) {
    WaitingQueue queue({});
    std::vector<int64_t> deferred, expected = {0};
    for (int64_t id = 0; id < 40; ++id) {
      queue.add(id, by_client && id >= 16 ? 2 : 1, 0, 0);
      if (id > 0 && id < 16) deferred.push_back(id);
      if (id >= 16 && id < 31) expected.push_back(id);
    }
    EXPECT_EQ(admitted(queue, deferred, 16), expected);
  }
}

// 17 prompts with 16 answers each have all places only while nobody else wants one.
TEST(Scheduler, OneRequestsManyAnswersLeavePlacesToOthers) {
  constexpr int kPlaces = 16;
  SchedulerState now = state({}, {});
  WaitingQueue queue({});
  std::map<int64_t, uint64_t> client_of;
  std::deque<int64_t> running;
  int64_t ids = 0;
  const auto join = [&](uint64_t client, int count) {
    for (; count > 0; --count) {
      client_of[++ids] = client;
      queue.add(ids, client, 0, 0);
    }
  };
  const auto fill = [&] {
    while (running.size() < kPlaces) {
      const auto next = admitted(queue, {}, 1);
      if (next.empty()) return;
      queue.admit(next[0], 1);
      running.push_back(next[0]);
    }
  };
  const auto has = [&](uint64_t client) {
    return std::count_if(running.begin(), running.end(), [&](int64_t id) { return client_of[id] == client; });
  };
  join(1, 272);
  fill();
  EXPECT_EQ(has(1), kPlaces);
  join(2, 30);
  join(3, 2);
  for (int ended = 0; ended < 40; ++ended) {
    queue.end(client_of[running.front()]);
    running.pop_front();
    fill();
    EXPECT_EQ(std::ssize(running), kPlaces);
    if (ended == 3) {
      EXPECT_EQ(has(2), 2);
      EXPECT_EQ(has(3), 2);
    } else if (ended == 13) {
      EXPECT_EQ(has(1), 7);
      EXPECT_EQ(has(2), 7);
    }
  }
}

}  // namespace
}  // namespace quire
