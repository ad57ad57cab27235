#include "engine/sequence_masks.h"

#include <algorithm>
#include <chrono>

namespace quire {
namespace {

// Whether the mask of the sequence's next token takes long, and nobody computes it yet.
bool needs_pool(const Sequence& s) {
  if (s.constraint == nullptr || s.finished() || s.planned < s.prompt_tokens()) return false;
  // Behind a token that is not known it would be found out too late.
  return s.mask_job == nullptr && s.pending == 0 && !s.constraint->quick();
}

}  // namespace

void SequenceMasks::start_slow(const RunningSet& running) {
  for (const auto& s : running.all())
    if (needs_pool(*s)) start(*s, -1);
}

void SequenceMasks::start(Sequence& s, TokenId token) {
  s.mask_job = std::make_shared<MaskJob>();
  s.mask_job->constraint = s.constraint;
  s.mask_job->token = token;
  pool_.start(s.mask_job);
}

void SequenceMasks::commit_slowly(Sequence& s, TokenEvent::Token token) {
  start(s, token.id);
  s.held = std::move(token);
}

bool SequenceMasks::waits(const Sequence& s) {
  if (s.constraint == nullptr || s.finished() || s.planned < s.prompt_tokens()) return false;
  if (s.mask_job != nullptr) return s.held || !s.mask_job->done.load(std::memory_order_acquire);
  return s.pending > 0 && (s.awaits_completion() || !s.constraint->stays_quick());
}

std::optional<SequenceMasks::Committed> SequenceMasks::take(Sequence& s) {
  if (!s.held || s.finished() || !s.mask_job->done.load(std::memory_order_acquire)) return std::nullopt;
  return Committed{.token = *std::exchange(s.held, std::nullopt), .accepted = s.mask_job->accepted};
}

// None where the device failed, and no more than are tokens.
std::vector<TokenId> SequenceMasks::drafts_of(const StepInFlight& step, const SequenceRows& rows) const {
  const SequenceDrafts& d = rows.sequence->drafts;
  const auto count = static_cast<size_t>(rows.drafts);
  if (count == 0 || !d.by_mtp) return {d.tokens.begin(), d.tokens.begin() + static_cast<ptrdiff_t>(count)};
  const Result<Tensor> made = backend_.await_drafts(step.buffer);
  if (!made.ok()) return {};
  const int32_t* const own = made->row<int32_t>(rows.sequence->memory.slot);
  return {own, std::find_if(own, own + count, [](int32_t token) { return token < 0; })};
}

// Of a token for which the sequence waited. No drafts follow it.
void SequenceMasks::use(Sequence& s, std::span<uint32_t> to, StepRecord& record) {
  const std::shared_ptr<MaskJob> job = std::exchange(s.mask_job, nullptr);
  QUIRE_CHECK(job->done, "sequence {} is sampled without its mask", s.id.v);
  std::fill(to.begin(), to.end(), 0u);
  std::copy(job->mask.begin(), job->mask.end(), to.begin());
  record.mask_seconds += job->seconds;
  ++record.slow_masks;
}

void SequenceMasks::write(StepInFlight& step) {
  const auto begin = std::chrono::steady_clock::now();
  const StepLayout& layout = backend_.layout();
  const auto words = static_cast<size_t>(mask_words(layout.capacity().vocab));
  uint32_t* const masks = layout.arrays(backend_.staging(step.buffer)).masks;
  for (SequenceRows& rows : step.rows) {
    if (rows.mask < 0) continue;
    const std::span<uint32_t> to(masks + static_cast<size_t>(rows.mask) * words,
                                 (1 + static_cast<size_t>(rows.drafts)) * words);
    std::fill(to.begin(), to.end(), ~0u);
    step.record.masks += rows.drafts + 1;
    if (rows.sequence->finished()) continue;  // in the step before
    if (rows.sequence->mask_job != nullptr) {
      use(*rows.sequence, to, step.record);
      rows.usable = 0;
      continue;
    }
    ConstrainedOutput& constraint = *rows.sequence->constraint;
    const std::vector<TokenId> drafts = drafts_of(step, rows);
    rows.usable = constraint.cut(drafts);
    constraint.fill(std::span(drafts).first(static_cast<size_t>(rows.usable)),
                    to.first((1 + static_cast<size_t>(rows.usable)) * words));
  }
  step.record.waited_for_masks = backend_.masks_written(step.buffer);
  step.masks = StepInFlight::Masks::kWritten;
  step.record.mask_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace quire
