// Ending long work cleanly on SIGINT, SIGTERM or SIGHUP: while an Interrupt lives, such a signal only leaves
// a note, which the work looks for at good moments.
#pragma once

#include <csignal>

namespace quire::cli {

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();  // signals do again what they did before
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // The signal that came, or 0.
  static int signal();

 private:
  struct sigaction before_[3];
};

// Ends the process as `signal` would have, so that a calling shell sees it. Call with no Interrupt alive.
[[noreturn]] void die_of(int signal);

}  // namespace quire::cli
