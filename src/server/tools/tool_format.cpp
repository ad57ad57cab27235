#include "server/tools/tool_format.h"

namespace quire::server {
namespace {

constexpr CallSyntax kTagged = {.object = true, .function = true};
constexpr CallSyntax kFunction = {.function = true, .known_only = true};
constexpr CallSyntax kObject = {.object = true};
constexpr CallSyntax kBareObject = {.object = true, .known_only = true};
constexpr CallSyntax kMistral = {.object = true, .name = true};

constexpr CallTrigger kTaggedTriggers[] = {
    {"<tool_call>", "</tool_call>", kTagged},
    {"<function=", "</tool_call>", kFunction},  // models forget the outer tag, rarely the one that closes it
};
constexpr CallTrigger kLlamaTriggers[] = {{"<|python_tag|>", "", kObject}};
constexpr CallTrigger kMistralTriggers[] = {{"[TOOL_CALLS]", "", kMistral}};
constexpr CallTrigger kGenericTriggers[] = {
    {"<tool_call>", "</tool_call>", kTagged},  {"<function_call>", "</function_call>", kTagged},
    {"<function=", "</tool_call>", kFunction}, {"[TOOL_CALLS]", "", kMistral},
    {"<|python_tag|>", "", kObject},           {"```json", "```", kBareObject},
};

constexpr ToolFormat kFormats[] = {
    {.name = "harmony",
     .also = "openai gpt_oss",
     .harmony = true,
     .control_tokens = true,
     .first = "<|channel|>",
     .second = "<|start|>"},
    {.name = "qwen3_xml", .also = "qwen3_coder nemotron_v3", .triggers = kTaggedTriggers, .first = "<function="},
    {.name = "hermes", .also = "qwen qwen2 qwen3 qwen25", .triggers = kTaggedTriggers, .first = "<tool_call>"},
    {.name = "mistral",
     .triggers = kMistralTriggers,
     .control_tokens = true,
     .short_ids = true,
     .first = "[TOOL_CALLS]"},
    {.name = "llama3_json",
     .also = "llama4_json llama3",
     .triggers = kLlamaTriggers,
     .bare = true,
     .control_tokens = true,
     .first = "<|start_header_id|>",
     .second = "tools"},
    {.name = "json", .also = "generic", .triggers = kGenericTriggers, .bare = true},
};

bool among(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const size_t end = list.find(' ');
    if (list.substr(0, end) == name) return true;
    list.remove_prefix(end == std::string_view::npos ? list.size() : end + 1);
  }
  return false;
}

}  // namespace

std::span<const ToolFormat> tool_formats() {
  return kFormats;
}

const ToolFormat* find_tool_format(std::string_view name) {
  for (const ToolFormat& f : kFormats)
    if (f.name == name || among(f.also, name)) return &f;
  return nullptr;
}

const ToolFormat& tool_format_of(std::string_view chat_template) {
  const auto has = [&](std::string_view text) { return chat_template.find(text) != std::string_view::npos; };
  for (const ToolFormat& f : kFormats)
    if (has(f.first) && has(f.second)) return f;  // every text has the empty one
  return kFormats[std::size(kFormats) - 1];
}

}  // namespace quire::server
