// What the texts of models become: helpers for tests of the parsers of calls.
#pragma once

#include <gtest/gtest.h>

#include <random>

#include "server/answer_parser.h"

namespace quire::test {

using server::AnswerEvent;
using Json = nlohmann::ordered_json;

// The tools that most tests offer.
inline std::shared_ptr<const server::ToolSet> some_tools() {
  auto tools = std::make_shared<server::ToolSet>();
  tools->add({"get_weather", Json::parse(R"({"type": "object", "properties": {
      "city": {"type": "string"}, "days": {"type": "integer"}, "metric": {"type": "boolean"},
      "where": {"type": "object"}, "tags": {"type": "array"}, "code": {"type": ["string", "null"]},
      "limit": {"anyOf": [{"type": "number"}, {"type": "null"}]}, "kind": {"$ref": "#/$defs/kind"}},
      "$defs": {"kind": {"enum": ["a", "b"]}}})")});
  tools->add({"now", nullptr});
  return tools;
}

// An answer put together from its events, as the client of a stream does it.
struct Read {
  struct Call {
    std::string name, arguments;
    bool complete = false;
    bool operator==(const Call&) const = default;
  };
  std::string text, reasoning, cut;  // cut: the texts of calls that were not completed
  std::vector<Call> calls;
  bool ordered = true;  // begin, arguments, end
  bool operator==(const Read&) const = default;
};

inline void PrintTo(const Read& r, std::ostream* os) {
  *os << "text [" << r.text << "] reasoning [" << r.reasoning << "] cut [" << r.cut << "]";
  for (const Read::Call& c : r.calls) *os << " " << c.name << "(" << c.arguments << (c.complete ? ")" : "...");
}

inline Read put_together(const std::vector<AnswerEvent>& events) {
  using Kind = AnswerEvent::Kind;
  Read r;
  bool open = false;
  for (const AnswerEvent& e : events) {
    if (e.kind == Kind::kText) r.text += e.text;
    if (e.kind == Kind::kReasoning) r.reasoning += e.text;
    if (e.kind == Kind::kCallBegin) {
      r.ordered = r.ordered && !open && !e.id.empty() && !e.text.empty();
      r.calls.push_back({e.text, ""});
      open = true;
    }
    if (e.kind == Kind::kCallArguments) {
      r.ordered = r.ordered && open;
      r.calls.back().arguments += e.text;
    }
    if (e.kind == Kind::kCallEnd || e.kind == Kind::kCallCut) {
      r.ordered = r.ordered && open;
      r.calls.back().complete = e.kind == Kind::kCallEnd;
      if (e.kind == Kind::kCallCut) r.cut += e.text;
      open = false;
    }
  }
  r.ordered = r.ordered && !open;
  return r;
}

inline Read read_pieces(const server::AnswerSyntax& syntax, const std::vector<std::string_view>& pieces, bool ended) {
  server::AnswerParser parser(syntax);
  std::vector<AnswerEvent> events;
  for (const std::string_view piece : pieces) parser.push(piece, events);
  parser.finish(ended, events);
  return put_together(events);
}

inline server::AnswerSyntax syntax_of(std::string_view format, std::shared_ptr<const server::ToolSet> tools) {
  return {.split_reasoning = true, .format = server::find_tool_format(format), .tools = std::move(tools)};
}

// The text in one piece, in single bytes, and with every piece of 1, 3 and 17 bytes cut out of it: all are read alike.
inline Read read_however_cut(const server::AnswerSyntax& syntax, std::string_view text, bool ended = true) {
  const Read whole = read_pieces(syntax, {text}, ended);
  EXPECT_TRUE(whole.ordered) << text;
  std::vector<std::string_view> bytes;
  for (size_t i = 0; i < text.size(); ++i) bytes.push_back(text.substr(i, 1));
  EXPECT_EQ(read_pieces(syntax, bytes, ended), whole) << "in single bytes: " << text;
  for (size_t i = 0; i < text.size(); ++i)
    for (const size_t n : {1, 3, 17}) {
      const std::string_view rest = text.substr(i);
      const std::vector<std::string_view> pieces = {text.substr(0, i), rest.substr(0, n),
                                                    rest.substr(std::min(n, rest.size()))};
      EXPECT_EQ(read_pieces(syntax, pieces, ended), whole) << "cut at " << i << ": " << text;
    }
  return whole;
}

}  // namespace quire::test
