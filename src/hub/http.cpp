#include "hub/http.h"

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <charconv>
#include <cstring>
#include <thread>

#include "core/escape.h"

namespace quire::hub {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using error_code = boost::system::error_code;
using Clock = Stream::Clock;

namespace {

constexpr int kMaxRedirects = 8, kMaxInterim = 4;
constexpr uint32_t kMaxHead = 64 << 10;

bool says_later(int status) {
  return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 || status == 504;
}

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

std::string plain_reason(const error_code& ec) {
  if (ec == asio::error::eof || ec == http::error::end_of_stream || ec == http::error::partial_message)
    return "the connection was closed early";
  if (ec == asio::error::timed_out) return "nothing came in time";
  if (ec == http::error::header_limit || ec == http::error::buffer_overflow) return "its headers are too long";
  if (ec.category() == http::make_error_code(http::error::bad_version).category())
    return "its answer is not valid HTTP: " + ec.message();
  return ec.message();
}

}  // namespace

struct HttpClient::Connection {
  explicit Connection(std::shared_ptr<const TlsContext> tls, const std::atomic<bool>* stop)
      : stream(std::move(tls), [stop] { return stop != nullptr && stop->load(); }) {}
  Stream stream;
  boost::beast::flat_buffer buffer{kMaxHead + (size_t{256} << 10)};
};

struct Response::Impl {
  Impl(HttpClient& c, Url u) : client(c), url(std::move(u)) {}
  HttpClient& client;
  Url url;
  std::unique_ptr<HttpClient::Connection> connection;
  std::optional<http::response_parser<http::buffer_body>> parser;  // one for each head that comes
  Linked linked;
  std::optional<uint64_t> left;  // of a body whose length is known: it needs no parser
  uint64_t window_bytes = 0;     // since the deadline was set
  bool done = false;

