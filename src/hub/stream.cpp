#include "hub/stream.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "core/input_file.h"

namespace quire::hub {

namespace asio = boost::asio;
using error_code = boost::system::error_code;

namespace {

// Where distributions keep the certificates of authorities. OpenSSL's own defaults depend on how it was built and on
// variables of the environment.
constexpr const char* kSystemAuthorities[] = {
    "/etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Arch
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // Fedora, Red Hat
    "/etc/pki/tls/certs/ca-bundle.crt",                   // older ones of these
    "/etc/ssl/ca-bundle.pem",                             // SUSE
    "/etc/ssl/cert.pem",                                  // Alpine
};

std::string tls_reason() {
  const unsigned long code = ERR_get_error();
  const char* const reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  ERR_clear_error();
  return reason == nullptr ? "the connection was closed" : reason;
}

// OpenSSL writes with write(), and a peer that has gone would end the process: the signal is held back while it
// writes, and taken if it came.
class PipeSignalHeld {
 public:
  PipeSignalHeld() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~PipeSignalHeld() {
    const int saved = errno;
    const timespec none{};
    if (!was_pending_)
      while (sigtimedwait(&pipe_, nullptr, &none) < 0 && errno == EINTR) {
      }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = saved;
  }
  PipeSignalHeld(const PipeSignalHeld&) = delete;
  PipeSignalHeld& operator=(const PipeSignalHeld&) = delete;

 private:
  sigset_t pipe_, before_;
  bool was_pending_ = false;
};

error_code system_code(int number) {
  return {number, boost::system::system_category()};
}

}  // namespace

Result<std::shared_ptr<const TlsContext>> TlsContext::create(const std::string& ca_file, std::string_view option) {
  auto tls = std::make_shared<TlsContext>();
  tls->context_.reset(SSL_CTX_new(TLS_client_method()));
  SSL_CTX* const context = tls->get();
  if (context == nullptr) return capacity_error("TLS cannot be set up: {}", tls_reason());
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, size_t{128} << 10);
  for (const char* const path : kSystemAuthorities)
    if (SSL_CTX_load_verify_locations(context, path, nullptr) == 1) break;
  ERR_clear_error();
  if (!ca_file.empty()) QUIRE_CHECKED(check_pem_file(option, ca_file));
  if (!ca_file.empty() && SSL_CTX_load_verify_locations(context, ca_file.c_str(), nullptr) != 1)
    return request_error("{} {}: no certificates in PEM format can be read from it", option, ca_file);
  ERR_clear_error();
  return std::shared_ptr<const TlsContext>(std::move(tls));
}

Stream::~Stream() {
  ssl_.reset();
  if (fd_ >= 0) close(fd_);
}

bool Stream::wait_for(short events, Clock::time_point deadline, error_code& ec) const {
  constexpr auto kSlice = std::chrono::milliseconds(100);  // how late a stop may be noticed
  for (;;) {
    if (stopped_ && stopped_()) {
      ec = asio::error::operation_aborted;
      return false;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) {
      ec = asio::error::timed_out;
      return false;
    }
    pollfd p{.fd = fd_, .events = events, .revents = 0};
    const int n = poll(&p, 1, static_cast<int>(std::min<std::chrono::milliseconds>(left, kSlice).count()));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) {
      ec = system_code(errno);
      return false;
    }
  }
}

std::unique_ptr<Stream::Failure> Stream::connect(const Url& url, const std::string& unix_socket,
                                                 Clock::time_point deadline) {
  deadline_ = deadline;
  if (unix_socket.empty()) {
    Lookup found = look_up(url.host, url.port);
    if (found.failure) return std::make_unique<Failure>(std::move(*found.failure));
    return connect(url, found.addresses, deadline);
  }
  if (auto failure = connect_unix(unix_socket)) return failure;
  return url.tls ? shake_hands(url) : nullptr;
}

std::unique_ptr<Stream::Failure> Stream::connect(const Url& url, std::span<const SocketAddress> addresses,
                                                 Clock::time_point deadline) {
  deadline_ = deadline;
  if (auto failure = connect_inet(url, addresses)) return failure;
  return url.tls ? shake_hands(url) : nullptr;
}

std::unique_ptr<Stream::Failure> Stream::connect_unix(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const auto failed = [&](const char* why) {
    return std::make_unique<Failure>(Failure{request_error("{} cannot be reached: {}", path, why)});
  };
  if (path.size() >= sizeof address.sun_path) return failed(strerror(ENAMETOOLONG));
  std::memcpy(address.sun_path, path.data(), path.size());
  fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd_ < 0 || ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return failed(strerror(errno));
  return nullptr;
}

Lookup look_up(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  Lookup result;
  const int failed = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (failed != 0) {
    const char* const why = failed == EAI_SYSTEM ? strerror(errno) : gai_strerror(failed);
    result.failure.emplace(ConnectFailure{request_error("{} cannot be found: {}", host, why), failed == EAI_AGAIN});
    return result;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    SocketAddress& address = result.addresses.emplace_back();
    address.length = std::min<socklen_t>(a->ai_addrlen, sizeof address.bytes);
    std::memcpy(&address.bytes, a->ai_addr, address.length);
  }
  return result;
}

