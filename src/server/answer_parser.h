// From the text of one answer to its events: reasoning, text and calls of tools, in whatever order they come.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "server/answer_events.h"
#include "server/protocol/reasoning.h"
#include "server/tools/call_parser.h"

namespace quire::server {

// How the answers to one request are read.
struct AnswerSyntax {
  bool split_reasoning = false;          // otherwise it stays in the text
  bool inside_reasoning = false;         // the prompt ends within an open <think>
  const ToolFormat* format = nullptr;    // null: calls are text
  std::shared_ptr<const ToolSet> tools;  // not null where there is a format
  CallLimits limits;
  std::string call_prefix = "call_";  // of the ids of calls, unless the format has its own
  bool parallel = true;               // false: calls after the first are left out
};

class AnswerParser {
 public:
  explicit AnswerParser(AnswerSyntax syntax = {});

  // Adds what is certain by now. The events of all calls together do not depend on how the text was cut.
  void push(std::string_view text, std::vector<AnswerEvent>& events);
  // The end of the text. `ended`: the model, or a stop text, ended it; otherwise it was cut.
  void finish(bool ended, std::vector<AnswerEvent>& events);
  // What comes next is reasoning, as far as is known.
  bool in_reasoning() const;
  // What comes next is neither reasoning nor a call, likewise.
  bool in_text() const { return !in_reasoning() && begun_ == complete_ + cut_; }
  size_t complete_calls() const { return complete_; }
  size_t cut_calls() const { return cut_; }

 private:
  void split(std::string_view text, std::vector<AnswerEvent>& events);
  void content(std::string_view text, std::vector<AnswerEvent>& events);
  void number(std::vector<AnswerEvent>& from, std::vector<AnswerEvent>& to);

  AnswerSyntax syntax_;
  ReasoningSplitter splitter_;
  std::unique_ptr<CallParser> calls_;  // null: there is no format
  bool splits_ = false;
  size_t begun_ = 0, complete_ = 0, cut_ = 0;
};

}  // namespace quire::server
