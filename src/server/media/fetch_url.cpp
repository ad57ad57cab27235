#include "server/media/fetch_url.h"

#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <cstring>
#include <optional>
#include <span>

namespace quire::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using error_code = boost::system::error_code;

constexpr int kMaxRedirects = 3, kMaxInterim = 4;
constexpr uint32_t kMaxHead = 32 << 10;
constexpr size_t kPiece = size_t{64} << 10, kMostAddresses = 16;

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

std::string plain_reason(const error_code& ec) {
  if (ec == asio::error::timed_out) return "not all of it came in time";
  if (ec == asio::error::operation_aborted) return "nobody waits any more";
  if (ec == http::error::header_limit || ec == http::error::buffer_overflow) return "its headers are too long";
  if (ec.category() == http::make_error_code(http::error::bad_version).category() && ec != http::error::end_of_stream &&
      ec != http::error::partial_message)
    return "its answer is not valid HTTP";
  return "the connection was closed early";
}

// A connection, and the answer to one request.
class Exchange {
 public:
  Exchange(const std::shared_ptr<const hub::TlsContext>& tls, const FetchBounds& bounds)
      : stream_(tls, bounds.stopped), bounds_(bounds) {}

  Status ask(const hub::Url& url, std::span<const hub::SocketAddress> addresses);
  int status() const { return static_cast<int>(parser_->get().result_int()); }
  std::string header(http::field name) const {
    const auto text = parser_->get()[name];
    return {text.data(), text.size()};
  }
  ApiResult<std::vector<uint8_t>> body();

 private:
  Error failed(const error_code& ec) const { return request_error("{}", plain_reason(ec)); }
  ApiError too_large() const {
    return bad_request("the file has more than {} bytes (limit max_image_bytes)", bounds_.max_bytes);
  }

  hub::Stream stream_;
  const FetchBounds& bounds_;
  boost::beast::flat_buffer buffer_{kMaxHead + kPiece};
  std::optional<http::response_parser<http::buffer_body>> parser_;  // one for each head that comes
};

Status Exchange::ask(const hub::Url& url, std::span<const hub::SocketAddress> addresses) {
  if (const auto failure = stream_.connect(url, addresses, bounds_.deadline))
    return request_error("{}", failure->distrust ? "its certificate is not trusted" : "it cannot be reached");
  const std::string origin = url.origin();
  const std::string text = fmt::format(
      "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: quire/{}\r\nAccept: image/*\r\nAccept-Encoding: identity\r\n"
      "Connection: close\r\n\r\n",
      url.target, origin.substr(origin.find("://") + 3), QUIRE_VERSION);
  error_code ec;
  stream_.write_bytes(text.data(), text.size(), ec);
  for (int interim = 0; !ec; ++interim) {
    parser_.emplace();
    parser_->header_limit(kMaxHead);
    parser_->body_limit(UINT64_MAX);
    http::read_header(stream_, buffer_, *parser_, ec);
    if (ec || status() / 100 != 1) break;
    if (interim == kMaxInterim) return request_error("it promises an answer again and again");
  }
  if (ec) return failed(ec);
  if (const std::string coding = header(http::field::content_encoding); !coding.empty() && coding != "identity")
    return request_error("its answer is compressed, which was not asked for");
  return {};
}

ApiResult<std::vector<uint8_t>> Exchange::body() {
  if (const auto length = parser_->content_length(); length && *length > bounds_.max_bytes) return too_large();
  std::vector<uint8_t> file;
  std::array<uint8_t, kPiece> piece;
  while (!parser_->is_done()) {
    parser_->get().body().data = piece.data();
    parser_->get().body().size = piece.size();
    error_code ec;
    // The stream looks at the time where it waits: what never stops sending is never waited for.
    if (hub::Stream::Clock::now() >= bounds_.deadline) return failed(asio::error::timed_out);
    if (bounds_.stopped()) return failed(asio::error::operation_aborted);
    http::read_some(stream_, buffer_, *parser_, ec);
    if (ec == http::error::need_buffer) ec = {};
    const size_t n = piece.size() - parser_->get().body().size;
    if (n > bounds_.max_bytes - file.size()) return too_large();
    QUIRE_CHECKED(bounds_.take(n));
    file.insert(file.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(n));
    if (ec) return failed(ec);
  }
  file.shrink_to_fit();  // what it takes was counted without
  return file;
}

