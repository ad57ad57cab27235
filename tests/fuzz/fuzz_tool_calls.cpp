// Any text as an answer, in every format of calls: the same events however it is cut, arguments of complete calls are
// JSON, and a call that begins ends. The first bytes say the format, how it is cut and how it ends.
//   build/fuzz/fuzz_tool_calls -max_total_time=600 -rss_limit_mb=2048 tests/fuzz/corpus/tool_calls
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "server/answer_parser.h"
#include "tokenizer/unicode.h"

namespace quire::server {
namespace {

using Kind = AnswerEvent::Kind;

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

std::shared_ptr<const ToolSet> tools() {
  auto set = std::make_shared<ToolSet>();
  set->add({"f", Json::parse(R"({"properties": {"s": {"type": "string"}, "i": {"type": "integer"},
                                                "o": {"anyOf": [{"$ref": "#/$defs/x"}, {"type": "null"}]}},
                                 "$defs": {"x": {"type": "object"}}})")});
  set->add({"g", nullptr});
  return set;
}

// The events as one text: neighbours of a kind are one, and ids are left out.
std::string told(const AnswerSyntax& syntax, std::string_view text, size_t piece, bool ended) {
  AnswerParser parser(syntax);
  std::vector<AnswerEvent> events;
  for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(std::min(piece, rest.size())))
    parser.push(rest.substr(0, piece), events);
  parser.finish(ended, events);
  std::string all;
  std::string arguments;
  bool open = false;
  Kind last = Kind::kCallEnd;
  for (const AnswerEvent& e : events) {
    const bool begins = e.kind == Kind::kCallBegin;
    const bool ends = e.kind == Kind::kCallEnd || e.kind == Kind::kCallCut;
    require(begins ? !open : e.kind == Kind::kCallArguments || ends ? open : !open, "calls begin, have arguments, end");
    require(!begins || (!e.text.empty() && !e.id.empty()), "a call has a name and an id");
    if (begins) arguments.clear();
    if (e.kind == Kind::kCallArguments) arguments += e.text;
    if (e.kind == Kind::kCallEnd) require(Json::accept(arguments), "arguments are JSON");
    if (begins) open = true;
    if (ends) open = false;
    if (e.kind != last || begins || ends) all += "\n#" + std::to_string(static_cast<int>(e.kind));
    all += e.text;
    last = e.kind;
  }
  require(!open, "a call that began has ended");
  return all;
}

}  // namespace
}  // namespace quire::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire::server;
  if (size < 2) return 0;
  static const std::shared_ptr<const ToolSet> set = tools();
  const auto formats = tool_formats();
  AnswerSyntax syntax{.split_reasoning = (data[1] & 1) != 0,
                      .inside_reasoning = (data[1] & 2) != 0,
                      .format = &formats[data[0] % formats.size()],
                      .tools = set,
                      .limits = {.max_call_bytes = (data[1] & 4) != 0 ? size_t{64} : size_t{1} << 20},
                      .parallel = (data[1] & 8) == 0};
  const bool ended = (data[1] & 16) != 0;
  // What a detokenizer gives is UTF-8.
  const std::string text = quire::unicode::replace_invalid({reinterpret_cast<const char*>(data) + 2, size - 2});
  const std::string whole = told(syntax, text, text.size() + 1, ended);
  require(told(syntax, text, 1, ended) == whole, "single bytes tell the same");
  require(told(syntax, text, 1 + (data[1] >> 5), ended) == whole, "pieces tell the same");
  return 0;
}
