#include "hub/part_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "hub/cache.h"

namespace quire::hub {
namespace {

// Longer files than any model's: what a hub says becomes memory for the map.
constexpr uint64_t kMaxBytes = uint64_t{1} << 44;

int open_part(const std::string& path) {
  return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
}

}  // namespace

PartFile::PartFile(std::string blob_path, uint64_t bytes)
    : blob_path_(std::move(blob_path)),
      bytes_(bytes),
      head_(fmt::format("quire-map 1 {:020} {:012}\n", bytes, kPiece)),
      complete_((bytes + kPiece - 1) / kPiece) {}

PartFile::PartFile(PartFile&& other) noexcept
    : blob_path_(std::move(other.blob_path_)),
      bytes_(other.bytes_),
      head_(std::move(other.head_)),
      complete_(std::move(other.complete_)),
      fd_(std::exchange(other.fd_, -1)),
      map_fd_(std::exchange(other.map_fd_, -1)) {}

PartFile::~PartFile() {
  if (fd_ >= 0) close(fd_);
  if (map_fd_ >= 0) close(map_fd_);
}

Error PartFile::failed(const char* doing) const {
  return request_error("cannot {} {}{}: {}{}", doing, blob_path_, kPartSuffix, std::strerror(errno),
                       errno == ENOSPC || errno == EFBIG || errno == EDQUOT
                           ? fmt::format("; the file has {} bytes: free space, or choose another --hub-cache", bytes_)
                           : "");
}

// Whether what is there belongs to this blob; then complete_ is what it says.
bool PartFile::read_map() {
  struct stat s {};
  if (fstat(fd_, &s) != 0 || static_cast<uint64_t>(s.st_size) != bytes_) return false;
  std::string text(head_.size() + complete_.size() + 1, '\0');
  const ssize_t n = pread(map_fd_, text.data(), text.size(), 0);
  if (n != static_cast<ssize_t>(text.size()) - 1 || !text.starts_with(head_)) return false;
  for (size_t i = 0; i < complete_.size(); ++i) complete_[i] = text[head_.size() + i] == 1;
  return true;
}

Result<PartFile> PartFile::open(const std::string& blob_path, uint64_t bytes) {
  if (bytes > kMaxBytes)
    return request_error("{} is said to have {} bytes; nothing that long is fetched", blob_path, bytes);
  PartFile file(blob_path, bytes);
  file.fd_ = open_part(blob_path + std::string(kPartSuffix));
  if (file.fd_ < 0) return file.failed("create");
  file.map_fd_ = open_part(blob_path + std::string(kMapSuffix));
  if (file.map_fd_ < 0) return file.failed("create the map of");
  if (file.read_map()) return file;
  file.complete_.assign(file.complete_.size(), false);
  const std::string map = file.head_ + std::string(file.complete_.size(), '\0');
  // The map is emptied first and written last: at no moment does it speak of bytes of another blob.
  bool good = ftruncate(file.map_fd_, 0) == 0 && ftruncate(file.fd_, 0) == 0;
  // Room is taken at once, so that a disk that is too small says so before hours have passed.
  good = good && (bytes == 0 || fallocate(file.fd_, 0, 0, static_cast<off_t>(bytes)) == 0 ||
                  (errno == EOPNOTSUPP && ftruncate(file.fd_, static_cast<off_t>(bytes)) == 0));
  good = good && pwrite(file.map_fd_, map.data(), map.size(), 0) == static_cast<ssize_t>(map.size());
  if (good) return file;
  Error error = file.failed("make room for");
  file.discard();
  return error;
}

Status PartFile::write(uint64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return failed("write");
    offset += static_cast<uint64_t>(n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

Status PartFile::note_complete(size_t piece) const {
  // The disk begins now, so that commit() waits for little. Where this is not possible it waits for more.
  const auto begin = static_cast<off_t>(begin_of(piece)), end = static_cast<off_t>(end_of(piece));
  (void)sync_file_range(fd_, begin, end - begin, SYNC_FILE_RANGE_WRITE);
  const char one = 1;
  if (pwrite(map_fd_, &one, 1, static_cast<off_t>(head_.size() + piece)) != 1) return failed("write the map of");
  return {};
}

Status PartFile::read(uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t n = pread(fd_, to.data(), to.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return failed("read");
    offset += static_cast<uint64_t>(n);
    to = to.subspan(static_cast<size_t>(n));
  }
  return {};
}

Status PartFile::commit() {
  if (fdatasync(fd_) != 0) return failed("write");
  if (rename((blob_path_ + std::string(kPartSuffix)).c_str(), blob_path_.c_str()) != 0) return failed("rename");
  unlink((blob_path_ + std::string(kMapSuffix)).c_str());
  const std::string folder = std::filesystem::path(blob_path_).parent_path().string();
  if (const int at = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); at >= 0) {
    (void)fsync(at);
    close(at);
  }
  return {};
}

void PartFile::discard() {
  unlink((blob_path_ + std::string(kMapSuffix)).c_str());
  unlink((blob_path_ + std::string(kPartSuffix)).c_str());
}

}  // namespace quire::hub
