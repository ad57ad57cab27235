// Ending long work cleanly on SIGINT, SIGTERM or SIGHUP: while an Interrupt lives, such a signal only leaves
// a note, which the work looks for at good moments.
#pragma once

#include <csignal>
#include <functional>
#include <string>

#include "core/result.h"

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

// Runs `work`, which writes `output` and gives up with an error soon after Interrupt::signal() is set. It
// then says that `output` was not written and ends the process as the signal would have, so that a calling
// shell sees it; what `work` owned, its unfinished files above all, is gone by then.
Status run_interruptible(const std::string& output, const std::function<Status()>& work);

}  // namespace quire::cli
