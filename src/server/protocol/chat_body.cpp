#include "server/protocol/chat_body.h"

#include "ops/sampling/params.h"

namespace quire::server {

ChatBody::ChatBody(Fields& fields) : fields_(fields), body_(Json::object()) {
  (*body_)["messages"] = Json::array();
}

void ChatBody::pass(std::string_view theirs, std::string_view ours) {
  if (Json* value = fields_.take(theirs)) set(ours, std::move(*value));
}

void ChatBody::pass(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) pass(name, name);
}

void ChatBody::pass_extensions() {
  for (const SamplingField& field : kSamplingFields) pass(field.name, field.name);
  pass({"seed", "logit_bias", "min_tokens", "stop_token_ids", "ignore_eos", "speculative", "skip_special_tokens",
        "priority", "cache_salt", "chat_template_kwargs", "structured_outputs", "grammar", "allowed_token_ids",
        "bad_words", "include_stop_str_in_output", "stop_in_reasoning"});
}

Json& ChatBody::add_message(std::string_view role) {
  Json& all = messages();
  all.push_back({{"role", std::string(role)}});
  return all.back();
}

void ChatBody::add_tool(Json name, Json description, Json parameters, bool strict) {
  Json function = {{"name", std::move(name)}};
  if (!description.is_null()) function["description"] = std::move(description);
  if (!parameters.is_null()) function["parameters"] = std::move(parameters);
  if (strict) function["strict"] = true;
  (*body_)["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
}

ApiResult<JsonDocument> ChatBody::take() {
  QUIRE_CHECKED(fields_.finish());
  return std::move(body_);
}

Json text_part(Json text, Json* cache_control) {
  Json part = {{"type", "text"}, {"text", std::move(text)}};
  if (cache_control != nullptr && !cache_control->is_null()) part["cache_control"] = std::move(*cache_control);
  return part;
}

}  // namespace quire::server
