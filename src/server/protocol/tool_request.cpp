#include "server/protocol/tool_request.h"

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gguf/metadata.h"

namespace quire::server {
namespace {

// One tool; `where`: "tools[0]".
ApiResult<Tool> read_tool(const Json& tool, const std::string& where) {
  const auto wrong = [&](const std::string& field, std::string_view what) {
    return bad_field(field, "invalid_type", "'{}' must be {}", field, what);
  };
  if (!tool.is_object()) return wrong(where, "an object");
  const auto type = tool.find("type");
  if (type != tool.end() && *type != "function")
    return bad_field(where + ".type", "unsupported_parameter",
                     "'{}.type' is {}: only tools of type \"function\" are known", where,
                     gguf::printable((type->is_string() ? type->get<std::string>() : dump(*type)).substr(0, 64)));
  const auto function = tool.find("function");
  if (function == tool.end() || !function->is_object()) return wrong(where + ".function", "an object");
  const auto name = function->find("name");
  if (name == function->end() || !name->is_string() || name->get_ref<const std::string&>().empty() ||
      name->get_ref<const std::string&>().size() > kMaxToolName)
    return wrong(where + ".function.name", fmt::format("a string of 1 to {} bytes", kMaxToolName));
  Tool read{.name = name->get<std::string>(), .parameters = nullptr};
  const auto parameters = function->find("parameters");
  if (parameters != function->end() && !parameters->is_null()) {
    if (!parameters->is_object()) return wrong(where + ".function.parameters", "an object");
    read.parameters = *parameters;
  }
  return read;
}

bool is_strict(const Json& tool) {
  const Json& function = tool["function"];
  return function.contains("strict") && function["strict"] == true;
}

// What a choice says beside how: {"type": "allowed_tools", "mode", "tools": [{"type": "function", "name"}]}, of the
// Responses API; chats have mode and tools within "allowed_tools", and a tool's name within "function".
struct AllowedTools {
  Json mode;
  std::vector<std::string> names;
};

std::optional<AllowedTools> read_allowed(Fields& f, const char* name, const Json& choice) {
  const auto wrong = [&] {
    f.fail(bad_field(name, "invalid_value",
                     "'{}' of the type \"allowed_tools\" must have 'mode', \"auto\" or \"required\", and 'tools', an "
                     "array of {{\"type\": \"function\", \"name\": ...}}",
                     name));
    return std::nullopt;
  };
  const auto inner = choice.find("allowed_tools");
  const Json& said = inner == choice.end() ? choice : *inner;
  const auto member = [](const Json& of, const char* key) {
    const auto at = of.is_object() ? of.find(key) : of.end();
    return of.is_object() && at != of.end() ? &*at : nullptr;
  };
  const Json *const mode = member(said, "mode"), *const tools = member(said, "tools");
  if (mode == nullptr || (*mode != "auto" && *mode != "required") || tools == nullptr || !tools->is_array())
    return wrong();
  AllowedTools allowed{.mode = *mode, .names = {}};
  for (const Json& tool : *tools) {
    const Json* const type = member(tool, "type");
    const Json* const function = member(tool, "function");
    const Json* const named = member(function == nullptr ? tool : *function, "name");
    const bool ours = type == nullptr || *type == "function" || *type == "custom";
    if (!ours) continue;  // what a vendor's own servers run, which the model is not told of
    if (named == nullptr || !named->is_string()) return wrong();
    allowed.names.push_back(named->get<std::string>());
  }
  return allowed;
}

// Leaves the allowed tools. Errors: one that there is not.
void keep_allowed(Fields& f, const AllowedTools& allowed, Json& tools) {
  const auto name_of = [](const Json& tool) {
    const auto function = tool.is_object() ? tool.find("function") : tool.end();
    if (!tool.is_object() || function == tool.end() || !function->is_object()) return std::string();
    const auto name = function->find("name");
    return name != function->end() && name->is_string() ? name->get<std::string>() : std::string();
  };
  std::set<std::string> wanted(allowed.names.begin(), allowed.names.end()), found;
  Json kept = Json::array();
  for (Json& tool : tools) {
    std::string name = name_of(tool);
    if (!wanted.contains(name)) continue;
    kept.push_back(std::move(tool));
    found.insert(std::move(name));
  }
  for (const std::string& name : wanted)
    if (!found.contains(name))
      return f.fail(bad_field("tool_choice", "invalid_value",
                              "'tool_choice' allows {}, which is no tool of the request",
                              gguf::printable(name.substr(0, kMaxToolName))));
  tools = std::move(kept);
}

// Whether the model may call at all. A choice that no call satisfies is found out when the tools are known.
bool read_choice(Fields& f, const char* name, ToolChoice& to, std::optional<AllowedTools>& allowed) {
  const Json* choice = f.take(name);
  if (choice == nullptr || *choice == "auto") return true;
  if (choice->is_object() && choice->contains("type") && (*choice)["type"] == "allowed_tools") {
    allowed = read_allowed(f, name, *choice);
    to.required = allowed && allowed->mode == "required";
    return !allowed || !allowed->names.empty() || to.required;
  }
  if (*choice == "none") return false;
  if (*choice == "required" || *choice == "any") {
    to.required = true;
    return true;
  }
  const auto wrong = [&] {
    f.fail(bad_field(name, "invalid_value",
                     "'{}' must be \"auto\", \"none\", \"required\" or {{\"type\": \"function\", \"function\": "
                     "{{\"name\": ...}}}}",
                     name));
    return true;
  };
  if (!choice->is_object()) return wrong();
  const auto function = choice->find("function");
  const Json& named = function == choice->end() ? *choice : *function;
  const auto at = named.is_object() ? named.find("name") : named.end();
  if (!named.is_object() || at == named.end() || !at->is_string()) return wrong();
  to = {true, at->get<std::string>()};
  return true;
}

}  // namespace

void offer_tools(Fields& f, std::string_view name, Json tools, const RequestLimits& limits, ToolRequest& t) {
  if (tools.empty() || f.failed()) return;
  t.offered = JsonDocument(std::move(tools));
  const std::string field = f.qualified(name);
  if (t.offered->size() > limits.max_tools)
    return f.fail(bad_field(field, "invalid_value", "'{}' has {} entries; at most {} are allowed (limit max_tools)",
                            field, t.offered->size(), limits.max_tools));
  auto set = std::make_shared<ToolSet>();
  size_t bytes = 0;
  for (size_t i = 0; i < t.offered->size(); ++i) {
    const Json& tool = (*t.offered)[i];
    const std::string where = fmt::format("{}[{}]", field, i);
    ApiResult<Tool> read = read_tool(tool, where);
    if (!read.ok()) return f.fail(read.take_error());
    read->strict = is_strict(tool);
    bytes += dump(tool).size();
    set->add(std::move(*read));
  }
  if (bytes > limits.max_schema_bytes)
    return f.fail(bad_field(field, "invalid_value",
                            "'{}' has {} bytes; at most {} are allowed (limit max_schema_bytes)", field, bytes,
                            limits.max_schema_bytes));
  if (!limits.template_tools) {
    t.offered = JsonDocument();
    return f.note_ignored(name);
  }
  t.set = std::move(set);
}

void read_tools(Fields& f, const RequestLimits& limits, ToolRequest& t) {
  f.boolean("parallel_tool_calls", t.parallel);
  std::optional<AllowedTools> allowed;
  const bool may_call = read_choice(f, "tool_choice", t.choice, allowed);
  Json* tools = f.take("tools");
  if (tools != nullptr && !tools->is_array())
    return f.fail(bad_field("tools", "invalid_type", "'tools' must be an array, not {}", json_kind(*tools)));
  if (tools != nullptr && !may_call && !tools->empty()) f.note_ignored("tools");
  if (tools != nullptr && may_call && allowed && !f.failed()) keep_allowed(f, *allowed, *tools);
  if (tools != nullptr && may_call) offer_tools(f, "tools", std::move(*tools), limits, t);
  // What came before "tools" is accepted where it asks for nothing.
  const Json* older = f.take("function_call");
  const Json* functions = f.take("functions");
  const bool ruled_out = older != nullptr && *older == "none";
  if (older != nullptr && !ruled_out && *older != "auto")
    f.fail(bad_field("function_call", "unsupported_parameter", "'function_call' is not supported: use 'tool_choice'"));
  if (t.choice.required && !f.failed()) {
    if (t.set == nullptr || t.set->empty())
      return f.fail(bad_field("tool_choice", "invalid_value", "'tool_choice' asks for a call, but there are no tools{}",
                              t.set == nullptr && tools != nullptr ? " that this model's chat template knows" : ""));
    if (!t.choice.name.empty() && t.set->find(t.choice.name) == nullptr)
      return f.fail(bad_field("tool_choice", "invalid_value", "'tool_choice' names {}, which is no tool of the request",
                              gguf::printable(t.choice.name.substr(0, kMaxToolName))));
  }
  if (functions == nullptr || functions->empty()) return;
  if (ruled_out) return f.note_ignored("functions");
  f.fail(bad_field("functions", "unsupported_parameter", "'functions' is not supported: use 'tools'"));
}

}  // namespace quire::server
