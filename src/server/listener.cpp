#include "server/listener.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>

#include "core/log.h"

namespace quire::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr int kBacklog = 1024;

std::string without_brackets(const std::string& host) {
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return bracketed ? host.substr(1, host.size() - 2) : host;
}

std::string url(bool tls, const asio::ip::address& address, uint16_t port) {
  const std::string host = address.is_v6() ? "[" + address.to_string() + "]" : address.to_string();
  return fmt::format("http{}://{}:{}", tls ? "s" : "", host, port);
}

std::string authority(const tcp::endpoint& at) {
  return url(false, at.address(), at.port()).substr(sizeof "http://" - 1);
}

// The addresses that this machine has, of one kind or both; those that are valid on one link only need a zone that
// URLs have no room for.
std::vector<asio::ip::address> local_addresses(bool v6_too) {
  std::vector<asio::ip::address> list;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return list;
  for (const ifaddrs* i = first; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    if (i->ifa_addr->sa_family == AF_INET) {
      const auto* in = reinterpret_cast<const sockaddr_in*>(i->ifa_addr);
      list.emplace_back(asio::ip::address_v4(ntohl(in->sin_addr.s_addr)));
    } else if (i->ifa_addr->sa_family == AF_INET6 && v6_too) {
      asio::ip::address_v6::bytes_type bytes;
      std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr, bytes.size());
      if (const asio::ip::address_v6 v6(bytes); !v6.is_link_local()) list.emplace_back(v6);
    }
  }
  freeifaddrs(first);
  return list;
}

std::string reason(const error_code& ec) {
  if (ec == asio::error::address_in_use)
    return "another program listens there; choose another --port, or 0 for any free one";
  if (ec == asio::error::access_denied)
    return "permission denied; ports below 1024 are for the superuser, choose another --port";
  if (ec.value() == EADDRNOTAVAIL) return "this machine has no such address; see --host";
  return ec.message();
}

std::string peer_name(const Listener::Socket& socket, error_code& ec) {
  const asio::generic::stream_protocol::endpoint generic = socket.remote_endpoint(ec);
  if (ec) return {};
  const int family = generic.protocol().family();
  if (family != AF_INET && family != AF_INET6) return "unix";
  tcp::endpoint peer;
  std::memcpy(peer.data(), generic.data(), std::min(generic.size(), peer.capacity()));
  // Where both kinds of addresses are listened at, one of IPv4 comes as one of IPv6.
  if (peer.address().is_v6() && peer.address().to_v6().is_v4_mapped())
    peer.address(asio::ip::make_address_v4(asio::ip::v4_mapped, peer.address().to_v6()));
  return authority(peer);
}

}  // namespace

bool is_loopback(const std::string& host) {
  error_code ec;
  const asio::ip::address address = asio::ip::make_address(without_brackets(host), ec);
  if (!ec && address.is_v6() && address.to_v6().is_v4_mapped())
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).is_loopback();
  return host == "localhost" || (!ec && address.is_loopback());
}

struct Listener::Impl {
  using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol>;
  // One place. Acceptors are not for several threads at a time: everything about them runs on the strand.
  struct Place {
    explicit Place(const asio::strand<asio::io_context::executor_type>& strand) : acceptor(strand), retry(strand) {}
    Acceptor acceptor;
    asio::steady_timer retry;
    bool failing = false;
  };

  explicit Impl(asio::io_context& context) : io(context), strand(asio::make_strand(context)) {}

  Status listen_tcp(const ListenOptions& options);
  error_code listen_at(const tcp::endpoint& endpoint);
  Status listen_unix(const ListenOptions& options);
  void accept(Place& place);

  asio::io_context& io;
  asio::strand<asio::io_context::executor_type> strand;
  std::list<Place> places;
  std::vector<tcp::endpoint> endpoints;  // of TCP
  std::string unix_path;                 // of our socket, once it is bound
  dev_t device = 0;                      // of its file
  ino_t inode = 0;
  Taker taker;
  std::function<void()> exhausted;
};

error_code Listener::Impl::listen_at(const tcp::endpoint& endpoint) {
  Place place(strand);
  Acceptor& a = place.acceptor;
  error_code ec;
  a.open(endpoint.protocol(), ec);
  if (!ec) a.set_option(asio::socket_base::reuse_address(true), ec);
  if (!ec && endpoint.address().is_v6() && endpoint.address().is_unspecified())
    a.set_option(asio::ip::v6_only(false), ec);  // :: is every address, of either kind
  if (!ec) a.bind(endpoint, ec);
  if (!ec) a.listen(kBacklog, ec);
  if (ec) return ec;
  tcp::endpoint bound;
  const auto generic = a.local_endpoint(ec);
  std::memcpy(bound.data(), generic.data(), std::min(generic.size(), bound.capacity()));
  endpoints.push_back(bound);
  places.push_back(std::move(place));
  return {};
}

Status Listener::Impl::listen_tcp(const ListenOptions& options) {
  const bool localhost = options.host == "localhost";
  error_code ec;
  const auto address = asio::ip::make_address(localhost ? "127.0.0.1" : without_brackets(options.host), ec);
  if (ec)
    return request_error(
        "--host {}: must be a numeric address such as 127.0.0.1, 0.0.0.0 or ::, or localhost; --uds listens at a "
        "unix domain socket",
        options.host);
  const auto cannot = [](const tcp::endpoint& at, const error_code& why) {
    return request_error("cannot listen at {}: {}", authority(at), reason(why));
  };
  const tcp::endpoint endpoint(address, options.port);
  if (ec = listen_at(endpoint); ec) return cannot(endpoint, ec);
  if (!localhost) return {};
  // Names are looked up in either kind of address, so both have one port.
  const tcp::endpoint v6(asio::ip::address_v6::loopback(), endpoints.front().port());
  ec = listen_at(v6);
  const bool none = ec.value() == EADDRNOTAVAIL || ec.value() == EAFNOSUPPORT;
  const bool taken_by_chance = options.port == 0 && ec == asio::error::address_in_use;
  if (ec && !none && !taken_by_chance) return cannot(v6, ec);
  return {};
}

