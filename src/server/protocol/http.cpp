#include "server/protocol/http.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/optional.hpp>
#include <cctype>
#include <charconv>

namespace quire::server {

namespace http = boost::beast::http;

namespace {

using boost::beast::error_code;

// A body for Beast's parser that grows as bytes come: what a client declares is no reason to have memory ready.
struct GrowingBody {
  struct value_type {
    std::string bytes;
    BodyShare share;
    size_t declared = 0;  // 0: unknown
    bool no_room = false;
  };

  class reader {
   public:
    template <bool IsRequest, class Fields>
    reader(http::header<IsRequest, Fields>&, value_type& body) : body_(body) {}

    void init(const boost::optional<uint64_t>& length, error_code& ec) {
      body_.declared = length ? static_cast<size_t>(*length) : 0;
      ec = {};
    }
    template <class Buffers>
    size_t put(const Buffers& buffers, error_code& ec) {
      const size_t more = boost::beast::buffer_bytes(buffers);
      if (!body_.share.grow(more)) {
        body_.no_room = true;
        ec = http::error::buffer_overflow;
        return 0;
      }
      ec = {};
      std::string& bytes = body_.bytes;
      if (const size_t need = bytes.size() + more; need > bytes.capacity()) {
        size_t room = std::max(2 * bytes.capacity(), need);
        if (body_.declared >= need) room = std::min(room, body_.declared);
        bytes.reserve(room);
      }
      for (const auto piece : boost::beast::buffers_range_ref(buffers))
        bytes.append(static_cast<const char*>(piece.data()), piece.size());
      return more;
    }
    void finish(error_code& ec) { ec = {}; }

