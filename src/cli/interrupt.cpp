#include "cli/interrupt.h"

#include <fmt/format.h>

#include <cstdlib>

namespace quire::cli {

Status run_interruptible(const std::string& output, const std::function<Status()>& work) {
  int signal = 0;
  Status status;
  {
    const Interrupt interrupt;
    status = work();
    signal = Interrupt::last();
  }
  if (status.ok() || signal == 0) return status;
  fmt::print(stderr, "quire: interrupted; {} was not written\n", output);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
  std::_Exit(128 + signal);  // if it is blocked
}

}  // namespace quire::cli
