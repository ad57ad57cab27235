// A program at a terminal of its own, typed at and read as a person would. For test programs only.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <map>
#include <string>
#include <vector>

#include "core/result.h"

namespace quire::test {

class Terminal {
 public:
  using Variables = std::map<std::string, std::string>;  // an empty value: not set

  Terminal(const std::vector<std::string>& command, const Variables& variables, int columns = 120) {
    const winsize size{.ws_row = 40, .ws_col = static_cast<unsigned short>(columns), .ws_xpixel = 0, .ws_ypixel = 0};
    child_ = forkpty(&terminal_, nullptr, nullptr, &size);
    QUIRE_CHECK(child_ >= 0, "forkpty: error {}", errno);
    if (child_ > 0) return;
    for (const auto& [name, value] : variables)
      value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> arguments;
    for (const std::string& part : command) arguments.push_back(const_cast<char*>(part.c_str()));
    arguments.push_back(nullptr);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  ~Terminal() {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
    close(terminal_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(std::string_view keys) {
    while (!keys.empty()) {
      const ssize_t n = write(terminal_, keys.data(), keys.size());
      if (n <= 0) break;
      keys.remove_prefix(static_cast<size_t>(n));
    }
  }
  // Reads until `text` has come, and returns everything since the last call, the text included. Fails after
  // two minutes, which a busy machine does not need, and at the program's end.
  std::string until(std::string_view text) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    for (;;) {
      const size_t at = unread_.find(text);
      if (at != unread_.npos) {
        const std::string seen = unread_.substr(0, at + text.size());
        unread_.erase(0, at + text.size());
        return seen;
      }
      if (std::chrono::steady_clock::now() > deadline || !read_some()) {
        ADD_FAILURE() << "'" << text << "' did not come; there is: " << unread_;
        return std::exchange(unread_, {});
      }
    }
  }
  // Reads until the program's prompt has come and its line editor takes every key. Between the two the terminal
  // still edits lines itself: it would take a Ctrl-D for the end of a line that nobody reads, and swallow it.
  std::string prompt(std::string_view text = "> ") {
    std::string seen = until(text);
    for (int ms = 0; ms < 120'000; ++ms) {
      termios modes{};
      if (tcgetattr(terminal_, &modes) != 0 || (modes.c_lflag & ICANON) == 0) return seen;
      usleep(1000);
    }
    ADD_FAILURE() << "'" << text << "' came, and the terminal still edits lines itself";
    return seen;
  }
  // Waits for the end; the exit code, or 128 and the signal. What came meanwhile is `rest`. A program that is silent
  // for two minutes is ended.
  int finish(std::string* rest = nullptr) {
    while (read_some()) {
    }
    if (rest != nullptr) *rest = unread_;
    if (silent_) {
      ADD_FAILURE() << "the program does not end; the last of it: " << unread_;
      kill(child_, SIGKILL);
    }
    int status = 0;
    waitpid(std::exchange(child_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  bool read_some() {
    pollfd ready{terminal_, POLLIN, 0};
    silent_ = poll(&ready, 1, 120'000) <= 0;
    if (silent_) return false;
    char buffer[4096];
    const ssize_t n = read(terminal_, buffer, sizeof buffer);  // an error: the program has ended
    if (n > 0) unread_.append(buffer, static_cast<size_t>(n));
    return n > 0;
  }

  int terminal_ = -1;
  pid_t child_ = -1;
  bool silent_ = false;  // nothing came for long
  std::string unread_;
};

}  // namespace quire::test
