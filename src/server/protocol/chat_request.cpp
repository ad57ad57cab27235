#include "server/protocol/chat_request.h"

namespace quire::server {
namespace {

constexpr size_t kMaxMessages = 16384, kMaxRole = 64;

// The parts of a content as one text.
ApiResult<std::string> join_parts(const Json& parts, const std::string& where) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string part = fmt::format("{}[{}]", where, i);
    const Json& p = parts[i];
    if (!p.is_object())
      return bad_field(part, "invalid_type", "'{}' must be an object, not {}", part, json_kind(p));
    Fields f(p, part + ".");
    std::string type, piece;
    f.text("type", type, kMaxRole);
    if (f.failed()) return f.finish().take_error();
    if (type != "text")
      return bad_field(part + ".type", "unsupported_parameter",
                       "'{}.type' is not \"text\": this server reads text only", part);
    const Json* value = f.take("text");
    if (value == nullptr || !value->is_string())
      return bad_field(part + ".text", "invalid_type", "'{}.text' must be a string", part);
    QUIRE_CHECKED(f.finish());
    if (i > 0) text += '\n';
    text += value->get_ref<const std::string&>();
  }
  return text;
}

ApiStatus normalise(Json& message, const std::string& where) {
  if (!message.is_object())
    return bad_field(where, "invalid_type", "'{}' must be an object, not {}", where, json_kind(message));
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string() || role->get_ref<const std::string&>().empty() ||
      role->get_ref<const std::string&>().size() > kMaxRole)
    return bad_field(where + ".role", "invalid_type", "'{}.role' must be a string of 1 to {} bytes", where,
                     kMaxRole);
  if (*role == "developer") *role = "system";
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    // An assistant's turn may consist of calls alone.
    if (*role == "assistant") return {};
    return bad_field(where + ".content", "missing_parameter", "'{}.content' is missing", where);
  }
  if (content->is_array()) {
    QUIRE_TRY(std::string text, join_parts(*content, where + ".content"));
    *content = std::move(text);
  } else if (!content->is_string()) {
    return bad_field(where + ".content", "invalid_type",
                     "'{}.content' must be a string or an array of parts, not {}", where,
                     json_kind(*content));
  }
  return {};
}

void read_conversation(Fields& f, Conversation& c) {
  const Json* messages = f.take("messages");
  if (f.failed()) return;
  if (messages == nullptr) return f.fail(bad_field("messages", "missing_parameter", "'messages' is missing"));
  if (!messages->is_array())
    return f.fail(
        bad_field("messages", "invalid_type", "'messages' must be an array, not {}", json_kind(*messages)));
  if (messages->empty() || messages->size() > kMaxMessages)
    return f.fail(bad_field("messages", "invalid_value", "'messages' has {} entries; 1 to {} are allowed",
                            messages->size(), kMaxMessages));
  c.messages = *messages;
  for (size_t i = 0; i < c.messages.size(); ++i)
    if (ApiStatus s = normalise(c.messages[i], fmt::format("messages[{}]", i)); !s.ok())
      return f.fail(s.take_error());
  f.boolean("add_generation_prompt", c.add_generation_prompt);
  if (const Json* extra = f.take_object("chat_template_kwargs")) {
    for (const char* own : {"messages", "tools", "add_generation_prompt"})
      if (extra->contains(own))
        return f.fail(bad_field("chat_template_kwargs", "invalid_value",
                                "'chat_template_kwargs' must not hold '{}'", own));
    c.template_variables = *extra;
  }
}

