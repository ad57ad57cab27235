#include "server/protocol/anthropic_request.h"

#include "server/protocol/chat_body.h"
#include "server/protocol/content_part.h"
#include "server/protocol/picture.h"

namespace quire::server {
namespace {

ApiError wrong_type(const std::string& field, std::string_view expected, const Json& found) {
  return bad_field(field, "invalid_type", "'{}' must be {}, not {}", field, expected, json_kind(found));
}

// A member, or null where there is none.
Json* member(Json& object, const char* name) {
  const auto at = object.find(name);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

// Its type; empty where it has none.
std::string type_of(Json& block) {
  Json* type = member(block, "type");
  return type != nullptr && type->is_string() ? type->get<std::string>() : "";
}

// A text, or a list of blocks, as parts of a content.
ApiResult<Json> content_parts(Json& content, const std::string& where, const RequestLimits& limits,
                              IgnoredFields& ignored) {
  Json parts = Json::array();
  if (content.is_string()) {
    parts.push_back(text_part(std::move(content)));
    return parts;
  }
  if (!content.is_array()) return wrong_type(where, "a string or an array of blocks", content);
  for (size_t i = 0; i < content.size(); ++i) {
    QUIRE_TRY(Json part, read_chat_part(content[i], fmt::format("{}[{}]", where, i), limits, ignored));
    parts.push_back(std::move(part));
  }
  return parts;
}

class MessagesReader {
 public:
  MessagesReader(Fields& fields, const RequestLimits& limits, ChatBody& chat)
      : fields_(fields), limits_(limits), chat_(chat) {}

  ApiStatus system();
  ApiStatus messages();
  ApiStatus tools();
  ApiStatus tool_choice();
  ApiStatus thinking();
  void output_format(Json& format);

 private:
  ApiStatus message(Json& m, const std::string& where);
  ApiStatus user(Json& blocks, const std::string& where);
  ApiStatus tool_result(Json& block, const std::string& where);
  ApiStatus assistant(Json& blocks, const std::string& where);
  ApiStatus assistant_block(Json& block, const std::string& where, Json& message);

  Fields& fields_;
  const RequestLimits& limits_;
  ChatBody& chat_;
};

ApiStatus MessagesReader::system() {
  Json* system = fields_.take("system");
  if (system == nullptr) return {};
  QUIRE_TRY(Json parts, content_parts(*system, "system", limits_, fields_.ignored()));
  if (!parts.empty()) chat_.add_message("system")["content"] = std::move(parts);
  return {};
}

ApiStatus MessagesReader::messages() {
  Json* all = fields_.take("messages");
  if (all == nullptr) return bad_field("messages", "missing_parameter", "'messages' is missing");
  if (!all->is_array()) return wrong_type("messages", "an array", *all);
  for (size_t i = 0; i < all->size(); ++i) QUIRE_CHECKED(message((*all)[i], fmt::format("messages[{}]", i)));
  // As in this API: an answer goes on with a last message of the assistant's.
  Json& written = chat_.messages();
  if (written.empty()) return {};
  const Json& last = written.back();
  const bool open = last["role"] == "assistant" && last.contains("content") && !last.contains("tool_calls");
  if (open) chat_.set("continue_final_message", true);
  return {};
}

ApiStatus MessagesReader::message(Json& m, const std::string& where) {
  if (!m.is_object()) return wrong_type(where, "an object", m);
  Json* content = member(m, "content");
  if (content == nullptr) return bad_field(where + ".content", "missing_parameter", "'{}.content' is missing", where);
  Json blocks = Json::array();
  if (content->is_string())
    blocks.push_back(text_part(std::move(*content)));
  else if (content->is_array())
    blocks = std::move(*content);
  else
    return wrong_type(where + ".content", "a string or an array of blocks", *content);
  const Json role = m.value("role", Json());
  if (role == "user") return user(blocks, where + ".content");
  if (role == "assistant") return assistant(blocks, where + ".content");
  if (role != "system")
    return bad_field(where + ".role", "invalid_value", "'{}.role' must be \"user\" or \"assistant\"", where);
  QUIRE_TRY(Json parts, content_parts(blocks, where + ".content", limits_, fields_.ignored()));
  chat_.add_message("system")["content"] = std::move(parts);
  return {};
}

// The results of tools are messages of their own.
ApiStatus MessagesReader::user(Json& blocks, const std::string& where) {
  Json parts = Json::array();
  const auto flush = [&] {
    if (!parts.empty()) chat_.add_message("user")["content"] = std::exchange(parts, Json::array());
  };
  for (size_t i = 0; i < blocks.size(); ++i) {
    Json& block = blocks[i];
    const std::string name = fmt::format("{}[{}]", where, i);
    if (!block.is_object()) return wrong_type(name, "an object", block);
    if (type_of(block) == "tool_result") {
      flush();
      QUIRE_CHECKED(tool_result(block, name));
    } else {
      QUIRE_TRY(Json part, read_chat_part(block, name, limits_, fields_.ignored()));
      parts.push_back(std::move(part));
    }
  }
  if (blocks.empty()) parts.push_back(text_part(""));
  flush();
  return {};
}

ApiStatus MessagesReader::tool_result(Json& block, const std::string& where) {
  Json parts = Json::array();
  if (Json* content = member(block, "content")) {
    QUIRE_TRY(parts, content_parts(*content, where + ".content", limits_, fields_.ignored()));
  }
  if (parts.empty()) parts.push_back(text_part(""));
  if (Json* mark = member(block, "cache_control"); mark != nullptr && !parts.back().contains("cache_control"))
    parts.back()["cache_control"] = std::move(*mark);
  Json& message = chat_.add_message("tool");
  if (Json* id = member(block, "tool_use_id")) message["tool_call_id"] = std::move(*id);
  message["content"] = std::move(parts);
  return {};
}

ApiStatus MessagesReader::assistant_block(Json& block, const std::string& where, Json& message) {
  const std::string type = type_of(block);
  if (type == "redacted_thinking") return {};  // nobody can read it
  if (type == "tool_use") {
    Json* input = member(block, "input");
    Json arguments = input == nullptr ? Json::object() : std::move(*input);
    if (!arguments.is_object()) return wrong_type(where + ".input", "an object", arguments);
    Json* name = member(block, "name");
    if (name == nullptr || !name->is_string()) return wrong_type(where + ".name", "a string", block["name"]);
    message["tool_calls"].push_back({{"id", block.value("id", Json(""))},
                                     {"type", "function"},
                                     {"function", {{"name", std::move(*name)}, {"arguments", std::move(arguments)}}}});
    return {};
  }
  if (limits_.images && is_picture(block)) {
    QUIRE_TRY(Json picture, picture_part(block, where));
    message["content"].push_back(std::move(picture));
    return {};
  }
  QUIRE_TRY(PartText read, read_part_text(block, where, limits_.images, fields_.ignored()));
  if (read.reasoning) {
    Json& reasoning = message["reasoning_content"];
    reasoning = (reasoning.is_null() ? "" : reasoning.get_ref<std::string&>()) + read.text;
  } else {
    message["content"].push_back(text_part(std::move(read.text), member(block, "cache_control")));
  }
  return {};
}

ApiStatus MessagesReader::assistant(Json& blocks, const std::string& where) {
  Json& message = chat_.add_message("assistant");
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::string name = fmt::format("{}[{}]", where, i);
    if (!blocks[i].is_object()) return wrong_type(name, "an object", blocks[i]);
    QUIRE_CHECKED(assistant_block(blocks[i], name, message));
  }
  return {};
}

ApiStatus MessagesReader::tools() {
  Json* tools = fields_.take("tools");
  if (tools == nullptr) return {};
  if (!tools->is_array()) return wrong_type("tools", "an array", *tools);
  for (size_t i = 0; i < tools->size(); ++i) {
    Json& tool = (*tools)[i];
    const std::string where = fmt::format("tools[{}]", i);
    if (!tool.is_object()) return wrong_type(where, "an object", tool);
    const std::string type = type_of(tool);
    if (!type.empty() && type != "custom") {
      fields_.note_ignored(where);  // what Anthropic's own servers run
      continue;
    }
    chat_.add_tool(tool.value("name", Json()), tool.value("description", Json()), std::move(tool["input_schema"]),
                   tool.value("strict", Json()) == true);
  }
  return {};
}

ApiStatus MessagesReader::tool_choice() {
  Json* choice = fields_.take_object("tool_choice");
  if (choice == nullptr) return {};
  const std::string type = type_of(*choice);
  if (choice->value("disable_parallel_tool_use", Json()) == true) chat_.set("parallel_tool_calls", false);
  if (type == "none") {
    chat_.set("tool_choice", "none");
  } else if (type == "any" || type == "tool") {
    chat_.set("tool_choice", type == "any"
                                 ? Json("required")
                                 : Json{{"type", "function"}, {"function", {{"name", choice->value("name", Json())}}}});
  } else if (type != "auto") {
    return bad_field("tool_choice.type", "invalid_value",
                     "'tool_choice.type' must be \"auto\", \"any\", \"tool\" or \"none\"");
  }
  return {};
}

// {"type": "json_schema", "schema": ...}, which is always enforced there.
void MessagesReader::output_format(Json& format) {
  chat_.set("response_format", type_of(format) == "json_schema"
                                   ? Json{{"type", "json_schema"},
                                          {"json_schema", {{"strict", true}, {"schema", std::move(format["schema"])}}}}
                                   : std::move(format));
}

// A template's switch: on, off, or how much.
ApiStatus MessagesReader::thinking() {
  Json* thinking = fields_.take_object("thinking");
  Json* config = fields_.take_object("output_config");
  Json effort;
  if (thinking != nullptr) effort = type_of(*thinking) == "disabled" ? "none" : "medium";
  if (config != nullptr && member(*config, "effort") != nullptr && effort != "none") effort = (*config)["effort"];
  if (config != nullptr && member(*config, "format") != nullptr) output_format((*config)["format"]);
  if (effort.is_null()) return {};
  if (limits_.effort_variable.empty())
    fields_.note_ignored(thinking != nullptr ? "thinking" : "output_config");
  else
    chat_.set("reasoning_effort", std::move(effort));
  return {};
}

}  // namespace

ApiResult<ChatRequest> parse_anthropic_request(JsonDocument body, const RequestLimits& limits, bool counts) {
  IgnoredFields ignored{.strict = limits.strict_parameters};
  Fields f(*body, ignored);
  ChatBody chat(f);
  MessagesReader reader(f, limits, chat);
  QUIRE_CHECKED(reader.system());
  QUIRE_CHECKED(reader.messages());
  QUIRE_CHECKED(reader.tools());
  QUIRE_CHECKED(reader.tool_choice());
  QUIRE_CHECKED(reader.thinking());
  chat.pass({"model", "max_tokens", "stream"});
  chat.pass("stop_sequences", "stop");
  chat.pass_extensions();
  for (const char* name :
       {"metadata", "service_tier", "context_management", "inference_geo", "anthropic_beta", "betas"})
    f.ignore(name);
  f.refuse("mcp_servers", "this server calls no others", {Json::array()});
  f.refuse("container", "this server runs no code");
  if (Json* format = f.take_object("output_format"); format != nullptr) reader.output_format(*format);
  if (!counts && !chat.has("max_tokens"))
    f.fail(bad_field("max_tokens", "missing_parameter", "'max_tokens' is missing"));
  QUIRE_TRY(JsonDocument converted, chat.take());
  QUIRE_TRY(ChatRequest r, parse_chat_request(std::move(converted), limits, std::move(ignored)));
  r.call_prefix = "toolu_";
  r.params.cut_max_tokens = true;  // it must be there, so clients name the most that their largest model can
  return r;
}

}  // namespace quire::server
