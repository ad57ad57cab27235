// Calls with random arguments, written as chat templates write them: reading them gives them back, however the text is
// cut. And random texts: every way to cut one gives the same.
#include "server/tool_texts.h"

namespace quire::test {
namespace {

using Random = std::mt19937;

constexpr int kCalls = 10'000;  // of each format

size_t below(Random& r, size_t n) {
  return r() % n;
}

std::string random_text(Random& r) {
  static const char* const kBits[] = {"a",
                                      "Z",
                                      "0",
                                      " ",
                                      "\n",
                                      "\t",
                                      "\"",
                                      "\\",
                                      "$",
                                      "<",
                                      ">",
                                      "&",
                                      "'",
                                      "{",
                                      "}",
                                      "[",
                                      "]",
                                      ":",
                                      ",",
                                      "\xC3\xA9",
                                      "\xE2\x82\xAC",
                                      "\xF0\x9F\x98\x80",
                                      "null",
                                      "True",
                                      "12",
                                      "</parameter>x",
                                      "</function>x",
                                      "<tool_call>",
                                      "</tool_call>",
                                      "<think>",
                                      "</",
                                      "<function=f>",
                                      "[TOOL_CALLS]",
                                      "<parameter=",
                                      "```",
                                      "\x01",
                                      "\\u00e9",
                                      "\r\n"};
  std::string text;
  for (size_t n = below(r, 12); n > 0; --n) text += kBits[below(r, std::size(kBits))];
  return text;
}

Json random_value(Random& r, int depth) {
  switch (below(r, depth > 0 ? 8 : 6)) {
    case 0:
      return static_cast<int64_t>(r()) - (int64_t{1} << 31);
    case 1:
      return static_cast<double>(r()) / 1024.0;
    case 2:
      return below(r, 2) == 0;
    case 3:
      return nullptr;
    case 6: {
      Json list = Json::array();
      for (size_t n = below(r, 4); n > 0; --n) list.push_back(random_value(r, depth - 1));
      return list;
    }
    case 7: {
      Json object = Json::object();
      for (size_t n = below(r, 4); n > 0; --n) object["k" + std::to_string(n)] = random_value(r, depth - 1);
      return object;
    }
    default:
      return random_text(r);
  }
}

struct RandomCall {
  std::string name;
  Json arguments = Json::object();
};

// A tool that takes just these arguments.
server::Tool tool_for(const RandomCall& c) {
  Json properties = Json::object();
  for (const auto& [key, value] : c.arguments.items()) {
    const char* type = value.is_string()           ? "string"
                       : value.is_number_integer() ? "integer"
                       : value.is_number()         ? "number"
                       : value.is_boolean()        ? "boolean"
                       : value.is_null()           ? "null"
                       : value.is_array()          ? "array"
                                                   : "object";
    properties[key] = {{"type", type}};
  }
  return {c.name, {{"type", "object"}, {"properties", properties}}};
}

std::string joined(const std::vector<RandomCall>& calls, const char* between,
                   std::string (*render)(const RandomCall&)) {
  std::string text;
  for (const RandomCall& c : calls) text += (text.empty() ? "" : between) + render(c);
  return text;
}

std::string xml(const RandomCall& c) {
  std::string text = "<tool_call>\n<function=" + c.name + ">\n";
  for (const auto& [key, value] : c.arguments.items()) {
    std::string written = value.is_string() ? value.get<std::string>() : value.dump();
    if (value.is_boolean()) written = value.get<bool>() ? "True" : "False";  // as a template prints it
    text += "<parameter=" + key + ">\n" + written + "\n</parameter>\n";
  }
  return text + "</function>\n</tool_call>";
}
std::string hermes(const RandomCall& c) {
  return "<tool_call>\n" + Json{{"name", c.name}, {"arguments", c.arguments}}.dump() + "\n</tool_call>";
}
std::string object(const RandomCall& c) {
  return Json{{"name", c.name}, {"arguments", c.arguments}}.dump();
}
std::string llama(const RandomCall& c) {
  return Json{{"name", c.name}, {"parameters", c.arguments}}.dump(2);
}
std::string mistral(const RandomCall& c) {
  return "[TOOL_CALLS]" + c.name + "[ARGS]" + c.arguments.dump();
}
std::string harmony(const RandomCall& c) {
  return "<|channel|>commentary to=functions." + c.name + " <|constrain|>json<|message|>" + c.arguments.dump() +
         "<|call|>";
}

struct Format {
  const char* name;
  std::string (*render)(const std::vector<RandomCall>& calls);
};
constexpr Format kFormats[] = {
    {"qwen3_xml", [](const std::vector<RandomCall>& c) { return joined(c, "\n", xml); }},
    {"hermes", [](const std::vector<RandomCall>& c) { return joined(c, "\n", hermes); }},
    {"llama3_json", [](const std::vector<RandomCall>& c) { return joined(c, "; ", llama); }},
    {"mistral", [](const std::vector<RandomCall>& c) { return joined(c, "", mistral); }},
    {"mistral", [](const std::vector<RandomCall>& c) { return "[TOOL_CALLS][" + joined(c, ", ", object) + "]"; }},
    {"openai", [](const std::vector<RandomCall>& c) { return joined(c, "<|start|>assistant", harmony); }},
    {"json", [](const std::vector<RandomCall>& c) { return "[" + joined(c, ", ", object) + "]"; }},
};

// At random places, never within a character.
std::vector<std::string_view> random_pieces(Random& r, std::string_view text) {
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    size_t n = std::min(text.size(), 1 + below(r, 9));
    while (n < text.size() && (static_cast<unsigned char>(text[n]) & 0xC0) == 0x80) ++n;
    pieces.push_back(text.substr(0, n));
    text.remove_prefix(n);
  }
  return pieces;
}

TEST(RandomToolCalls, ReadingWhatWasWrittenGivesItBack) {
  for (const Format& format : kFormats) {
    Random r(7);
    int failures = 0;
    for (int done = 0; done < kCalls && failures < 3;) {
      std::vector<RandomCall> calls(1 + below(r, 3));
      auto tools = std::make_shared<server::ToolSet>();
      for (RandomCall& c : calls) {
        c.name = "tool_" + std::to_string(tools->size());
        for (size_t n = below(r, 5); n > 0; --n) c.arguments["arg-" + std::to_string(n)] = random_value(r, 2);
        tools->add(tool_for(c));
      }
      done += static_cast<int>(calls.size());
      const std::string text = format.render(calls);
      const Read read = read_pieces(syntax_of(format.name, tools), random_pieces(r, text), true);
      bool same = read.ordered && read.text.empty() && read.calls.size() == calls.size();
      for (size_t i = 0; same && i < calls.size(); ++i)
        same = read.calls[i].name == calls[i].name && read.calls[i].complete &&
               Json::parse(read.calls[i].arguments, nullptr, false) == calls[i].arguments;
      EXPECT_TRUE(same) << format.name << ": " << text << "\nread as " << testing::PrintToString(read);
      if (!same) ++failures;
    }
  }
}

TEST(RandomToolCalls, AnyTextIsReadAlikeHoweverItIsCut) {
  static const char* const kBits[] = {"<tool_call>",
                                      "</tool_call>",
                                      "<function=now>",
                                      "<function=get_weather>",
                                      "</function>",
                                      "<parameter=city>",
                                      "<parameter=days>",
                                      "</parameter>",
                                      "\n",
                                      " ",
                                      "{",
                                      "}",
                                      "[",
                                      "]",
                                      "\"name\": ",
                                      "\"now\"",
                                      ", ",
                                      "\"arguments\": ",
                                      "{\"a\": 1}",
                                      "<think>",
                                      "</think>",
                                      "[TOOL_CALLS]",
                                      "[ARGS]",
                                      "<|python_tag|>",
                                      "<|channel|>",
                                      "<|message|>",
                                      "<|start|>",
                                      "<|end|>",
                                      "commentary to=functions.now",
                                      "analysis",
                                      "text",
                                      "x",
                                      "<",
                                      "```json",
                                      "```",
                                      ";",
                                      "\"",
                                      "\\"};
  Random r(11);
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (size_t n = 1 + below(r, 14); n > 0; --n) text += kBits[below(r, std::size(kBits))];
    const auto formats = server::tool_formats();
    server::AnswerSyntax syntax = syntax_of(formats[below(r, formats.size())].name, some_tools());
    syntax.split_reasoning = below(r, 2) == 0;
    const bool ended = below(r, 2) == 0;
    const Read whole = read_pieces(syntax, {text}, ended);
    ASSERT_EQ(read_pieces(syntax, random_pieces(r, text), ended), whole) << syntax.format->name << ": " << text;
    ASSERT_TRUE(whole.ordered) << syntax.format->name << ": " << text;
    for (const Read::Call& c : whole.calls) {
      if (!c.complete) continue;
      ASSERT_TRUE(Json::accept(c.arguments)) << syntax.format->name << ": " << text << "\n" << c.arguments;
    }
  }
}

}  // namespace
}  // namespace quire::test
