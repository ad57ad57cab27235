#include "core/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace quire {
namespace {

std::filesystem::path folder_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? std::filesystem::path(".") : parent;
}

}  // namespace

Result<AtomicFile> AtomicFile::create(std::string path, uint64_t bytes, uint32_t mode) {
  struct stat s {};
  AtomicFile file(std::move(path));
  const std::string& name = file.path_;
  if (stat(name.c_str(), &s) == 0 && !S_ISREG(s.st_mode)) {
    file.fd_ = ::open(name.c_str(), O_WRONLY | O_CLOEXEC);
    if (file.fd_ < 0) return request_error("cannot write {}: {}", name, std::strerror(errno));
    return file;
  }
  std::error_code unknown;
  const std::filesystem::space_info space = std::filesystem::space(folder_of(name), unknown);
  if (!unknown && bytes > space.available)
    return request_error("{} needs {} bytes, but its file system has {} left; free space or choose another",
                         name, bytes, space.available);
  // In the same folder, so that the rename stays within one file system. O_EXCL: never somebody else's file.
  for (int attempt = 0; attempt < 100 && file.fd_ < 0; ++attempt) {
    file.temporary_ = fmt::format("{}.partial-{}-{}", name, getpid(), attempt);
    file.fd_ = ::open(file.temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (file.fd_ < 0 && errno != EEXIST) break;
  }
  if (file.fd_ < 0) return request_error("cannot create {}: {}", name, std::strerror(errno));
  return file;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      fd_(std::exchange(other.fd_, -1)),
      written_(other.written_) {}

AtomicFile::~AtomicFile() {
  discard();
}

void AtomicFile::discard() {
  if (fd_ < 0) return;
  close(std::exchange(fd_, -1));
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

Error AtomicFile::failed() {
  Error error = request_error("cannot write {} ({} bytes written): {}; free space and try again", path_,
                              written_, std::strerror(errno));
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
  if (!temporary_.empty()) {
    if (fsync(fd_) != 0 || rename(temporary_.c_str(), path_.c_str()) != 0) return failed();
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

Status write_file(const std::string& path, std::string_view text) {
  QUIRE_TRY(AtomicFile file, AtomicFile::create(path));
  QUIRE_CHECKED(file.write(text));
  return file.commit();
}

}  // namespace quire
