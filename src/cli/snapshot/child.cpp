#include "cli/snapshot/child.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
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

void close_if_open(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

}  // namespace

Result<std::unique_ptr<Child>> Child::start(const std::vector<std::string>& command, Errors errors) {
  // Its input is a socket: writing to a program that has ended is then an error, and no signal.
  int in[2], out[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) != 0)
    return capacity_error("{}: no socket for it: {}", escaped(command.front()), std::strerror(errno));
  if (pipe2(out, O_CLOEXEC) != 0) {
    const int why = errno;
    close(in[0]), close(in[1]);
    return capacity_error("{}: no pipe for it: {}", escaped(command.front()), std::strerror(why));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  if (errors == Errors::kDropped) posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::vector<char*> arguments;
  for (const std::string& a : command) arguments.push_back(const_cast<char*>(a.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = 0;
  const int failed = posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(in[1]);
  close(out[1]);
  if (failed != 0) {
    close(in[0]), close(out[0]);
    return request_error("{}: cannot be run: {}", escaped(command.front()), std::strerror(failed));
  }
  return std::unique_ptr<Child>(new Child(pid, in[0], out[0]));
}

Child::~Child() {
  if (pid_ > 0) kill(pid_, SIGKILL);
  (void)wait();
}

bool Child::write_line(std::string_view line) {
  std::string text(line);
  text += '\n';
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = send(in_, text.data() + done, text.size() - done, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
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
  close_if_open(in_);
  close_if_open(out_);
  if (pid_ <= 0) return 0;
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace quire::cli::snapshot
