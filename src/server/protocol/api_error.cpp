#include "server/protocol/api_error.h"

#include <nlohmann/json.hpp>

namespace quire::server {
namespace {

struct StatusText {
  int status;
  std::string_view reason, type, code;  // code: where an error names none itself
};
constexpr StatusText kStatuses[] = {
    {200, "OK", "", ""},
    {204, "No Content", "", ""},
    {400, "Bad Request", "invalid_request_error", ""},
    {401, "Unauthorized", "authentication_error", "invalid_api_key"},
    {403, "Forbidden", "permission_error", "forbidden"},
    {404, "Not Found", "invalid_request_error", "not_found"},
    {405, "Method Not Allowed", "invalid_request_error", "method_not_allowed"},
    {408, "Request Timeout", "timeout_error", "request_timeout"},
    {411, "Length Required", "invalid_request_error", "length_required"},
    {413, "Content Too Large", "invalid_request_error", "request_too_large"},
    {415, "Unsupported Media Type", "invalid_request_error", "unsupported_media_type"},
    {429, "Too Many Requests", "rate_limit_error", "queue_full"},
    {431, "Request Header Fields Too Large", "invalid_request_error", "headers_too_large"},
    {500, "Internal Server Error", "server_error", "internal_error"},
    {503, "Service Unavailable", "server_error", "unavailable"},
};

const StatusText* find(int status) {
  for (const StatusText& s : kStatuses)
    if (s.status == status) return &s;
  return nullptr;
}

}  // namespace

std::string_view error_type(int status) {
  const StatusText* s = find(status);
  return s == nullptr ? "server_error" : s->type;
}

std::string_view reason_phrase(int status) {
  const StatusText* s = find(status);
  return s == nullptr ? "Unknown" : s->reason;
}

std::string ApiError::body() const {
  using nlohmann::ordered_json;
  std::string_view shown = code;
  if (const StatusText* s = find(status); shown.empty() && s != nullptr) shown = s->code;
  const auto or_null = [](std::string_view text) {
    return text.empty() ? ordered_json() : ordered_json(std::string(text));
  };
  const ordered_json error = {{"message", message},
                              {"type", std::string(error_type(status))},
                              {"param", or_null(param)},
                              {"code", or_null(shown)}};
  // A message may quote what the client sent; whatever is no UTF-8 in it becomes U+FFFD.
  return ordered_json{{"error", error}}.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

ApiError out_of_memory() {
  return {.status = 503, .message = "not enough memory for this request", .code = "overloaded", .retry_after = 1};
}

ApiError to_api_error(const Error& error) {
  switch (error.fault) {
    case Fault::kRequest:
      return {400, error.message, "", ""};
    case Fault::kCapacity:
      return {.status = 503, .message = error.message, .retry_after = 1};
    case Fault::kModelFile:
    case Fault::kBug:
      break;
  }
  return {500, error.message, "", ""};
}

}  // namespace quire::server
