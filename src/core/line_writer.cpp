#include "core/line_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

namespace quire {
namespace {

// Without waiting: a FIFO that nobody reads would hold whoever opens it.
Result<int> open_log(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, 0666);
  if (fd >= 0) return fd;
  const int code = errno;
  const char* const hint = code == ENXIO    ? "; it is a FIFO that nobody reads: start its reader first"
                           : code == ENOENT ? "; folders are not created"
                                            : "";
  return request_error("{}: cannot be written ({}{})", path, std::strerror(code), hint);
}

bool is_regular(int fd) {
  struct stat s {};
  return fstat(fd, &s) == 0 && S_ISREG(s.st_mode);
}

void block_signal(int signal) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

int64_t lines_of(std::string_view text) {
  return std::count(text.begin(), text.end(), '\n');
}

}  // namespace

struct LineWriter::Impl {
  Impl(std::string p, int descriptor, Options o)
      : path(std::move(p)), options(std::move(o)), fd(descriptor), regular(is_regular(descriptor)) {}
  ~Impl() {
    if (!path.empty()) ::close(fd);
  }

  void run();
  bool put(std::string_view batch);
  void lose_rest(std::string_view batch, const char* why);
  int write_piece(std::string_view& text);
  void open_again();
  bool note_lost(int64_t lines);
  void tell_lost(int64_t lines, bool first, std::string_view why) const;
  void recover();
  bool quiet() const { return waiting.empty() && writing == 0 && missing == 0; }
  bool must_reopen() {
    const std::lock_guard lock(mutex);
    return std::exchange(reopen, false);
  }
  bool may_wait() {
    const std::lock_guard lock(mutex);
    return !abandoned;
  }

  const std::string path;  // empty: a descriptor of somebody else's
  const Options options;
  // Of the thread.
  int fd;
  bool regular;
  bool within_line = false;  // the last write ended in one

  std::mutex mutex;
  std::condition_variable changed, done;
  std::string waiting;
  size_t writing = 0;   // bytes that the thread has taken and not written yet
  int64_t missing = 0;  // lines, since the end of `waiting`
  int64_t lost = 0;     // lines, since the trouble began
  bool troubled = false, reopen = false, stopping = false, abandoned = false, ended = false;
};

// With the mutex held. Whether the trouble begins with them.
bool LineWriter::Impl::note_lost(int64_t lines) {
  lost += lines;
  return !std::exchange(troubled, true);
}

void LineWriter::Impl::tell_lost(int64_t lines, bool first, std::string_view why) const {
  if (options.count_dropped) options.count_dropped(lines);
  if (first && options.tell)
    options.tell(fmt::format("{}: {}; lines are dropped and counted until it can be written again", options.name, why));
}

// All that waited is written.
void LineWriter::Impl::recover() {
  int64_t lines = 0;
  {
    const std::lock_guard lock(mutex);
    if (abandoned || !quiet() || !std::exchange(troubled, false)) return;
    lines = std::exchange(lost, 0);
  }
  if (options.tell) options.tell(fmt::format("{}: written again; {} lines were dropped", options.name, lines));
}

void LineWriter::Impl::open_again() {
  if (path.empty()) return;
  const Result<int> opened = open_log(path);
  if (!opened.ok()) {
    if (options.tell)
      options.tell(fmt::format("{}: it stays with the file that is open: {}", options.name, opened.error().message));
    return;
  }
  ::close(fd);
  fd = *opened;
  regular = is_regular(fd);
  within_line = false;
}

// Writes what a pipe takes without waiting: where poll() says that there is room, it is for PIPE_BUF bytes at least.
// Pieces end with a line where they can. 0, or an error number: ETIME where waiting has no sense any more.
int LineWriter::Impl::write_piece(std::string_view& text) {
  size_t most = std::min<size_t>(text.size(), regular ? size_t{1} << 20 : PIPE_BUF);
  if (const size_t end = text.substr(0, most).rfind('\n'); end != std::string_view::npos) most = end + 1;
  if (!regular) {
    constexpr int kLookMilliseconds = 100;  // how soon a change of files or the end is noticed
    pollfd p{fd, POLLOUT, 0};
    const int n = poll(&p, 1, kLookMilliseconds);
    if (n < 0) return errno == EINTR ? 0 : errno;
    if (n == 0) return may_wait() ? 0 : ETIME;
  }
  const ssize_t n = ::write(fd, text.data(), most);
  if (n < 0) return errno == EINTR || errno == EAGAIN ? 0 : errno;
  if (n > 0) within_line = text[static_cast<size_t>(n) - 1] != '\n';
  text.remove_prefix(static_cast<size_t>(n));
  return 0;
}

