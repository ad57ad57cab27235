#include "engine/scheduler.h"

#include <algorithm>

#include "ops/op.h"

namespace quire {
namespace {

// The next chunk of a prompt within `budget` rows: to the prompt's end if that fits, else to the last
// 64-token boundary that does. 0 when not even one boundary can be reached.
int32_t next_chunk(const ScheduledSequence& s, int64_t budget) {
  const int64_t left = s.prompt - s.computed;
  if (left <= budget) return static_cast<int32_t>(left);
  const int64_t end = (s.computed + budget) / kChunkTokens * kChunkTokens;
  return static_cast<int32_t>(std::max<int64_t>(0, end - s.computed));
}

}  // namespace

StepPlan plan_step(const SchedulerState& now, const SchedulerLimits& limits) {
  StepPlan plan;
  plan_step(now, limits, plan);
  return plan;
}

void plan_step(const SchedulerState& now, const SchedulerLimits& limits, StepPlan& plan) {
  QUIRE_CHECK(limits.max_batch_tokens >= std::max(kChunkTokens, limits.max_sequences),
              "a budget of {} rows for {} sequences", limits.max_batch_tokens, limits.max_sequences);
  plan.admit.clear();
  plan.work.clear();
  plan.decodes = 0;
  int64_t budget = limits.max_batch_tokens;
  int64_t committed = 0;
  for (const ScheduledSequence& s : now.running) {
    committed += s.max_blocks;
    if (s.computed < s.prompt || s.computed >= s.total) continue;
    plan.work.push_back({s.id, s.computed, 1});
    ++plan.decodes;
    --budget;
  }
  const auto prefill = [&](const ScheduledSequence& s) {
    const int32_t count = next_chunk(s, budget);
    if (count == 0) return false;
    plan.work.push_back({s.id, s.computed, count});
    budget -= count;
    return true;
  };
  // A prompt that finds less than 64 rows beside the decodes waits for some of them to end. Nobody is
  // admitted meanwhile: short prompts that fit could keep it waiting forever.
  bool held_back = false;
  for (const ScheduledSequence& s : now.running)
    if (s.computed < s.prompt && !prefill(s)) held_back = true;
  if (held_back) return;

  auto places = static_cast<int64_t>(limits.max_sequences) - static_cast<int64_t>(now.running.size());
  int64_t slots = now.free_slots;
  for (const ScheduledSequence& s : now.waiting) {
    if (places == 0 || (now.needs_slots && slots == 0) || committed + s.max_blocks > now.total_blocks) break;
    if (!prefill(s)) break;
    plan.admit.push_back(s.id);
    committed += s.max_blocks;
    --places;
    --slots;
  }
}

}  // namespace quire
