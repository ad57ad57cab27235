#include "constraint/compile_pool.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>

#include "constraint/compile_host.h"

extern char** environ;

namespace quire {
namespace {

using std::chrono::milliseconds;

// Of the process itself, beyond the time that a compilation may take: it says so by itself.
constexpr milliseconds kGrace{500};
// Until the process has read a large vocabulary on a busy machine.
constexpr milliseconds kStart{20'000};

Error no_process(std::string_view why) {
  return capacity_error("the process that compiles grammars cannot be started: {}", why);
}

Error ended() {
  return capacity_error("the process that compiled the grammar was ended: memory may have run out");
}

void close_fd(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

// A file without a name that holds these bytes; -1: none could be made.
int file_of(std::string_view bytes) {
  int fd = memfd_create("vocabulary", MFD_CLOEXEC);
  while (fd >= 0 && !bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) close_fd(fd);
    if (n > 0) bytes.remove_prefix(static_cast<size_t>(n));
  }
  return fd;
}

// Hands over the socket of a compilation.
bool send_socket(int control, int fd) {
  char byte = 'j';
  struct iovec data = {.iov_base = &byte, .iov_len = 1};
  alignas(struct cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> space = {};
  struct msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = space.data();
  message.msg_controllen = space.size();
  struct cmsghdr* const head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(head), &fd, sizeof(int));
  return sendmsg(control, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

// Starts the program with this socket as its standard input, and with none of the signals blocked that this thread has.
int spawn(const std::string& program, int control, int vocabulary, pid_t& pid) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // Not in the way of what is copied next, whichever numbers these have.
  const int safe_control = fcntl(control, F_DUPFD_CLOEXEC, kVocabularyFd + 1);
  const int safe_vocabulary = fcntl(vocabulary, F_DUPFD_CLOEXEC, kVocabularyFd + 1);
  posix_spawn_file_actions_adddup2(&actions, safe_control, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, safe_vocabulary, kVocabularyFd);
  for (const int out : {STDOUT_FILENO, STDERR_FILENO})
    posix_spawn_file_actions_addopen(&actions, out, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  std::string name = "quire", command(kCompileHostCommand);
  std::array<char*, 3> arguments = {name.data(), command.data(), nullptr};
  const int failed = posix_spawn(&pid, program.c_str(), &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (safe_control >= 0) close(safe_control);
  if (safe_vocabulary >= 0) close(safe_vocabulary);
  return failed;
}

}  // namespace

CompilePool::CompilePool(std::shared_ptr<const Vocabulary> vocabulary, CompilePoolOptions options)
    : vocabulary_(std::move(vocabulary)), options_(std::move(options)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

CompilePool::~CompilePool() {
  stop();
  close_fd(wake_);
}

Result<uint64_t> CompilePool::submit(const GrammarSpec& spec, const std::string& client, Done done) {
  const std::lock_guard lock(mutex_);
  if (stop_) return capacity_error("the server is shutting down");
  if (wake_ < 0) return no_process("there are no file descriptors left");
  const size_t waiting = short_.waiting() + long_.waiting();
  if (waiting >= options_.max_waiting) return capacity_error("{} grammars wait to be compiled already", waiting);
  const size_t its = short_.waiting_of(client) + long_.waiting_of(client);
  if (its >= std::max<size_t>(options_.max_waiting / 4, 1))
    return capacity_error("{} grammars of this client wait to be compiled already", its);
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { work(); });
    } catch (const std::system_error& e) {
      return no_process(e.what());
    }
  }
  const uint64_t id = ++last_id_;
  Job job;  // whole before it is anywhere: memory may run out
  job.client = client;
  job.kind = spec.kind;
  job.size = spec.text.size();
  job.frame = to_frame(CompileRequest{spec, options_.limits});
  job.done = std::move(done);
  jobs_.emplace(id, std::move(job));
  short_.add(id, client, spec.text.size());
  wake();
  return id;
}

void CompilePool::cancel(uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto at = jobs_.find(id);
  if (at == jobs_.end()) return;
  Job& job = at->second;
  if (job.fd >= 0)
    release(job);
  else if (!short_.remove(id, job.client))
    long_.remove(id, job.client);
  jobs_.erase(at);
  wake();
}

void CompilePool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    wake();
  }
  if (thread_.joinable()) thread_.join();
  std::map<uint64_t, Job> left;
  {
    const std::lock_guard lock(mutex_);
    left.swap(jobs_);
    for (auto& [id, job] : left)
      if (job.fd >= 0) release(job);
    end_host();
  }
  for (auto& [id, job] : left) job.done(capacity_error("the server is shutting down"), 0.0);
}

void CompilePool::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(wake_, &one, sizeof(one));
}

