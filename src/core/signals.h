// Signals that ask a program to end, as a note that the work looks at, so that it ends cleanly.
#pragma once

#include <csignal>
#include <initializer_list>
#include <utility>
#include <vector>

namespace quire {

// While it lives, these signals are only noted; afterwards they do again what they did before. A signal that was
// ignored stays ignored: `nohup` relies on it. One at a time in a process.
class SignalNotes {
 public:
  enum class Second {
    kNoted,  // as the first
    kEnds,  // ends the process at once with 128 and its number, whatever it waits for, unless take() has seen the first
  };
  explicit SignalNotes(std::initializer_list<int> signals, Second second = Second::kNoted);
  ~SignalNotes();
  SignalNotes(const SignalNotes&) = delete;
  SignalNotes& operator=(const SignalNotes&) = delete;

  // Counts a signal that asks for something else than the end, such as SIGHUP for opening logs anew; also one that
  // was ignored, since nothing ends by it.
  void count_requests(int signal);
  // How many of them came since the last call.
  static int take_requests();

  // The last signal that came, or 0, and how many came. Of the last object made, if there is none now.
  static int last();
  static int count();
  // last(), which is 0 from then on.
  static int take();

  // Sleeps until a signal comes or another thread calls wake(): returns at once if that has been since the last call.
  // It may return for nothing, so it belongs in a loop.
  void wait() const;
  void wake() const;

 private:
  std::vector<std::pair<int, struct sigaction>> before_;
};

}  // namespace quire
