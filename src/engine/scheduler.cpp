#include "engine/scheduler.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/result.h"
#include "engine/prompt_image.h"
#include "ops/attention/parts.h"
#include "ops/segments.h"

namespace quire {
namespace {

int32_t blocks_for(int64_t tokens) {
  return static_cast<int32_t>((tokens + kBlockTokens - 1) / kBlockTokens);
}

// Where a chunk of at most `budget` rows ends that ought to end at `end`: there, or, if that is within a picture that
// is computed whole, behind the picture if that fits, and else before it.
int64_t around_picture(const ScheduledSequence& s, int64_t end, int64_t budget) {
  if (s.whole == nullptr) return end;
  const size_t i = s.whole->at(end);
  if (i == s.whole->size() || (*s.whole)[i].position >= end) return end;
  const PromptImage& picture = (*s.whole)[i];
  return picture.end() - s.computed <= budget ? picture.end() : picture.position;
}

// The next chunk of a prompt within `budget` rows: to the prompt's end or the next cut if that fits, else to the last
// 64-token boundary that does, or to the end of a picture around it. 0 when not even one of these can be reached.
int32_t next_chunk(const ScheduledSequence& s, int64_t budget) {
  const int64_t cut = s.cut > s.computed ? std::min(s.cut, s.prompt) : s.prompt;
  const int64_t left = std::min(cut, s.ready) - s.computed;
  if (left <= budget) return static_cast<int32_t>(left);
  const int64_t end = around_picture(s, (s.computed + budget) / kChunkTokens * kChunkTokens, budget);
  return static_cast<int32_t>(std::max<int64_t>(0, end - s.computed));
}

// Takes what is wanted of each pool, if all of it is there.
bool take_windows(const WindowCounts& wanted, WindowCounts& left) {
  for (size_t i = 0; i < left.size(); ++i)
    if (left[i] < wanted[i]) return false;
  for (size_t i = 0; i < left.size(); ++i) left[i] -= wanted[i];
  return true;
}

bool waits_for_picture(const ScheduledSequence& s) {
  return s.computed < s.prompt && s.ready <= s.computed;
}

bool decodes(const ScheduledSequence& s) {
  return !s.finished && s.computed >= s.prompt && s.computed < s.total && !s.waits_for_mask;
}

}  // namespace

void StepPlan::reserve(size_t sequences) {
  admit.reserve(sequences);
  preempt.reserve(sequences);
  resume.reserve(sequences);
  work.reserve(2 * sequences);
  holdings_.reserve(sequences);
  turns_.reserve(4 * sequences);
  gone_.reserve(4 * sequences);
  skipped.reserve(sequences);
  admitted_.reserve(sequences);
  by_turn_.reserve(sequences);
}

void StepPlan::clear() {
  admit.clear();
  preempt.clear();
  resume.clear();
  work.clear();
  skipped.clear();
  admitted_.clear();
  decodes = 0;
  first_tokens = false;
  stop = AdmissionStop::kNone;
}

class Planner {
 public:
  Planner(const SchedulerState& now, const SchedulerLimits& limits, StepPlan& plan)
      : now_(now),
        limits_(limits),
        plan_(plan),
        available_(now.available_blocks),
        free_host_(now.free_host_blocks),
        outs_left_(limits.max_swaps),
        ins_left_(limits.max_swaps),
        budget_(limits.max_batch_tokens) {}

  void run() {
    plan_.clear();
    plan_.holdings_.clear();
    plan_.first_tokens = first_tokens_first();
    int64_t behind = 0;  // blocks of sequences younger than the one that is looked at
    for (const ScheduledSequence& s : now_.running) {
      plan_.holdings_.push_back({s.held, s.swapped, s.exclusive, 0});
      behind += s.held;
    }
    form_group();
    share_parts();
    for (size_t i = 0; i < now_.running.size(); ++i) {
      const ScheduledSequence& s = now_.running[i];
      budget_ -= decodes(s) && !plan_.holdings_[i].left_out && has_row_first(s);
    }
    draft_rows_ = plan_.first_tokens ? 0 : rows_for_drafts();
    prompt_rows_ = rows_of_prompts();
    for (size_t i = 0; i < now_.running.size(); ++i) {
      const ScheduledSequence& s = now_.running[i];
      behind -= s.held;
      if (s.finished) continue;
      if (plan_.holdings_[i].swapped == 0 || resume(i)) advance(i);
      room_ = std::min(room_, room_behind(s, behind));
      ++active_;
    }
    if (!held_back_)
      admit();
    else if (!now_.waiting.empty())
      plan_.stop = AdmissionStop::kRunning;
    if (plan_.first_tokens) share_rest();
    write_work();
  }