hub::SocketAddress socket_address(const IpAddress& ip, const std::string& port) {
  const uint16_t number = htons(static_cast<uint16_t>(std::stoi(port)));  // which judge_host() has read
  hub::SocketAddress address;
  if (ip.is_v4()) {
    sockaddr_in v4{.sin_family = AF_INET, .sin_port = number, .sin_addr = {}, .sin_zero = {}};
    std::memcpy(&v4.sin_addr, &ip.bytes()[12], sizeof v4.sin_addr);
    std::memcpy(&address.bytes, &v4, address.length = sizeof v4);
  } else {
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = number;
    std::memcpy(&v6.sin6_addr, ip.bytes().data(), sizeof v6.sin6_addr);
    std::memcpy(&address.bytes, &v6, address.length = sizeof v6);
  }
  return address;
}

// Where a host may be connected to. "localhost" is what its name says, whatever a resolver would say.
Result<std::vector<hub::SocketAddress>> addresses_of(const hub::Url& url, const MediaPolicy& policy,
                                                     const HostLookup& lookup, const FetchBounds& bounds) {
  std::vector<hub::SocketAddress> all;
  if (url.host == "localhost") {
    for (const char* const text : {"127.0.0.1", "::1"})
      all.push_back(socket_address(*IpAddress::parse(text), url.port));
  } else if (const std::optional<IpAddress> literal = IpAddress::parse(url.host)) {
    all.push_back(socket_address(*literal, url.port));
  } else {
    QUIRE_TRY(all, lookup.find(url, bounds.deadline, bounds.stopped));
  }
  for (const hub::SocketAddress& a : all)
    if (const std::optional<IpAddress> ip = IpAddress::of(a.bytes); !ip || !policy.may_connect(*ip, url))
      return request_error(
          "its name leads to an address that is not public, and not among those that --allowed-media-domains lists");
  if (all.size() > kMostAddresses) all.resize(kMostAddresses);
  return all;
}

}  // namespace

ApiResult<std::vector<uint8_t>> fetch_url(const hub::Url& url, const MediaPolicy& policy, const HostLookup& lookup,
                                          const std::shared_ptr<const hub::TlsContext>& tls,
                                          const FetchBounds& bounds) {
  hub::Url at = url;
  for (int redirects = 0;; ++redirects) {
    const auto about = [&](const Error& error) {
      return bad_request("{}{}: {}", url.origin(), redirects == 0 ? "" : " redirects to another place, and there",
                         error.message);
    };
    if (at.tls && tls == nullptr) return about(request_error("this server is not set up for https"));
    const Result<std::vector<hub::SocketAddress>> addresses = addresses_of(at, policy, lookup, bounds);
    if (!addresses.ok()) return about(addresses.error());
    Exchange exchange(tls, bounds);
    if (const Status asked = exchange.ask(at, *addresses); !asked.ok()) return about(asked.error());
    if (exchange.status() == 200) {
      ApiResult<std::vector<uint8_t>> file = exchange.body();
      if (!file.ok() && file.error().status == 400) return about(request_error("{}", file.error().message));
      return file;
    }
    if (!is_redirect(exchange.status())) return about(request_error("it answers with status {}", exchange.status()));
    if (redirects == kMaxRedirects) return bad_request("{} redirects more than {} times", url.origin(), kMaxRedirects);
    const std::string location = exchange.header(http::field::location);
    Result<hub::Url> next = at.join(location);
    if (location.empty() || !next.ok())
      return bad_request("{} redirects to what is no URL that can be fetched", url.origin());
    if (at.tls && !next->tls) return bad_request("{} redirects from https to http", url.origin());
    if (!policy.judge_host(*next).ok())
      return bad_request("{} redirects to a host or port that --allowed-media-domains does not list", url.origin());
    at = std::move(next).value();
  }
}

}  // namespace quire::server
