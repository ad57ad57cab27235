#include "cli/chat/history_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string>

#include "tokenizer/unicode.h"

namespace quire::cli {
namespace {

namespace fs = std::filesystem;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

// The last `limit` bytes of a regular file; nothing if it cannot be read.
std::string read_end(const std::string& path, size_t limit) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  const auto size = static_cast<size_t>(status.st_size);
  if (size > limit && ::lseek(file.get(), static_cast<off_t>(size - limit), SEEK_SET) < 0) return {};
  std::string bytes(std::min(size, limit), '\0');
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t n = ::read(file.get(), bytes.data() + filled, bytes.size() - filled);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    filled += static_cast<size_t>(n);
  }
  bytes.resize(filled);
  return bytes;
}

// Folders that are missing are made for the user alone, as the XDG specification asks.
void make_folders(const fs::path& folder) {
  std::error_code ignored;
  if (folder.empty() || fs::exists(folder, ignored)) return;
  make_folders(folder.parent_path());
  ::mkdir(folder.c_str(), 0700);
}

}  // namespace

std::string history_line(std::string_view entry) {
  std::string line;
  for (const char c : entry) {
    if (c == '\n')
      line += "\\n";
    else if (c == '\\')
      line += "\\\\";
    else
      line += c;
  }
  return line;
}

std::string history_entry(std::string_view line) {
  std::string entry;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool escape = line[i] == '\\' && i + 1 < line.size();
    if (escape) ++i;
    entry += escape && line[i] == 'n' ? '\n' : line[i];
  }
  return entry;
}

HistoryStore::HistoryStore(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  const std::string bytes = read_end(path_, kMaxFileBytes);
  size_t lines = 0;
  for (size_t begin = 0; begin < bytes.size(); ++lines) {
    const size_t end = std::min(bytes.find('\n', begin), bytes.size());
    std::string entry = history_entry(std::string_view(bytes).substr(begin, end - begin));
    begin = end + 1;
    if (entry.empty() || entry.size() > kMaxEntryBytes || !unicode::is_valid_utf8(entry) ||
        entry.find('\0') != entry.npos)
      continue;
    entries_.push_back(std::move(entry));
  }
  if (entries_.size() > kMaxEntries)
    entries_.erase(entries_.begin(), entries_.end() - static_cast<std::ptrdiff_t>(kMaxEntries));
  if (lines > 2 * kMaxEntries) rewrite();
}

bool HistoryStore::add(const std::string& entry) {
  if (entry.empty() || entry.size() > kMaxEntryBytes || entry.find('\0') != entry.npos) return false;
  if (!entries_.empty() && entries_.back() == entry) return false;
  entries_.push_back(entry);
  if (entries_.size() > kMaxEntries) entries_.erase(entries_.begin());
  if (!path_.empty()) append(history_line(entry) + "\n");
  return true;
}

// One write() of a whole line to the end: two sessions at once do not mix theirs.
void HistoryStore::append(const std::string& line) {
  make_folders(fs::path(path_).parent_path());
  const Descriptor file(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0600));
  // What cannot be kept is done without from now on: a conversation does not fail for it.
  const bool kept = file.get() >= 0 && ::fchmod(file.get(), 0600) == 0 && write_all(file.get(), line);
  if (!kept) path_.clear();
}

void HistoryStore::rewrite() const {
  const std::string temporary = path_ + ".new";
  bool kept = false;
  {
    const Descriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (file.get() < 0) return;
    std::string bytes;
    for (const std::string& entry : entries_) bytes += history_line(entry) + "\n";
    kept = write_all(file.get(), bytes);
  }
  if (!kept || std::rename(temporary.c_str(), path_.c_str()) != 0) ::unlink(temporary.c_str());
}

}  // namespace quire::cli
