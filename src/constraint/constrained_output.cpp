#include "constraint/constrained_output.h"

#include <algorithm>

namespace quire {

ConstrainedOutput::ConstrainedOutput(std::shared_ptr<const Constraint> constraint, int64_t words)
    : constraint_(std::move(constraint)), words_(words) {
  for (const std::vector<TokenId>& word : constraint_->bad_words) look_back_ = std::max(look_back_, word.size() - 1);
  may_begin_ = constraint_->not_before.empty();
  if (constraint_->grammar != nullptr && may_begin_ && constraint_->after.empty())
    matcher_ = constraint_->grammar->begin();
}

std::string_view ConstrainedOutput::bytes_of(TokenId token) const {
  const auto at = static_cast<size_t>(token);
  return token >= 0 && at < constraint_->vocabulary->bytes.size() ? std::string_view(constraint_->vocabulary->bytes[at])
                                                                  : std::string_view();
}

// Adds the bytes to `tail`, of which as much is kept as may become `what`. Returns where in `bytes` the first byte
// behind it is, or npos.
size_t ConstrainedOutput::find_end(const std::string& what, std::string& tail, std::string_view bytes) {
  const size_t before = tail.size();
  tail += bytes;
  const size_t found = tail.find(what);
  if (found != std::string::npos) return found + what.size() - before;
  tail.erase(0, tail.size() - std::min(tail.size(), what.size() - 1));
  return std::string::npos;
}

// What the free answer is searched for.
const std::string& ConstrainedOutput::awaited() const {
  return may_begin_ ? constraint_->after : constraint_->not_before;
}

void ConstrainedOutput::look_for_begin(std::string_view bytes) {
  const size_t rest = find_end(awaited(), tail_, bytes);
  if (rest == std::string::npos) return;
  tail_.clear();
  // A token may go on behind the place that was looked for: with white space, as a rule.
  std::string_view more = bytes.substr(rest);
  if (!may_begin_) {
    may_begin_ = true;
    if (!constraint_->after.empty()) return look_for_begin(more);
  }
  matcher_ = constraint_->grammar->begin();
  if (more.empty() || matcher_->accept_bytes(more)) return;
  more.remove_prefix(std::min(more.find_first_not_of(" \t\r\n"), more.size()));
  // A model that goes on with something else did not mean it.
  if (!more.empty() && !matcher_->accept_bytes(more) && constraint_->repeats) matcher_.reset();
}

int32_t ConstrainedOutput::cut(std::span<const TokenId> drafts) {
  if (constraint_->grammar == nullptr) return static_cast<int32_t>(drafts.size());
  int32_t good = 0;
  if (matcher_ == nullptr) {
    std::string tail = tail_;
    while (good < std::ssize(drafts) &&
           find_end(awaited(), tail, bytes_of(drafts[static_cast<size_t>(good)])) == std::string::npos)
      ++good;
    return good;
  }
  while (good < std::ssize(drafts) && matcher_->accept(drafts[static_cast<size_t>(good)])) {
    ++good;
    if (!matcher_->ended() && matcher_->quick()) continue;
    // Behind it there is no mask, or one that takes its time, or the answer's end.
    matcher_->rollback(good);
    return good - 1;
  }
  matcher_->rollback(good);
  return good;
}

// What holds besides the grammar.
void ConstrainedOutput::restrict(std::span<const TokenId> drafts, std::span<uint32_t> mask) const {
  const std::vector<uint32_t>& allowed = constraint_->allowed;
  for (size_t i = 0; i < allowed.size(); ++i) mask[i] &= allowed[i];
  for (const std::vector<TokenId>& word : constraint_->bad_words) {
    const size_t before = word.size() - 1;
    if (last_.size() + drafts.size() < before) continue;
    const size_t from_drafts = std::min(before, drafts.size()), from_last = before - from_drafts;
    if (std::equal(word.begin(), word.begin() + static_cast<ptrdiff_t>(from_last),
                   last_.end() - static_cast<ptrdiff_t>(from_last)) &&
        std::equal(drafts.end() - static_cast<ptrdiff_t>(from_drafts), drafts.end(),
                   word.begin() + static_cast<ptrdiff_t>(from_last)))
      mask[static_cast<size_t>(word.back()) / 32] &= ~(1u << (word.back() % 32));
  }
}

bool ConstrainedOutput::fill(std::span<const TokenId> drafts, std::span<uint32_t> masks) {
  const auto words = static_cast<size_t>(words_);
  bool possible = true;
  int accepted = 0;
  bool follows = true;  // the drafts so far are the grammar's; they are, unless the matcher gave up on them
  for (size_t i = 0; i <= drafts.size(); ++i) {
    const std::span<uint32_t> mask = masks.subspan(i * words, words);
    if (matcher_ == nullptr)
      std::fill(mask.begin(), mask.end(), ~0u);
    else if (follows)
      matcher_->fill(mask);
    else
      std::fill(mask.begin(), mask.end(), 0u);
    restrict(drafts.first(i), mask);
    if (i == 0) possible = std::any_of(mask.begin(), mask.end(), [](uint32_t word) { return word != 0; });
    if (matcher_ == nullptr || i == drafts.size() || !follows) continue;
    follows = matcher_->accept(drafts[i]);
    accepted += follows;
  }
  if (matcher_ != nullptr) matcher_->rollback(accepted);
  return possible;
}

bool ConstrainedOutput::commit(TokenId token) {
  if (look_back_ > 0) {
    last_.push_back(token);
    if (last_.size() > look_back_) last_.erase(last_.begin());
  }
  if (constraint_->grammar == nullptr) return true;
  if (matcher_ == nullptr) {
    look_for_begin(bytes_of(token));
    return true;
  }
  if (!matcher_->accept(token)) return false;
  if (!matcher_->ended()) return true;
  ended_ = !constraint_->repeats;
  matcher_.reset();
  return true;
}

}  // namespace quire
