#include "server/http_server.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <list>
#include <mutex>
#include <new>
#include <thread>

namespace quire::server {

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
                                 "Connections closed at once: too many, or no memory.")) {}

  void take(Listener::Socket socket, const std::string& peer);
  void begin(Listener::Socket socket, const std::string& peer, Session::Kind kind);
  void for_each_session(void (Session::*call)());

  HttpServerOptions options;
  SessionShared shared;  // outlives the io_context, which may hold the last references to sessions
  asio::io_context io;
  std::unique_ptr<Listener> listener;
  std::shared_ptr<TlsContext> tls;
  Counter& refused;
  std::mutex mutex;
  std::list<std::weak_ptr<Session>> sessions;
  size_t sweep_at = 64;  // forget closed sessions when the list is this long
  std::vector<std::thread> threads;
};

// One call after the other: the listener's.
void HttpServer::Impl::take(Listener::Socket socket, const std::string& peer) {
  const int64_t open = shared.connections.load();
  if (open >= options.max_connections + kReservedConnections) {
    refused.add();
    return;  // the socket closes
  }
  try {
    begin(std::move(socket), peer, open < options.max_connections ? Session::Kind::kUsual : Session::Kind::kReserved);
  } catch (const std::bad_alloc&) {
    refused.add();  // for one connection more there is no memory; all others go on
  }
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

int64_t HttpServer::connections() const {
  return impl_->shared.connections.load();
}

size_t HttpServer::held_body_bytes() const {
  return impl_->shared.bodies->held();
}

void HttpServer::start() {
  impl_->listener->start(
      [i = impl_.get()](Listener::Socket socket, const std::string& peer) { i->take(std::move(socket), peer); });
  for (int i = 0; i < impl_->options.threads; ++i)
    impl_->threads.emplace_back([this] {
      const auto work = asio::make_work_guard(impl_->io);
      impl_->io.run();
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
