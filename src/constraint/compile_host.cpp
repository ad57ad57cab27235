#include "constraint/compile_host.h"

#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>

#include "constraint/compile_frames.h"

namespace quire {
namespace {

constexpr int kControl = STDIN_FILENO;
// Address space alone until it is used; part of it is memory that the compiler may take (CompileLimits::memory).
constexpr size_t kStack = size_t{256} << 20;
constexpr int kRefusesService = 1;  // exit code: this program or its input cannot do it

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kLimitsMemory = false;  // their shadow memory is terabytes of addresses
#else
constexpr bool kLimitsMemory = true;
#endif

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

bool read_all(int fd, char* to, size_t size) {
  while (size > 0) {
    const ssize_t n = read(fd, to, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

// What a handler of signals says: made beforehand, because nothing may be made there.
struct LastWords {
  int fd = -1;
  std::string stack, memory;
};
LastWords last_words;

void on_fault(int signal) {
  // A stack that ends is a fault of addresses; what finds no memory where it may not fail aborts.
  const std::string& words = signal == SIGABRT ? last_words.memory : last_words.stack;
  [[maybe_unused]] const ssize_t n = send(last_words.fd, words.data(), words.size(), MSG_NOSIGNAL);
  _exit(kRefusesService);
}

void catch_faults(int fd) {
  last_words = {fd, to_frame(CompileReply{CompileReply::Status::kStack, {}}),
                to_frame(CompileReply{CompileReply::Status::kMemory, {}})};
  struct sigaction action = {};
  action.sa_handler = on_fault;
  action.sa_flags = SA_ONSTACK;
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT}) sigaction(signal, &action, nullptr);
}

int64_t address_space() {
  int64_t pages = 0;
  if (std::FILE* f = std::fopen("/proc/self/statm", "re")) {
    if (std::fscanf(f, "%ld", &pages) != 1) pages = 0;
    std::fclose(f);
  }
  return pages * sysconf(_SC_PAGESIZE);
}

void limit(int resource, int64_t most) {
  struct rlimit limits = {};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limits) != 0) return;
  limits.rlim_cur = std::min<rlim_t>(static_cast<rlim_t>(std::max<int64_t>(most, 0)), limits.rlim_max);
  setrlimit(static_cast<__rlimit_resource_t>(resource), &limits);
}

void limit_process(const CompileLimits& limits) {
  const int64_t taken = address_space();
  if (kLimitsMemory && taken > 0) limit(RLIMIT_AS, taken + static_cast<int64_t>(kStack) + limits.memory);
  limit(RLIMIT_CPU, std::chrono::ceil<std::chrono::seconds>(limits.time).count() + 1);
}

struct Job {
  const GrammarCompiler& compiler;
  CompileRequest request;
  int fd;
  std::atomic<pid_t> thread{0};  // that compiles
};

CompileReply compiled(const Job& job) {
  try {
    const Result<std::shared_ptr<const Grammar>> grammar = job.compiler.compile(job.request.spec, job.request.limits);
    if (!grammar.ok()) return {CompileReply::Status::kRefused, grammar.error().message};
    return {CompileReply::Status::kGrammar, (*grammar)->to_bytes()};
  } catch (const std::bad_alloc&) {
    return {CompileReply::Status::kMemory, {}};
  } catch (const std::length_error&) {
    return {CompileReply::Status::kMemory, {}};
  }
}

// The thread that compiles: its stack is large, and handlers of signals have one of their own.
void* compile_thread(void* argument) {
  static std::array<char, 1 << 16> handler_stack;
  const stack_t stack = {.ss_sp = handler_stack.data(), .ss_flags = 0, .ss_size = handler_stack.size()};
  sigaltstack(&stack, nullptr);
  auto& job = *static_cast<Job*>(argument);
  job.thread = static_cast<pid_t>(syscall(SYS_gettid));
  try {
    write_all(job.fd, to_frame(compiled(job)));
  } catch (const std::bad_alloc&) {
    on_fault(SIGABRT);
  }
  _exit(0);
}

// In the process of one compilation. Its first thread waits for the socket to be closed.
[[noreturn]] void compile_one(const GrammarCompiler& compiler, int fd) {
  catch_faults(fd);
  std::string head(kFrameHead, '\0');
  if (!read_all(fd, head.data(), head.size())) _exit(0);
  std::string bytes(frame_length(head), '\0');
  if (!read_all(fd, bytes.data(), bytes.size())) _exit(0);
  std::optional<CompileRequest> request = read_request(bytes);
  bytes = {};
  if (!request) _exit(kRefusesService);
  Job job{compiler, std::move(*request), fd};
  limit_process(job.request.limits);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStack);
  pthread_t thread;
  if (pthread_create(&thread, &attributes, compile_thread, &job) != 0) on_fault(SIGABRT);
  struct pollfd closed = {.fd = fd, .events = POLLIN, .revents = 0};
  constexpr int kNice = 10;
  if (poll(&closed, 1, static_cast<int>(kShortCompilation.count())) == 0) setpriority(PRIO_PROCESS, job.thread, kNice);
  char byte = 0;
  while (read(fd, &byte, 1) < 0 && errno == EINTR) continue;
  _exit(0);
}

