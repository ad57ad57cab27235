#include "ops/sampling/rows.h"

#include <algorithm>
#include <limits>

namespace quire {
namespace {

template <class... Args>
Error bug(fmt::format_string<Args...> f, Args&&... args) {
  return {Fault::kBug, fmt::format(f, std::forward<Args>(args)...)};
}

SampleRow row_of(const SamplingParams& p, const SampleTarget& target) {
  return {.seed = p.seed,
          .position = target.position,
          .temperature = p.temperature,
          .top_p = p.top_p,
          .min_p = p.min_p,
          .typical_p = p.typical_p,
          .repetition_penalty = p.repetition_penalty,
          .presence_penalty = p.presence_penalty,
          .frequency_penalty = p.frequency_penalty,
          .top_k = p.top_k,
          .logprobs = p.logprobs,
          .batch_slot = target.batch_slot,
          .history = target.history,
          .flags = target.tentative ? kSampleTentative : 0,
          .mask = target.mask,
          .unnoted_begin = target.unnoted_begin,
          .unnoted_count = target.unnoted_count,
          .drafts_begin = target.drafts_begin,
          .drafts_count = target.drafts_count};
}

}  // namespace

SampleRow draft_row(const SamplingParams& p, int64_t position, int32_t entry) {
  SampleRow row = row_of(p, {.position = position, .batch_slot = entry});
  row.repetition_penalty = 1.0f;
  row.presence_penalty = row.frequency_penalty = 0.0f;
  row.logprobs = -1;
  return row;
}

Status SampleLimits::check(const SamplingParams& p) const {
  if (p.logprobs > max_top)
    return request_error("logprobs is {}, but this engine reports at most {}", p.logprobs, max_top);
  if (std::ssize(p.logit_bias) > max_bias)
    return request_error("logit_bias names {} tokens, but this engine takes at most {}", p.logit_bias.size(), max_bias);
  return {};
}

Status StepUses::check(int32_t index, bool settles) const {
  if (index == -1) return {};
  if (index < 0 || index >= std::ssize(uses_)) return bug("{} {} of {}", what_, index, uses_.size());
  const Use& before = uses_[static_cast<size_t>(index)];
  if (before.step == step_ && (settles || before.settles)) return bug("{} {} is named twice", what_, index);
  return {};
}

void StepUses::add(int32_t index, bool settles) {
  if (index >= 0) uses_[static_cast<size_t>(index)] = {step_, settles};
}

SampleRowList::SampleRowList(const SampleLimits& limits, const Memory& memory)
    : limits_(limits),
      memory_(memory),
      batch_slots_("batch_slot", limits.batch_slots),
      histories_("history", limits.histories) {
  QUIRE_CHECK(memory.bias_ids.size() == memory.bias_values.size(), "{} ids of biases, {} values",
              memory.bias_ids.size(), memory.bias_values.size());
  QUIRE_CHECK(memory.rows.size() <= INT32_MAX && memory.bias_ids.size() <= INT32_MAX, "{} rows, {} biases",
              memory.rows.size(), memory.bias_ids.size());
}

void SampleRowList::clear() {
  rows_ = 0;
  biases_ = 0;
  batch_slots_.clear();
  histories_.clear();
}

Status SampleRowList::add(const SamplingParams& p, const SampleTarget& target) {
  // A bias of a token that is forbidden as well has no effect.
  const auto is_forbidden = [&](int32_t id) {
    return std::find(target.forbidden.begin(), target.forbidden.end(), id) != target.forbidden.end();
  };
  const auto biases = std::count_if(p.logit_bias.begin(), p.logit_bias.end(),
                                    [&](const auto& bias) { return !is_forbidden(bias.first); }) +
                      std::ssize(target.forbidden);
  if (rows_ >= std::ssize(memory_.rows)) return capacity_error("a step samples at most {} rows", memory_.rows.size());
  if (biases_ + biases > std::ssize(memory_.bias_ids))
    return capacity_error("the biases of a step's rows exceed {}", memory_.bias_ids.size());
  QUIRE_CHECKED(batch_slots_.check(target.batch_slot, !target.tentative));
  QUIRE_CHECKED(histories_.check(target.history, !target.tentative));
  if (target.mask < -1 || target.mask >= limits_.masks) return bug("mask {} of {}", target.mask, limits_.masks);
  if (target.position < 0) return bug("a token is sampled at position {}", target.position);
  if (p.has_penalties() && target.history < 0) return bug("penalties without a history");
  if (p.logprobs > limits_.max_top) return bug("{} logprobs, but room for {}", p.logprobs, limits_.max_top);
  for (const auto& bias : p.logit_bias)
    if (bias.first < 0 || bias.first >= limits_.vocab)
      return bug("a bias of token {} of {}", bias.first, limits_.vocab);
  for (const int32_t id : target.forbidden)
    if (id < 0 || id >= limits_.vocab) return bug("token {} of {} is forbidden", id, limits_.vocab);

  SampleRow row = row_of(p, target);
  row.bias_begin = biases_;
  row.bias_count = static_cast<int32_t>(biases);
  const auto put = [&](int32_t id, float bias) {
    memory_.bias_ids[static_cast<size_t>(biases_)] = id;
    memory_.bias_values[static_cast<size_t>(biases_++)] = bias;
  };
  for (const auto& [id, bias] : p.logit_bias)
    if (!is_forbidden(id)) put(id, bias);
  for (const int32_t id : target.forbidden) put(id, -std::numeric_limits<float>::infinity());
  memory_.rows[static_cast<size_t>(rows_++)] = row;
  batch_slots_.add(target.batch_slot, !target.tentative);
  histories_.add(target.history, !target.tentative);
  return {};
}

Result<int32_t> SampleRowList::add_unnoted(std::span<const int32_t> first, std::span<const int32_t> then) {
  const int32_t begin = biases_;
  if (begin + std::ssize(first) + std::ssize(then) > std::ssize(memory_.bias_ids))
    return capacity_error("the biases of a step's rows, and tokens that histories lack, exceed {}",
                          memory_.bias_ids.size());
  for (const std::span<const int32_t> tokens : {first, then})
    for (const int32_t id : tokens) memory_.bias_ids[static_cast<size_t>(biases_++)] = id;
  return begin;
}

Status SampleRowList::pad(int32_t rows) {
  if (rows > std::ssize(memory_.rows))
    return capacity_error("a step samples at most {} rows, not {}", memory_.rows.size(), rows);
  while (rows_ < rows) memory_.rows[static_cast<size_t>(rows_++)] = {.flags = kSampleIdle};
  return {};
}

HistoryUpdateList::HistoryUpdateList(int32_t histories, std::span<HistoryUpdate> memory)
    : memory_(memory), histories_("history", histories) {
  QUIRE_CHECK(memory.size() <= INT32_MAX, "{} ranges", memory.size());
}

Status HistoryUpdateList::add(const HistoryUpdate& range, int64_t tokens) {
  if (count_ >= std::ssize(memory_)) return capacity_error("a step updates at most {} ranges", memory_.size());
  QUIRE_CHECKED(histories_.check(range.history, true));
  if (range.begin < 0 || range.count < 0 || range.prompt < 0 || range.begin + int64_t{range.count} > tokens)
    return bug("tokens {} + {} of {}, {} of the prompt", range.begin, range.count, tokens, range.prompt);
  memory_[static_cast<size_t>(count_++)] = range;
  histories_.add(range.history, true);
  return {};
}

Status HistoryUpdateList::pad(int32_t count) {
  if (count > std::ssize(memory_))
    return capacity_error("a step updates at most {} ranges, not {}", memory_.size(), count);
  while (count_ < count) memory_[static_cast<size_t>(count_++)] = {};
  return {};
}

}  // namespace quire
