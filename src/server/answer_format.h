// The JSON of answers: what tells a chat completion from a text completion.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/prompt_report.h"
#include "server/protocol/json.h"
#include "tokenizer/tokenizer.h"

namespace quire::server {

struct Usage {
  int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  Json cache;  // of each prompt, what was found and why no more; null: nobody asked
  Json json() const;
};

// A token whose log-probabilities were asked for.
struct TokenReport {
  TokenId token = -1;
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;
};

// What is new of one answer; all of it, where an answer is sent whole.
struct AnswerPart {
  int index = 0;  // of the answer
  std::string content, reasoning;
  std::vector<TokenReport> tokens;  // empty unless log-probabilities were asked for
  size_t text_offset = 0;           // characters of the answer's text before the first of `tokens`
  std::string finish;               // "stop", "length"; empty: goes on
};

class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;
  virtual std::string_view id_prefix() const = 0;  // "chatcmpl-"
  virtual std::string_view object() const = 0;     // of a whole answer
  virtual std::string_view chunk_object() const = 0;
  // JSON text, each of them. `prompt`: what is told of the answer's prompt, written to its end; null: nothing.
  // An entry of "choices" in a whole answer.
  virtual std::string whole(const AnswerPart& part, const PromptReport* prompt) const = 0;
  // The entry of the chunk that opens an answer's stream, or empty for none.
  virtual std::string opening(int index, const PromptReport* prompt) const = 0;
  // An entry of a chunk.
  virtual std::string piece(const AnswerPart& part) const = 0;
  // Members of a whole answer beside "choices", each after a comma.
  virtual std::string beside(const PromptReport*) const { return {}; }
};

// {"index", "message": {"role", "content", "reasoning_content"}, "logprobs", "finish_reason"}; beside them
// "prompt_logprobs", if it is wanted.
std::unique_ptr<AnswerFormat> chat_format(const Tokenizer& tokenizer, bool logprobs);
// {"index", "text", "logprobs", "finish_reason", "prompt_logprobs"}, the last one if it is wanted. `echoes`: text that
// stands before the answer of that index, or empty.
std::unique_ptr<AnswerFormat> completion_format(const Tokenizer& tokenizer, bool logprobs,
                                                std::vector<std::string> echoes);

}  // namespace quire::server
