// HTTP/1.0 and 1.1 requests and responses as plain data, without sockets.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/protocol/api_error.h"
#include "server/protocol/body_budget.h"

namespace quire::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // as sent; methods are case-sensitive
  std::string path;    // without the query; percent escapes as sent
  std::string query;
  Headers headers;  // names in lower case, in the order they came; fields behind a chunked body are none
  std::optional<uint64_t> content_length;  // as declared
  bool chunked = false;                    // the body comes in chunks; without either there is none
  bool http_1_0 = false;
  bool keep_alive = true;
  std::string body;
  BodyShare body_share;  // of the budget that the parser was given

  bool announces_body() const { return chunked || content_length.value_or(0) > 0; }
  void drop_body() {
    body = std::string();
    body_share.release();
  }
  // The first header of this (lower-case) name; empty if there is none.
  std::string_view header(std::string_view name) const;
};

struct HttpLimits {
  size_t max_header_bytes = size_t{16} << 10;  // request line and headers together
  size_t max_body_bytes = size_t{16} << 20;
};

// Reads one request from pieces of a stream.
class HttpParser {
 public:
  // `budget`: of all bodies that are being read or kept; null: none.
  explicit HttpParser(const HttpLimits& limits, std::shared_ptr<BodyBudget> budget = nullptr);
  HttpParser(HttpParser&&) noexcept;
  HttpParser& operator=(HttpParser&&) noexcept;
  ~HttpParser();

  // Takes what it can use of `bytes` and says how many that were; the rest must stand first in the next call, and
  // what follows the request belongs to the next one. Stops once behind the headers, so that the caller can judge the
  // request before its body is read. Memory for a body grows with what has come of it. Errors are final: 400, 413, 431,
  // 503 where the budget has no room.
  ApiResult<size_t> feed(std::string_view bytes);

  bool header_done() const;
  bool done() const;
  // The request as its headers tell it, once header_done().
  const HttpRequest& head() const;
  // Before the body's first byte: whether one of the length that is declared can be read now. 413, 503.
  ApiStatus check_length() const;
  // The client waits for "100 Continue" before it sends the body.
  bool expects_continue() const;
  // Once done() (or header_done(): with what is known by then).
  HttpRequest take();

 private:
  ApiResult<size_t> put(std::string_view bytes);
  ApiStatus check_header() const;
  void keep_head();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  Headers headers;
};
HttpResponse to_response(const ApiError& error, ErrorShape shape);

// The bytes of a response's head. `length`: of the body; negative: chunked, or to the end of the connection where
// `http_1_0`.
std::string response_head(const HttpResponse& r, int64_t length, bool keep_alive, bool http_1_0);
// One chunk of a chunked body; an empty piece ends the body.
std::string chunk(std::string_view piece);

// "a%20b" -> "a b"; escapes that are none stay as they are.
std::string percent_decoded(std::string_view text);

}  // namespace quire::server