   private:
    value_type& body_;
  };
};

constexpr uint64_t kAnyLength = UINT64_MAX;

std::string text_of(boost::beast::string_view s) {
  return {s.data(), s.size()};
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

ApiError body_too_long(const HttpLimits& limits) {
  return {413, fmt::format("the body has more than {} bytes", limits.max_body_bytes), "", ""};
}

ApiError no_room_for_body() {
  return {.status = 503,
          .message = "the server holds as many bytes of requests as it may (limit max_total_body_bytes)",
          .code = "overloaded",
          .retry_after = 1};
}

}  // namespace

struct HttpParser::Impl {
  http::request_parser<GrowingBody> parser;
  HttpLimits limits;
  std::shared_ptr<BodyBudget> budget;
  // As it stood before the body. Fields that follow a chunked body are dropped: the parser puts them with the headers,
  // where nobody would know them from those that were checked.
  HttpRequest head;
};

HttpParser::HttpParser(const HttpLimits& limits, std::shared_ptr<BodyBudget> budget) : impl_(std::make_unique<Impl>()) {
  impl_->limits = limits;
  impl_->budget = std::move(budget);
  impl_->parser.get().body().share = BodyShare(impl_->budget);
  impl_->parser.header_limit(static_cast<uint32_t>(std::min<size_t>(limits.max_header_bytes, UINT32_MAX)));
  // What length is too much is said by check_length(), after whoever asks has been judged; while chunks come, by the
  // parser.
  impl_->parser.body_limit(kAnyLength);
}
HttpParser::HttpParser(HttpParser&&) noexcept = default;
HttpParser& HttpParser::operator=(HttpParser&&) noexcept = default;
HttpParser::~HttpParser() = default;

// Headers first, then what follows them: the parser stops in between.
ApiResult<size_t> HttpParser::feed(std::string_view bytes) {
  if (header_done()) {
    const bool begun = done() || !impl_->parser.get().body().bytes.empty();
    if (!begun) QUIRE_CHECKED(check_length());
    return put(bytes);
  }
  QUIRE_TRY(const size_t used, put(bytes));
  if (header_done()) {
    QUIRE_CHECKED(check_header());
    keep_head();
    impl_->parser.eager(true);
    impl_->parser.body_limit(impl_->limits.max_body_bytes);
  }
  return used;
}

ApiResult<size_t> HttpParser::put(std::string_view bytes) {
  auto& parser = impl_->parser;
  if (parser.is_done() || bytes.empty()) return size_t{0};
  error_code ec;
  const size_t used = parser.put(boost::asio::const_buffer(bytes.data(), bytes.size()), ec);
  // A chunk's head with extensions, or trailers, that never end.
  if (!ec || ec == http::error::need_more) {
    if (used > 0 || bytes.size() <= impl_->limits.max_header_bytes) return used;
    ec = http::error::header_limit;
  }
  if (parser.get().body().no_room) return no_room_for_body();
  if (ec == http::error::body_limit) return body_too_long(impl_->limits);
  if (ec == http::error::header_limit)
    return ApiError{
        431, fmt::format("request line and headers have more than {} bytes", impl_->limits.max_header_bytes), "", ""};
  return bad_field("", "malformed_request", "malformed HTTP request: {}", ec.message());
}

void HttpParser::keep_head() {
  const auto& m = impl_->parser.get();
  HttpRequest& r = impl_->head;
  r.method = text_of(m.method_string());
  std::string target = text_of(m.target());
  if (target.starts_with("http://")) {  // absolute form, as proxies send it
    const size_t slash = target.find('/', 7);
    target = slash == std::string::npos ? "/" : target.substr(slash);
  }
  const size_t question = target.find('?');
  r.path = target.substr(0, question);
  if (question != std::string::npos) r.query = target.substr(question + 1);
  for (const auto& field : m) r.headers.emplace_back(lower(text_of(field.name_string())), text_of(field.value()));
  r.chunked = impl_->parser.chunked();
  if (const auto length = impl_->parser.content_length()) r.content_length = *length;
  r.http_1_0 = m.version() == 10;
  r.keep_alive = m.keep_alive();
}

// What leaves open where this request ends, or whom it is for.
ApiStatus HttpParser::check_header() const {
  const auto& m = impl_->parser.get();
  const auto malformed = [](std::string_view why) {
    return bad_field("", "malformed_request", "malformed HTTP request: {}", why);
  };
  if (m.version() == 11 && m.count(http::field::host) != 1)
    return malformed(m.count(http::field::host) == 0 ? "no Host header" : "more than one Host header");
  const auto encoding = m.find(http::field::transfer_encoding);
  if (encoding != m.end() && lower(text_of(encoding->value())) != "chunked")
    return malformed("the only Transfer-Encoding read here is chunked");
  return {};
}

ApiStatus HttpParser::check_length() const {
  const std::optional<uint64_t>& declared = impl_->head.content_length;
  if (!declared) return {};
  if (*declared > impl_->limits.max_body_bytes) return body_too_long(impl_->limits);
  if (impl_->budget && !impl_->budget->has_room(*declared)) return no_room_for_body();
  return {};
}

bool HttpParser::header_done() const {
  return impl_->parser.is_header_done();
}
bool HttpParser::done() const {
  return impl_->parser.is_done();
}
const HttpRequest& HttpParser::head() const {
  return impl_->head;
}

bool HttpParser::expects_continue() const {
  const auto& m = impl_->parser.get();
  const auto at = m.find(http::field::expect);
  return at != m.end() && m.version() == 11 && lower(text_of(at->value())) == "100-continue";
}

HttpRequest HttpParser::take() {
  HttpRequest r = std::move(impl_->head);
  GrowingBody::value_type& body = impl_->parser.get().body();
  r.body = std::move(body.bytes);
  r.body_share = std::move(body.share);
  return r;
}

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return {};
}

HttpResponse to_response(const ApiError& error, ErrorShape shape) {
  HttpResponse r{.status = error.status, .body = error.body(shape)};
  if (error.retry_after > 0) r.headers.emplace_back("Retry-After", std::to_string(error.retry_after));
  if (!error.allow.empty()) r.headers.emplace_back("Allow", error.allow);
  if (error.status == 401) r.headers.emplace_back("WWW-Authenticate", "Bearer");
  return r;
}

std::string response_head(const HttpResponse& r, int64_t length, bool keep_alive, bool http_1_0) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nServer: quire\r\n", r.status, reason_phrase(r.status));
  const bool no_content = r.status == 204;  // such an answer has no body at all, not one of length 0
  if (!no_content) head += fmt::format("Content-Type: {}\r\n", r.content_type);
  if (length >= 0 && !no_content)
    head += fmt::format("Content-Length: {}\r\n", length);
  else if (!http_1_0 && !no_content)
    head += "Transfer-Encoding: chunked\r\n";
  if (!keep_alive)
    head += "Connection: close\r\n";
  else if (http_1_0)
    head += "Connection: keep-alive\r\n";
  for (const auto& [name, value] : r.headers) head += fmt::format("{}: {}\r\n", name, value);
  return head + "\r\n";
}

std::string chunk(std::string_view piece) {
  return fmt::format("{:x}\r\n{}\r\n", piece.size(), piece);
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 3 <= text.size()) {
      const char* from = text.data() + i + 1;
      const auto [end, error] = std::from_chars(from, from + 2, value, 16);
      if (error == std::errc{} && end == from + 2) {
        out += static_cast<char>(value);
        i += 2;
        continue;
      }
    }
    out += text[i];
  }
  return out;
}

}  // namespace quire::server