void CompilePool::work() {
  std::unique_lock lock(mutex_);
  std::vector<struct pollfd> fds;
  std::vector<uint64_t> ids;
  while (!stop_) {
    start_jobs();
    if (!finished_.empty()) {
      std::vector<Finished> finished;
      finished.swap(finished_);
      lock.unlock();
      for (Finished& f : finished) {
        try {
          f.done(std::move(f.bytes), f.seconds);
        } catch (const std::bad_alloc&) {  // whoever asked is told when its patience is at its end
        }
      }
      lock.lock();
      continue;
    }
    fds.assign({{.fd = wake_, .events = POLLIN, .revents = 0}, {.fd = host_.fd, .events = POLLIN, .revents = 0}});
    ids.clear();
    for (const auto& [id, job] : jobs_) {
      if (job.fd < 0) continue;
      const bool sends = job.sent < job.frame.size();
      fds.push_back({.fd = job.fd, .events = static_cast<short>(sends ? POLLIN | POLLOUT : POLLIN), .revents = 0});
      ids.push_back(id);
    }
    const int timeout = static_cast<int>(next_deadline().count());
    lock.unlock();
    poll(fds.data(), fds.size(), timeout);
    lock.lock();
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t n = read(wake_, &count, sizeof(count));
    if (fds[1].revents != 0 && fds[1].fd == host_.fd) hear_host();
    for (size_t i = 0; i < ids.size(); ++i)
      if (const auto at = jobs_.find(ids[i]); at != jobs_.end() && at->second.fd == fds[i + 2].fd)
        if (fds[i + 2].revents != 0) look_at(ids[i], at->second);
    look_at_clocks();
  }
}

// It is ready, or has ended.
void CompilePool::hear_host() {
  char byte = 0;
  const ssize_t n = recv(host_.fd, &byte, 1, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) return end_host();
  host_.ready = true;
  for (auto& [id, job] : jobs_)
    if (job.fd >= 0) job.began = Clock::now();
}

void CompilePool::start_jobs() {
  while (short_running_ < options_.places) {
    const std::optional<CompileQueue::Next> next = short_.next(false);
    if (!next) break;
    ++short_running_;
    start(next->id, jobs_.at(next->id), false);
  }
  while (long_running_ < kLongPlaces) {
    const std::optional<CompileQueue::Next> next = long_.next(long_running_ + 1 == kLongPlaces);
    if (!next) break;
    ++long_running_;
    start(next->id, jobs_.at(next->id), true);
  }
}

// The job has its place already.
void CompilePool::start(uint64_t id, Job& job, bool is_long) {
  job.is_long = is_long;
  job.sent = 0;
  job.reply.clear();
  std::array<int, 2> sockets = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) != 0)
    return finish(id, no_process(std::strerror(errno)));
  job.fd = sockets[0];
  fcntl(job.fd, F_SETFL, O_NONBLOCK);
  Status sent;
  for (int attempt = 0; attempt < 2; ++attempt) {  // a process that has ended is started anew
    sent = host_.fd >= 0 ? Status() : start_host();
    if (!sent.ok() || send_socket(host_.fd, sockets[1])) break;
    sent = no_process(std::strerror(errno));
    end_host();
  }
  close(sockets[1]);
  job.began = Clock::now();
  if (!sent.ok()) finish(id, sent.take_error());
}

Status CompilePool::start_host() {
  std::array<int, 2> sockets = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets.data()) != 0)
    return no_process(std::strerror(errno));
  int vocabulary = file_of(to_bytes(*vocabulary_));
  pid_t pid = 0;
  const int failed = vocabulary < 0 ? errno : spawn(options_.program, sockets[1], vocabulary, pid);
  close_fd(vocabulary);
  close(sockets[1]);
  if (failed != 0) {
    close(sockets[0]);
    return no_process(std::strerror(failed));
  }
  host_ = {sockets[0], pid, false, Clock::now()};
  return {};
}

// Compilations under way have processes and sockets of their own, and go on.
void CompilePool::end_host() {
  close_fd(host_.fd);
  if (host_.pid > 0) {
    kill(host_.pid, SIGKILL);
    while (waitpid(host_.pid, nullptr, 0) < 0 && errno == EINTR) continue;
  }
  host_ = {};
}