  // Whether a sequence is left out because a step in flight computes its token.
  bool waits_for_others() const { return waits_for_others_; }

 private:
  bool first_tokens_first() const {
    if (limits_.first_token_threshold <= 0) return false;
    auto prompts = static_cast<int64_t>(now_.waiting.size());
    for (const ScheduledSequence& s : now_.running) {
      if (s.finished) continue;
      if (s.swapped > 0) return false;
      prompts += s.computed < s.prompt && !waits_for_picture(s);
    }
    // A chunk of prompt begins and ends within a block, and a generated token may need one.
    const int64_t most = blocks_for(limits_.max_batch_tokens) + 2 * std::ssize(now_.running);
    return prompts >= limits_.first_token_threshold && available_ >= most;
  }

  // Whose tokens this step computes, where others compute those of others at the same time.
  void form_group() {
    if (limits_.stages <= 1) return;
    note_decodes();
    std::erase_if(plan_.by_turn_, [&](int32_t i) { return now_.running[static_cast<size_t>(i)].swapped > 0; });
    const auto decoding = std::ssize(plan_.by_turn_), groups = std::min<std::ptrdiff_t>(limits_.stages, decoding);
    if (groups <= 1) return;
    const auto idle = [&](int32_t i) { return now_.running[static_cast<size_t>(i)].idle_steps; };
    std::sort(plan_.by_turn_.begin(), plan_.by_turn_.end(),
              [&](int32_t a, int32_t b) { return std::pair(-idle(a), a) < std::pair(-idle(b), b); });
    auto left = (decoding + groups - 1) / groups;
    for (const int32_t i : plan_.by_turn_) {
      const bool computed = now_.running[static_cast<size_t>(i)].in_flight && idle(i) + 1 < groups;
      waits_for_others_ |= computed;
      if (left > 0 && !computed)
        --left;
      else
        plan_.holdings_[static_cast<size_t>(i)].left_out = true;
    }
  }

  // Into by_turn_: those with a generated token to compute that are not left out.
  void note_decodes() {
    plan_.by_turn_.clear();
    for (size_t i = 0; i < now_.running.size(); ++i)
      if (decodes(now_.running[i]) && !plan_.holdings_[i].left_out) plan_.by_turn_.push_back(static_cast<int32_t>(i));
  }

  // Who has room among the parts, which decides how many drafts everybody may have.
  void share_parts() {
    if (limits_.max_parts == 0) return;
    int64_t all = 0, with_drafts = 0;
    for (size_t i = 0; i < now_.running.size(); ++i)
      if (const ScheduledSequence& s = now_.running[i]; decodes(s) && !plan_.holdings_[i].left_out)
        all += parts_of(s, 0);
    if (all > limits_.max_parts) leave_out();
    for (size_t i = 0; i < now_.running.size(); ++i)
      if (const ScheduledSequence& s = now_.running[i]; decodes(s) && !plan_.holdings_[i].left_out)
        with_drafts += parts_of(s, s.drafts);
    most_drafts_ = limits_.max_parts / std::max<int64_t>(with_drafts, 1) - 1;
  }

  static int64_t parts_of(const ScheduledSequence& s, int32_t drafts) {
    return attention_parts(s.computed + 1 + drafts);
  }

