// /v1/messages and /v1/messages/count_tokens, of Anthropic's Messages API.
#include "server/api.h"
#include "server/generation.h"
#include "server/protocol/anthropic_request.h"
#include "server/writers/anthropic_writer.h"

namespace quire::server {

struct Api::AnthropicRoutes {
  static ApiStatus messages(Api& api, Call& call);
  static ApiStatus count_tokens(Api& api, Call& call);
};

std::span<const Api::Route> Api::anthropic_routes() {
  using H = AnthropicRoutes;
  static constexpr Route kRows[] = {
      {"POST", "/v1/messages", Route::kKey, Route::kGenerates, kAnthropic, H::messages},
      {"POST", "/v1/messages/count_tokens", Route::kKey, Route::kModel, kAnthropic, H::count_tokens},
  };
  return kRows;
}

ApiStatus Api::AnthropicRoutes::messages(Api& api, Call& call) {
  QUIRE_TRY(JsonDocument document, api.body(call));
  QUIRE_TRY(ChatRequest r, parse_anthropic_request(std::move(document), call.loaded.model->limits(), false));
  return api.converse(call, std::move(r), [](const GenerationPlan& plan, const GenerationParams&) {
    return anthropic_writer({.model = plan.model_name});
  });
}

// Exactly the prompt's tokens that the same conversation would have.
ApiStatus Api::AnthropicRoutes::count_tokens(Api& api, Call& call) {
  QUIRE_TRY(JsonDocument document, api.body(call));
  const ModelContext& model = *call.loaded.model;
  QUIRE_TRY(ChatRequest r, parse_anthropic_request(std::move(document), model.limits(), true));
  api.report(call, r.ignored);
  QUIRE_CHECKED(model.check_name(r.params.model));
  const auto request = std::make_shared<ChatRequest>(std::move(r));
  return api.with_pictures(call, request->conversation.pictures, [request](Call& c) -> ApiStatus {
    QUIRE_TRY(const EncodedPrompt prompt, c.loaded.model->encode(std::move(request->conversation)));
    answer(c, {{"input_tokens", prompt.tokens.size()}});
    return {};
  });
}

}  // namespace quire::server