void CompilePool::look_at(uint64_t id, Job& job) {
  try {
    exchange(id, job);
  } catch (const std::bad_alloc&) {
    finish(id, capacity_error("there is no memory for the grammar"));
  }
}

// Sends what is left of the request, takes what there is of the reply.
void CompilePool::exchange(uint64_t id, Job& job) {
  if (job.sent < job.frame.size()) {
    const ssize_t n = send(job.fd, job.frame.data() + job.sent, job.frame.size() - job.sent, MSG_NOSIGNAL);
    if (n > 0) job.sent += static_cast<size_t>(n);
  }
  std::array<char, 1 << 16> bytes;
  for (;;) {
    const ssize_t n = recv(job.fd, bytes.data(), bytes.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) return finish(id, ended());
    job.reply.append(bytes.data(), static_cast<size_t>(n));
    if (job.reply.size() < kFrameHead) continue;
    const uint64_t length = frame_length(job.reply);
    if (length > kMostBytes)
      return finish(id, request_error("{} is too large: compiled, it has {} bytes, of at most {}", describe(job.kind),
                                      length, kMostBytes));
    if (job.reply.size() >= kFrameHead + length) return finish(id, result_of(job));
  }
}

Result<std::string> CompilePool::result_of(const Job& job) const {
  std::optional<CompileReply> reply = read_reply(std::string_view(job.reply).substr(kFrameHead));
  if (!reply) return ended();
  switch (reply->status) {
    case CompileReply::Status::kGrammar:
      return std::move(reply->text);
    case CompileReply::Status::kRefused:
      return Error{Fault::kRequest, std::move(reply->text)};
    case CompileReply::Status::kStack:
      return request_error("{} is nested too deeply to be compiled", describe(job.kind));
    case CompileReply::Status::kMemory:
      return request_error("{} is too large: compiling it takes more than {} MiB of memory", describe(job.kind),
                           options_.limits.memory >> 20);
  }
  return ended();
}

void CompilePool::look_at_clocks() {
  const Clock::time_point now = Clock::now();
  if (!host_.ready) {
    if (host_.fd >= 0 && now - host_.started > kStart) end_host();
    return;
  }
  std::vector<uint64_t> late;
  for (auto& [id, job] : jobs_) {
    if (job.fd < 0) continue;
    if (now - job.began > options_.limits.time + kGrace) {
      late.push_back(id);
      continue;
    }
    if (job.is_long || now - job.began <= kShortCompilation) continue;
    const bool takes_last = long_running_ + 1 == kLongPlaces;
    if (long_running_ < kLongPlaces && !(takes_last && long_.running_of(job.client) > 0)) {
      short_.ended(job.client);
      --short_running_;
      job.is_long = true;
      long_.began(job.client);
      ++long_running_;
    } else {  // it begins anew when there is a place
      release(job);
      long_.add(id, job.client, job.size);
    }
  }
  for (const uint64_t id : late)
    finish(id, request_error("{} is too large: compiling it takes longer than {} ms", describe(jobs_.at(id).kind),
                             options_.limits.time.count()));
}

// How long nothing need be looked at; -1 ms: until something comes.
milliseconds CompilePool::next_deadline() const {
  milliseconds least{-1};
  const Clock::time_point now = Clock::now();
  const auto until = [&](Clock::time_point then) {
    const auto left = std::max(std::chrono::ceil<milliseconds>(then - now) + milliseconds(1), milliseconds(1));
    if (least.count() < 0 || left < least) least = left;
  };
  if (host_.fd >= 0 && !host_.ready) until(host_.started + kStart);
  for (const auto& [id, job] : jobs_)
    if (job.fd >= 0 && host_.ready)
      until(job.began + (job.is_long ? options_.limits.time + kGrace : kShortCompilation));
  return least;
}

void CompilePool::finish(uint64_t id, Result<std::string> bytes) {
  const auto at = jobs_.find(id);
  Job& job = at->second;
  const double seconds = std::chrono::duration<double>(Clock::now() - job.began).count();
  release(job);
  finished_.push_back({std::move(job.done), std::move(bytes), seconds});
  jobs_.erase(at);
}

// Ends what runs of it, and gives its place back.
void CompilePool::release(Job& job) {
  close_fd(job.fd);
  job.sent = 0;
  job.reply = {};
  (job.is_long ? long_ : short_).ended(job.client);
  --(job.is_long ? long_running_ : short_running_);
}

}  // namespace quire
