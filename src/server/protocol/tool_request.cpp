#include "server/protocol/tool_request.h"

#include "gguf/metadata.h"
#include "server/protocol/constraint.h"

namespace quire::server {
namespace {

constexpr std::string_view kStrict = "this server cannot hold a model to a schema yet; leave it out, or say false";
constexpr std::string_view kChoice = "this server cannot make a model call a tool yet; use \"auto\"";

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

// Whether the model may call at all.
bool read_choice(Fields& f, const char* name) {
  const Json* choice = f.take(name);
  if (choice == nullptr || *choice == "auto") return true;
  if (*choice == "none") return false;
  if (*choice == "required" || choice->is_object())
    ask_constraint(f, name, kChoice);
  else
    f.fail(bad_field(name, "invalid_value", "'{}' must be \"auto\", \"none\", \"required\" or an object", name));
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
    if (is_strict(tool)) return ask_constraint(f, fmt::format("{}[{}].function.strict", name, i), kStrict);
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
  const bool may_call = read_choice(f, "tool_choice");
  Json* tools = f.take("tools");
  if (tools != nullptr && !tools->is_array())
    return f.fail(bad_field("tools", "invalid_type", "'tools' must be an array, not {}", json_kind(*tools)));
  if (tools != nullptr && !may_call && !tools->empty()) f.note_ignored("tools");
  if (tools != nullptr && may_call) offer_tools(f, "tools", std::move(*tools), limits, t);
  // What came before "tools" is accepted where it asks for nothing.
  const Json* older = f.take("function_call");
  const Json* functions = f.take("functions");
  const bool ruled_out = older != nullptr && *older == "none";
  if (older != nullptr && !ruled_out && *older != "auto") ask_constraint(f, "function_call", "use 'tool_choice'");
  if (functions == nullptr || functions->empty()) return;
  if (ruled_out) return f.note_ignored("functions");
  f.fail(bad_field("functions", "unsupported_parameter", "'functions' is not supported: use 'tools'"));
}

}  // namespace quire::server
