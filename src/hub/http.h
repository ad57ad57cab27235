// A client of HTTP for a hub and for where it sends us: redirects, answers that come late or not at all, waiting when
// asked to. What servers send is hostile.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "hub/stream.h"

namespace quire::hub {

struct Patience {
  std::chrono::milliseconds connect{15'000};  // name, connection and TLS
  std::chrono::milliseconds head{30'000};     // from a request to the end of its answer's headers
  // A body must bring so many bytes, or its rest, in each of these times.
  std::chrono::milliseconds stall{30'000};
  uint64_t stall_bytes = 16 << 10;
  int attempts = 5;                                 // in a row without a byte that is new
  std::chrono::milliseconds pause{500};             // before the second one, and twice as long before each further one
  std::chrono::milliseconds longest_wait{120'000};  // that a hub may ask for with Retry-After
};

struct HttpOptions {
  Url hub;                  // whose origin alone sees the token
  std::string token;        // empty: none
  std::string unix_socket;  // whatever a URL's host is, it is asked at this socket; empty: by its address
  std::shared_ptr<const TlsContext> tls;
  Patience patience;
  std::function<void(const std::string&)> say;  // why it takes longer; may be empty. Any thread.
};

struct Request {
  Url url;
  bool head = false;
  std::optional<std::pair<uint64_t, uint64_t>> range;  // first and last byte
  // A body in JSON, which makes it a POST: asked once, and whatever the answer is, it is the answer.
  std::optional<std::string> post;
};

class HttpClient;

// Headers and a body that is read as it comes. Must not outlive its client, and be gone before the next request.
class Response {
 public:
  Response(Response&&) noexcept;
  Response& operator=(Response&&) = delete;
  ~Response();

  int status() const;
  std::string header(std::string_view name) const;  // empty: it has none
  const Url& url() const;                           // after redirects
  // What a hub says of a large file beside a redirect to it; empty: nothing.
  struct Linked {
    std::string etag, size, commit;
  };
  const Linked& linked() const;
  std::optional<uint64_t> length() const;  // of the body, if it says so
  // Of a 206: the first byte and the size of the whole.
  struct Part {
    uint64_t first, last, whole;
  };
  std::optional<Part> part() const;

  // Bytes of the body, 0 at its end. An error: it broke off, or comes too slowly.
  Result<size_t> read(std::span<std::byte> to);

 private:
  friend class HttpClient;
  struct Impl;
  explicit Response(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// One thread at a time.
class HttpClient {
 public:
  // `stop`, if not null, ends whatever waits soon after it is set.
  explicit HttpClient(const HttpOptions& options, const std::atomic<bool>* stop = nullptr);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;

  // The answer after redirects, whatever its status. Tries again where there is none, or it is one that says "later"
  // (408, 429, 500, 502, 503, 504). A HEAD whose redirect says all that a hub knows of a large file is not followed to
  // another host.
  Result<Response> fetch(const Request& request);
  // The whole body of a GET with status 200, of at most `most` bytes. `model` (its id) and `what` are for messages.
  Result<std::string> fetch_text(const Url& url, uint64_t most, std::string_view model, std::string_view what);

  // Waits before another attempt (counted from 1). False: no more, or stopped.
  bool wait_before(int attempt) const;
  const HttpOptions& options() const { return options_; }

 private:
  friend class Response;
  struct Connection;
  struct Failure {
    Error error;
    bool transient = true;
  };
  using Answer = std::variant<Failure, std::unique_ptr<Response::Impl>>;
  Answer ask(const Request& request);
  Answer ask_once(const Request& request, bool& reused);
  Result<bool> wait_as_asked(const Response::Impl& answer, int attempt) const;
  bool pause(std::chrono::milliseconds time) const;
  bool stopped() const { return stop_ != nullptr && stop_->load(); }

  const HttpOptions& options_;
  const std::atomic<bool>* stop_;
  std::map<std::string, std::unique_ptr<Connection>> idle_;  // by origin
};

// The error that an answer other than 200 or 206 is. `model` (its id) and `what` (a file, or the list of files).
Error refusal(const Response& answer, const HttpOptions& options, std::string_view model, std::string_view what);

// Decimal digits alone, below 2^63.
std::optional<uint64_t> parse_size(std::string_view text);

}  // namespace quire::hub
