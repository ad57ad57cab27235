#include "server/protocol/chat_request.h"

#include "server/protocol/tool_request.h"

namespace quire::server {
namespace {

// The tools become part of the conversation: the template is given both.
ToolRequest read_conversation_tools(Fields& f, const RequestLimits& limits, Conversation& c) {
  ToolRequest t;
  read_tools(f, limits, t);
  c.tools = std::move(t.offered);
  return t;
}

void refuse_chat_fields(Fields& f) {
  f.refuse("audio", "this server writes text only");
  f.refuse("modalities", "this server writes text only", {Json::array({"text"})});
  f.unserved("web_search_options", "this server does not search the web");
  f.unserved("verbosity", "no template reads it", {"medium"});
  f.refuse("echo", "the prompt is not part of the answer", {false});
  f.refuse("documents", "no retrieval is built in", {Json::array()});
  f.refuse("chat_template", "the server's own template is used");
  f.unserved("prediction", "predicted outputs are not supported");
  f.unserved("stream_reasoning", "reasoning is streamed as it comes", {true});
  f.unserved("include_reasoning", "reasoning is part of the answer", {true});
}

}  // namespace

ApiResult<ChatRequest> parse_chat_request(JsonDocument body, const RequestLimits& limits, IgnoredFields ignored) {
  ChatRequest r;
  r.ignored = std::move(ignored);
  r.ignored.strict = limits.strict_parameters;
  Fields f(*body, r.ignored);
  read_conversation(f, limits, r.conversation);
  ToolRequest tools = read_conversation_tools(f, limits, r.conversation);
  r.tools = std::move(tools.set);
  r.parallel_calls = tools.parallel;
  r.tool_choice = std::move(tools.choice);
  read_generation_params(f, limits, r.params);
  bool logprobs = false;
  int top = 0;
  f.boolean("logprobs", logprobs);
  const bool has_top = body->contains("top_logprobs") && !(*body)["top_logprobs"].is_null();
  f.integer("top_logprobs", top, 0, limits.max_logprobs);
  if (has_top && !logprobs)
    f.fail(bad_field("top_logprobs", "invalid_value", "'top_logprobs' needs 'logprobs' to be true"));
  if (logprobs) r.params.request.sampling.logprobs = top;
  f.boolean("separate_reasoning", r.separate_reasoning);
  refuse_chat_fields(f);
  QUIRE_CHECKED(f.finish());
  return r;
}

ApiResult<CompletionRequest> parse_completion_request(JsonDocument body, const RequestLimits& limits,
                                                      IgnoredFields ignored) {
  CompletionRequest r{.ignored = std::move(ignored)};
  r.ignored.strict = limits.strict_parameters;
  Fields f(*body, r.ignored);
  Json* prompt = f.take("prompt");
  if (prompt == nullptr) return bad_field("prompt", "missing_parameter", "'prompt' is missing");
  QUIRE_TRY(r.prompts, parse_prompts("prompt", *prompt, limits, {limits.max_prompts, "limit max_prompts"}));
  read_generation_params(f, limits, r.params);
  f.integer("logprobs", r.params.request.sampling.logprobs, 0, limits.max_logprobs);
  f.boolean("echo", r.echo);
  f.boolean("add_special_tokens", r.add_special);
  f.integers("cache_positions", r.cache_positions, kMaxCachePositions, 1, limits.context);
  std::string suffix;
  f.text("suffix", suffix, SIZE_MAX);
  if (!suffix.empty()) {
    if (!limits.infill) return no_infill("suffix");
    if (r.echo) return bad_field("echo", "invalid_value", "'echo' does not go with 'suffix'");
    if (r.params.truncate_prompt)
      return bad_field("truncate_prompt_tokens", "invalid_value", "'truncate_prompt_tokens' does not go with 'suffix'");
    r.infill.emplace().suffix = std::move(suffix);
  }
  QUIRE_CHECKED(f.finish());
  return r;
}

namespace {

// Of llama.cpp: other files of the project, by their names.
ApiStatus read_files(Fields& f, std::vector<Infill::File>& files) {
  Json* const given = f.take("input_extra");
  if (given == nullptr) return {};
  if (!given->is_array() || given->size() > kMaxInfillFiles)
    return bad_field("input_extra", "invalid_type", "'input_extra' must be an array of at most {} files",
                     kMaxInfillFiles);
  for (size_t i = 0; i < given->size(); ++i) {
    const std::string where = fmt::format("input_extra[{}]", i);
    if (!(*given)[i].is_object())
      return bad_field(where, "invalid_type", "'{}' must be an object with 'filename' and 'text'", where);
    Fields inner((*given)[i], f.ignored(), where + ".");
    Infill::File file;
    inner.text("filename", file.name);
    inner.text("text", file.text, SIZE_MAX);
    QUIRE_CHECKED(inner.finish());
    files.push_back(std::move(file));
  }
  return {};
}

}  // namespace

ApiError no_infill(std::string_view field) {
  return bad_field(field, "unsupported_parameter",
                   "'{}' is not supported: this model's vocabulary has no tokens for filling in a text", field);
}

ApiResult<CompletionRequest> parse_infill_request(JsonDocument body, const RequestLimits& limits) {
  if (!limits.infill) return no_infill("input_prefix");
  IgnoredFields ignored{.strict = limits.strict_parameters};
  JsonDocument own(Json::object());
  for (const char* name : {"input_prefix", "input_suffix", "input_extra", "prompt", "n", "logprobs", "n_probs", "echo",
                           "prompt_logprobs", "answer_logprobs", "return_token_ids", "truncate_prompt_tokens"})
    if (const auto at = body->find(name); at != body->end()) {
      (*own)[name] = std::move(*at);
      body->erase(at);
    }
  Fields f(*own, ignored);
  std::string prefix;
  Infill infill{.trim = true};
  f.text("input_prefix", prefix, SIZE_MAX);
  f.text("input_suffix", infill.suffix, SIZE_MAX);
  f.text("prompt", infill.begun, SIZE_MAX);
  QUIRE_CHECKED(read_files(f, infill.files));
  f.refuse("n", "one text is filled in", {1});
  for (const char* name : {"logprobs", "n_probs", "echo", "prompt_logprobs", "answer_logprobs", "return_token_ids"})
    f.refuse(name, "this API has it in no answer; give /v1/completions a 'suffix'", {0, false});
  f.refuse("truncate_prompt_tokens", "what is too long is cut on both sides of the gap");
  QUIRE_CHECKED(f.finish());
  if (const auto at = body->find("n_predict"); at != body->end()) {
    Json most = std::move(*at);
    body->erase(at);
    (*body)["max_tokens"] = std::move(most);
  }
  (*body)["prompt"] = std::move(prefix);
  QUIRE_TRY(CompletionRequest r, parse_completion_request(std::move(body), limits, std::move(ignored)));
  r.short_by_default = false;
  r.params.cut_max_tokens = true;
  r.infill = std::move(infill);
  return r;
}

ApiResult<TokenizeRequest> parse_tokenize_request(JsonDocument body, const RequestLimits& limits) {
  TokenizeRequest r{.ignored = {.strict = limits.strict_parameters}};
  Fields f(*body, r.ignored);
  f.text("model", r.model, 256);
  const Json* const messages = f.take("messages");
  if ((f.take("prompt") != nullptr) + (f.take("content") != nullptr) + (messages != nullptr) != 1)
    return bad_field("prompt", "missing_parameter", "give one of 'prompt', 'content' and 'messages'");
  if (messages != nullptr) {
    Conversation c;
    read_conversation(f, limits, c);
    read_conversation_tools(f, limits, c);
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

ApiResult<DetokenizeRequest> parse_detokenize_request(JsonDocument body, const RequestLimits& limits) {
  DetokenizeRequest r{.ignored = {.strict = limits.strict_parameters}};
  Fields f(*body, r.ignored);
  f.text("model", r.model, 256);
  if (f.take("tokens") == nullptr) return bad_field("tokens", "missing_parameter", "'tokens' is missing");
  f.tokens("tokens", r.tokens, size_t{1} << 20, limits.vocab);
  QUIRE_CHECKED(f.finish());
  return r;
}

}  // namespace quire::server
