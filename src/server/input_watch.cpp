#include "server/input_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace quire::server {

Result<std::unique_ptr<InputWatch>> InputWatch::create(int fd, std::function<void()> then) {
  const int stop = eventfd(0, EFD_CLOEXEC);
  if (stop < 0) return capacity_error("--exit-with-stdin: {}", std::strerror(errno));
  return std::unique_ptr<InputWatch>(new InputWatch(fd, stop, std::move(then)));
}

InputWatch::InputWatch(int fd, int stop, std::function<void()> then) : fd_(fd), stop_(stop), then_(std::move(then)) {
  thread_ = std::thread([this] { watch(); });
}

InputWatch::~InputWatch() {
  constexpr uint64_t kOne = 1;
  [[maybe_unused]] const ssize_t n = write(stop_, &kOne, sizeof kOne);
  thread_.join();
  close(stop_);
}

void InputWatch::watch() {
  char dropped[256];
  for (;;) {
    pollfd both[] = {{.fd = fd_, .events = POLLIN, .revents = 0}, {.fd = stop_, .events = POLLIN, .revents = 0}};
    if (poll(both, 2, -1) < 0 && errno == EINTR) continue;
    if (both[1].revents != 0) return;
    const ssize_t n = read(fd_, dropped, sizeof dropped);
    if (n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN))) continue;
    ended_ = true;
    return then_();
  }
}

}  // namespace quire::server
