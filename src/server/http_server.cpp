#include "server/http_server.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/strand.hpp>
#include <list>
#include <mutex>
#include <thread>

#include "core/log.h"

namespace quire::server {

using asio::ip::tcp;
using boost::system::error_code;

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
        acceptor(io),
        retry(io),
        refused(registry.counter("quire:http_connections_refused_total",
                                 "Connections closed at once: too many.")) {}

  Status listen();
  void accept();
  void take(tcp::socket socket);
  void for_each_session(void (Session::*call)());

  HttpServerOptions options;
  SessionShared shared;  // outlives the io_context, which may hold the last references to sessions
  asio::io_context io;
  tcp::acceptor acceptor;
  asio::steady_timer retry;
  std::shared_ptr<TlsContext> tls;
  Counter& refused;
  std::mutex mutex;
  std::list<std::weak_ptr<Session>> sessions;
  size_t sweep_at = 64;  // forget closed sessions when the list is this long
  std::vector<std::thread> threads;
};

Status HttpServer::Impl::listen() {
  error_code ec;
  const auto address = asio::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, ec);
  if (ec)
    return request_error("--host {}: must be a numeric address such as 127.0.0.1, 0.0.0.0 or ::",
                         options.host);
  const tcp::endpoint endpoint(address, options.port);
  const auto step = [&](const char* what, auto&& call) -> Status {
    call();
    if (!ec) return {};
    return request_error("{}:{}: cannot {}: {}", options.host, options.port, what, ec.message());
  };
  QUIRE_CHECKED(step("open a socket", [&] { acceptor.open(endpoint.protocol(), ec); }));
  QUIRE_CHECKED(
      step("set SO_REUSEADDR", [&] { acceptor.set_option(tcp::acceptor::reuse_address(true), ec); }));
  QUIRE_CHECKED(step("bind", [&] { acceptor.bind(endpoint, ec); }));
  return step("listen", [&] { acceptor.listen(1024, ec); });
}

void HttpServer::Impl::accept() {
  acceptor.async_accept(asio::make_strand(io), [this](const error_code& ec, tcp::socket socket) {
    if (!acceptor.is_open() || ec == asio::error::operation_aborted) return;
    if (!ec) {
      take(std::move(socket));
      return accept();
    }
    // Out of file descriptors, most likely: some will be given back soon.
    log_warning("accept: " + ec.message());
    retry.expires_after(std::chrono::milliseconds(100));
    retry.async_wait([this](const error_code& stopped) {
      if (!stopped) accept();
    });
  });
}

void HttpServer::Impl::take(tcp::socket socket) {
  if (shared.connections.load() >= options.max_connections) {
    refused.add();
    return;  // the socket closes
  }
  error_code ec;
  socket.set_option(tcp::no_delay(true), ec);  // a token is sent when it is there
  const tcp::endpoint peer = socket.remote_endpoint(ec);
  if (ec) return;
  const std::string name = fmt::format("{}:{}", peer.address().to_string(), peer.port());
  const auto session = std::make_shared<Session>(make_connection(std::move(socket), tls), shared, name);
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

Result<std::unique_ptr<HttpServer>> HttpServer::create(const HttpServerOptions& options, Api& api,
                                                       Registry& registry, AccessLog& log) {
  auto impl = std::make_unique<Impl>(options, api, registry, log);
  if (options.certificate_file.empty() != options.key_file.empty())
    return request_error("TLS needs both --ssl-certfile and --ssl-keyfile");
  if (!options.certificate_file.empty()) {
    QUIRE_TRY(impl->tls, load_tls(options.certificate_file, options.key_file));
  }
  QUIRE_CHECKED(impl->listen());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::~HttpServer() {
  stop();
}

uint16_t HttpServer::port() const {
  error_code ec;
  return impl_->acceptor.local_endpoint(ec).port();
}

int64_t HttpServer::connections() const {
  return impl_->shared.connections.load();
}

size_t HttpServer::held_body_bytes() const {
  return impl_->shared.bodies->held();
}

void HttpServer::start() {
  asio::post(impl_->io, [this] { impl_->accept(); });
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
  asio::post(impl_->io, [this] {
    error_code ignored;
    impl_->acceptor.close(ignored);
    impl_->retry.cancel();
  });
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
