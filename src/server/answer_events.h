// What the text of an answer turns out to be, piece by piece: the one form that every API's writer is given.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/id.h"
#include "ops/sampling/sampling.h"
#include "server/protocol/json.h"

namespace quire::server {

struct AnswerEvent {
  enum class Kind {
    kText,
    kReasoning,
    kCallBegin,      // `text`: the tool's name; `id`: of the call
    kCallArguments,  // part of the arguments, which together are the text of a JSON object
    kCallEnd,        // the arguments are complete
    kCallCut,        // they will not be: `text` is what the model wrote of the call from its first character on
  };
  Kind kind = Kind::kText;
  std::string text;
  std::string id = {};
};

// Adds text to a list of events: to the last one, where that is of the same kind.
void append(std::vector<AnswerEvent>& events, AnswerEvent::Kind kind, std::string_view text);

// All text of one kind.
std::string text_of(const std::vector<AnswerEvent>& events, AnswerEvent::Kind kind);

// Of an answer that is sent whole: a call that was cut is no call, and what the model wrote of it is text.
std::string whole_text(const std::vector<AnswerEvent>& events);
struct ToolCall {
  std::string id, name, arguments;
};
std::vector<ToolCall> whole_calls(const std::vector<AnswerEvent>& events);

// A token whose log-probabilities were asked for.
struct TokenReport {
  TokenId token = -1;
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;
  bool of_text = true;  // and not of reasoning, or of a call, as far as is known
};

// What is new of one answer; all of it, where an answer is sent whole.
struct AnswerPart {
  int index = 0;  // of the answer
  std::vector<AnswerEvent> events;
  std::vector<TokenReport> tokens;  // empty unless log-probabilities were asked for
  std::vector<TokenId> token_ids;   // all of the answer, where they were asked for
  size_t text_offset = 0;           // characters of the answer's text before the first of `tokens`
  std::string finish;               // "stop", "length", "tool_calls"; empty: goes on
  Json stop;  // with "stop": what of the request ended it, a stop text or a stop token's id; null: the model did
};

struct Usage {
  int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  std::optional<int64_t> reasoning_tokens;  // of those generated; none: nobody tells reasoning from text
  int64_t drafts = 0, drafts_accepted = 0;  // of answers that are over
  Json cache;                               // of each prompt, what was found and why no more; null: nobody asked
  double first_token_seconds = 0.0, total_seconds = 0;  // since the request arrived
  Json json() const;                                    // as the OpenAI API has it
};

}  // namespace quire::server
