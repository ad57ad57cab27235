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

namespace {

using nlohmann::ordered_json;

// Anthropic's own word for the class of an error.
std::string_view anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 500:
      return "api_error";
    case 503:
      return "overloaded_error";
    default:
      return "invalid_request_error";
  }
}

ordered_json openai_body(const ApiError& e) {
  std::string_view shown = e.code;
  if (const StatusText* s = find(e.status); shown.empty() && s != nullptr) shown = s->code;
  const auto or_null = [](std::string_view text) {
    return text.empty() ? ordered_json() : ordered_json(std::string(text));
  };
  return {{"error",
           {{"message", e.message},
            {"type", std::string(error_type(e.status))},
            {"param", or_null(e.param)},
            {"code", or_null(shown)}}}};
}

std::string anthropic_message(const ApiError& e) {
  if (!e.overflow) return e.message;
  return fmt::format("prompt is too long: {} tokens > {} maximum", e.overflow->prompt + e.overflow->answer,
                     e.overflow->context);
}

ordered_json body_of(const ApiError& e, ErrorShape shape) {
  switch (shape) {
    case ErrorShape::kAnthropic:
      return {{"type", "error"},
              {"error", {{"type", std::string(anthropic_type(e.status))}, {"message", anthropic_message(e)}}}};
    case ErrorShape::kOllama:
      return {{"error", e.message}};
    case ErrorShape::kOpenAi:
      break;
  }
  return openai_body(e);
}

}  // namespace

std::string ApiError::body(ErrorShape shape) const {
  // A message may quote what the client sent; whatever is no UTF-8 in it becomes U+FFFD.
  return body_of(*this, shape).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

ApiError context_exceeded(std::string_view param, const ContextOverflow& o) {
  std::string message = fmt::format("This model's maximum context length is {} tokens. However, ", o.context);
  if (o.answer > 0)
    message += fmt::format(
        "you requested {} tokens ({} in the {}, {} in the completion). Please reduce the length of the {} or "
        "completion.",
        o.prompt + o.answer, o.prompt, o.what, o.answer, o.what);
  else
    message += fmt::format("your {} resulted in {}{} tokens. Please reduce the length of the {}.", o.what,
                           o.at_least ? "at least " : "", o.prompt, o.what);
  ApiError error{400, std::move(message), std::string(param), "context_length_exceeded"};
  error.overflow = o;
  return error;
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
