#include "core/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

namespace quire {
namespace {

struct Descriptor {
  explicit Descriptor(int opened) : fd(opened) {}
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  const int fd;
};

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

Error too_large(const std::string& path, uint64_t most) {
  return request_error("{}: more than {} bytes, which such a file may not have", path, most);
}

// Where the kernel says that the open file is.
Status check_within(int fd, const std::string& path, const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code unknown;
  const fs::path real = fs::read_symlink(fmt::format("/proc/self/fd/{}", fd), unknown);
  const fs::path allowed = unknown ? fs::path() : fs::canonical(folder, unknown);
  if (!unknown && std::mismatch(allowed.begin(), allowed.end(), real.begin(), real.end()).first == allowed.end())
    return {};
  return request_error("{}: it is not in the folder {} or below it, and no other files are read", path, folder);
}

}  // namespace

Result<std::string> read_input_file(const std::string& path, uint64_t most, const std::string& within) {
  // Without O_NONBLOCK, opening a pipe would wait for a writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.fd < 0 && !within.empty()) return request_error("{}: there is no file that may be read", path);
  if (file.fd < 0) return request_error("cannot open {}: {}", path, std::strerror(errno));
  if (!within.empty()) QUIRE_CHECKED(check_within(file.fd, path, within));
  struct stat s {};
  if (fstat(file.fd, &s) != 0) return request_error("{}: {}", path, std::strerror(errno));
  if (!S_ISREG(s.st_mode)) return request_error("{} is not a regular file: it is {}", path, kind_of(s.st_mode));
  if (static_cast<uint64_t>(s.st_size) > most) return too_large(path, most);
  std::string text;
  text.reserve(static_cast<size_t>(s.st_size));
  char buffer[65536];
  for (;;) {
    const ssize_t n = read(file.fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return request_error("{}: {}", path, std::strerror(errno));
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > most) return too_large(path, most);  // files of /proc have no size, others may grow
  }
}

Status check_pem_file(std::string_view option, const std::string& path) {
  constexpr int64_t kMost = 16 << 20;
  struct stat s {};
  if (stat(path.c_str(), &s) != 0 || access(path.c_str(), R_OK) != 0)
    return request_error("{} {}: {}", option, path, std::strerror(errno));
  if (S_ISREG(s.st_mode) && s.st_size > kMost)
    return request_error("{} {}: it has {} bytes, more than any PEM file", option, path, s.st_size);
  if (S_ISREG(s.st_mode) || S_ISFIFO(s.st_mode)) return {};
  return request_error("{} {}: it is {}; a PEM file is needed", option, path, kind_of(s.st_mode));
}

}  // namespace quire