  void leave_out() {
    note_decodes();
    const auto turn = [&](int32_t i) {
      const ScheduledSequence& s = now_.running[static_cast<size_t>(i)];
      return std::tuple(!is_oldest(s), -s.skipped_steps, i);
    };
    std::sort(plan_.by_turn_.begin(), plan_.by_turn_.end(), [&](int32_t a, int32_t b) { return turn(a) < turn(b); });
    int64_t left = limits_.max_parts;
    for (const int32_t i : plan_.by_turn_) {
      const ScheduledSequence& s = now_.running[static_cast<size_t>(i)];
      const int64_t parts = parts_of(s, 0);
      if (parts <= left) {
        left -= parts;
        continue;
      }
      plan_.holdings_[static_cast<size_t>(i)].left_out = true;
      plan_.skipped.push_back(s.id);
    }
  }

  // Whether a sequence's next token comes before prompts.
  bool has_row_first(const ScheduledSequence& s) const {
    return !plan_.first_tokens || s.skipped_steps >= limits_.most_skipped || is_oldest(s);
  }

  // Of those that have not finished, as `s`.
  bool is_oldest(const ScheduledSequence& s) const {
    return std::find_if(now_.running.begin(), now_.running.end(), [](const auto& r) { return !r.finished; })->id ==
           s.id;
  }

  // The rows that prompts have left go to generated tokens. Blocks were promised to all of them.
  void share_rest() {
    for (size_t i = 0; i < now_.running.size(); ++i) {
      const ScheduledSequence& s = now_.running[i];
      if (!decodes(s) || plan_.holdings_[i].rows == 0 || has_row_first(s)) continue;
      if (budget_ > 0) {
        --budget_;
        continue;
      }
      plan_.holdings_[i].rows = 0;
      plan_.skipped.push_back(s.id);
    }
  }

  // What younger sequences may come to hold so that this one could still run to its end.
  int64_t room_behind(const ScheduledSequence& s, int64_t behind) const {
    return int64_t{now_.total_blocks} + now_.host_blocks - s.max_blocks - behind;
  }

  bool resume(size_t i) {
    StepPlan::Holding& h = plan_.holdings_[i];
    // One more block for each that runs, or it would be out again at once. The oldest needs no such care.
    const bool fits = available_ >= h.swapped + active_ && ins_left_ >= h.swapped;
    if (!plan_.preempt.empty() || waits_for_host_ || !fits) {
      waits_for_host_ = held_back_ = true;
      return false;
    }
    plan_.resume.push_back(now_.running[i].id);
    available_ -= h.swapped;
    ins_left_ -= h.swapped;
    h.swapped = 0;
    h.exclusive = 0;
    return true;
  }

  void advance(size_t i) {
    const ScheduledSequence& s = now_.running[i];
    StepPlan::Holding& h = plan_.holdings_[i];
    if (s.computed >= s.prompt) {
      if (!decodes(s) || h.left_out) return;
      if (grant(i, s.computed + 1)) h.rows = 1 + drafts(i);
      return;
    }
    // A prompt that finds less than 64 rows beside the decodes waits for some of them to end. Nobody is admitted
    // meanwhile: short prompts that fit could keep it waiting forever.
    if (waits_for_picture(s)) return;
    const int32_t count = next_chunk(s, budget_);
    if (count == 0) held_back_ = true;
    if (count == 0 || !grant(i, s.computed + count)) return;
    h.rows = count;
    budget_ -= count;
  }

  // What those who run, and who may be admitted, leave of the rows that are sampled.
  int64_t rows_for_drafts() const {
    const auto running = std::ssize(now_.running), waiting = std::ssize(now_.waiting);
    return limits_.max_sampled_rows - std::min<int64_t>(running + waiting, limits_.max_sequences);
  }

  // Rows that drafts leave to prompts: one that runs or waits keeps those of a chunk.
  int64_t rows_of_prompts() const {
    const bool any = !now_.waiting.empty() || std::any_of(now_.running.begin(), now_.running.end(),
                                                          [](auto& s) { return !s.finished && s.computed < s.prompt; });
    return any ? std::max(kChunkTokens, limits_.least_chunk) : 0;
  }

