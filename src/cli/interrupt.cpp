#include "cli/interrupt.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdlib>

namespace quire::cli {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
std::atomic<int> came{0};
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) {
  came.store(signal, std::memory_order_relaxed);
}

}  // namespace

Interrupt::Interrupt() {
  came = 0;
  struct sigaction action {};
  action.sa_handler = note;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i], nullptr, &before_[i]);
    // What was ignored stays ignored: `nohup` relies on it.
    if (before_[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
  }
}

Interrupt::~Interrupt() {
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before_[i], nullptr);
}

int Interrupt::signal() {
  return came.load(std::memory_order_relaxed);
}

Status run_interruptible(const std::string& output, const std::function<Status()>& work) {
  int signal = 0;
  Status status;
  {
    const Interrupt interrupt;
    status = work();
    signal = Interrupt::signal();
  }
  if (status.ok() || signal == 0) return status;
  fmt::print(stderr, "quire: interrupted; {} was not written\n", output);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
  std::_Exit(128 + signal);  // if it is blocked
}

}  // namespace quire::cli
