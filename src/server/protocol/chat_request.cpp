#include "server/protocol/chat_request.h"

namespace quire::server {
namespace {

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
  read_conversation(f, limits, r.conversation);
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
  f.integers("cache_positions", r.cache_positions, kMaxCachePositions, 1, limits.context);
  f.refuse("suffix", "text cannot be inserted", {""});
  if (r.echo && r.params.sampling.logprobs >= 0)
    f.fail(
        bad_field("echo", "unsupported_parameter",
                  "'echo' together with 'logprobs' is not supported: log-probabilities of the prompt are not "
                  "computed"));
  QUIRE_CHECKED(f.finish());
  return r;
}

ApiResult<TokenizeRequest> parse_tokenize_request(const Json& body, const RequestLimits& limits) {
  TokenizeRequest r;
  Fields f(body);
  f.text("model", r.model, 256);
  const size_t sources =
      static_cast<size_t>(body.contains("prompt")) + body.contains("content") + body.contains("messages");
  if (sources != 1)
    return bad_field("prompt", "missing_parameter", "give one of 'prompt', 'content' and 'messages'");
  if (body.contains("messages")) {
    Conversation c;
    read_conversation(f, limits, c);
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
