#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "server/media/fetch_url.h"

namespace quire::server {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { reset(-1); }
  Descriptor(const Descriptor&) = delete;
  int get() const { return fd_; }
  void reset(int fd) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
  }

 private:
  int fd_;
};

// Name by name, so that no link below the folder is followed, whoever puts one there meanwhile.
int open_below(const MediaFile& file) {
  Descriptor at(open(file.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (size_t i = 0; i + 1 < file.parts.size() && at.get() >= 0; ++i)
    at.reset(openat(at.get(), file.parts[i].c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat s {};
  // To open some devices is to use them.
  if (at.get() < 0 || file.parts.empty() ||
      fstatat(at.get(), file.parts.back().c_str(), &s, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(s.st_mode))
    return -1;
  return openat(at.get(), file.parts.back().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

ApiError unreadable() {
  return to_api_error(MediaPolicy::no_file());
}

}  // namespace

ApiResult<std::vector<uint8_t>> read_media_file(const MediaFile& file, const FetchBounds& bounds) {
  const Descriptor opened(open_below(file));
  struct stat s {};
  if (opened.get() < 0 || fstat(opened.get(), &s) != 0 || !S_ISREG(s.st_mode)) return unreadable();
  if (std::cmp_greater(s.st_size, bounds.max_bytes)) return unreadable();
  std::vector<uint8_t> bytes;
  std::array<uint8_t, 65536> piece;
  for (;;) {
    if (bounds.stopped() || HostLookup::Clock::now() >= bounds.deadline) return unreadable();
    const ssize_t n = read(opened.get(), piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return unreadable();
    if (n == 0) break;
    if (static_cast<size_t>(n) > bounds.max_bytes - bytes.size()) return unreadable();  // it may grow meanwhile
    QUIRE_CHECKED(bounds.take(static_cast<size_t>(n)));
    bytes.insert(bytes.end(), piece.begin(), piece.begin() + n);
  }
  bytes.shrink_to_fit();
  return bytes;
}

}  // namespace quire::server
