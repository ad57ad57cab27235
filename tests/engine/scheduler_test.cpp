// plan_step on states written by hand.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <ostream>

#include "engine/scheduler_states.h"

namespace quire {

void PrintTo(const Preemption& p, std::ostream* out) {
  *out << "{" << p.seq.v << ": " << p.blocks << "}";
}
void PrintTo(const Work& w, std::ostream* out) {
  *out << "{" << w.seq.v << ": " << w.begin << "+" << w.count << "}";
}

namespace test {
namespace {

Work work(int32_t id, int64_t begin, int32_t count) {
  return {SeqId{id}, begin, count};
}

// Pictures at [100, 300) and at [301, 310) of a prompt.
const PromptImages* two_pictures() {
  static const PromptImages images({picture_at(100, 300), picture_at(301, 310)});
  return &images;
}
ScheduledSequence with_pictures(ScheduledSequence s) {
  s.whole = two_pictures();
  return s;
}

struct Literal {
  const char* name;
  SchedulerState now;
  SchedulerLimits limits;
  std::vector<int32_t> admit;
  std::vector<Work> work;
  std::vector<Preemption> preempt = {};
  std::vector<int32_t> resume = {};
  std::vector<int32_t> skipped = {};
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
  EXPECT_EQ(numbers(plan.skipped), GetParam().skipped);
}

INSTANTIATE_TEST_SUITE_P(
    Literals, PlanStep,
    testing::Values(
        Literal{"nothing", state({}, {}), limits(512, 16), {}, {}},
        Literal{"a prompt that fits goes whole", state({}, {fresh(1, 100)}), limits(512, 16), {1}, {work(1, 0, 100)}},
        Literal{"a prompt of exactly the budget", state({}, {fresh(1, 512)}), limits(512, 16), {1}, {work(1, 0, 512)}},
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
        Literal{"the rest of a prompt", state({seq(1, 500, 500, 384)}, {}), limits(200, 16), {}, {work(1, 384, 116)}},
        Literal{"decodes come before prompts, whatever the order of admission",
                state({seq(1, 500, 500, 64), seq(2, 10, 13, 12), seq(3, 7, 8, 7)}, {}),
                limits(130, 16),
                {},
                {work(2, 12, 1), work(3, 7, 1), work(1, 64, 128)}},
        Literal{
            "who waits for a mask takes no row, and holds nobody back",
            state({with(seq(2, 10, 17, 16), [](auto& s) { s.waits_for_mask = true; }), seq(3, 7, 8, 7)}, {fresh(4, 5)}),
            limits(64, 64),
            {4},
            {work(3, 7, 1), work(4, 0, 5)}},
        Literal{"who waits for a picture takes no row, and holds nobody back",
                state({with(seq(2, 500, 500, 128), [](auto& s) { s.ready = 128; }), seq(3, 7, 8, 7)}, {fresh(4, 5)}),
                limits(64, 64),
                {4},
                {work(3, 7, 1), work(4, 0, 5)}},
        Literal{"a prompt is computed up to the next picture",
                state({with(seq(2, 500, 500, 128), [](auto& s) { s.ready = 192; })},
                      {with(fresh(4, 300), [](auto& s) { s.ready = 64; })}),
                limits(512, 64),
                {4},
                {work(2, 128, 64), work(4, 0, 64)}},
        Literal{"a chunk that would end within a picture ends behind it",
                state({}, {with_pictures(fresh(1, 500))}),
                whole_pictures(limits(310, 16), 200),
                {1},
                {work(1, 0, 300)}},
        Literal{"or before it, if the picture does not fit",
                state({}, {with_pictures(fresh(1, 500))}),
                whole_pictures(limits(299, 16), 200),
                {1},
                {work(1, 0, 100)}},
        Literal{"behind pictures chunks go back to the grid",
                state({with_pictures(seq(1, 700, 700, 300))}, {}),
                whole_pictures(limits(200, 16), 200),
                {},
                {work(1, 300, 148)}},
        Literal{"the rest of a picture that a cache has in part is one chunk",
                state({with_pictures(seq(2, 500, 500, 192)), seq(3, 10, 11, 10)}, {}),
                whole_pictures(limits(109, 16), 108),
                {},
                {work(3, 10, 1), work(2, 192, 108)}},
        Literal{"a picture that finds too few rows waits, and nobody passes it",
                state({seq(2, 10, 13, 12), with_pictures(seq(1, 500, 500, 100))}, {fresh(3, 5)}),
                whole_pictures(limits(200, 16), 200),
                {},
                {work(2, 12, 1)}},
        Literal{
            "drafts leave room for a picture",
            state({with(seq(2, 10, 13, 12), [](auto& s) { s.drafts = 3; }), with_pictures(seq(1, 500, 500, 100))}, {}),
            drafting(whole_pictures(limits(202, 16), 200), 16),
            {},
            {work(2, 12, 2), work(1, 100, 200)}},
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
        Literal{"no place left", state({seq(1, 5, 6, 5)}, {fresh(2, 5)}), limits(512, 1), {}, {work(1, 5, 1)}},
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
        Literal{"but not before those that waited too long",
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
        Literal{
            "but not if that has waited too long, itself and since its client had a place",
            of_clients(state({}, {from(0, with(fresh(1, 9), [](auto& s) { s.age = 101; })), from(1, hit(2, 200, 128))}),
                       {{}, {}}),
            limits(512, 1),
            {1},
            {work(1, 0, 9)}},
        Literal{
            "whose client had one lately has not waited",
            of_clients(state({}, {from(0, with(fresh(1, 9), [](auto& s) { s.age = 101; })), from(1, hit(2, 200, 128))}),
                       {{.since = 1, .idle = 100}, {}}),
            limits(512, 1),
            {2},
            {work(2, 128, 72)}},
        Literal{
            "a better priority goes before a client's turn",
            of_clients(state({}, {from(0, with(fresh(1, 9), [](auto& s) { s.priority = -1; })), from(1, fresh(2, 9))}),
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
        Literal{
            "then the next one, and nobody is admitted",
            state({seq(1, 96, 97, 96), seq(2, 20, 40, 31), with(seq(3, 16, 17, 16), [](auto& s) { s.exclusive = 0; })},
                  {fresh(4, 5)}, 9, 16, true, 10),
            limits(64, 8),
            {},
            {work(1, 96, 1)},
            {{SeqId{3}, 1}, {SeqId{2}, 1}}},
        Literal{"a sequence that has made room goes on making it",
                state({seq(1, 96, 97, 96), with(seq(2, 40, 41, 40), [](auto& s) { s.swapped = 1, s.exclusive = 2; })},
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
        Literal{"who was swapped out comes back when there is room for it and one block for each other",
                state({seq(1, 16, 18, 17), with(seq(2, 40, 41, 40), [](auto& s) { s.swapped = 2, s.exclusive = 1; })},
                      {fresh(3, 5)}, 8, 16, true, 10),
                limits(64, 4),
                {3},
                {work(1, 17, 1), work(2, 40, 1), work(3, 0, 5)},
                {},
                {2}},
        Literal{"and not before",
                state({seq(1, 16, 18, 17), with(seq(2, 40, 41, 40), [](auto& s) { s.swapped = 3, s.exclusive = 0; })},
                      {fresh(3, 5)}, 5, 16, true, 10),
                limits(64, 4),
                {},
                {work(1, 17, 1)}},
        Literal{"the oldest one comes back as soon as it fits",
                state({with(seq(2, 40, 41, 40), [](auto& s) { s.swapped = 3, s.exclusive = 0; }),
                       with(seq(3, 40, 41, 40), [](auto& s) { s.swapped = 3, s.exclusive = 0; })},
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
        Literal{"who was skipped too often has a row first",
                state({seq(1, 5, 6, 5), seq(2, 5, 6, 5), with(seq(3, 5, 6, 5), [](auto& s) { s.skipped_steps = 2; }),
                       with(seq(4, 5, 6, 5), [](auto& s) { s.skipped_steps = 1; })},
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
                state({with(seq(1, 5, 6, 5), [](auto& s) { s.finished = true; }), seq(2, 5, 6, 5), seq(3, 5, 6, 5)},
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
                       with(seq(4, 40, 41, 40), [](auto& s) { s.swapped = 3, s.exclusive = 0; })},
                      {}, 1000, 16, true, 10),
                first_tokens(129, 8, 1),
                {},
                {work(1, 5, 1), work(2, 5, 1), work(4, 40, 1), work(3, 64, 64)},
                {},
                {4}}),
    [](const auto& literal) { return std::to_string(literal.index); });

// Whoever runs has its windows set aside, of each pool, and nobody passes one whose windows do not fit.
TEST(Scheduler, AdmitsAsManyAsThereAreWindowsFor) {
  const auto windows = [](ScheduledSequence s, int32_t blocks) {
    s.windows = {blocks, 2 * blocks};
    return s;
  };
  SchedulerState now = state({}, {windows(fresh(1, 5), 3), windows(fresh(2, 5), 4), windows(fresh(3, 5), 1)});
  const auto admitted = [&](int32_t free, int32_t of_others = 100) {
    now.free_windows = {free, of_others};
    return std::ssize(plan_step(now, limits(64, 4)).admit);
  };
  EXPECT_EQ(admitted(8), 3);
  EXPECT_EQ(admitted(7), 2);
  EXPECT_EQ(admitted(6), 1);
  EXPECT_EQ(admitted(8, 16), 3);
  EXPECT_EQ(admitted(8, 15), 2);
  EXPECT_EQ(admitted(100, 5), 0);
  EXPECT_EQ(admitted(2), 0);
  EXPECT_EQ(plan_step(now, limits(64, 4)).stop, AdmissionStop::kBlocks);
}

// How many rows each sequence has in a plan.
using Rows = std::vector<std::pair<int32_t, int32_t>>;
Rows rows(const SchedulerState& now, const SchedulerLimits& l) {
  Rows all;
  for (const Work& w : plan_step(now, l).work) all.emplace_back(w.seq.v, w.count);
  return all;
}

// Long sequences, as those that share a prefix, take turns where the step has no room for all of their keys' parts.
TEST(Scheduler, LongSequencesTakeTurns) {
  const auto late = [](ScheduledSequence s, int32_t skipped, int32_t drafts = 0) {
    s.skipped_steps = skipped, s.drafts = drafts;
    return s;
  };
  // Two parts each, with drafts three.
  const SchedulerState now = state({seq(1, 5, 500, 499), seq(2, 5, 500, 499), late(seq(3, 5, 500, 499), 1),
                                    late(seq(4, 5, 500, 499), 2), seq(5, 5, 6, 5)},
                                   {});
  EXPECT_EQ(rows(now, limits(64, 8)), (Rows{{1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}}));
  EXPECT_EQ(rows(now, with_parts(limits(64, 8), 9)), (Rows{{1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}}));
  EXPECT_EQ(rows(now, with_parts(limits(64, 8), 6)), (Rows{{1, 1}, {3, 1}, {4, 1}})) << "the oldest, then who waited";
  EXPECT_EQ(rows(now, with_parts(limits(64, 8), 5)), (Rows{{1, 1}, {4, 1}, {5, 1}})) << "a short one fits behind";
  EXPECT_EQ(plan_step(now, with_parts(limits(64, 8), 5)).skipped, (std::vector{SeqId{3}, SeqId{2}}));
  const SchedulerState drafts = state({late(seq(1, 5, 510, 509), 0, 7), late(seq(2, 5, 6, 5), 0, 3)}, {});
  const auto drafting_with = [&](int64_t parts) {
    return rows(drafts, with_parts(drafting(limits(64, 8), 64), parts));
  };
  EXPECT_EQ(drafting_with(0), (Rows{{1, 8}, {2, 4}}));
  EXPECT_EQ(drafting_with(32), (Rows{{1, 8}, {2, 4}}));
  EXPECT_EQ(drafting_with(12), (Rows{{1, 3}, {2, 3}})) << "4 parts, 3 rows";
  EXPECT_EQ(drafting_with(4), (Rows{{1, 1}, {2, 1}}));
  EXPECT_EQ(drafting_with(3), (Rows{{1, 1}, {2, 1}})) << "without drafts three parts";
}

// With several stages as many steps are computed at the same time, of different sequences.
TEST(Scheduler, SequencesFormAsManyGroupsAsThereAreStages) {
  const auto stages = [](SchedulerLimits l, int32_t n) {
    l.stages = n;
    return l;
  };
  // Generated tokens to compute, with so many steps since the last one, which may be under way.
  const auto decode = [](int32_t id, int64_t idle, bool in_flight) {
    ScheduledSequence s = seq(id, 5, 7, 6);
    s.idle_steps = idle, s.in_flight = in_flight;
    return s;
  };
  const SchedulerLimits two = stages(limits(64, 8), 2);
  const SchedulerState at_rest = state({decode(1, 9, false), decode(2, 9, false), decode(3, 9, false)}, {});
  EXPECT_EQ(rows(at_rest, limits(64, 8)), (Rows{{1, 1}, {2, 1}, {3, 1}}));
  EXPECT_EQ(rows(at_rest, two), (Rows{{1, 1}, {2, 1}}));
  EXPECT_EQ(rows(at_rest, stages(limits(64, 8), 8)), (Rows{{1, 1}})) << "one of each";
  EXPECT_EQ(rows(state({decode(1, 0, true), decode(2, 0, true), decode(3, 1, false)}, {}), two), (Rows{{3, 1}}));
  EXPECT_EQ(rows(state({decode(1, 1, true), decode(2, 1, true), decode(3, 0, true)}, {}), two), (Rows{{1, 1}, {2, 1}}))
      << "behind the step before the newest";
  EXPECT_EQ(rows(state({decode(1, 0, false), decode(2, 3, false), decode(3, 2, false)}, {}), two),
            (Rows{{2, 1}, {3, 1}}))
      << "whose last step is longest ago";
  EXPECT_EQ(rows(state({decode(1, 0, true)}, {}), two), (Rows{{1, 1}})) << "alone it is its own group";
  EXPECT_EQ(rows(state({decode(1, 0, true), decode(2, 0, true)}, {}), two), Rows{}) << "both are being computed";
  EXPECT_EQ(rows(state({decode(1, 0, true), decode(2, 0, true), seq(3, 200, 200, 64)}, {}), two), (Rows{{3, 64}}))
      << "prompts go on";
  // The one whose turn it is has blocks on the host, and no room for them.
  ScheduledSequence out = decode(2, 5, false);
  out.swapped = out.held;
  EXPECT_EQ(rows(state({decode(1, 0, false), out}, {}, 1, 16, true, 8), two), (Rows{{1, 1}}));
  // Or it needs a block, of which there is none.
  ScheduledSequence full = seq(2, 5, 17, 16);
  full.idle_steps = 5;
  EXPECT_EQ(rows(state({decode(1, 0, false), full}, {}, 2), two), (Rows{{1, 1}}));
}

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

}  // namespace
}  // namespace test
}  // namespace quire
