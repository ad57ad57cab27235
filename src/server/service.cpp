#include "server/service.h"

namespace quire::server {

ApiError deadline_exceeded() {
  return {503, "the request took longer than this server allows", "", "deadline_exceeded"};
}

std::optional<ApiError> failure_of(const TokenEvent::Ended& end) {
  if (end.finish == FinishReason::kError)
    return end.error ? to_api_error(*end.error) : ApiError{500, "the engine failed", "", ""};
  if (end.finish == FinishReason::kCancelled)  // not by us: then nobody would be listening
    return ApiError{503, "the server is shutting down", "", "shutting_down"};
  return std::nullopt;
}

}  // namespace quire::server
