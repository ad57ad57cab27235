#include "core/output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>

#include "core/escape.h"
#include "core/line_writer.h"

namespace quire {
namespace {

constexpr size_t kBufferBytes = 1 << 14;

// Standard output. Never destroyed: threads may print to the end.
struct Output {
  std::mutex mutex;
  std::string waiting;
  int failed = 0;  // errno of the first write that failed
  const bool terminal = isatty(STDOUT_FILENO) != 0;

  void flush() {
    std::string_view text = waiting;
    while (!text.empty() && failed == 0) {
      const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
      if (n >= 0)
        text.remove_prefix(static_cast<size_t>(n));
      else if (errno == EAGAIN)  // the shell's other programs may have made the pipe one that does not wait
        wait_for_room();
      else if (errno != EINTR)
        failed = errno;
    }
    waiting.clear();
  }
  static void wait_for_room() {
    pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
    poll(&p, 1, -1);
  }
};

Output& output() {
  static Output* const o = new Output;
  return *o;
}

// Where messages go; never destroyed, as above.
struct Messages {
  mutable std::mutex mutex;
  LineWriter* writer = nullptr;
};

Messages& messages() {
  static Messages* const m = new Messages;
  return *m;
}

}  // namespace

void write_out(std::string_view text) {
  Output& o = output();
  const std::lock_guard lock(o.mutex);
  if (o.failed != 0) return;
  o.waiting += text;
  if (o.terminal || o.waiting.size() >= kBufferBytes) o.flush();
}

Status flush_output() {
  Output& o = output();
  const std::lock_guard lock(o.mutex);
  o.flush();
  if (o.failed == 0) return {};
  return request_error("cannot write to standard output: {}", std::strerror(o.failed));
}

bool output_is_lost() {
  Output& o = output();
  const std::lock_guard lock(o.mutex);
  if (o.failed != 0) return true;
  pollfd p = {.fd = STDOUT_FILENO, .events = 0, .revents = 0};
  return poll(&p, 1, 0) > 0 && (p.revents & (POLLERR | POLLNVAL)) != 0;
}

void put_message(std::string_view message) {
  {
    const Messages& m = messages();
    const std::lock_guard lock(m.mutex);
    if (m.writer != nullptr) return m.writer->write(message);
  }
  const std::string line = std::string(message) + "\n";
  std::string_view text = line;
  while (!text.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;  // there is nobody left to tell
    text.remove_prefix(static_cast<size_t>(n));
  }
}

void tell_line(std::string_view message) {
  put_message(escaped(message));
}

void tell(std::string_view message) {
  tell_line("quire: " + std::string(message));
}

MessageRedirect::MessageRedirect(LineWriter& to) {
  Messages& m = messages();
  const std::lock_guard lock(m.mutex);
  QUIRE_CHECK(m.writer == nullptr, "messages are redirected twice at a time");
  m.writer = &to;
}

MessageRedirect::~MessageRedirect() {
  Messages& m = messages();
  const std::lock_guard lock(m.mutex);
  m.writer = nullptr;
}

}  // namespace quire
