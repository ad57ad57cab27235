#include "core/signals.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "core/result.h"

namespace quire {
namespace {

// What a handler may touch: lock-free atomics, and write(). The event stays open to the end of the process, because a
// handler may still be on its way when the object is gone.
std::atomic<int> last_signal{0}, signal_count{0}, request_count{0}, event{-1};
std::atomic<bool> second_ends{false}, in_use{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void wake_up() {
  constexpr uint64_t kOne = 1;
  const int saved = errno;
  [[maybe_unused]] const ssize_t n = write(event.load(), &kOne, sizeof kOne);
  errno = saved;
}

void note(int signal) {
  if (last_signal.exchange(signal) != 0 && second_ends) _exit(128 + signal);
  signal_count.fetch_add(1);
  wake_up();
}

void note_request(int) {
  request_count.fetch_add(1);
  wake_up();
}

struct sigaction restarting(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  return action;
}

}  // namespace

SignalNotes::SignalNotes(std::initializer_list<int> signals, Second second) {
  QUIRE_CHECK(!in_use.exchange(true), "signals are noted twice at a time");
  if (event.load() < 0) event = eventfd(0, EFD_CLOEXEC);
  QUIRE_CHECK(event.load() >= 0, "eventfd: error {}", errno);
  last_signal = 0;
  signal_count = 0;
  second_ends = second == Second::kEnds;
  request_count = 0;
  const struct sigaction action = restarting(note);
  for (const int signal : signals) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler == SIG_IGN) continue;
    sigaction(signal, &action, nullptr);
    before_.emplace_back(signal, before);
  }
}

SignalNotes::~SignalNotes() {
  for (const auto& [signal, before] : before_) sigaction(signal, &before, nullptr);
  in_use = false;
}

void SignalNotes::count_requests(int signal) {
  const struct sigaction action = restarting(note_request);
  struct sigaction before {};
  sigaction(signal, &action, &before);
  before_.emplace_back(signal, before);
}

int SignalNotes::take_requests() {
  return request_count.exchange(0);
}

int SignalNotes::last() {
  return last_signal.load();
}
int SignalNotes::count() {
  return signal_count.load();
}
int SignalNotes::take() {
  return last_signal.exchange(0);
}

void SignalNotes::wait() const {
  uint64_t events = 0;
  [[maybe_unused]] const ssize_t n = read(event.load(), &events, sizeof events);
}
void SignalNotes::wake() const {
  wake_up();
}

}  // namespace quire
