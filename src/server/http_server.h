// Accepts connections and runs them on a few threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "server/session.h"

namespace quire::server {

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // a numeric address, or "localhost"
  uint16_t port = 8000;            // 0: any free one
  int threads = 2;
  int64_t max_connections = 4096;                   // further ones are closed at once
  size_t max_total_body_bytes = size_t{256} << 20;  // of all bodies that are read or kept; beyond it 503
  std::string certificate_file, key_file;           // PEM; both or none
  SessionOptions session;
};

class HttpServer {
 public:
  // Listens from here on; connections wait until start(). The references must outlive this.
  static Result<std::unique_ptr<HttpServer>> create(const HttpServerOptions& options, Api& api,
                                                    Registry& registry, AccessLog& log);
  // stop()
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;

  uint16_t port() const;
  void start();
  // Connections end with the request they are at; new ones are still answered, so that /health can tell.
  void drain();
  // Waits until no request is being answered; false if the time is up first.
  bool wait_until_idle(std::chrono::milliseconds at_most);
  // Closes everything and joins the threads.
  void stop();

  int64_t connections() const;
  size_t held_body_bytes() const;  // of max_total_body_bytes

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::server