void refuse_chat_fields(Fields& f) {
  constexpr std::string_view kTools = "tool calls are not supported by this server yet";
  f.refuse("tools", kTools, {Json::array()});
  f.refuse("tool_choice", kTools, {"none", "auto"});
  f.refuse("parallel_tool_calls", kTools, {true, false});
  f.refuse("functions", kTools, {Json::array()});
  f.refuse("function_call", kTools, {"none", "auto"});
  f.refuse("audio", "this server writes text only");
  f.refuse("modalities", "this server writes text only", {Json::array({"text"})});
  f.refuse("prediction", "predicted outputs are not supported");
  f.refuse("web_search_options", "this server does not search the web");
  f.refuse("reasoning_effort", "use 'chat_template_kwargs', such as {\"enable_thinking\": false}");
  f.refuse("verbosity", "no template reads it");
  f.refuse("continue_final_message", "an answer always begins a new message", {false});
  f.refuse("echo", "the prompt is not part of the answer", {false});
  f.refuse("documents", "no retrieval is built in", {Json::array()});
  f.refuse("chat_template", "the server's own template is used");
  f.refuse("service_tier", "there is one tier", {"auto", "default"});
  f.refuse("store", "nothing is stored", {false});
  f.ignore("metadata");
  f.ignore("safety_identifier");
  f.ignore("prompt_cache_key");
}

}  // namespace

ApiResult<ChatRequest> parse_chat_request(const Json& body, const RequestLimits& limits) {
  ChatRequest r;
  Fields f(body);
  read_conversation(f, r.conversation);
  read_generation_params(f, limits, r.params);
  bool logprobs = false;
  int top = 0;
  f.boolean("logprobs", logprobs);
  const bool has_top = body.contains("top_logprobs") && !body["top_logprobs"].is_null();
  f.integer("top_logprobs", top, 0, limits.max_logprobs);
  if (has_top && !logprobs)
    f.fail(bad_field("top_logprobs", "invalid_value", "'top_logprobs' needs 'logprobs' to be true"));
  if (logprobs) r.params.sampling.logprobs = top;
  refuse_chat_fields(f);
  QUIRE_CHECKED(f.finish());
  return r;
}

ApiResult<CompletionRequest> parse_completion_request(const Json& body, const RequestLimits& limits) {
  CompletionRequest r;
  Fields f(body);
  const Json* prompt = f.take("prompt");
  if (prompt == nullptr) return bad_field("prompt", "missing_parameter", "'prompt' is missing");
  QUIRE_TRY(r.prompts, parse_prompts("prompt", *prompt, limits));
  read_generation_params(f, limits, r.params);
  f.integer("logprobs", r.params.sampling.logprobs, 0, limits.max_logprobs);
  f.boolean("echo", r.echo);
  f.boolean("add_special_tokens", r.add_special);
  f.refuse("suffix", "text cannot be inserted", {""});
  if (r.echo && r.params.sampling.logprobs >= 0)
    f.fail(
        bad_field("echo", "unsupported_parameter",
                  "'echo' together with 'logprobs' is not supported: log-probabilities of the prompt are not "
                  "computed"));
  QUIRE_CHECKED(f.finish());
  return r;
}

ApiResult<TokenizeRequest> parse_tokenize_request(const Json& body) {
  TokenizeRequest r;
  Fields f(body);
  f.text("model", r.model, 256);
  const size_t sources =
      static_cast<size_t>(body.contains("prompt")) + body.contains("content") + body.contains("messages");
  if (sources != 1)
    return bad_field("prompt", "missing_parameter", "give one of 'prompt', 'content' and 'messages'");
  if (body.contains("messages")) {
    Conversation c;
    read_conversation(f, c);
    r.input = std::move(c);
    r.add_special = false;  // the template writes what the model wants
  } else {
    std::string text;
    for (const char* name : {"prompt", "content"}) f.text(name, text, SIZE_MAX);
    r.input = std::move(text);
  }
  f.boolean("add_special_tokens", r.add_special);
  f.boolean("add_special", r.add_special);  // llama.cpp's name
  f.boolean("return_token_strs", r.token_texts);
  QUIRE_CHECKED(f.finish());
  return r;
}

ApiResult<DetokenizeRequest> parse_detokenize_request(const Json& body, const RequestLimits& limits) {
  DetokenizeRequest r;
  Fields f(body);
  f.text("model", r.model, 256);
  if (!body.contains("tokens")) return bad_field("tokens", "missing_parameter", "'tokens' is missing");
  f.tokens("tokens", r.tokens, size_t{1} << 20, limits.vocab);
  QUIRE_CHECKED(f.finish());
  return r;
}

}  // namespace quire::server
