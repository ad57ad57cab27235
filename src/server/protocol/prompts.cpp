#include "server/protocol/prompts.h"

namespace quire::server {
namespace {

ApiResult<Prompt> token_prompt(std::string_view name, Json& ids, const RequestLimits& limits) {
  std::vector<TokenId> tokens;
  if (const auto count = static_cast<int64_t>(ids.size()); count > limits.context)
    return context_exceeded(name, {.what = name, .context = limits.context, .prompt = count});
  JsonDocument body(Json::object());
  (*body)[std::string(name)] = std::move(ids);
  IgnoredFields none;
  Fields f(*body, none);
  f.tokens(name, tokens, static_cast<size_t>(limits.context), limits.vocab);
  QUIRE_CHECKED(f.finish());
  return Prompt(std::move(tokens));
}

}  // namespace

ApiResult<std::vector<Prompt>> parse_prompts(std::string_view name, Json& v, const RequestLimits& limits,
                                             PromptLimit limit) {
  std::vector<Prompt> prompts;
  if (v.is_string()) {
    prompts.emplace_back(std::move(v.get_ref<std::string&>()));
    return prompts;
  }
  if (!v.is_array())
    return bad_field(name, "invalid_type", "'{}' must be a string or an array, not {}", name, json_kind(v));
  if (v.empty()) return bad_field(name, "invalid_value", "'{}' is an empty array", name);
  if (v.front().is_number()) {
    QUIRE_TRY(Prompt p, token_prompt(name, v, limits));
    prompts.push_back(std::move(p));
    return prompts;
  }
  if (v.size() > static_cast<size_t>(limit.most))
    return bad_field(name, "invalid_value", "'{}' has {} entries; at most {} are allowed ({})", name, v.size(),
                     limit.most, limit.flag);
  for (Json& item : v) {
    if (item.is_string()) {
      prompts.emplace_back(std::move(item.get_ref<std::string&>()));
    } else if (item.is_array()) {
      QUIRE_TRY(Prompt p, token_prompt(name, item, limits));
      prompts.push_back(std::move(p));
    } else {
      return bad_field(name, "invalid_type", "'{}' must hold strings or arrays of token ids, not {}", name,
                       json_kind(item));
    }
  }
  return prompts;
}

}  // namespace quire::server
