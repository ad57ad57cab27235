#include "gguf/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace quire::gguf {

Result<Mapping> Mapping::open(const std::string& path) {
  // Without O_NONBLOCK, opening a FIFO would wait for a writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return request_error("cannot open {}: {}", path, std::strerror(errno));
  struct stat st {};
  void* base = MAP_FAILED;
  const bool readable = fstat(fd, &st) == 0;
  const size_t size = static_cast<size_t>(st.st_size);
  if (readable && S_ISREG(st.st_mode) && size > 0) base = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  const int map_errno = errno;
  close(fd);  // the mapping keeps the file open
  if (!readable) return request_error("cannot read {}: {}", path, std::strerror(map_errno));
  if (!S_ISREG(st.st_mode)) return request_error("{} is not a regular file; give the path of a .gguf file", path);
  if (size == 0) return file_error("{} is empty", path);
  if (base == MAP_FAILED) return capacity_error("cannot map {} ({} bytes): {}", path, size, std::strerror(map_errno));
  return Mapping(base, size);
}

Mapping::Mapping(Mapping&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  return *this;
}

Mapping::~Mapping() {
  if (base_ != nullptr) munmap(base_, size_);
}

void Mapping::prefetch() const {
  if (base_ != nullptr) madvise(base_, size_, MADV_WILLNEED);
}

}  // namespace quire::gguf
