#include "server/answer_events.h"

namespace quire::server {

using Kind = AnswerEvent::Kind;

void append(std::vector<AnswerEvent>& events, Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (events.empty() || events.back().kind != kind) events.push_back({.kind = kind, .text = {}});
  events.back().text += text;
}

std::string text_of(const std::vector<AnswerEvent>& events, Kind kind) {
  std::string text;
  for (const AnswerEvent& e : events)
    if (e.kind == kind) text += e.text;
  return text;
}

std::string whole_text(const std::vector<AnswerEvent>& events) {
  std::string text;
  for (const AnswerEvent& e : events)
    if (e.kind == Kind::kText || e.kind == Kind::kCallCut) text += e.text;
  return text;
}

std::vector<ToolCall> whole_calls(const std::vector<AnswerEvent>& events) {
  std::vector<ToolCall> calls;
  ToolCall open;
  for (const AnswerEvent& e : events) {
    if (e.kind == Kind::kCallBegin) open = {.id = e.id, .name = e.text, .arguments = {}};
    if (e.kind == Kind::kCallArguments) open.arguments += e.text;
    if (e.kind == Kind::kCallEnd) calls.push_back(std::exchange(open, {}));
  }
  return calls;
}

Json Usage::json() const {
  Json details = {{"cached_tokens", cached_tokens}};
  if (!cache.is_null()) details["cache"] = cache;
  Json usage = {{"prompt_tokens", prompt_tokens},
                {"completion_tokens", generated_tokens},
                {"total_tokens", prompt_tokens + generated_tokens},
                {"prompt_tokens_details", std::move(details)}};
  Json completion = Json::object();
  if (reasoning_tokens) completion["reasoning_tokens"] = *reasoning_tokens;
  if (drafts > 0) {
    completion["accepted_prediction_tokens"] = drafts_accepted;
    completion["rejected_prediction_tokens"] = drafts - drafts_accepted;
  }
  if (!completion.empty()) usage["completion_tokens_details"] = std::move(completion);
  return usage;
}

}  // namespace quire::server