// The socket of the next compilation; -1: there will be none.
int next_job() {
  char byte = 0;
  struct iovec data = {.iov_base = &byte, .iov_len = 1};
  alignas(struct cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control;
  struct msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t n = 0;
  do n = recvmsg(kControl, &message, MSG_CMSG_CLOEXEC);
  while (n < 0 && errno == EINTR);
  const struct cmsghdr* const head = n > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (head == nullptr || head->cmsg_type != SCM_RIGHTS) return -1;
  int fd = -1;
  std::copy_n(CMSG_DATA(head), sizeof(int), reinterpret_cast<unsigned char*>(&fd));
  return fd;
}

std::optional<Vocabulary> vocabulary_of_file() {
  struct stat file = {};
  if (fstat(kVocabularyFd, &file) != 0 || file.st_size <= 0) return std::nullopt;
  const auto size = static_cast<size_t>(file.st_size);
  void* const bytes = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, kVocabularyFd, 0);
  if (bytes == MAP_FAILED) return std::nullopt;
  std::optional<Vocabulary> vocabulary = read_vocabulary({static_cast<const char*>(bytes), size});
  munmap(bytes, size);
  return vocabulary;
}

// The server's sockets and files are none of this process.
void let_go_of_descriptors() {
  constexpr unsigned kFirst = kVocabularyFd + 1;
  if (syscall(SYS_close_range, kFirst, ~0u, 0) == 0) return;
  const int64_t most = std::min<int64_t>(sysconf(_SC_OPEN_MAX), 1 << 16);
  for (int fd = kFirst; fd < most; ++fd) close(fd);
}

// Where the machine runs short of memory, this process goes before the server.
void go_first() {
  if (std::FILE* f = std::fopen("/proc/self/oom_score_adj", "we")) {
    std::fputs("1000", f);
    std::fclose(f);
  }
}

}  // namespace

int run_compile_host() {
  let_go_of_descriptors();
  go_first();
  prctl(PR_SET_NAME, "quire-compile");
  // One arena: a thread's own takes 64 MiB of addresses at once, of which there are few where they are limited.
  mallopt(M_ARENA_MAX, 1);
  limit(RLIMIT_CORE, 0);
  signal(SIGCHLD, SIG_IGN);  // processes that end are forgotten
  // What ends the server by a signal to its group lets it finish what is under way; this process ends with it.
  signal(SIGINT, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
  const std::optional<Vocabulary> vocabulary = vocabulary_of_file();
  close(kVocabularyFd);
  if (!vocabulary || !has_grammars()) return kRefusesService;
  const std::unique_ptr<GrammarCompiler> compiler = make_grammar_compiler(*vocabulary);
  if (!write_all(kControl, "r")) return kRefusesService;
  for (int fd = next_job(); fd >= 0; fd = next_job()) {
    const pid_t pid = fork();
    if (pid == 0) {
      close(kControl);
      compile_one(*compiler, fd);
    }
    if (pid < 0) write_all(fd, to_frame(CompileReply{CompileReply::Status::kMemory, {}}));
    close(fd);
  }
  return 0;
}

}  // namespace quire