  std::string header(std::string_view name) const {
    const auto text = parser->get()[boost::beast::string_view(name.data(), name.size())];
    return {text.data(), text.size()};
  }
  int status() const { return static_cast<int>(parser->get().result_int()); }
  void begin_body(bool head);
  void finish() {
    done = true;
    if (parser->get().keep_alive() && connection->buffer.size() == 0)
      client.idle_[url.origin()] = std::move(connection);
    connection.reset();
  }
  void renew_deadline() {
    window_bytes = 0;
    connection->stream.set_deadline(Clock::now() + client.options_.patience.stall);
  }
  size_t take(std::span<std::byte> to, error_code& ec);
  void skip_short_body();
};

void Response::Impl::begin_body(bool head) {
  if (!head && !parser->chunked() && parser->content_length()) left = *parser->content_length();
  if (head || status() == 204 || status() == 304 || left == uint64_t{0}) return finish();
  renew_deadline();
}

size_t Response::Impl::take(std::span<std::byte> to, error_code& ec) {
  boost::beast::flat_buffer& buffer = connection->buffer;
  if (left) {
    to = to.first(static_cast<size_t>(std::min<uint64_t>(to.size(), *left)));
    size_t n = std::min(to.size(), buffer.size());
    if (n > 0) {
      std::memcpy(to.data(), buffer.data().data(), n);
      buffer.consume(n);
    } else {
      n = connection->stream.read_bytes(to.data(), to.size(), ec);
    }
    *left -= n;
    return n;
  }
  parser->get().body().data = to.data();
  parser->get().body().size = to.size();
  while (!ec && !parser->is_done() && parser->get().body().size == to.size())
    http::read_some(connection->stream, buffer, *parser, ec);
  if (ec == http::error::need_buffer) ec = {};
  return to.size() - parser->get().body().size;
}

// So that the connection can be used again.
void Response::Impl::skip_short_body() {
  std::array<std::byte, 4096> waste;
  error_code ec;
  while (!done && !ec && left && *left <= waste.size()) {
    take(waste, ec);
    if (*left == 0) finish();
  }
}

Response::Response(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Response::Response(Response&&) noexcept = default;
Response::~Response() = default;

int Response::status() const {
  return impl_->status();
}
std::string Response::header(std::string_view name) const {
  return impl_->header(name);
}
const Url& Response::url() const {
  return impl_->url;
}
const Response::Linked& Response::linked() const {
  return impl_->linked;
}
std::optional<uint64_t> Response::length() const {
  return parse_size(impl_->header("Content-Length"));
}

std::optional<Response::Part> Response::part() const {
  // "bytes 0-1023/4096"
  const std::string text = impl_->header("Content-Range");
  const size_t dash = text.find('-'), slash = text.find('/');
  if (!text.starts_with("bytes ") || dash == std::string::npos || slash == std::string::npos || slash < dash) return {};
  const std::string_view view(text);
  const auto first = parse_size(view.substr(6, dash - 6)), last = parse_size(view.substr(dash + 1, slash - dash - 1)),
             whole = parse_size(view.substr(slash + 1));
  if (!first || !last || !whole || *first > *last || *last >= *whole) return {};
  return Part{*first, *last, *whole};
}

Result<size_t> Response::read(std::span<std::byte> to) {
  Impl& r = *impl_;
  if (r.done || to.empty()) return size_t{0};
  error_code ec;
  const size_t n = r.take(to, ec);
  if (ec) {
    r.connection.reset();
    r.done = true;
    return request_error("{}: {}", r.url.origin(), plain_reason(ec));
  }
  r.window_bytes += n;
  if (r.window_bytes >= r.client.options_.patience.stall_bytes) r.renew_deadline();
  if (r.left ? *r.left == 0 : r.parser->is_done()) r.finish();
  return n;
}

HttpClient::HttpClient(const HttpOptions& options, const std::atomic<bool>* stop) : options_(options), stop_(stop) {}
HttpClient::~HttpClient() = default;

bool HttpClient::pause(std::chrono::milliseconds time) const {
  for (const auto end = Clock::now() + time; Clock::now() < end && !stopped();)
    std::this_thread::sleep_for(std::min<Clock::duration>(end - Clock::now(), std::chrono::milliseconds(50)));
  return !stopped();
}

bool HttpClient::wait_before(int attempt) const {
  return attempt < options_.patience.attempts && pause(options_.patience.pause * (1 << std::min(attempt - 1, 10)));
}

// Whether to ask again. An error: it asks for more patience than there is.
Result<bool> HttpClient::wait_as_asked(const Response::Impl& answer, int attempt) const {
  const auto seconds = parse_size(answer.header("Retry-After"));
  if (!seconds || *seconds == 0) return wait_before(attempt);
  const auto longest = options_.patience.longest_wait;
  if (*seconds > static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(longest).count()))
    return request_error("{} answers {} and asks to wait {} seconds; try again then (what has been fetched stays)",
                         answer.url.origin(), answer.status(), *seconds);
  if (attempt >= options_.patience.attempts) return false;
  if (options_.say) options_.say(fmt::format("{} asks to wait {} s", answer.url.origin(), *seconds));
  return pause(std::chrono::seconds(*seconds));
}

HttpClient::Answer HttpClient::ask_once(const Request& request, bool& reused) {
  auto answer = std::make_unique<Response::Impl>(*this, request.url);
  const std::string origin = request.url.origin();
  const auto failed = [&](const error_code& ec) { return Failure{request_error("{}: {}", origin, plain_reason(ec))}; };
  if (const auto kept = idle_.find(origin); kept != idle_.end()) {
    answer->connection = std::move(kept->second);
    idle_.erase(kept);
    reused = true;
  } else {
    answer->connection = std::make_unique<Connection>(options_.tls, stop_);
    if (auto f = answer->connection->stream.connect(request.url, options_.unix_socket,
                                                    Clock::now() + options_.patience.connect))
      return Failure{std::move(f->error), f->transient};
  }
  Stream& stream = answer->connection->stream;
  stream.set_deadline(Clock::now() + options_.patience.head);
  const std::string host = origin.substr(origin.find("://") + 3);
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: quire/{}\r\nAccept-Encoding: identity\r\n",
                                 request.post   ? "POST"
                                 : request.head ? "HEAD"
                                                : "GET",
                                 request.url.target, host, QUIRE_VERSION);
  if (request.range) text += fmt::format("Range: bytes={}-{}\r\n", request.range->first, request.range->second);
  // Nobody but the hub itself: where it redirects to has no business with the token.
  if (!options_.token.empty() && origin == options_.hub.origin())
    text += fmt::format("Authorization: Bearer {}\r\n", options_.token);
  if (request.post)
    text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", request.post->size());
  text += "\r\n";
  if (request.post) text += *request.post;
  error_code ec;
  stream.write_bytes(text.data(), text.size(), ec);
  auto& parser = answer->parser;
  for (int interim = 0; !ec; ++interim) {
    parser.emplace();
    parser->header_limit(kMaxHead);
    parser->body_limit(UINT64_MAX);
    if (request.head) parser->skip(true);
    http::read_header(stream, answer->connection->buffer, *parser, ec);
    if (ec || answer->status() / 100 != 1) break;
    if (interim == kMaxInterim) return Failure{request_error("{}: it promises an answer again and again", origin)};
  }
  if (ec) return failed(ec);
  reused = false;
  if (const std::string coding = answer->header("Content-Encoding"); !coding.empty() && coding != "identity")
    return Failure{
        request_error("{}: its answer is compressed ({}), which was not asked for", origin, escaped(coding, 40)),
        false};
  answer->begin_body(request.head);
  return answer;
}

