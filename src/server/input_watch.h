// Standard input as a sign of life: a program that starts a server as its child holds the other end of a pipe, which
// closes with that program, however it ends.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "core/result.h"

namespace quire::server {

class InputWatch {
 public:
  // Watches `fd`, whose bytes nobody else may want: they are read and dropped. `then` is called once, at its end or
  // when it cannot be read, on a thread of its own.
  static Result<std::unique_ptr<InputWatch>> create(int fd, std::function<void()> then);
  ~InputWatch();
  InputWatch(const InputWatch&) = delete;

  // Any thread.
  bool ended() const { return ended_.load(); }

 private:
  InputWatch(int fd, int stop, std::function<void()> then);
  void watch();

  const int fd_, stop_;  // stop_: an event that ends the thread
  const std::function<void()> then_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace quire::server