error_code Stream::connect_to(const SocketAddress& address, Clock::time_point deadline) {
  if (fd_ >= 0) close(fd_);
  fd_ = socket(address.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd_ < 0) return system_code(errno);
  error_code ec;
  if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address.bytes), address.length) != 0 && errno != EINPROGRESS)
    return system_code(errno);
  if (!wait_for(POLLOUT, deadline, ec)) return ec;
  int failed = 0;
  socklen_t length = sizeof failed;
  getsockopt(fd_, SOL_SOCKET, SO_ERROR, &failed, &length);
  return failed == 0 ? error_code() : system_code(failed);
}

std::unique_ptr<Stream::Failure> Stream::connect_inet(const Url& url, std::span<const SocketAddress> addresses) {
  error_code ec = asio::error::host_not_found;
  for (size_t i = 0; i < addresses.size() && ec; ++i) {
    const Clock::time_point now = Clock::now();
    ec = connect_to(addresses[i], now + (deadline_ - now) / static_cast<int>(addresses.size() - i));
  }
  if (ec)
    return std::make_unique<Failure>(Failure{request_error("{} cannot be reached: {}", url.origin(), ec.message())});
  const int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return nullptr;
}

std::unique_ptr<Stream::Failure> Stream::shake_hands(const Url& url) {
  ssl_.reset(SSL_new(tls_->get()));
  SSL* const ssl = ssl_.get();
  if (ssl == nullptr || SSL_set_fd(ssl, fd_) != 1)
    return std::make_unique<Failure>(Failure{capacity_error("TLS cannot be set up: {}", tls_reason()), false});
  // An address is checked as one; a name is also told to the server, which may have several.
  if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), url.host.c_str()) != 1) {
    SSL_set1_host(ssl, url.host.c_str());
    SSL_set_tlsext_host_name(ssl, url.host.c_str());
  }
  ERR_clear_error();
  for (;;) {
    const PipeSignalHeld held;
    const int done = SSL_connect(ssl);
    if (done == 1) return nullptr;
    error_code ec;
    if (wait_for_tls(done, ec)) continue;
    if (const long verdict = SSL_get_verify_result(ssl); verdict != X509_V_OK)
      return std::make_unique<Failure>(
          Failure{request_error("{}: its certificate is not trusted: {}. The system's authorities are asked "
                                "(Debian: package ca-certificates); a hub of your own may need --hub-ca FILE",
                                url.origin(), X509_verify_cert_error_string(verdict)),
                  false, true});
    const bool late = ec == asio::error::timed_out || ec == asio::error::operation_aborted;
    return std::make_unique<Failure>(
        Failure{request_error("{}: no TLS with it: {}", url.origin(), late ? ec.message() : tls_reason())});
  }
}

bool Stream::wait_for_tls(int result, error_code& ec) {
  const int number = errno;
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return wait_for(POLLIN, ec);
    case SSL_ERROR_WANT_WRITE:
      return wait_for(POLLOUT, ec);
    case SSL_ERROR_SYSCALL:
      ec = number == 0 ? error_code(asio::error::eof) : system_code(number);
      return false;
    default:  // closed in order, or a violation of the protocol, such as an end without closing
      ec = asio::error::eof;
      return false;
  }
}

size_t Stream::read_bytes(void* to, size_t bytes, error_code& ec) {
  ec = {};
  for (;;) {
    if (ssl_) {
      ERR_clear_error();
      errno = 0;
      const PipeSignalHeld held;
      size_t n = 0;
      const int result = SSL_read_ex(ssl_.get(), to, bytes, &n);
      if (result == 1) return n;
      if (!wait_for_tls(result, ec)) return 0;
      continue;
    }
    const ssize_t n = recv(fd_, to, bytes, 0);
    if (n > 0) return static_cast<size_t>(n);
    if (n == 0) ec = asio::error::eof;
    if (n < 0 && errno != EAGAIN && errno != EINTR) ec = system_code(errno);
    if (ec || !wait_for(POLLIN, ec)) return 0;
  }
}

size_t Stream::write_bytes(const void* from, size_t bytes, error_code& ec) {
  ec = {};
  const char* at = static_cast<const char*>(from);
  for (size_t left = bytes; left > 0;) {
    if (ssl_) {
      ERR_clear_error();
      errno = 0;
      const PipeSignalHeld held;
      size_t n = 0;
      const int result = SSL_write_ex(ssl_.get(), at, left, &n);
      if (result != 1 && !wait_for_tls(result, ec)) return bytes - left;
      at += n;
      left -= n;
      continue;
    }
    const ssize_t n = send(fd_, at, left, MSG_NOSIGNAL);
    if (n > 0) {
      at += n;
      left -= static_cast<size_t>(n);
    } else if (errno != EAGAIN && errno != EINTR) {
      ec = system_code(errno);
      return bytes - left;
    } else if (!wait_for(POLLOUT, ec)) {
      return bytes - left;
    }
  }
  return bytes;
}

}  // namespace quire::hub
