#include "server/protocol/embedding_request.h"

#include <limits>

namespace quire::server {

ApiResult<EmbeddingRequest> parse_embedding_request(JsonDocument body, const RequestLimits& limits,
                                                    IgnoredFields ignored) {
  EmbeddingRequest r{.ignored = std::move(ignored)};
  r.ignored.strict = limits.strict_parameters;
  Fields f(*body, r.ignored);
  Json* input = f.take("input");
  if (input == nullptr) return bad_field("input", "missing_parameter", "'input' is missing");
  QUIRE_TRY(r.inputs, parse_prompts("input", *input, limits, {limits.max_inputs, "limit max_inputs"}));
  f.text("model", r.model, 256);
  std::string format = "float";
  f.text("encoding_format", format);
  if (format != "float" && format != "base64")
    f.fail(bad_field("encoding_format", "invalid_value", "'encoding_format' must be \"float\" or \"base64\""));
  r.base64 = format == "base64";
  f.integer("dimensions", r.dimensions, 1, std::numeric_limits<int64_t>::max());
  f.boolean("add_special_tokens", r.add_special);
  f.integer("priority", r.priority, limits.max_priority, kLastPriority);
  f.text("cache_salt", r.cache_salt, kMaxCacheSalt);
  f.refuse("truncate_prompt_tokens", "inputs are never cut");
  f.refuse("normalize", "embeddings have length 1", {true});
  f.ignore("user");  // who the end user is
  QUIRE_CHECKED(f.finish());
  return r;
}

}  // namespace quire::server