HttpClient::Answer HttpClient::ask(const Request& request) {
  for (int attempt = 1;; ++attempt) {
    bool reused = false;
    Answer answer = ask_once(request, reused);
    // A connection that was kept may have been closed meanwhile.
    if (reused && std::holds_alternative<Failure>(answer) && !stopped()) answer = ask_once(request, reused = false);
    if (auto* const failure = std::get_if<Failure>(&answer)) {
      if (request.post || !failure->transient || !wait_before(attempt)) return answer;
      continue;
    }
    const auto& good = std::get<std::unique_ptr<Response::Impl>>(answer);
    if (request.post || !says_later(good->status())) return answer;
    Result<bool> again = wait_as_asked(*good, attempt);
    if (!again.ok()) return Failure{again.take_error(), false};
    if (!*again) return answer;
  }
}

Result<Response> HttpClient::fetch(const Request& request) {
  Request at = request;
  Response::Linked linked;
  for (int redirects = 0;; ++redirects) {
    Answer answer = ask(at);
    if (auto* const failure = std::get_if<Failure>(&answer)) return std::move(failure->error);
    std::unique_ptr<Response::Impl> r = std::move(std::get<std::unique_ptr<Response::Impl>>(answer));
    const auto note = [&](std::string& to, std::string_view name) {
      if (to.empty()) to = r->header(name);
    };
    // Only the hub is believed in this.
    if (at.url.origin() == options_.hub.origin()) {
      note(linked.etag, "X-Linked-Etag");
      note(linked.size, "X-Linked-Size");
      note(linked.commit, "X-Repo-Commit");
    }
    r->linked = linked;
    if (request.post || !is_redirect(r->status())) return Response(std::move(r));
    if (redirects == kMaxRedirects)
      return request_error("{}: more than {} redirects, the last from {}", request.url.origin(), kMaxRedirects,
                           at.url.origin());
    QUIRE_TRY(Url next, at.url.join(r->header("Location")).context(at.url.origin() + " redirects"));
    if (at.url.tls && !next.tls)
      return request_error("{} redirects to {}, which has no TLS; that is not followed", at.url.origin(),
                           next.origin());
    const bool leaves = next.origin() != at.url.origin();
    if (request.head && leaves && !linked.etag.empty() && !linked.size.empty()) return Response(std::move(r));
    r->skip_short_body();
    at.url = std::move(next);
  }
}

Result<std::string> HttpClient::fetch_text(const Url& url, uint64_t most, std::string_view model,
                                           std::string_view what) {
  for (int attempt = 1;; ++attempt) {
    QUIRE_TRY(Response answer, fetch({.url = url}));
    if (answer.status() != 200) return refusal(answer, options_, model, what);
    std::string text;
    std::vector<std::byte> piece(size_t{64} << 10);
    for (;;) {
      Result<size_t> n = answer.read(piece);
      if (!n.ok() && !wait_before(attempt)) return n.take_error().context(fmt::format("{} ({})", model, what));
      if (!n.ok()) break;
      if (*n == 0) return text;
      text.append(reinterpret_cast<const char*>(piece.data()), *n);
      if (text.size() > most)
        return request_error("{} ({}): {} sends more than {} bytes", model, what, url.origin(), most);
    }
  }
}

Error refusal(const Response& answer, const HttpOptions& options, std::string_view model, std::string_view what) {
  const int status = answer.status();
  const std::string where = options.hub.origin();
  const std::string code = answer.header("X-Error-Code"), message = answer.header("X-Error-Message");
  const std::string name = fmt::format("{} ({})", model, what);
  const std::string said = message.empty() ? "" : fmt::format("; it says: {}", escaped(message, 200));
  if (status == 401 || status == 403) {
    if (options.token.empty())
      return request_error(
          "{}: {} answers {}: the model is gated or private (or there is none of this name), and no token was sent. "
          "Accept its terms at {}/{}, make a token at {}/settings/tokens, and write it into a file for --token-file "
          "(huggingface-cli login writes the one that is looked for){}",
          name, where, status, where, model, where, said);
    return request_error(
        "{}: {} answers {}: the token is not allowed to read it. If the model is gated, accept its terms at {}/{} with "
        "the account that the token belongs to{}",
        name, where, status, where, model, said);
  }
  if (status == 404 && code == "RevisionNotFound") return request_error("{}: there is no such revision{}", name, said);
  if (status == 404) return request_error("{}: {} has nothing of this name (404){}", name, where, said);
  if (status == 429) return request_error("{}: {} wants fewer requests (429); try again later{}", name, where, said);
  return request_error("{}: {} answers with status {}{}", name, answer.url().origin(), status, said);
}

std::optional<uint64_t> parse_size(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size() || value > INT64_MAX) return {};
  return value;
}

}  // namespace quire::hub
