// plan_step under load: thousands of random requests whose every step is simulated, in numbers only.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "engine/scheduler_states.h"
#include "engine/waiting_queue.h"
#include "ops/attention/parts.h"
#include "ops/op.h"
#include "support/seeds.h"

namespace quire::test {
namespace {

// What the engine does with plans, in numbers only.
class Simulation {
 public:
  struct Setting {
    SchedulerLimits limits;
    int32_t blocks, slots, host;
    bool hybrid;
    int64_t prompt = 900, output = 60;  // the longest
    int64_t drafts = 0;                 // wanted behind a generated token, at most
    int64_t picture = 0;                // the longest; each is computed whole
  };
  Simulation(uint64_t seed, const Setting& setting) : rng_(seed), set_(setting) {}

  void submit() {
    const int64_t most = int64_t{set_.blocks} * kBlockTokens;
    const int64_t prompt = std::min<int64_t>(most - 1, number(1, number(0, 3) == 0 ? set_.prompt : 80));
    const int64_t output = std::min<int64_t>(most - prompt, number(1, set_.output));
    ScheduledSequence s = fresh(next_id_, prompt, blocks_for(prompt + output));
    s.max_blocks = blocks_for(prompt + output);
    if (set_.picture > 0) s.whole = &(pictures_[next_id_] = some_pictures(prompt));
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
  int64_t accepted() const { return accepted_; }

  // One step: checks the plan, and carries it out.
  void step() {
    begin();
    const StepPlan plan = plan_step(now_, set_.limits);
    lingering_ = std::any_of(now_.running.begin(), now_.running.end(), [](const auto& s) { return s.finished; });
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
  PromptImages some_pictures(int64_t prompt) {
    std::vector<PromptImage> images;
    for (int64_t at = number(0, 100), length; (length = number(1, set_.picture), at + length <= prompt);
         at += length + number(0, 1) * number(0, 300))
      images.push_back(picture_at(at, at + length));
    return PromptImages(std::move(images));
  }
  // Where a chunk may end.
  static bool may_end(const ScheduledSequence& s, int64_t end) {
    if (s.whole == nullptr) return end == s.prompt || end % kChunkTokens == 0;
    const bool within = std::any_of(s.whole->begin(), s.whole->end(),
                                    [&](const PromptImage& i) { return i.position < end && end < i.end(); });
    const bool beside = std::any_of(s.whole->begin(), s.whole->end(),
                                    [&](const PromptImage& i) { return i.position == end || end == i.end(); });
    return !within && (beside || end == s.prompt || end % kChunkTokens == 0);
  }

  // What the snapshot says of blocks, and now and then that the cache has some of a waiting prompt, or that it waits.
  void begin() {
    const SchedulerState counted = state(now_.running, {}, set_.blocks, 0, set_.hybrid, set_.host);
    now_.total_blocks = set_.blocks;
    now_.available_blocks = counted.available_blocks;
    now_.host_blocks = set_.host;
    now_.free_host_blocks = counted.free_host_blocks;
    now_.free_slots = set_.slots - static_cast<int32_t>(now_.running.size());
    now_.needs_slots = set_.hybrid;
    for (ScheduledSequence& s : now_.running) {
      const int64_t left = ends_[s.id.v] - s.total - 1;
      s.drafts = s.computed + 1 == s.total && s.computed >= s.prompt
                     ? static_cast<int32_t>(std::min(number(0, set_.drafts), std::max<int64_t>(left, 0)))
                     : 0;
    }
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
      s.cut = number(0, 2) == 0 && s.whole == nullptr ? number(0, chunks) * kChunkTokens : 0;
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
    ASSERT_TRUE(plan.admit.empty() ||
                std::all_of(now_.running.begin(), now_.running.end(), [](const auto& s) { return s.swapped == 0; }));
    for (const SeqId id : plan.admit) {
      const auto at = std::find_if(now_.waiting.begin(), now_.waiting.end(), [&](const auto& w) { return w.id == id; });
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
      now_.running.back().exclusive = at->held;
      now_.waiting.erase(at);
    }
    ASSERT_LE(now_.running.size(), static_cast<size_t>(set_.limits.max_sequences));
    if (set_.hybrid) {
      ASSERT_LE(now_.running.size(), static_cast<size_t>(set_.slots));
    }
  }

  void carry_out(const StepPlan& plan) {
    int64_t rows = 0, draft_rows = 0, parts = 0, most_rows = 1;
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
      ASSERT_TRUE(!decode || w.count <= 1 + s->drafts);
      if (decode) parts += attention_parts(end), most_rows = std::max<int64_t>(most_rows, w.count);
      ASSERT_TRUE(decode || may_end(*s, end)) << "chunk ends at " << end;
      ASSERT_TRUE(decode || s->cut <= w.begin || end <= s->cut) << "past the cut";
      s->held = std::max(s->held, blocks_for(end));
      ASSERT_LE(s->held, s->max_blocks);
      s->exclusive = s->held;
      const auto wrong = decode ? number(0, w.count - 1) : 0;  // of the drafts, the last ones
      draft_rows += decode ? w.count - 1 : 0;
      accepted_ += decode ? w.count - 1 - wrong : 0;
      s->computed = end - wrong;
      if (s->computed >= s->total) s->total = s->computed + 1;  // a token was sampled behind them
    }
    ASSERT_LE(std::ssize(now_.running) + draft_rows, std::max(set_.limits.max_sampled_rows, set_.limits.max_sequences));
    ASSERT_TRUE(draft_rows == 0 || !plan.first_tokens);
    ASSERT_TRUE(set_.limits.max_parts == 0 || parts * most_rows <= set_.limits.max_parts);
    ASSERT_EQ(plan.decodes, decodes);
    ASSERT_LE(rows, set_.limits.max_batch_tokens);
    pass(plan, times, rows);
    if (testing::Test::HasFatalFailure()) return;
    for (const ScheduledSequence& s : now_.running) {
      const bool paused = s.computed >= s.prompt && !times.contains(s.id.v);
      pauses_ += paused && s.swapped == 0;
      ASSERT_FALSE(paused && !lingering_ && s.id == now_.running.front().id) << "the oldest runs in every step";
    }
  }

  // Nobody's next token waits for nothing, or too often in a row.
  void pass(const StepPlan& plan, const std::map<int32_t, int>& times, int64_t rows) {
    const bool by_parts = set_.limits.max_parts > 0;
    const int64_t most = by_parts ? set_.limits.max_sequences : set_.limits.most_skipped;
    ASSERT_TRUE(plan.skipped.empty() || by_parts || (plan.first_tokens && rows == set_.limits.max_batch_tokens));
    for (ScheduledSequence& s : now_.running)
      if (times.contains(s.id.v)) s.skipped_steps = 0;
    for (const SeqId id : plan.skipped) {
      ScheduledSequence& s = running(id);
      ASSERT_FALSE(times.contains(id.v));
      ASSERT_GE(s.computed, s.prompt);
      ASSERT_LE(++s.skipped_steps, most);
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
    for (ScheduledSequence& s : now_.running) s.exclusive = s.held - s.swapped;
  }

  std::mt19937_64 rng_;
  Setting set_;
  SchedulerState now_;
  static constexpr size_t kWindow = 30;  // fewer than may wait
  WaitingQueue queue_{{.ageing_steps = 50}};
  std::map<int32_t, ScheduledSequence> waiting_;
  std::map<int32_t, uint64_t> client_of_;
  std::map<int32_t, int64_t> ends_;
  std::map<int32_t, PromptImages> pictures_;
  int64_t step_ = 0;
  bool lingering_ = false;  // memory of finished ones was still held
  int32_t next_id_ = 0;
  int64_t ended_ = 0, preemptions_ = 0, pauses_ = 0, passes_ = 0, accepted_ = 0;
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
      {drafting(limits(128, 16), 64), 2000, 16, 500, true, 900, 60, 7},
      {drafting(limits(128, 8), 38), 64, 8, 64, true, 300, 700, 7},
      {drafting(limits(256, 32), 128), 90, 32, 90, false, 200, 400, 3},
      {drafting(first_tokens(128, 32, 2), 72), 200, 32, 200, false, 200, 400, 7},
      {with_parts(limits(512, 16), 20), 2000, 16, 0, true, 900, 500},
      {with_parts(drafting(limits(256, 32), 128), 40), 600, 32, 90, false, 900, 400, 7},
      {whole_pictures(limits(512, 16), 256), 2000, 16, 0, false, 900, 60, 0, 256},
      {whole_pictures(limits(64, 16), 30), 2000, 16, 500, false, 900, 60, 0, 30},
      {whole_pictures(limits(256, 8), 256), 120, 8, 1000, false, 900, 300, 0, 256},
      {whole_pictures(drafting(limits(256, 32), 128), 100), 90, 32, 90, false, 400, 400, 3, 100},
      {whole_pictures(first_tokens(128, 32, 2), 70), 200, 32, 200, false, 200, 400, 0, 70},
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
      for (int64_t n = sim.number(0, 2); n > 0 && submitted < kRequests && sim.waiting() < 40; --n, ++submitted)
        sim.submit();
      if (!sim.idle()) sim.step();
      if (HasFatalFailure()) return;
      ASSERT_LT(steps, 200000) << "never ends";
    }
    EXPECT_EQ(sim.ended(), kRequests) << "each once";
    preemptions += sim.preemptions();
    pauses += sim.pauses();
    EXPECT_EQ(sim.passes() > 0, s.limits.first_token_threshold > 0 || s.limits.max_parts > 0);
    passes += sim.passes();
    EXPECT_EQ(sim.accepted() > 0, s.drafts > 0);
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

}  // namespace
}  // namespace quire::test
