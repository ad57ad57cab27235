// /v1/responses, of OpenAI's Responses API.
#include "server/api.h"
#include "server/generation.h"
#include "server/protocol/responses_request.h"
#include "server/writers/responses_writer.h"

namespace quire::server {
namespace {

// A stream of which nothing but its failure is told.
void stream_failure(const std::shared_ptr<Responder>& to, AnswerWriter& writer, const ApiError& error) {
  std::string events = writer.opening(0, nullptr, [] { return Usage(); });
  events += writer.failure(error);
  to->post([to, kind = writer.stream_kind(), code = error.code, events = std::move(events)]() mutable {
    to->record().finish = code;
    to->start_stream(kind);
    to->write(std::move(events));
    to->finish_stream();
  });
}

}  // namespace

ApiStatus Api::responses(Call& call) {
  QUIRE_TRY(JsonDocument document, body(call));
  const ModelContext& model = *call.loaded.model;
  QUIRE_TRY(ResponsesRequest r, parse_responses_request(std::move(document), model.limits()));
  const bool stream = r.chat.params.stream;
  ResponsesEnvelope envelope{.model = model.told_name(r.chat.params.model),
                             .custom = std::move(r.echo.custom),
                             .echo = std::move(r.echo.fields)};
  const ApiStatus begun = converse(call, std::move(r.chat), [&](const GenerationPlan&, const GenerationParams&) {
    return responses_writer(std::move(envelope));
  });
  // Codex makes a conversation shorter when an event tells it to, and gives up at a status.
  if (begun.ok() || !stream || !begun.error().overflow) return begun;
  stream_failure(call.responder, *responses_writer(std::move(envelope)), begun.error());
  return {};
}

}  // namespace quire::server
