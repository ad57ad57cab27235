#include "server/http_server.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <list>
#include <mutex>
#include <new>
#include <optional>
#include <thread>

#include "core/descriptors.h"

namespace quire::server {
namespace {

// How long a connection has no request before it may have to make room: clients that have just come send theirs soon.
constexpr std::chrono::milliseconds kIdleEnough{250};

// Files and sockets that are no connections of clients: logs that are opened anew, what is compiled in processes of its
// own, the file of the prefix cache, connections that are being closed.
constexpr int64_t kOtherDescriptors = 24;

int64_t connections_within(int64_t descriptors, int64_t asked) {
  const int64_t left = descriptors - open_descriptors() - kOtherDescriptors - kReservedConnections;
  return std::clamp<int64_t>(left, 1, asked);
}

}  // namespace

struct HttpServer::Impl {
  Impl(const HttpServerOptions& o, Api& api, Registry& registry, AccessLog& log)
      : options(o),
        shared{.options = o.session,
               .api = api,
               .registry = registry,
               .log = log,
               .bodies = std::make_shared<BodyBudget>(o.max_total_body_bytes),
               .open = registry.gauge("quire:http_connections", "Open connections."),
               .lost_clients = registry.counter("quire:client_disconnects_total",
                                                "Answers whose client went away before their end.")},
        io(o.threads),
        refused(registry.counter("quire:http_connections_refused_total",
                                 "Connections closed at once: too many, or no memory.")),
        evicted(registry.counter("quire:http_connections_evicted_total",
                                 "Connections without a request that were closed to make room for others.")) {
    options.max_connections = connections_within(descriptor_limit(), o.max_connections);
  }

  void take(Listener::Socket socket, const std::string& peer);
  std::optional<Session::Kind> find_room();
  bool evict(std::optional<Session::Kind> kind, std::chrono::nanoseconds idle);
  void begin(Listener::Socket socket, const std::string& peer, Session::Kind kind);
  void run();
  void for_each_session(void (Session::*call)());

