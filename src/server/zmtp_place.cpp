#include "server/zmtp_place.h"

#include <boost/asio/connect.hpp>
#include <charconv>
#include <cstring>

#include "core/log.h"

namespace quire::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::chrono::seconds kRetry{2};

}  // namespace

std::string ZmtpEndpoint::text() const {
  if (!path.empty()) return "ipc://" + path;
  const bool is_v6 = host.find(':') != std::string::npos;
  return is_v6 ? fmt::format("tcp://[{}]:{}", host, port) : fmt::format("tcp://{}:{}", host, port);
}

Result<ZmtpEndpoint> parse_zmtp_endpoint(const std::string& text, int offset, bool must_listen) {
  const auto wrong = [&](std::string_view why) {
    return request_error(
        "{}: {}; endpoints are tcp://*:5557, tcp://HOST:5557 (which is connected to), "
        "@tcp://ADDRESS:5557 (which is listened at) and ipc://PATH",
        text, why);
  };
  std::string_view left = text;
  ZmtpEndpoint e{.listens = must_listen};
  if (left.starts_with('@')) {
    e.listens = true;
    left.remove_prefix(1);
  }
  if (left.starts_with("ipc://")) {
    e.listens = true;
    e.path = left.substr(6);
    if (e.path.empty()) return wrong("the path is missing");
    if (offset > 0) e.path += fmt::format(".{}", offset);
    return e;
  }
  if (!left.starts_with("tcp://")) return wrong("it begins with neither tcp:// nor ipc://");
  left.remove_prefix(6);
  const size_t colon = left.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return wrong("there is no port");
  int port = -1;
  const char* const end = left.data() + left.size();
  const auto [at, failed] = std::from_chars(left.data() + colon + 1, end, port);
  if (failed != std::errc() || at != end || port < 0) return wrong("the port is no number");
  if (port > 0) port += offset;  // each engine has any free one of its own
  if (port > 65535) return wrong(fmt::format("there is no port {}", port));
  e.port = static_cast<uint16_t>(port);
  e.host = left.substr(0, colon);
  if (e.host.front() == '[' && e.host.back() == ']') e.host = e.host.substr(1, e.host.size() - 2);
  const bool any = e.host == "*" || e.host == "0.0.0.0" || e.host == "::";
  e.listens = e.listens || any;
  if (e.host == "*") e.host = "0.0.0.0";
  if (e.host.empty()) return wrong("there is no address");
  if (!e.listens && e.port == 0) return wrong("nobody can be connected to at port 0");
  return e;
}

Result<std::unique_ptr<ZmtpPlace>> ZmtpPlace::create(asio::io_context& io, const ZmtpEndpoint& at) {
  std::unique_ptr<ZmtpPlace> p(new ZmtpPlace(io, at));
  if (!at.listens) return p;
  ListenOptions options{.host = at.host, .port = at.port, .unix_socket = at.path};
  QUIRE_TRY(p->listener_, Listener::create(io, options));
  if (at.path.empty()) p->at_.port = p->listener_->port();
  return p;
}

void ZmtpPlace::start(Taker taker) {
  taker_ = std::move(taker);
  if (listener_) return listener_->start(taker_, nullptr);
  connect();
}

void ZmtpPlace::ended() {
  if (!listener_) connect_later();
}

std::string ZmtpPlace::text() const {
  return at_.text();
}

void ZmtpPlace::connect_later() {
  retry_.expires_after(kRetry);
  retry_.async_wait([this](const error_code& stopped) {
    if (!stopped) connect();
  });
}

void ZmtpPlace::connect() {
  const auto failed = [this](const error_code& ec) {
    if (!std::exchange(said_, true))
      log_warning(fmt::format("{} cannot be connected to ({}); it is tried again every {} s", text(), ec.message(),
                              kRetry.count()));
    connect_later();
  };
  resolver_.async_resolve(at_.host, std::to_string(at_.port), [=, this](const error_code& ec, const auto& found) {
    if (ec == asio::error::operation_aborted) return;
    if (ec) return failed(ec);
    auto socket = std::make_shared<tcp::socket>(io_);
    asio::async_connect(*socket, found, [=, this](const error_code& refused, const tcp::endpoint&) {
      if (refused) return failed(refused);
      said_ = false;
      error_code ignored;
      socket->set_option(tcp::no_delay(true), ignored);
      taker_(Listener::Socket(std::move(*socket)), text());
    });
  });
}

}  // namespace quire::server
