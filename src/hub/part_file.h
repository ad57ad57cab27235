// A blob that is being fetched, in pieces and in any order, and what of it is there: survives the process.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/result.h"

namespace quire::hub {

// Beside the blob's final name: HASH.quire-part, as long as the blob, and HASH.quire-map, which has a line that says of
// which length and a byte for each piece, 1 where it is complete. Only who holds the blob's lock may have one.
class PartFile {
 public:
  static constexpr uint64_t kPiece = 4 << 20;

  // Goes on with what is there, if it is of a blob of this size. An error where the file system has no room for the
  // rest, or cannot be written.
  static Result<PartFile> open(const std::string& blob_path, uint64_t bytes);
  PartFile(PartFile&& other) noexcept;
  PartFile& operator=(PartFile&&) = delete;
  ~PartFile();  // what is there stays

  size_t pieces() const { return complete_.size(); }
  // When it was opened.
  bool was_complete(size_t piece) const { return complete_[piece]; }
  uint64_t begin_of(size_t piece) const { return piece * kPiece; }
  uint64_t end_of(size_t piece) const { return std::min((piece + 1) * kPiece, bytes_); }

  // Any thread, as long as no two write the same piece. A piece that is complete must never be written again: it
  // may have been hashed.
  Status write(uint64_t offset, std::span<const std::byte> bytes) const;
  Status note_complete(size_t piece) const;
  Status read(uint64_t offset, std::span<std::byte> to) const;

  // Gives the blob its name, durably. The file is complete, and its hash has been checked.
  Status commit();
  // Removes both files.
  void discard();

 private:
  PartFile(std::string blob_path, uint64_t bytes);
  Error failed(const char* doing) const;
  bool read_map();

  std::string blob_path_;
  uint64_t bytes_ = 0;
  std::string head_;  // of the map
  std::vector<bool> complete_;
  int fd_ = -1, map_fd_ = -1;
};

}  // namespace quire::hub
