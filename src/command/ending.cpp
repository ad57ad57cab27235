#include "command/ending.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <exception>
#include <new>
#include <string_view>
#include <system_error>

#include "core/atomic_file.h"
#include "core/output.h"

namespace quire::cli {
namespace {

int concluded = 0;

int exit_code(Fault fault) {
  switch (fault) {
    case Fault::kRequest:
    case Fault::kModelFile:
      return kExitRequest;
    case Fault::kCapacity:
      return kExitCapacity;
    case Fault::kBug:
      return kExitBug;
  }
  return kExitBug;
}

// Async-signal-safe.
void say(std::string_view text) {
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, text.data(), text.size());
}

void say_unwritten(const char* name) {
  static int files = 0;
  if (files++ > 0) return;  // one line, also where a model is written as many files
  say("; ");
  say(name);
  say(" was not written");
}

void on_end(int signal) {
  if (isatty(STDERR_FILENO) != 0) say("\r\x1b[K");  // over a progress bar, or what the key showed
  say("quire: interrupted");
  remove_unfinished_files(say_unwritten);
  say("\n");
  end_by_signal(signal);
}

// Model files are mapped, so a disk that fails, or a file cut short while it is in use, is a signal and not
// an error of read().
void on_unreadable_page(int) {
  say("quire: a file in use was cut short or cannot be read any more; check the disk, copy the file again\n");
  remove_unfinished_files(nullptr);
  _exit(kExitRequest);
}

// No memory is needed here: it may just have run out.
[[noreturn]] void on_terminate() {
  int code = kExitBug;
  if (std::current_exception())
    code = report_exception();
  else
    say("quire: internal error: terminated without an exception\n");
  remove_unfinished_files(nullptr);
  if (code == kExitBug) std::abort();
  _exit(code);
}

void handle(int signal, void (*handler)(int), int flags) {
  struct sigaction before {
  }, action{};
  sigaction(signal, nullptr, &before);
  if (before.sa_handler == SIG_IGN) return;
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigfillset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

// For the wrong direction, so that using it fails as using a closed one does.
void occupy_closed_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(fd, F_GETFD) < 0) [[maybe_unused]]
      const int opened = open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

}  // namespace

void set_up_ending() {
  occupy_closed_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of write(), like a full disk
  handle(SIGBUS, on_unreadable_page, 0);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) handle(signal, on_end, 0);
  std::set_terminate(on_terminate);
}

void conclude(int code) {
  concluded = code;
}

int conclusion() {
  return concluded;
}

int report(const Error& e) {
  tell(e.message);
  return exit_code(e.fault);
}

int report_exception() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    say("quire: memory ran out: more was needed than this process may have\n");
    return kExitCapacity;
  } catch (const std::system_error& e) {
    const bool short_of_threads = e.code() == std::errc::resource_unavailable_try_again;
    say("quire: ");
    say(e.what());
    say(short_of_threads ? ": no more can be had; use fewer --threads, or allow more processes and memory\n" : "\n");
    return short_of_threads ? kExitCapacity : kExitBug;
  } catch (const std::exception& e) {
    say("quire: internal error: ");
    say(e.what());
    say("\n");
  } catch (...) {
    say("quire: internal error\n");
  }
  return kExitBug;
}

void end_by_signal(int signal) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, nullptr);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, signal);
  raise(signal);
  pthread_sigmask(SIG_UNBLOCK, &only, nullptr);  // within its handler it waits until here
  _exit(kExitSignal + signal);
}

}  // namespace quire::cli
