// Turns the events of answers into what one API says: a whole body, or the bytes of a stream. A writer belongs to one
// request and is used on its connection's executor only.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "server/answer_events.h"
#include "server/prompt_report.h"
#include "server/responder.h"
#include "tokenizer/tokenizer.h"

namespace quire::server {

// What was computed by now; counting it is left undone where nobody asks.
using UsageNow = std::function<Usage()>;

// One answer from its beginning to its end, and what is told of its prompt, written to its end; null: nothing.
struct WholeAnswer {
  const AnswerPart* part = nullptr;
  const PromptReport* prompt = nullptr;
};

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  virtual StreamKind stream_kind() const { return kEventStream; }

  // The body of a response that is sent at once. `answers`: at least one.
  virtual std::string whole(std::span<const WholeAnswer> answers, const Usage& usage) = 0;

  // The bytes that a stream begins with, before anything is known of an answer; and what it says from time to time
  // while nothing new comes, in place of its kind's keep_alive.
  virtual std::string beginning() { return {}; }
  virtual std::string still_working() { return {}; }
  // The bytes of a stream. Of each answer: opening(), a piece() for whatever is new, and a last one that has only
  // `finish`. When all have ended end(), or whenever something fails, failure().
  virtual std::string opening(int index, const PromptReport* prompt, const UsageNow& usage) = 0;
  virtual std::string piece(const AnswerPart& part, const UsageNow& usage) = 0;
  virtual std::string end(const UsageNow& usage) = 0;
  virtual std::string failure(const ApiError& error) = 0;
};

}  // namespace quire::server
