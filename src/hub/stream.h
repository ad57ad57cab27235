// A connection to a server, with or without TLS, that blocks until a deadline at most. It is a synchronous stream as
// Boost.Beast takes one.
#pragma once

#include <openssl/ssl.h>

#include <sys/socket.h>

#include <boost/asio/buffer.hpp>
#include <boost/system/system_error.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hub/url.h"

namespace quire::hub {

struct FreeTls {
  void operator()(SSL* p) const { SSL_free(p); }
  void operator()(SSL_CTX* p) const { SSL_CTX_free(p); }
};

// What connections of TLS share: certificates of the system's authorities, and of `ca_file` (PEM) if it is not empty,
// which `option` names.
class TlsContext {
 public:
  static Result<std::shared_ptr<const TlsContext>> create(const std::string& ca_file,
                                                          std::string_view option = "--hub-ca");
  SSL_CTX* get() const { return context_.get(); }

 private:
  std::unique_ptr<SSL_CTX, FreeTls> context_;
};

// Why there is no connection, and whether there may be one later.
struct ConnectFailure {
  Error error;
  bool transient = true;
  bool distrust = false;  // the certificate is not trusted
};

struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t length = 0;
};

// The addresses that a host's name leads to, in the order in which they are to be tried.
struct Lookup {
  std::vector<SocketAddress> addresses;
  std::optional<ConnectFailure> failure;  // there is none
};
// Asks the system, which takes as long as it takes. `port` is a number.
Lookup look_up(const std::string& host, const std::string& port);

class Stream {
 public:
  using Clock = std::chrono::steady_clock;
  using error_code = boost::system::error_code;
  using Failure = ConnectFailure;

  // `tls` is for URLs that want it. Whatever waits, here and later, ends soon after `stopped` says so, if it is there.
  Stream(std::shared_ptr<const TlsContext> tls, std::function<bool()> stopped)
      : tls_(std::move(tls)), stopped_(std::move(stopped)) {}
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Resolves, connects, and checks the certificate. Nothing: it is done. `unix_socket`: a path that is connected to in
  // place of an address; empty: none.
  std::unique_ptr<Failure> connect(const Url& url, const std::string& unix_socket, Clock::time_point deadline);
  // The same with the addresses that the URL's host has: others are not asked for. While there are further ones, none
  // is waited for longer than its share of the time.
  std::unique_ptr<Failure> connect(const Url& url, std::span<const SocketAddress> addresses,
                                   Clock::time_point deadline);
  // Of what is read and written from here on. Past it: asio::error::timed_out.
  void set_deadline(Clock::time_point deadline) { deadline_ = deadline; }

  // At least one byte, or an error: asio::error::eof at the end.
  size_t read_bytes(void* to, size_t bytes, error_code& ec);
  size_t write_bytes(const void* from, size_t bytes, error_code& ec);

  template <class Buffers>
  size_t read_some(const Buffers& buffers, error_code& ec) {
    for (auto i = boost::asio::buffer_sequence_begin(buffers); i != boost::asio::buffer_sequence_end(buffers); ++i)
      if (const boost::asio::mutable_buffer b = *i; b.size() > 0) return read_bytes(b.data(), b.size(), ec);
    ec = {};
    return 0;
  }
  template <class Buffers>
  size_t read_some(const Buffers& buffers) {
    error_code ec;
    const size_t n = read_some(buffers, ec);
    if (ec) throw boost::system::system_error(ec);
    return n;
  }

 private:
  std::unique_ptr<Failure> connect_inet(const Url& url, std::span<const SocketAddress> addresses);
  error_code connect_to(const SocketAddress& address, Clock::time_point deadline);
  std::unique_ptr<Failure> connect_unix(const std::string& path);
  bool wait_for(short events, error_code& ec) const { return wait_for(events, deadline_, ec); }
  bool wait_for(short events, Clock::time_point deadline, error_code& ec) const;
  std::unique_ptr<Failure> shake_hands(const Url& url);
  // What a call of OpenSSL that did not succeed waits for; false: it has failed, or ended (asio::error::eof).
  bool wait_for_tls(int result, error_code& ec);

  std::shared_ptr<const TlsContext> tls_;
  const std::function<bool()> stopped_;
  std::unique_ptr<SSL, FreeTls> ssl_;
  int fd_ = -1;
  Clock::time_point deadline_;
};

}  // namespace quire::hub