  // How many drafts a sequence's next token, which has its block, brings along.
  int32_t drafts(size_t i) {
    const ScheduledSequence& s = now_.running[i];
    StepPlan::Holding& h = plan_.holdings_[i];
    auto count = static_cast<int32_t>(std::min<int64_t>({s.drafts, draft_rows_, budget_ - prompt_rows_, most_drafts_}));
    if (count <= 0) return 0;
    const int32_t more = std::max(0, blocks_for(s.computed + 1 + count) - h.held);
    // Those behind need a block each at most for their next tokens, and the chunk of a prompt what it needs.
    const int64_t others = std::ssize(now_.running) + blocks_for(limits_.max_batch_tokens);
    if (more > 0 && (held_back_ || room_ < more || available_ - more < others)) {
      count = static_cast<int32_t>(std::min<int64_t>(count, int64_t{h.held} * kBlockTokens - s.computed - 1));
    } else {
      available_ -= more;
      room_ -= more;
      h.held += more;
    }
    draft_rows_ -= count;
    budget_ -= count;
    return count;
  }

  // Blocks for a running sequence's tokens up to `end`.
  bool grant(size_t i, int64_t end) {
    StepPlan::Holding& h = plan_.holdings_[i];
    const int32_t more = std::max(0, blocks_for(end) - h.held);
    if (more > 0 && room_ < more) return pause();
    while (available_ < more)
      if (!swap_out_after(i)) return pause();
    available_ -= more;
    room_ -= more;
    h.held += more;
    return true;
  }

  bool pause() {
    held_back_ = true;
    return false;
  }

  // One block of the youngest sequence after i goes to the host. What it shares with others gains nothing, but leaves
  // it with less to bring back in the end: sequences give up their blocks whole and one after the other, so that the
  // older of two that are out never waits for the younger one's.
  bool swap_out_after(size_t i) {
    if (free_host_ == 0 || outs_left_ == 0 || !plan_.resume.empty()) return false;
    for (size_t v = now_.running.size() - 1; v > i; --v) {
      StepPlan::Holding& h = plan_.holdings_[v];
      if (now_.running[v].finished || h.swapped == h.held) continue;
      const SeqId id = now_.running[v].id;
      if (plan_.preempt.empty() || plan_.preempt.back().seq != id) plan_.preempt.push_back({id, 0});
      ++plan_.preempt.back().blocks;
      ++h.swapped;
      --free_host_;
      --outs_left_;
      if (h.exclusive > 0) --h.exclusive, ++available_;
      held_back_ = true;
      return true;
    }
    return false;
  }

  void write_work() {
    for (const bool decode : {true, false}) {
      for (size_t i = 0; i < now_.running.size(); ++i) {
        const ScheduledSequence& s = now_.running[i];
        if (plan_.holdings_[i].rows > 0 && decodes(s) == decode)
          plan_.work.push_back({s.id, s.computed, plan_.holdings_[i].rows});
      }
      if (decode) plan_.decodes = plan_.work.size();
    }
    plan_.work.insert(plan_.work.end(), plan_.admitted_.begin(), plan_.admitted_.end());
  }

  // Whether the cache helps a request that has waited so long: who has waited too long comes before those, others
  // after.
  int rank(const ScheduledSequence& s, int64_t waited) const {
    return waited > limits_.patience ? 0 : s.computed > 0 ? 1 : 2;
  }

  // Of a client's own requests a goes before b, which stands behind it.
  bool before(int32_t a, int32_t b) const {
    const ScheduledSequence &x = waiting(a), &y = waiting(b);
    return std::tuple(x.priority, rank(x, x.age), a) < std::tuple(y.priority, rank(y, y.age), b);
  }

  // A client's place among those that have a request to admit.
  auto turn(const StepPlan::Turn& t) const {
    const ScheduledSequence& s = waiting(t.best);
    return std::tuple(s.priority, t.client.running, rank(s, std::min(s.age, t.client.idle)),
                      std::max(s.arrival, t.client.since), t.best);
  }

  void line_up() {
    plan_.turns_.clear();
    for (const ScheduledClient& c : now_.clients) plan_.turns_.push_back({c, -1});
    if (plan_.turns_.empty()) plan_.turns_.emplace_back();
    plan_.gone_.assign(now_.waiting.size(), 0);
    for (size_t i = 0; i < now_.waiting.size(); ++i) {
      plan_.gone_[i] = now_.waiting[i].deferred;
      consider(static_cast<int32_t>(i));
    }
  }

