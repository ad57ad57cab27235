// Accepts connections and runs them on a few threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/listener.h"
#include "server/session.h"

namespace quire::server {

inline constexpr int64_t kReservedConnections = 8;

struct HttpServerOptions {
  ListenOptions listen;
  int threads = 2;
  // Beyond so many the one that has been without a request the longest is closed for a new one. Where none is idle,
  // kReservedConnections further ones may only ask how the server is; beyond these they are closed. Fewer where the
  // process may not have as many descriptors.
  int64_t max_connections = 4096;
  size_t max_total_body_bytes = size_t{256} << 20;  // of all bodies that are read or kept; beyond it 503
  std::string certificate_file, key_file;           // PEM; both or none
  SessionOptions session;
};

class HttpServer {
 public:
  // Listens from here on; connections wait until start(). The references must outlive this.
  static Result<std::unique_ptr<HttpServer>> create(const HttpServerOptions& options, Api& api, Registry& registry,
                                                    AccessLog& log);
  // stop()
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;

  // Of Listener. Any thread.
  uint16_t port() const;
  std::vector<std::string> urls() const;
  // The functions from here to stop() are for one thread at a time, such as the one that made the server.
  void start();
  // Connections end with the request they are at; new ones are still answered, so that /health can tell.
  void drain();
  // Waits until no request is being answered; false if the time is up first.
  bool wait_until_idle(std::chrono::milliseconds at_most);
  // Closes everything and joins the threads.
  void stop();

  // Any thread.
  int64_t max_connections() const;  // as the process can have them
  int64_t connections() const;
  bool any_idle() const;           // one of them has no request under way
  size_t held_body_bytes() const;  // of max_body_bytes()
  size_t max_body_bytes() const;   // HttpServerOptions::max_total_body_bytes

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::server
