// How pictures are fetched that requests name by URL. From where they may be fetched, MediaPolicy says.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace quire::hub {
class TlsContext;
struct Lookup;
}  // namespace quire::hub

namespace quire::server {

struct MediaOptions {
  int threads = 16;                             // pictures that are fetched at once; of one client half of them
  std::chrono::milliseconds timeout{10'000};    // for all pictures of a request, waiting for a thread included
  size_t max_request_bytes = size_t{64} << 20;  // of all pictures of a request
  size_t max_total_bytes = size_t{256} << 20;   // of those of all requests, until they are decoded
  // Requests whose pictures are being fetched, and their bodies; of one client half of either.
  size_t max_waiting = 256;
  size_t max_waiting_bytes = size_t{256} << 20;
  std::shared_ptr<const hub::TlsContext> tls;  // null: no https
  // Where a host's name leads; empty: the system is asked.
  std::function<hub::Lookup(const std::string& host, const std::string& port)> look_up;
};

}  // namespace quire::server
