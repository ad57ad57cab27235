// Ending long work cleanly on SIGINT, SIGTERM or SIGHUP.
#pragma once

#include <functional>
#include <string>

#include "core/result.h"
#include "core/signals.h"

namespace quire::cli {

// While it lives, a signal that asks for the end is noted. last() tells the work at good moments.
class Interrupt : public SignalNotes {
 public:
  Interrupt() : SignalNotes({SIGINT, SIGTERM, SIGHUP}) {}
};

// Runs `work`, which writes `output` and gives up with an error soon after a signal was noted. It then says
// that `output` was not written and ends the process as the signal would have, so that a calling shell sees it; what
// `work` owned, its unfinished files above all, is gone by then.
Status run_interruptible(const std::string& output, const std::function<Status()>& work);

}  // namespace quire::cli
