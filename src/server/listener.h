// Where a server listens: at addresses of TCP, or at a unix domain socket.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/result.h"

namespace quire::server {

struct ListenOptions {
  // A numeric address, an IPv6 one with or without brackets, or "localhost": 127.0.0.1, and ::1 where there is one.
  std::string host = "127.0.0.1";
  uint16_t port = 8000;              // 0: any free one
  std::string unix_socket;           // path of a socket, which is then the only place; empty: none
  unsigned unix_socket_mode = 0600;  // who may connect to it
};

// Whether only this machine reaches what listens there. A unix domain socket is no matter of addresses.
bool is_loopback(const std::string& host);

class Listener {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;
  // A connection of `peer` ("127.0.0.1:4711", or "unix"); the socket's executor is a strand of its own. Called on a
  // thread of the io_context, one call after the other.
  using Taker = std::function<void(Socket socket, const std::string& peer)>;

  // Listens from here on; connections wait until start(). `io` must outlive it. A socket's file that a dead server left
  // is replaced. Errors: what keeps it from listening, and what to do.
  static Result<std::unique_ptr<Listener>> create(boost::asio::io_context& io, const ListenOptions& options);
  // The threads of the io_context must be gone. Removes the file of a unix domain socket.
  ~Listener();
  Listener(const Listener&) = delete;

  // Any thread, once. `exhausted`, which may be empty, is called like `taker`: a connection could not be taken because
  // the process has no descriptor left; what it closes is of use soon after.
  void start(Taker taker, std::function<void()> exhausted);
  // Any thread: no further connection is taken soon after.
  void stop();

  // Do not change. 0 for a unix domain socket.
  uint16_t port() const;
  // Under which it can be asked on this machine and from others, each one URL; "unix:PATH" for a unix domain socket.
  std::vector<std::string> urls(bool tls) const;

 private:
  struct Impl;
  explicit Listener(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::server
