#include "lab/snapshot/child.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/escape.h"

extern char** environ;

namespace quire::cli::snapshot {
namespace {

constexpr size_t kLongestLine = size_t{16} << 20;

}  // namespace

Result<std::unique_ptr<Child>> Child::start(const std::vector<std::string>& command, Errors errors) {
  int out[2];
  if (pipe2(out, O_CLOEXEC) != 0)
    return capacity_error("{}: no pipe for it: {}", escaped(command.front()), std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  if (errors == Errors::kDropped) posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::vector<char*> arguments;
  for (const std::string& a : command) arguments.push_back(const_cast<char*>(a.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = 0;
  const int failed = posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  if (failed != 0) {
    close(out[0]);
    return request_error("{}: cannot be run: {}", escaped(command.front()), std::strerror(failed));
  }
  return std::unique_ptr<Child>(new Child(pid, out[0]));
}

Child::~Child() {
  if (pid_ > 0) kill(pid_, SIGKILL);
  (void)wait();
}

std::optional<std::string> Child::read_line() {
  for (;;) {
    if (const size_t end = buffer_.find('\n'); end != buffer_.npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return line;
    }
    std::array<char, 65536> piece;
    const ssize_t n = read(out_, piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 || buffer_.size() > kLongestLine) return std::nullopt;
    buffer_.append(piece.data(), static_cast<size_t>(n));
  }
}

int Child::wait() {
  if (out_ >= 0) close(out_);
  out_ = -1;
  if (pid_ <= 0) return 0;
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace quire::cli::snapshot