  void consider(int32_t i) {
    if (plan_.gone_[static_cast<size_t>(i)] != 0) return;
    int32_t& best = plan_.turns_.at(static_cast<size_t>(waiting(i).client)).best;
    if (best < 0 || before(i, best)) best = i;
  }

  // Whose turn it is; null: nobody is left.
  StepPlan::Turn* next_turn() {
    StepPlan::Turn* first = nullptr;
    for (StepPlan::Turn& t : plan_.turns_)
      if (t.best >= 0 && (first == nullptr || turn(t) < turn(*first))) first = &t;
    return first;
  }

  // A client's best request has been admitted.
  void took(StepPlan::Turn& t) {
    const int32_t client = waiting(t.best).client;
    plan_.gone_[static_cast<size_t>(t.best)] = 1;
    t = {{t.client.running + 1, INT64_MAX, 0}, -1};
    for (size_t i = 0; i < now_.waiting.size(); ++i)
      if (now_.waiting[i].client == client) consider(static_cast<int32_t>(i));
  }

  const ScheduledSequence& waiting(int32_t i) const { return now_.waiting[static_cast<size_t>(i)]; }

  void admit() {
    auto places = static_cast<int64_t>(limits_.max_sequences) - static_cast<int64_t>(now_.running.size());
    int64_t slots = now_.free_slots;
    WindowCounts windows = now_.free_windows;
    int64_t promised = 0;  // what the running ones' prompts will still take
    for (size_t i = 0; i < now_.running.size(); ++i)
      if (const ScheduledSequence& s = now_.running[i]; !s.finished)
        promised += std::max(0, blocks_for(s.prompt) - plan_.holdings_[i].held);
    line_up();
    while (StepPlan::Turn* const next = next_turn()) {
      const ScheduledSequence& s = waiting(next->best);
      const int32_t whole = blocks_for(s.prompt);
      if (places == 0 || (now_.needs_slots && slots == 0)) return stop(AdmissionStop::kPlaces);
      // Beside a block for each that runs: admitted sequences should not be out again at once.
      if (available_ - promised - active_ < s.unused + whole - s.held || room_ - promised < whole ||
          !take_windows(s.windows, windows))
        return stop(AdmissionStop::kBlocks);
      const int32_t count = next_chunk(s, budget_);
      if (count == 0) return stop(AdmissionStop::kBudget);
      const int32_t has = blocks_for(s.computed + count);
      plan_.admit.push_back(s.id);
      plan_.admitted_.push_back({s.id, s.computed, count});
      budget_ -= count;
      available_ -= s.unused + has - s.held;
      promised += whole - has;
      ++active_;
      room_ = std::min(room_ - has, room_behind(s, 0));
      --places;
      --slots;
      took(*next);
    }
  }

  void stop(AdmissionStop why) { plan_.stop = why; }

  const SchedulerState& now_;
  const SchedulerLimits& limits_;
  StepPlan& plan_;
  int32_t available_, free_host_, outs_left_, ins_left_;
  int64_t budget_;
  int64_t draft_rows_ = 0, prompt_rows_ = 0;
  int64_t most_drafts_ = INT64_MAX;  // of a sequence, for want of room among the parts
  int64_t room_ = INT64_MAX / 2;     // what the sequence that is looked at, and younger ones, may still take
  int32_t active_ = 0;
  bool held_back_ = false, waits_for_host_ = false, waits_for_others_ = false;
};

StepPlan plan_step(const SchedulerState& now, const SchedulerLimits& limits) {
  StepPlan plan;
  plan_step(now, limits, plan);
  return plan;
}

void plan_step(const SchedulerState& now, const SchedulerLimits& limits, StepPlan& plan) {
  QUIRE_CHECK(limits.max_batch_tokens >= std::max({kChunkTokens, limits.least_chunk, limits.max_sequences}),
              "a budget of {} rows for {} sequences", limits.max_batch_tokens, limits.max_sequences);
  Planner planner(now, limits, plan);
  planner.run();
  if (limits.stages <= 1 || !plan.empty() || planner.waits_for_others()) return;
  // Those whose turn it was found no room: others may.
  SchedulerLimits one_group = limits;
  one_group.stages = 1;
  Planner(now, one_group, plan).run();
}

}  // namespace quire