  HttpServerOptions options;
  SessionShared shared;  // outlives the io_context, which may hold the last references to sessions
  asio::io_context io;
  std::unique_ptr<Listener> listener;
  std::shared_ptr<TlsContext> tls;
  Counter &refused, &evicted;
  std::mutex mutex;
  std::list<std::weak_ptr<Session>> sessions;
  size_t sweep_at = 64;  // forget closed sessions when the list is this long
  std::vector<std::thread> threads;
};

// Closes the connection that has been idle the longest, if it has been for so long.
bool HttpServer::Impl::evict(std::optional<Session::Kind> kind, std::chrono::nanoseconds idle) {
  const int64_t latest = (std::chrono::steady_clock::now() - idle).time_since_epoch().count();
  const std::lock_guard lock(mutex);
  for (;;) {
    std::shared_ptr<Session> longest;
    int64_t since = latest;
    for (const auto& weak : sessions) {
      const auto session = weak.lock();
      if (!session || (kind && session->kind() != *kind)) continue;
      if (const auto idle_since = session->idle_since(); idle_since && *idle_since <= since) {
        since = *idle_since;
        longest = session;
      }
    }
    if (longest == nullptr) return false;
    if (!longest->evict()) continue;  // a request has come for it just now
    evicted.add();
    return true;
  }
}

std::optional<Session::Kind> HttpServer::Impl::find_room() {
  using Kind = Session::Kind;
  if (shared.usual < options.max_connections || evict(Kind::kUsual, kIdleEnough)) return Kind::kUsual;
  const int64_t open = shared.connections - shared.evicted;
  if (open < options.max_connections + kReservedConnections || evict(Kind::kReserved, {})) return Kind::kReserved;
  return std::nullopt;
}

// One call after the other: the listener's.
void HttpServer::Impl::take(Listener::Socket socket, const std::string& peer) {
  try {
    const std::optional<Session::Kind> kind = find_room();
    if (kind) return begin(std::move(socket), peer, *kind);
  } catch (const std::bad_alloc&) {  // for one connection more there is no memory; all others go on
  }
  refused.add();  // the socket closes
}

void HttpServer::Impl::begin(Listener::Socket socket, const std::string& peer, Session::Kind kind) {
  const auto session = std::make_shared<Session>(make_connection(std::move(socket), tls), shared, peer, kind);
  {
    const std::lock_guard lock(mutex);
    if (sessions.size() >= sweep_at) {
      sessions.remove_if([](const auto& s) { return s.expired(); });
      sweep_at = std::max<size_t>(64, 2 * sessions.size());
    }
    sessions.push_back(session);
  }
  session->start();
}

// Where memory runs out between the pieces of a connection's work, its timers close it, and all others go on.
void HttpServer::Impl::run() {
  for (bool ended = false; !ended;) {
    try {
      io.run();
      ended = true;
    } catch (const std::bad_alloc&) {
    }
  }
}

void HttpServer::Impl::for_each_session(void (Session::*call)()) {
  const std::lock_guard lock(mutex);
  for (const auto& weak : sessions)
    if (const auto session = weak.lock()) (session.get()->*call)();
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<HttpServer>> HttpServer::create(const HttpServerOptions& options, Api& api, Registry& registry,
                                                       AccessLog& log) {
  auto impl = std::make_unique<Impl>(options, api, registry, log);
  if (options.certificate_file.empty() != options.key_file.empty())
    return request_error("TLS needs both --ssl-certfile and --ssl-keyfile");
  if (!options.certificate_file.empty()) {
    QUIRE_TRY(impl->tls, load_tls(options.certificate_file, options.key_file));
  }
  QUIRE_TRY(impl->listener, Listener::create(impl->io, options.listen));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::~HttpServer() {
  stop();
}

uint16_t HttpServer::port() const {
  return impl_->listener->port();
}

std::vector<std::string> HttpServer::urls() const {
  return impl_->listener->urls(impl_->tls != nullptr);
}

int64_t HttpServer::max_connections() const {
  return impl_->options.max_connections;
}

int64_t HttpServer::connections() const {
  return impl_->shared.connections.load();
}

bool HttpServer::any_idle() const {
  const std::lock_guard lock(impl_->mutex);
  return std::any_of(impl_->sessions.begin(), impl_->sessions.end(), [](const auto& weak) {
    const auto session = weak.lock();
    return session && session->idle_since();
  });
}

size_t HttpServer::held_body_bytes() const {
  return impl_->shared.bodies->held();
}

size_t HttpServer::max_body_bytes() const {
  return impl_->shared.bodies->limit();
}

void HttpServer::start() {
  impl_->listener->start(
      [i = impl_.get()](Listener::Socket socket, const std::string& peer) { i->take(std::move(socket), peer); },
      [i = impl_.get()] { i->evict(std::nullopt, {}); });
  for (int i = 0; i < impl_->options.threads; ++i)
    impl_->threads.emplace_back([this] {
      const auto work = asio::make_work_guard(impl_->io);
      impl_->run();
    });
}

void HttpServer::drain() {
  impl_->shared.draining = true;
  impl_->for_each_session(&Session::drain);
}

bool HttpServer::wait_until_idle(std::chrono::milliseconds at_most) {
  const auto end = std::chrono::steady_clock::now() + at_most;
  while (impl_->shared.exchanges.load() > 0) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

void HttpServer::stop() {
  if (impl_->threads.empty()) return;
  impl_->listener->stop();
  impl_->for_each_session(&Session::abort);
  // Sessions go when their last handler has run; what hangs longer is dropped with the io_context.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  while (impl_->shared.connections.load() > 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  impl_->io.stop();
  for (std::thread& t : impl_->threads) t.join();
  impl_->threads.clear();
}

}  // namespace quire::server
