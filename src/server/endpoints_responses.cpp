// /v1/responses, of OpenAI's Responses API.
#include "server/api.h"
#include "server/generation.h"
#include "server/protocol/responses_request.h"
#include "server/writers/responses_writer.h"

namespace quire::server {

ApiStatus Api::responses(Call& call) {
  QUIRE_TRY(JsonDocument document, body(call));
  QUIRE_TRY(ResponsesRequest r, parse_responses_request(std::move(document), call.loaded.model->limits()));
  return converse(call, std::move(r.chat), [&](const GenerationPlan& plan, const GenerationParams&) {
    return responses_writer(
        {.model = plan.model_name, .custom = std::move(r.echo.custom), .echo = std::move(r.echo.fields)});
  });
}

}  // namespace quire::server
