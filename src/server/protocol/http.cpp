#include "server/protocol/http.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/optional.hpp>
#include <cctype>
#include <charconv>

namespace quire::server {

namespace http = boost::beast::http;

struct HttpParser::Impl {
  http::request_parser<http::string_body> parser;
  HttpLimits limits;
  // As they stood before the body. Fields that follow a chunked body are dropped: the parser puts them with the headers,
  // where nobody would know them from those that were checked.
  Headers headers;
  bool keep_alive = true;
};

HttpParser::HttpParser(const HttpLimits& limits) : impl_(std::make_unique<Impl>()) {
  impl_->limits = limits;
  impl_->parser.header_limit(static_cast<uint32_t>(std::min<size_t>(limits.max_header_bytes, UINT32_MAX)));
  impl_->parser.body_limit(limits.max_body_bytes);
}
HttpParser::HttpParser(HttpParser&&) noexcept = default;
HttpParser& HttpParser::operator=(HttpParser&&) noexcept = default;
HttpParser::~HttpParser() = default;

namespace {

ApiError complaint(const boost::beast::error_code& ec, const HttpLimits& limits) {
  if (ec == http::error::header_limit)
    return {431, fmt::format("request line and headers have more than {} bytes", limits.max_header_bytes), "",
            ""};
  if (ec == http::error::body_limit)
    return {413, fmt::format("the body has more than {} bytes", limits.max_body_bytes), "", ""};
  return bad_field("", "malformed_request", "malformed HTTP request: {}", ec.message());
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace

// Headers first, then what follows them: the parser stops in between.
ApiResult<size_t> HttpParser::feed(std::string_view bytes) {
  size_t used = 0;
  if (!header_done()) {
    QUIRE_TRY(used, put(bytes));
    if (!header_done()) return used;
    QUIRE_CHECKED(check_header());
    keep_headers();
    impl_->parser.eager(true);
  }
  QUIRE_TRY(const size_t more, put(bytes.substr(used)));
  return used + more;
}

ApiResult<size_t> HttpParser::put(std::string_view bytes) {
  auto& parser = impl_->parser;
  if (parser.is_done() || bytes.empty()) return size_t{0};
  boost::beast::error_code ec;
  const size_t used = parser.put(boost::asio::const_buffer(bytes.data(), bytes.size()), ec);
  if (ec && ec != http::error::need_more) return complaint(ec, impl_->limits);
  // A chunk's head with extensions, or trailers, that never end.
  if (used == 0 && bytes.size() > impl_->limits.max_header_bytes)
    return complaint(http::error::header_limit, impl_->limits);
  return used;
}

void HttpParser::keep_headers() {
  const auto& m = impl_->parser.get();
  const auto text = [](boost::beast::string_view s) { return std::string(s.data(), s.size()); };
  for (const auto& field : m)
    impl_->headers.emplace_back(lower(text(field.name_string())), text(field.value()));
  impl_->keep_alive = m.keep_alive();
}

ApiStatus HttpParser::check_header() const {
  const auto& m = impl_->parser.get();
  const auto malformed = [](std::string_view why) {
    return bad_field("", "malformed_request", "malformed HTTP request: {}", why);
  };
  if (m.version() == 11 && m.count(http::field::host) != 1)
    return malformed(m.count(http::field::host) == 0 ? "no Host header" : "more than one Host header");
  const auto encoding = m.find(http::field::transfer_encoding);
  if (encoding != m.end() && lower({encoding->value().data(), encoding->value().size()}) != "chunked")
    return malformed("the only Transfer-Encoding read here is chunked");
  const auto coded = m.find(http::field::content_encoding);
  if (coded != m.end() && lower({coded->value().data(), coded->value().size()}) != "identity")
    return ApiError{415, "bodies with a Content-Encoding are not read", "", ""};
  return {};
}

bool HttpParser::header_done() const {
  return impl_->parser.is_header_done();
}
bool HttpParser::done() const {
  return impl_->parser.is_done();
}

bool HttpParser::expects_continue() const {
  const auto& m = impl_->parser.get();
  const auto at = m.find(http::field::expect);
  return at != m.end() && m.version() == 11 &&
         lower({at->value().data(), at->value().size()}) == "100-continue";
}

HttpRequest HttpParser::take() {
  auto& m = impl_->parser.get();
  HttpRequest r;
  const auto text = [](boost::beast::string_view s) { return std::string(s.data(), s.size()); };
  r.method = text(m.method_string());
  std::string target = text(m.target());
  if (target.starts_with("http://")) {  // absolute form, as proxies send it
    const size_t slash = target.find('/', 7);
    target = slash == std::string::npos ? "/" : target.substr(slash);
  }
  const size_t question = target.find('?');
  r.path = target.substr(0, question);
  if (question != std::string::npos) r.query = target.substr(question + 1);
  r.headers = std::move(impl_->headers);
  r.http_1_0 = m.version() == 10;
  r.keep_alive = impl_->keep_alive;
  r.body = std::move(m.body());
  return r;
}

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return {};
}

HttpResponse to_response(const ApiError& error) {
  HttpResponse r{.status = error.status, .body = error.body()};
  if (error.retry_after > 0) r.headers.emplace_back("Retry-After", std::to_string(error.retry_after));
  if (!error.allow.empty()) r.headers.emplace_back("Allow", error.allow);
  if (error.status == 401) r.headers.emplace_back("WWW-Authenticate", "Bearer");
  return r;
}

std::string response_head(const HttpResponse& r, int64_t length, bool keep_alive, bool http_1_0) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nServer: quire\r\nContent-Type: {}\r\n", r.status,
                                 reason_phrase(r.status), r.content_type);
  if (length >= 0)
    head += fmt::format("Content-Length: {}\r\n", length);
  else if (!http_1_0)
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
