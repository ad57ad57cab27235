// Log-probabilities as completions tell of them. As JSON text and not as a tree of values: a prompt's are many.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/answer_events.h"
#include "tokenizer/tokenizer.h"

namespace quire::server {

// Four lists side by side: the tokens' texts, their log-probabilities, the alternatives of each (an object from text to
// log-probability; of two with the same text, which are parts of characters, the likelier one), and where in the
// answer's text each token begins, in characters.
class LogprobLists {
 public:
  // `offset`: of the first token.
  explicit LogprobLists(const Tokenizer& tokenizer, size_t offset = 0) : tokenizer_(&tokenizer), offset_(offset) {}

  // Without a log-probability, as a prompt's first token has none, both it and the alternatives are null. `shown`:
  // whether the token is part of the text.
  void add(TokenId token, std::optional<float> logprob, std::span<const TokenLogprob> top, bool shown = true);
  size_t offset() const { return offset_; }  // of the next token
  // The text lacks so many characters of the tokens so far.
  void shift_back(size_t characters) { offset_ -= characters; }
  // {"tokens": [...], "token_logprobs": [...], "top_logprobs": [...], "text_offset": [...]}, those of `before` first.
  std::string json(const LogprobLists* before = nullptr) const;

 private:
  void add_alternatives(std::span<const TokenLogprob> top);

  const Tokenizer* tokenizer_;
  size_t offset_;
  std::string tokens_, logprobs_, tops_, offsets_;
};

// What an answer tells of its prompt: the lists above, vLLM's `prompt_logprobs`, or both. Written a little at a time,
// because whoever writes has other connections to look after.
class PromptReport {
 public:
  // How many alternatives beside each token; -1: not wanted.
  struct Wanted {
    int lists = -1, prompt_logprobs = -1;
    int most() const { return std::max(lists, prompt_logprobs); }
    bool any() const { return most() >= 0; }
    int64_t of_each() const { return 2 + int64_t{lists} + prompt_logprobs; }  // so many log-probabilities
  };
  // `text`: what stands before the answer, which may lack the BOS that was put in front of the tokens.
  PromptReport(const Tokenizer& tokenizer, SharedTokens tokens, std::string_view text, Wanted wanted);

  void begin(std::shared_ptr<const PromptLogprobs> scores) { scores_ = std::move(scores); }
  bool begun() const { return scores_ != nullptr || done(); }
  bool done() const { return written_ == tokens_.size(); }
  // Writes about so many log-probabilities more. After begin().
  void write(size_t count);

  // After done(): null if they are not wanted.
  const LogprobLists* lists() const { return wanted_.lists >= 0 ? &lists_ : nullptr; }
  // [null, {"9707": {"logprob": -1.5, "rank": 3, "decoded_token": "Hello"}, ...}, ...]: of each token itself, then of
  // the likeliest ones. Empty if it is not wanted.
  const std::string& prompt_logprobs() const { return map_; }

 private:
  void write_token(size_t i);
  void add_token(size_t i);

  const Tokenizer* tokenizer_;
  SharedTokens tokens_;
  Wanted wanted_;
  bool hidden_bos_;
  std::shared_ptr<const PromptLogprobs> scores_;
  LogprobLists lists_;
  std::string map_;
  size_t written_ = 0;  // tokens
};

// [{"9707": {"logprob": -1.5, "rank": 3, "decoded_token": "Hello"}, ...}, ...]: of each token of an answer itself, then
// of the likeliest ones. A rank beyond these is null.
std::string logprobs_by_id(const Tokenizer& tokenizer, std::span<const TokenReport> tokens);

// Characters of UTF-8 that begin in these bytes.
size_t characters(std::string_view bytes);

}  // namespace quire::server
