#include "server/prompt_report.h"

#include <algorithm>
#include <cmath>

#include "server/protocol/json.h"
#include "tokenizer/unicode.h"

namespace quire::server {
namespace {

std::string text_of(const Tokenizer& t, TokenId token) {
  return unicode::replace_invalid(t.token_bytes(token, true));
}

// JSON knows no infinity: what is impossible is as unlikely as vLLM says it is.
void append_logprob(std::string& to, float logprob) {
  constexpr float kLeast = -9999.0f;
  const size_t begin = to.size();
  fmt::format_to(std::back_inserter(to), "{}", std::isnan(logprob) ? kLeast : std::max(logprob, kLeast));
  if (to.find_first_of(".e", begin) == std::string::npos) to += ".0";
}

void separate(std::string& list) {
  if (!list.empty()) list += ',';
}

// A rank of 0 is not known.
void append_entry(std::string& to, const Tokenizer& tokenizer, TokenId token, float logprob, int64_t rank) {
  fmt::format_to(std::back_inserter(to), R"("{}":{{"logprob":)", token);
  append_logprob(to, logprob);
  fmt::format_to(std::back_inserter(to), R"(,"rank":{},"decoded_token":{}}})", rank > 0 ? std::to_string(rank) : "null",
                 dump(text_of(tokenizer, token)));
}

std::string joined(const std::string* before, const std::string& list) {
  if (before == nullptr || before->empty()) return list;
  return list.empty() ? *before : *before + ',' + list;
}

}  // namespace

size_t characters(std::string_view bytes) {
  return static_cast<size_t>(
      std::count_if(bytes.begin(), bytes.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
}

void LogprobLists::add(TokenId token, std::optional<float> logprob, std::span<const TokenLogprob> top, bool shown) {
  for (std::string* const list : {&tokens_, &logprobs_, &tops_, &offsets_}) separate(*list);
  tokens_ += dump(text_of(*tokenizer_, token));
  offsets_ += std::to_string(offset_);
  if (shown) offset_ += characters(tokenizer_->token_bytes(token, true));
  if (!logprob) {
    logprobs_ += "null";
    tops_ += "null";
    return;
  }
  append_logprob(logprobs_, *logprob);
  add_alternatives(top);
}

void LogprobLists::add_alternatives(std::span<const TokenLogprob> top) {
  tops_ += '{';
  std::vector<std::string> changed;  // texts of parts of characters: only these can be equal
  bool first = true;
  for (const TokenLogprob& t : top) {
    if (t.token < 0) break;
    const std::string_view bytes = tokenizer_->token_bytes(t.token, true);
    std::string text = unicode::replace_invalid(bytes);
    if (text != bytes) {
      if (std::find(changed.begin(), changed.end(), text) != changed.end()) continue;
      changed.push_back(text);
    }
    if (!std::exchange(first, false)) tops_ += ',';
    tops_ += dump(std::move(text));
    tops_ += ':';
    append_logprob(tops_, t.logprob);
  }
  tops_ += '}';
}

std::string LogprobLists::json(const LogprobLists* before) const {
  const auto list = [&](std::string LogprobLists::*of) {
    return joined(before == nullptr ? nullptr : &(before->*of), this->*of);
  };
  return R"({"tokens":[)" + list(&LogprobLists::tokens_) + R"(],"token_logprobs":[)" + list(&LogprobLists::logprobs_) +
         R"(],"top_logprobs":[)" + list(&LogprobLists::tops_) + R"(],"text_offset":[)" + list(&LogprobLists::offsets_) +
         "]}";
}

PromptReport::PromptReport(const Tokenizer& tokenizer, SharedTokens tokens, std::string_view text, Wanted wanted)
    : tokenizer_(&tokenizer),
      tokens_(std::move(tokens)),
      wanted_(wanted),
      hidden_bos_(!tokens_.empty() && tokens_[0] == tokenizer.bos() &&
                  !text.starts_with(tokenizer.token_bytes(tokens_[0], true))),
      lists_(tokenizer) {}

void PromptReport::write(size_t count) {
  const size_t each = 1 + scores_->tops;
  for (size_t left = std::max<size_t>(count / each, 1); left > 0 && !done(); --left) write_token(written_++);
  if (!done()) return;
  if (wanted_.prompt_logprobs >= 0) map_ += ']';
  scores_ = nullptr;
}

void PromptReport::write_token(size_t i) {
  add_token(i);
  // The text lost the space that SentencePiece's first token begins with.
  if (wanted_.lists >= 0 && i == (hidden_bos_ ? 1 : 0))
    lists_.shift_back(tokenizer_->dropped_spaces(tokenizer_->token_bytes(tokens_[i], true)));
}

void PromptReport::add_token(size_t i) {
  if (i == 0) {
    if (wanted_.lists >= 0) lists_.add(tokens_[0], std::nullopt, {}, !hidden_bos_);
    if (wanted_.prompt_logprobs >= 0) map_ += "[null";
    return;
  }
  const float logprob = scores_->logprobs[i - 1];
  const std::span<const TokenLogprob> found(scores_->top.data() + (i - 1) * scores_->tops, scores_->tops);
  if (wanted_.lists >= 0) lists_.add(tokens_[i], logprob, found.first(static_cast<size_t>(wanted_.lists)));
  if (wanted_.prompt_logprobs < 0) return;
  const std::span<const TokenLogprob> top = found.first(static_cast<size_t>(wanted_.prompt_logprobs));
  map_ += ",{";
  append_entry(map_, *tokenizer_, tokens_[i], logprob, scores_->ranks[i - 1]);
  for (size_t k = 0; k < top.size() && top[k].token >= 0; ++k) {
    if (top[k].token == tokens_[i]) continue;
    map_ += ',';
    append_entry(map_, *tokenizer_, top[k].token, top[k].logprob, static_cast<int64_t>(k) + 1);
  }
  map_ += '}';
}

std::string logprobs_by_id(const Tokenizer& tokenizer, std::span<const TokenReport> tokens) {
  std::string list;
  for (const TokenReport& r : tokens) {
    separate(list);
    const auto among = std::find_if(r.top.begin(), r.top.end(), [&](const auto& t) { return t.token == r.token; });
    list += '{';
    append_entry(list, tokenizer, r.token, r.logprob, among == r.top.end() ? 0 : among - r.top.begin() + 1);
    for (size_t k = 0; k < r.top.size() && r.top[k].token >= 0; ++k) {
      if (r.top[k].token == r.token) continue;
      list += ',';
      append_entry(list, tokenizer, r.top[k].token, r.top[k].logprob, static_cast<int64_t>(k) + 1);
    }
    list += '}';
  }
  return '[' + list + ']';
}

}  // namespace quire::server
