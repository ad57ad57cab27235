#include "server/protocol/responses_request.h"

#include <algorithm>

#include "server/protocol/chat_body.h"
#include "server/protocol/content_part.h"

namespace quire::server {
namespace {

ApiError wrong_type(const std::string& field, std::string_view expected, const Json& found) {
  return bad_field(field, "invalid_type", "'{}' must be {}, not {}", field, expected, json_kind(found));
}

std::string text_at(const Json& object, const char* name) {
  const auto at = object.find(name);
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

// A string, or parts, as the parts of a content.
ApiResult<Json> content_parts(Json& content, const std::string& where, const RequestLimits& limits,
                              IgnoredFields& ignored) {
  Json parts = Json::array();
  if (content.is_null()) return parts;
  if (content.is_string()) {
    parts.push_back(text_part(std::move(content)));
    return parts;
  }
  if (!content.is_array()) return wrong_type(where, "a string or an array of parts", content);
  for (size_t i = 0; i < content.size(); ++i) {
    QUIRE_TRY(Json part, read_chat_part(content[i], fmt::format("{}[{}]", where, i), limits, ignored));
    part.erase("cache_control");  // of another API
    parts.push_back(std::move(part));
  }
  return parts;
}

class ResponsesReader {
 public:
  ResponsesReader(Fields& fields, const RequestLimits& limits, ChatBody& chat, ResponsesEcho& echo)
      : fields_(fields), limits_(limits), chat_(chat), echo_(echo) {}
  ApiStatus input(Json& earlier);
  void include();
  ApiStatus tools();
  ApiStatus tool_choice();
  void text_format(const Json& format);
  ApiStatus text_and_reasoning();

 private:
  ApiStatus item(Json& item, const std::string& where);
  ApiStatus message(Json& item, const std::string& where);
  ApiStatus output(Json& item, const std::string& where);
  void call(Json& item, bool custom);
  void reasoning(Json& item);
  ApiStatus tool(Json& tool, const std::string& where, int depth);
  Json& assistant();

  Fields& fields_;
  const RequestLimits& limits_;
  ChatBody& chat_;
  ResponsesEcho& echo_;
};

// What of the answer's details is wanted: log-probabilities of its text, beside which there are as many alternatives as
// "top_logprobs" says.
void ResponsesReader::include() {
  constexpr std::string_view kLogprobs = "message.output_text.logprobs";
  std::vector<std::string> wanted;
  fields_.texts("include", wanted, 64, 256);
  const bool told = std::find(wanted.begin(), wanted.end(), kLogprobs) != wanted.end();
  if (!told) return fields_.unserved("top_logprobs", "they are told where 'include' names them", {0});
  chat_.set("logprobs", true);
  chat_.pass({"top_logprobs"});
}

ApiStatus ResponsesReader::input(Json& earlier) {
  std::string instructions;
  fields_.text("instructions", instructions, SIZE_MAX);
  echo_.fields["instructions"] = instructions.empty() ? Json() : Json(instructions);
  if (!instructions.empty()) chat_.add_message("system")["content"] = std::move(instructions);
  for (size_t i = 0; i < earlier.size(); ++i)
    QUIRE_CHECKED(item(earlier[i], fmt::format("previous_response_id[{}]", i)));
  Json* input = fields_.take("input");
  if (input != nullptr && input->is_string()) {
    chat_.add_message("user")["content"] = std::move(*input);
  } else if (input != nullptr && input->is_array()) {
    for (size_t i = 0; i < input->size(); ++i) QUIRE_CHECKED(item((*input)[i], fmt::format("input[{}]", i)));
  } else if (input != nullptr) {
    return wrong_type("input", "a string or an array of items", *input);
  }
  // Clients ask with nothing to see whether the model is there.
  if (chat_.messages().empty()) chat_.add_message("user")["content"] = "";
  return {};
}

ApiStatus ResponsesReader::item(Json& item, const std::string& where) {
  if (!item.is_object()) return wrong_type(where, "an object", item);
  const std::string type = text_at(item, "type");
  if (type.empty() || type == "message") return message(item, where);
  if (type == "function_call" || type == "custom_tool_call") {
    call(item, type == "custom_tool_call");
  } else if (type == "function_call_output" || type == "custom_tool_call_output") {
    return output(item, where);
  } else if (type == "reasoning") {
    reasoning(item);
  } else if (type == "item_reference") {
    return bad_field(where + ".type", "unsupported_parameter",
                     "'{}' refers to an item of an earlier response: send the item itself, or 'previous_response_id'",
                     where);
  } else {
    fields_.note_ignored(where);
  }
  return {};
}

// The assistant's turn that is being put together: reasoning, text and calls are items of their own here.
Json& ResponsesReader::assistant() {
  Json& all = chat_.messages();
  if (!all.empty() && all.back()["role"] == "assistant") return all.back();
  return chat_.add_message("assistant");
}

ApiStatus ResponsesReader::message(Json& item, const std::string& where) {
  const std::string role = text_at(item, "role");
  if (role.empty()) return bad_field(where + ".role", "missing_parameter", "'{}.role' is missing", where);
  QUIRE_TRY(Json parts, content_parts(item["content"], where + ".content", limits_, fields_.ignored()));
  if (role != "assistant") {
    if (parts.empty()) parts.push_back(text_part(""));
    chat_.add_message(role)["content"] = std::move(parts);
    return {};
  }
  Json& turn = assistant();
  const bool fresh = !turn.contains("content") && !turn.contains("tool_calls");
  (fresh ? turn : chat_.add_message("assistant"))["content"] = std::move(parts);
  return {};
}

void ResponsesReader::call(Json& item, bool custom) {
  Json arguments = custom ? Json{{"input", text_at(item, "input")}} : Json(text_at(item, "arguments"));
  assistant()["tool_calls"].push_back(
      {{"id", text_at(item, "call_id")},
       {"type", "function"},
       {"function", {{"name", text_at(item, "name")}, {"arguments", std::move(arguments)}}}});
}

ApiStatus ResponsesReader::output(Json& item, const std::string& where) {
  QUIRE_TRY(Json parts, content_parts(item["output"], where + ".output", limits_, fields_.ignored()));
  if (parts.empty()) parts.push_back(text_part(""));
  Json& message = chat_.add_message("tool");
  message["tool_call_id"] = text_at(item, "call_id");
  message["content"] = std::move(parts);
  return {};
}

// Its text, or the summary where that is all there is.
void ResponsesReader::reasoning(Json& item) {
  std::string text;
  for (const char* member : {"content", "summary"}) {
    const auto parts = item.find(member);
    if (!text.empty() || parts == item.end() || !parts->is_array()) continue;
    for (const Json& part : *parts)
      if (part.is_object()) text += text_at(part, "text");
  }
  if (text.empty()) return;
  Json& turn = assistant();
  const bool fresh = !turn.contains("content") && !turn.contains("tool_calls");
  (fresh ? turn : chat_.add_message("assistant"))["reasoning_content"] = std::move(text);
}

ApiStatus ResponsesReader::tool(Json& tool, const std::string& where, int depth) {
  if (!tool.is_object()) return wrong_type(where, "an object", tool);
  const std::string type = text_at(tool, "type");
  const auto take = [&](const char* name) { return tool.contains(name) ? std::move(tool[name]) : Json(); };
  if (type == "function") {
    chat_.add_tool(take("name"), take("description"), take("parameters"), tool.value("strict", Json()) == true);
  } else if (type == "custom") {
    echo_.custom.insert(text_at(tool, "name"));
    chat_.add_tool(take("name"), take("description"),
                   Json::parse(R"({"type": "object", "properties": {"input": {"type": "string"}},
                                   "required": ["input"]})"),
                   false);
  } else if (type == "namespace" && depth == 0 && tool.contains("tools") && tool["tools"].is_array()) {
    for (size_t i = 0; i < tool["tools"].size(); ++i)
      QUIRE_CHECKED(this->tool(tool["tools"][i], fmt::format("{}.tools[{}]", where, i), depth + 1));
  } else {
    fields_.note_ignored(where);
  }
  return {};
}

ApiStatus ResponsesReader::tools() {
  Json* tools = fields_.take("tools");
  echo_.fields["tools"] = tools == nullptr ? Json::array() : *tools;
  if (tools == nullptr) return {};
  if (!tools->is_array()) return wrong_type("tools", "an array", *tools);
  for (size_t i = 0; i < tools->size(); ++i) QUIRE_CHECKED(tool((*tools)[i], fmt::format("tools[{}]", i), 0));
  return {};
}

ApiStatus ResponsesReader::tool_choice() {
  const Json* choice = fields_.take("tool_choice");
  echo_.fields["tool_choice"] = choice == nullptr ? Json("auto") : *choice;
  if (choice == nullptr || *choice == "auto") return {};
  if (*choice == "none")
    chat_.set("tool_choice", "none");
  else
    chat_.set("tool_choice", *choice);
  return {};
}

// As a chat completion has it: the name, the schema and "strict" stand in an object of their own there.
void ResponsesReader::text_format(const Json& format) {
  echo_.fields["text"]["format"] = format;
  if (text_at(format, "type") != "json_schema") return chat_.set("response_format", format);
  Json inner = format;
  inner.erase("type");
  chat_.set("response_format", {{"type", "json_schema"}, {"json_schema", std::move(inner)}});
}

ApiStatus ResponsesReader::text_and_reasoning() {
  Json* text = fields_.take_object("text");
  echo_.fields["text"] = {{"format", {{"type", "text"}}}};
  if (text != nullptr) {
    const auto format = text->find("format");
    if (format != text->end() && format->is_object() && text_at(*format, "type") != "text") text_format(*format);
    if (const std::string v = text_at(*text, "verbosity"); !v.empty() && v != "medium")
      fields_.note_ignored("text.verbosity");
  }
  Json* reasoning = fields_.take_object("reasoning");
  const std::string effort = reasoning == nullptr ? "" : text_at(*reasoning, "effort");
  echo_.fields["reasoning"] = {{"effort", effort.empty() ? Json() : Json(effort)}, {"summary", nullptr}};
  if (effort.empty()) return {};
  if (limits_.effort_variable.empty())
    fields_.note_ignored("reasoning.effort");
  else
    chat_.set("reasoning_effort", effort);
  return {};
}

// What a response repeats of its request, as it was given or as it is by default.
void echo_fields(Json& body, Json& echo) {
  const std::pair<const char*, Json> kFields[] = {
      {"parallel_tool_calls", true},  {"temperature", 1.0},          {"top_p", 1.0},
      {"presence_penalty", 0.0},      {"frequency_penalty", 0.0},    {"max_output_tokens", nullptr},
      {"max_tool_calls", nullptr},    {"metadata", Json::object()},  {"top_logprobs", 0},
      {"safety_identifier", nullptr}, {"prompt_cache_key", nullptr}, {"user", nullptr}};
  for (const auto& [name, usual] : kFields) {
    const auto at = body.find(name);
    echo[name] = at == body.end() || at->is_null() ? usual : *at;
  }
}

}  // namespace

ApiResult<ResponsesRequest> parse_responses_request(JsonDocument body, const RequestLimits& limits,
                                                    JsonDocument earlier) {
  ResponsesEcho echo;
  IgnoredFields ignored{.strict = limits.strict_parameters};
  echo_fields(*body, echo.fields);
  Fields f(*body, ignored);
  ChatBody chat(f);
  ResponsesReader reader(f, limits, chat, echo);
  QUIRE_CHECKED(reader.input(*earlier));
  QUIRE_CHECKED(reader.tools());
  QUIRE_CHECKED(reader.tool_choice());
  QUIRE_CHECKED(reader.text_and_reasoning());
  chat.pass({"model", "stream", "parallel_tool_calls"});
  chat.pass("max_output_tokens", "max_tokens");
  chat.pass_extensions();
  reader.include();
  std::string previous;
  f.text("previous_response_id", previous);
  echo.fields["previous_response_id"] = previous.empty() ? Json() : Json(previous);
  bool store = true;
  f.boolean("store", store);
  echo.fields["store"] = store;
  f.refuse("conversation", "there are no stored conversations: send 'previous_response_id', or all of it as 'input'");
  f.refuse("prompt", "there are no stored prompts");
  f.refuse("background", "an answer is made while its client waits", {false});
  f.unserved("truncation", "prompts are never cut", {"disabled"});
  f.unserved("service_tier", "there is one tier", {"auto", "default"});
  for (const char* name : {"metadata", "user", "safety_identifier", "prompt_cache_key", "client_metadata",
                           "max_tool_calls", "stream_options", "prompt_cache_retention"})
    f.ignore(name);
  QUIRE_TRY(JsonDocument converted, chat.take());
  QUIRE_TRY(ChatRequest r, parse_chat_request(std::move(converted), limits, std::move(ignored)));
  return ResponsesRequest{std::move(r), std::move(echo)};
}

}  // namespace quire::server
