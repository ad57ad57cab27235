#include "core/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <utility>

#include "core/escape.h"

namespace quire {
namespace {

std::filesystem::path folder_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? std::filesystem::path(".") : parent;
}

// Threads that have made a file and not yet noted it.
std::atomic<int> making{0};

// Signals wait while it lives, in this thread, and what a signal's handler of another thread does to unfinished files
// waits for it (remove_unfinished_files): none comes between making a file and noting it.
class SignalsHeld {
 public:
  SignalsHeld() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
    ++making;
  }
  ~SignalsHeld() {
    --making;
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalsHeld(const SignalsHeld&) = delete;
  SignalsHeld& operator=(const SignalsHeld&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

struct AtomicFile::Unfinished {
  std::string temporary;           // empty: planned, and not yet there
  std::string shown;               // the final name, escaped
  std::atomic<bool> begun{false};  // of a plan: a file of this name has been created since
  Unfinished* next = nullptr;      // in the list of those that remove_unfinished_files() took
};

namespace {

// Who takes an entry out owns it: a signal's handler that does keeps it for good, for it may not free memory.
std::atomic<void*> unfinished_files[1024];
std::atomic<AtomicFile::Unfinished*> removed_files{nullptr};
static_assert(std::atomic<void*>::is_always_lock_free && std::atomic<AtomicFile::Unfinished*>::is_always_lock_free);

// Held by threads that change the list; a signal's handler only takes from it.
std::mutex list_mutex;

void enlist(AtomicFile::Unfinished* file) {
  const std::lock_guard lock(list_mutex);
  if (!file->temporary.empty())
    for (const std::atomic<void*>& entry : unfinished_files)
      if (auto* const other = static_cast<AtomicFile::Unfinished*>(entry.load()); other != nullptr)
        if (other->temporary.empty() && other->shown == file->shown) other->begun = true;
  for (std::atomic<void*>& entry : unfinished_files) {
    void* empty = nullptr;
    if (entry.compare_exchange_strong(empty, file)) return;
  }
  QUIRE_CHECK(false, "more unfinished files than {}", std::size(unfinished_files));
}

void forget(std::unique_ptr<AtomicFile::Unfinished>& file) {
  const std::lock_guard lock(list_mutex);
  for (std::atomic<void*>& entry : unfinished_files) {
    void* mine = file.get();
    if (entry.compare_exchange_strong(mine, nullptr)) return file.reset();
  }
  (void)file.release();  // remove_unfinished_files() has it
}

}  // namespace

void remove_unfinished_files(void (*each)(const char* name)) {
  // The thread that makes a file takes no signal, so it is never the one that waits here; half a second at most, should
  // the file system hang.
  constexpr timespec kMoment{.tv_sec = 0, .tv_nsec = 1'000'000};
  for (int i = 0; i < 500 && making.load() > 0; ++i) nanosleep(&kMoment, nullptr);
  for (std::atomic<void*>& of : unfinished_files) {
    void* const entry = of.exchange(nullptr);
    if (entry == nullptr) continue;
    auto* const file = static_cast<AtomicFile::Unfinished*>(entry);
    file->next = removed_files.load();
    while (!removed_files.compare_exchange_weak(file->next, file)) {
    }
    // A temporary file that is not there has got its final name just now.
    const bool missing = file->temporary.empty() ? !file->begun : unlink(file->temporary.c_str()) == 0;
    if (missing && each != nullptr) each(file->shown.c_str());
  }
}

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {}

Result<AtomicFile> AtomicFile::create(std::string path, uint64_t bytes, uint32_t mode) {
  struct stat s {};
  AtomicFile file(std::move(path));
  const std::string& name = file.path_;
  if (name.empty()) return request_error("cannot write a file without a name");
  if (stat(name.c_str(), &s) == 0 && !S_ISREG(s.st_mode)) {
    file.fd_ = ::open(name.c_str(), O_WRONLY | O_CLOEXEC);
    if (file.fd_ < 0) return request_error("cannot write {}: {}", name, std::strerror(errno));
    return file;
  }
  std::error_code unknown;
  const std::filesystem::space_info space = std::filesystem::space(folder_of(name), unknown);
  // File systems of no size, such as /proc, have another reason to refuse.
  if (!unknown && space.capacity > 0 && bytes > space.available)
    return request_error("{} needs {} bytes, but its file system has {} left; free space or choose another", name,
                         bytes, space.available);
  auto unfinished = std::make_unique<Unfinished>();
  unfinished->shown = escaped(name);
  const SignalsHeld held;
  // In the same folder, so that the rename stays within one file system. O_EXCL: never somebody else's file.
  for (int attempt = 0; attempt < 100 && file.fd_ < 0; ++attempt) {
    unfinished->temporary = fmt::format("{}.partial-{}-{}", name, getpid(), attempt);
    file.fd_ = ::open(unfinished->temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (file.fd_ < 0 && errno != EEXIST) break;
  }
  if (file.fd_ < 0) return request_error("cannot create {}: {}", name, std::strerror(errno));
  // Held while the file is open: says that somebody still writes it. Where files cannot be locked nobody is told.
  (void)flock(file.fd_, LOCK_EX | LOCK_NB);
  file.unfinished_ = std::move(unfinished);
  enlist(file.unfinished_.get());
  return file;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      unfinished_(std::move(other.unfinished_)),
      fd_(std::exchange(other.fd_, -1)),
      written_(other.written_) {}

AtomicFile::~AtomicFile() {
  discard();
}

void AtomicFile::discard() {
  if (fd_ < 0) return;
  close(std::exchange(fd_, -1));
  if (!unfinished_) return;
  unlink(unfinished_->temporary.c_str());
  forget(unfinished_);
}

Error AtomicFile::failed() {
  Error error = request_error("cannot write {} ({} bytes written): {}; free space and try again", path_, written_,
                              std::strerror(errno));
  discard();
  return error;
}

Status AtomicFile::write(const void* data, size_t bytes) {
  QUIRE_CHECK(fd_ >= 0, "{} is closed", path_);
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, at, std::min<size_t>(bytes, size_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed();
    at += n;
    bytes -= static_cast<size_t>(n);
    written_ += static_cast<uint64_t>(n);
  }
  return {};
}

Status AtomicFile::commit() {
  QUIRE_CHECK(fd_ >= 0, "{} is closed", path_);
  if (unfinished_) {
    if (fsync(fd_) != 0 || rename(unfinished_->temporary.c_str(), path_.c_str()) != 0) return failed();
    forget(unfinished_);
    // The new name is durable once the folder is; a file system that cannot sync folders has still renamed
    // it.
    const int folder = ::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
      (void)fsync(folder);
      close(folder);
    }
  }
  close(std::exchange(fd_, -1));
  return {};
}

int remove_abandoned_files(const std::string& path) {
  const std::string beginning = std::filesystem::path(path).filename().string() + ".partial-";
  int removed = 0;
  std::error_code failed;
  std::filesystem::directory_iterator entries(folder_of(path), failed);
  for (; !failed && entries != std::filesystem::directory_iterator(); entries.increment(failed)) {
    const std::string name = entries->path().filename().string();
    if (!name.starts_with(beginning)) continue;
    const std::string_view numbers = std::string_view(name).substr(beginning.size());  // "PID-ATTEMPT"
    if (numbers.find_first_not_of("0123456789-") != std::string_view::npos) continue;
    const int fd = ::open(entries->path().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) continue;
    struct stat s {};
    if (fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0)
      removed += unlink(entries->path().c_str()) == 0;
    close(fd);
  }
  return removed;
}

PlannedOutput::PlannedOutput(const std::string& path)
    : plan_(new AtomicFile::Unfinished{.temporary = {}, .shown = escaped(path)}) {
  enlist(plan_.get());
}

PlannedOutput::PlannedOutput(PlannedOutput&&) noexcept = default;

PlannedOutput::~PlannedOutput() {
  if (plan_) forget(plan_);
}

Result<PlannedOutput> PlannedOutput::create(const std::string& path) {
  struct stat s {};
  const bool in_place = stat(path.c_str(), &s) == 0 && !S_ISREG(s.st_mode);
  if (!in_place || S_ISDIR(s.st_mode)) {
    QUIRE_TRY([[maybe_unused]] const AtomicFile tried, AtomicFile::create(path));
    return PlannedOutput(path);  // before the trial goes, so that there is no moment without either
  }
  // Opening a pipe would wait for its reader.
  if (access(path.c_str(), W_OK) != 0) return request_error("cannot write {}: {}", path, std::strerror(errno));
  return PlannedOutput(path);
}

Status write_file(const std::string& path, std::string_view text) {
  QUIRE_TRY(AtomicFile file, AtomicFile::create(path));
  QUIRE_CHECKED(file.write(text));
  return file.commit();
}

}  // namespace quire