namespace {

// A file under the socket's name: another server's is not touched, that of a dead one goes.
Status clear_way(const std::string& path, const sockaddr_un& address) {
  struct stat s {};
  if (lstat(path.c_str(), &s) != 0)
    return errno == ENOENT ? Status() : request_error("--uds {}: {}", path, std::strerror(errno));
  if (!S_ISSOCK(s.st_mode)) return request_error("--uds {}: there is something else, which is no socket", path);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return request_error("--uds {}: {}", path, std::strerror(errno));
  const bool answered = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  const int code = answered ? 0 : errno;
  close(fd);
  if (answered || code == EAGAIN) return request_error("--uds {}: another server listens there", path);
  if (code != ECONNREFUSED) return request_error("--uds {}: {}", path, std::strerror(code));
  if (unlink(path.c_str()) != 0 && errno != ENOENT)
    return request_error("--uds {}: what a server left there cannot be removed: {}", path, std::strerror(errno));
  return {};
}

}  // namespace

Status Listener::Impl::listen_unix(const ListenOptions& options) {
  const std::string& path = options.unix_socket;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return request_error("--uds {}: a socket's path has at most {} bytes", path, sizeof address.sun_path - 1);
  std::memcpy(address.sun_path, path.data(), path.size());
  QUIRE_CHECKED(clear_way(path, address));
  Place place(strand);
  error_code ec;
  place.acceptor.open(asio::local::stream_protocol(), ec);
  // The mode before there is a file, so that nobody connects in between.
  if (!ec && fchmod(place.acceptor.native_handle(), options.unix_socket_mode) != 0)
    ec.assign(errno, boost::system::system_category());
  if (!ec) place.acceptor.bind(asio::local::stream_protocol::endpoint(path), ec);
  struct stat s {};
  if (!ec && lstat(path.c_str(), &s) == 0) {
    unix_path = path;
    device = s.st_dev;
    inode = s.st_ino;
  }
  if (!ec && chmod(path.c_str(), options.unix_socket_mode) != 0)  // which the umask may have made less of
    ec.assign(errno, boost::system::system_category());
  if (!ec) place.acceptor.listen(kBacklog, ec);
  if (ec) return request_error("--uds {}: cannot listen there: {}", path, ec.message());
  places.push_back(std::move(place));
  return {};
}

void Listener::Impl::accept(Place& place) {
  place.acceptor.async_accept(asio::make_strand(io), [this, &place](const error_code& ec, Socket socket) {
    if (!place.acceptor.is_open() || ec == asio::error::operation_aborted) return;
    if (!ec) {
      place.failing = false;
      error_code gone;
      socket.set_option(tcp::no_delay(true), gone);  // a token is sent when it is there
      if (const std::string peer = peer_name(socket, gone); !gone) taker(std::move(socket), peer);
      return accept(place);
    }
    if (!std::exchange(place.failing, true)) log_warning("connections cannot be taken: " + ec.message());
    if (exhausted && (ec.value() == EMFILE || ec.value() == ENFILE)) exhausted();
    place.retry.expires_after(std::chrono::milliseconds(50));
    place.retry.async_wait([this, &place](const error_code& stopped) {
      if (!stopped) accept(place);
    });
  });
}

Listener::Listener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Listener>> Listener::create(asio::io_context& io, const ListenOptions& options) {
  std::unique_ptr<Listener> l(new Listener(std::make_unique<Impl>(io)));
  QUIRE_CHECKED(options.unix_socket.empty() ? l->impl_->listen_tcp(options) : l->impl_->listen_unix(options));
  return l;
}

Listener::~Listener() {
  struct stat s {};
  const Impl& i = *impl_;
  if (i.unix_path.empty() || lstat(i.unix_path.c_str(), &s) != 0) return;
  if (s.st_dev == i.device && s.st_ino == i.inode) unlink(i.unix_path.c_str());  // and not that of a later server
}

void Listener::start(Taker taker, std::function<void()> exhausted) {
  impl_->taker = std::move(taker);
  impl_->exhausted = std::move(exhausted);
  asio::post(impl_->strand, [i = impl_.get()] {
    for (Impl::Place& place : i->places) i->accept(place);
  });
}

void Listener::stop() {
  asio::post(impl_->strand, [i = impl_.get()] {
    for (Impl::Place& place : i->places) {
      error_code ignored;
      place.acceptor.close(ignored);
      place.retry.cancel();
    }
  });
}

uint16_t Listener::port() const {
  return impl_->endpoints.empty() ? uint16_t{0} : impl_->endpoints.front().port();
}

std::vector<std::string> Listener::urls(bool tls) const {
  if (!impl_->unix_path.empty()) return {"unix:" + impl_->unix_path};
  std::vector<std::string> list;
  for (const tcp::endpoint& e : impl_->endpoints) {
    std::vector<asio::ip::address> addresses = {e.address()};
    if (e.address().is_unspecified())
      // A sandbox may keep the machine's addresses to itself.
      if (auto all = local_addresses(e.address().is_v6()); !all.empty()) addresses = std::move(all);
    for (const asio::ip::address& a : addresses) list.push_back(url(tls, a, e.port()));
  }
  return list;
}

}  // namespace quire::server