void LineWriter::Impl::lose_rest(std::string_view batch, const char* why) {
  const int64_t lines = lines_of(batch);
  bool first = false;
  {
    const std::lock_guard lock(mutex);
    if (abandoned) return;  // what tells and counts may be gone
    first = note_lost(lines);
  }
  tell_lost(lines, first, why);
}

// False if something of it is lost.
bool LineWriter::Impl::put(std::string_view batch) {
  std::string_view end_of_line = "\n";
  const bool cut = std::exchange(within_line, false);
  for (std::string_view* text : {&end_of_line, &batch}) {
    if (text == &end_of_line && !cut) continue;  // what an error left of a line is no part of the next one
    while (!text->empty()) {
      if (must_reopen()) open_again();
      const int code = write_piece(*text);
      {
        const std::lock_guard lock(mutex);
        writing = batch.size();
      }
      if (code == 0) continue;
      if (text == &end_of_line) within_line = true;
      lose_rest(batch, std::strerror(code));
      return false;
    }
  }
  return true;
}

void LineWriter::Impl::run() {
  block_signal(SIGPIPE);  // a reader that has left is an error of write()
  std::string batch;
  for (;;) {
    {
      std::unique_lock lock(mutex);
      writing = 0;
      done.notify_all();
      changed.wait(lock, [&] { return stopping || reopen || missing > 0 || !waiting.empty(); });
      if (abandoned || (stopping && waiting.empty() && missing == 0)) break;
      batch.clear();
      batch.swap(waiting);
      if (const int64_t lines = std::exchange(missing, 0); lines > 0 && options.gap) batch += options.gap(lines) + "\n";
      writing = batch.size();
    }
    if (must_reopen()) open_again();
    const bool written = put(batch);
    {
      const std::lock_guard lock(mutex);
      writing = 0;
    }
    if (written) recover();
  }
  const std::lock_guard lock(mutex);
  ended = true;
  done.notify_all();
}

LineWriter::LineWriter(std::shared_ptr<Impl> impl) : impl_(std::move(impl)), thread_([i = impl_] { i->run(); }) {}

Result<std::unique_ptr<LineWriter>> LineWriter::open(const std::string& path, Options options) {
  QUIRE_TRY(const int fd, open_log(path));
  return std::unique_ptr<LineWriter>(new LineWriter(std::make_shared<Impl>(path, fd, std::move(options))));
}

std::unique_ptr<LineWriter> LineWriter::to(int descriptor, Options options) {
  return std::unique_ptr<LineWriter>(new LineWriter(std::make_shared<Impl>("", descriptor, std::move(options))));
}

LineWriter::~LineWriter() {
  constexpr std::chrono::milliseconds kNotice{500};  // for the thread to see that it is to stop waiting
  std::unique_lock lock(impl_->mutex);
  const auto ended = [&] { return impl_->ended; };
  impl_->stopping = true;
  impl_->changed.notify_one();
  if (!impl_->done.wait_for(lock, impl_->options.last, ended)) {
    impl_->abandoned = true;
    impl_->changed.notify_one();
    impl_->done.wait_for(lock, kNotice, ended);
  }
  const bool may_join = impl_->ended;
  lock.unlock();
  if (may_join)
    thread_.join();
  else
    thread_.detach();
}

void LineWriter::write(std::string_view line) {
  bool fits = false, first = false;
  {
    Impl& i = *impl_;
    const std::lock_guard lock(i.mutex);
    fits = i.waiting.size() + i.writing + line.size() < i.options.max_bytes;
    if (fits) {
      if (const int64_t lines = std::exchange(i.missing, 0); lines > 0 && i.options.gap)
        i.waiting += i.options.gap(lines) + "\n";
      i.waiting.append(line).push_back('\n');
    } else {
      ++i.missing;
      first = i.note_lost(1);
    }
  }
  impl_->changed.notify_one();
  if (!fits) impl_->tell_lost(1, first, "lines come faster than it takes them");
}

bool LineWriter::drain(std::chrono::milliseconds at_most) {
  std::unique_lock lock(impl_->mutex);
  return impl_->done.wait_for(lock, at_most, [&] { return impl_->quiet(); });
}

void LineWriter::reopen() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->reopen = true;
  }
  impl_->changed.notify_one();
}

}  // namespace quire
