// Where a ZeroMQ socket of ours meets others: it listens there, or it connects to one that does.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>

#include "server/listener.h"

namespace quire::server {

// An endpoint as ZeroMQ writes it. As in vLLM a socket listens at tcp://*:5557, tcp://[::]:5557 and ipc://PATH, and
// connects to tcp://HOST:5557; with @ in front, as in @tcp://127.0.0.1:5557, it listens at an address.
struct ZmtpEndpoint {
  bool listens = false;
  std::string host;  // of TCP
  uint16_t port = 0;
  std::string path;  // of a unix domain socket
  std::string text() const;
};
// `offset` is added to the port, or to the end of the path as ".1". `must_listen`: @ goes without saying.
Result<ZmtpEndpoint> parse_zmtp_endpoint(const std::string& text, int offset, bool must_listen);

class ZmtpPlace {
 public:
  using Taker = std::function<void(Listener::Socket socket, const std::string& peer)>;

  // Listens from here on, if it does. `io` must outlive it.
  static Result<std::unique_ptr<ZmtpPlace>> create(boost::asio::io_context& io, const ZmtpEndpoint& at);
  // Before the threads of the io_context run. What connects is tried again every few seconds, and after ended().
  void start(Taker taker);
  void ended();
  // Where it is, with the port that it has.
  std::string text() const;

 private:
  ZmtpPlace(boost::asio::io_context& io, ZmtpEndpoint at) : at_(std::move(at)), resolver_(io), retry_(io), io_(io) {}
  void connect();
  void connect_later();

  ZmtpEndpoint at_;
  std::unique_ptr<Listener> listener_;
  boost::asio::ip::tcp::resolver resolver_;
  boost::asio::steady_timer retry_;
  boost::asio::io_context& io_;
  Taker taker_;
  bool said_ = false;  // that nobody is there
};

}  // namespace quire::server
