// Addresses of hosts, asked for with an end to the waiting. The system's own resolver has none: it may take half a
// minute and cannot be interrupted.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hub/stream.h"

namespace quire::server {

class HostLookup {
 public:
  using Clock = hub::Stream::Clock;
  using Ask = std::function<hub::Lookup(const std::string& host, const std::string& port)>;
  static constexpr int kMostUnderWay = 64;

  explicit HostLookup(Ask ask) : ask_(std::move(ask)) {}

  // Asks on a thread of its own, which ends when the resolver does, whether anybody waits for it or not. Beyond
  // kMostUnderWay of them nothing is asked. Errors are sentences without the host's name. Any thread.
  Result<std::vector<hub::SocketAddress>> find(const hub::Url& url, Clock::time_point deadline,
                                               const std::function<bool()>& stopped) const;

 private:
  const Ask ask_;
  const std::shared_ptr<std::atomic<int>> under_way_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace quire::server
