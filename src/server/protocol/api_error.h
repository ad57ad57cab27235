// What a client is told when a request fails: a status, and a body in the shape of the API that it speaks.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "core/result.h"

namespace quire::server {

enum class ErrorShape {
  kOpenAi,     // {"error": {"message", "type", "param", "code"}}
  kAnthropic,  // {"type": "error", "error": {"type", "message"}}
  kOllama,     // {"error": message}
};

// A prompt, and what was asked to follow it, that a model's context does not hold.
struct ContextOverflow {
  std::string_view what = "messages";  // that the client is to make shorter; a literal
  int64_t context = 0;                 // tokens that it holds
  int64_t prompt = 0;
  int64_t answer = 0;     // tokens of the answer that were asked for; 0: the prompt alone is too long
  bool at_least = false;  // the prompt was not counted to its end
};

struct ApiError {
  int status = 500;
  std::string message;
  std::string param;                                       // the field at fault; empty: none
  std::string code;                                        // "unknown_parameter"; empty: none
  int retry_after = 0;                                     // seconds, for the header Retry-After; 0: no such header
  std::string allow;                                       // methods, for the header Allow of 405
  std::optional<ContextOverflow> overflow = std::nullopt;  // that this is about: see context_exceeded()

  std::string body(ErrorShape shape) const;  // one JSON object
};

// 400 with a message, about the field `param`.
template <class... Args>
ApiError bad_field(std::string_view param, std::string_view code, fmt::format_string<Args...> f, Args&&... args) {
  return {400, fmt::format(f, std::forward<Args>(args)...), std::string(param), std::string(code)};
}
template <class... Args>
ApiError bad_request(fmt::format_string<Args...> f, Args&&... args) {
  return {400, fmt::format(f, std::forward<Args>(args)...), "", ""};
}

// 400 "context_length_exceeded". The message is OpenAI's, or in the shape of Anthropic's API theirs, word for word:
// clients know by these words that they are to make the conversation shorter, and end it without them.
ApiError context_exceeded(std::string_view param, const ContextOverflow& overflow);

// 503: what a request needs of memory is not there now.
ApiError out_of_memory();
// kRequest: 400, kCapacity: 503, the others 500.
ApiError to_api_error(const Error& error);

// The class of an error in the words of the OpenAI API: "invalid_request_error", "server_error", ...
std::string_view error_type(int status);
// "Not Found"; "Unknown" for a status that this server never sends.
std::string_view reason_phrase(int status);

// As Result<T>, with an ApiError; QUIRE_TRY and QUIRE_CHECKED take both.
template <class T>
class [[nodiscard]] ApiResult {
 public:
  ApiResult(T value) : v_(std::in_place_index<0>, std::move(value)) {}         // NOLINT(google-explicit-constructor)
  ApiResult(ApiError error) : v_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)
  ApiResult(const Error& error) : ApiResult(to_api_error(error)) {}            // NOLINT(google-explicit-constructor)

  bool ok() const { return v_.index() == 0; }
  T&& value() && { return std::get<0>(std::move(v_)); }
  T& operator*() & { return std::get<0>(v_); }
  const T& operator*() const& { return std::get<0>(v_); }
  T* operator->() { return &std::get<0>(v_); }
  const T* operator->() const { return &std::get<0>(v_); }
  const ApiError& error() const { return std::get<1>(v_); }
  ApiError take_error() { return std::get<1>(std::move(v_)); }

 private:
  std::variant<T, ApiError> v_;
};

template <>
class [[nodiscard]] ApiResult<void> {
 public:
  ApiResult() = default;
  ApiResult(ApiError error) : error_(std::move(error)) {}         // NOLINT(google-explicit-constructor)
  ApiResult(const Error& error) : error_(to_api_error(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return !error_; }
  const ApiError& error() const { return *error_; }
  ApiError take_error() { return std::move(*error_); }

 private:
  std::optional<ApiError> error_;
};
using ApiStatus = ApiResult<void>;

}  // namespace quire::server
