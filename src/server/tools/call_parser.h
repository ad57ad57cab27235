// Finds the calls of tools in what a model writes. Whatever it writes is text or a call: nothing is an error. The text
// is taken byte by byte, so that the events, put together, are the same however it was cut into pieces.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "server/answer_events.h"
#include "server/tools/tool_format.h"
#include "server/tools/tool_set.h"

namespace quire::server {

struct CallLimits {
  size_t max_call_bytes = size_t{1} << 20;  // of one call as the model wrote it; a longer one is text
};

class CallParser {
 public:
  virtual ~CallParser() = default;
  virtual void feed(char c, std::vector<AnswerEvent>& events) = 0;
  // The end of the text. `ended`: the model ended it. Otherwise it was cut, and so is a call that is not complete.
  virtual void finish(bool ended, std::vector<AnswerEvent>& events) = 0;
  // It tells reasoning from text by itself.
  virtual bool finds_reasoning() const { return false; }
  virtual bool in_reasoning() const { return false; }
  // Between two calls, and nothing is held back: reasoning may begin here.
  virtual bool after_call() const { return false; }
};

// `tools` must outlive the parser. Not for harmony. White space before a call belongs to no text, nor does what follows
// the last one.
std::unique_ptr<CallParser> tagged_call_parser(const ToolFormat& format, const ToolSet& tools, CallLimits limits);
// gpt-oss: messages in channels. Without tools calls are text, and channels are told apart all the same.
std::unique_ptr<CallParser> harmony_parser(const ToolSet& tools, CallLimits limits);

// By the format.
std::unique_ptr<CallParser> make_call_parser(const ToolFormat& format, const ToolSet& tools, CallLimits limits);

}  // namespace quire::server
