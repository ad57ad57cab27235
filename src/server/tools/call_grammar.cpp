#include "server/tools/call_grammar.h"

namespace quire::server {
namespace {

// How a format writes one call.
struct Writing {
  std::string begin, between, end;  // begin NAME between ARGUMENTS end
  bool xml = false;                 // the arguments are <parameter=KEY>VALUE</parameter>
  std::string trigger;              // what `begin` begins with, and no other text of the model's
};

std::optional<Writing> writing_of(const ToolFormat& format) {
  if (format.harmony || format.name == "mistral") return std::nullopt;  // control tokens, which no grammar spells
  if (format.name == "qwen3_xml")
    return Writing{"<tool_call>\n<function=", ">\n", "</function>\n</tool_call>", true, "<tool_call>"};
  if (format.name == "llama3_json") return Writing{R"({"name": ")", R"(", "parameters": )", "}", false, ""};
  return Writing{"<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>", false, "<tool_call>"};
}

Json tag(const Writing& w, const CallSchema& call, size_t skip) {
  Json content = {{"type", "json_schema"}, {"json_schema", Json::parse(call.schema)}};
  if (w.xml) content["style"] = "qwen_xml";
  return {{"type", "tag"},
          {"begin", (w.begin + call.tool->name + w.between).substr(skip)},
          {"content", std::move(content)},
          {"end", w.end}};
}

// Names stand in JSON or in a tag as they are.
bool is_plain(const std::string& name) {
  return std::none_of(name.begin(), name.end(), [](char c) {
    return c == '"' || c == '\\' || c == '<' || c == '>' || static_cast<unsigned char>(c) < 0x20;
  });
}

Json tags(const Writing& w, std::span<const CallSchema> tools, size_t skip) {
  Json all = Json::array();
  for (const CallSchema& call : tools)
    if (is_plain(call.tool->name)) all.push_back(tag(w, call, skip));
  return all;
}

}  // namespace

std::optional<CallGrammar> required_calls(const ToolFormat& format, std::span<const CallSchema> tools, bool parallel) {
  const std::optional<Writing> w = writing_of(format);
  if (!w) return std::nullopt;
  Json all = tags(*w, tools, 0);
  if (all.empty()) return std::nullopt;
  const Json calls = {{"type", "tags_with_separator"},
                      {"tags", std::move(all)},
                      {"separator", "\n"},
                      {"at_least_one", true},
                      {"stop_after_first", !parallel || w->trigger.empty()}};
  return CallGrammar{dump({{"type", "structural_tag"}, {"format", calls}}), ""};
}

std::optional<CallGrammar> free_calls(const ToolFormat& format, std::span<const CallSchema> tools) {
  const std::optional<Writing> w = writing_of(format);
  if (!w || w->trigger.empty()) return std::nullopt;
  Json all = tags(*w, tools, w->trigger.size());
  if (all.empty()) return std::nullopt;
  const Json call = all.size() == 1 ? all.front() : Json{{"type", "or"}, {"elements", std::move(all)}};
  return CallGrammar{dump({{"type", "structural_tag"}, {"format", call}}), w->trigger};
}

}  // namespace quire::server
