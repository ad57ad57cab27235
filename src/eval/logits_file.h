// Logits of a reference model over a text, in a file, so that many models can be compared without running the
// reference again.
//
// Little-endian:
//   char[8]  magic "QUIRELGT"       u32  version, 1
//   u32      vocabulary size V      u64  window, tokens: 2 ... 2^24
//   u64      windows W: 1 ...       u64  FNV-1a of the W * window token ids (int32 each)
//   u64      FNV-1a of the vocabulary (vocabulary_hash)
//   u32      n <= 4096              char[n]  name of the model
//   f32 [W][window - 1][V]          logits as the model gave them: comparing with the file gives the very
//                                   numbers that comparing with the model gives
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/atomic_file.h"
#include "core/id.h"
#include "tokenizer/tokenizer.h"

namespace quire {

struct LogitsHeader {
  int64_t vocab = 0, window = 0, windows = 0;
  uint64_t tokens_hash = 0, vocabulary_hash = 0;
  std::string model;  // free text of at most 4096 bytes, longer ones are cut

  int64_t positions_per_window() const { return window - 1; }
  // Of the whole file; nothing if that is no file size.
  std::optional<int64_t> file_bytes() const;
};

// Texts and types of all tokens.
uint64_t vocabulary_hash(const Tokenizer& tokenizer);
uint64_t token_ids_hash(std::span<const TokenId> tokens);

// Appears under its name when finish() has returned.
class LogitsWriter {
 public:
  static Result<LogitsWriter> create(const std::string& path, const LogitsHeader& header);
  // Whole rows [n, V] of the next positions.
  Status write(std::span<const float> logits);
  Status finish();

 private:
  LogitsWriter(AtomicFile file, int64_t bytes) : file_(std::move(file)), left_(bytes) {}
  AtomicFile file_;
  int64_t left_;  // bytes of logits still to come
};

class LogitsReader {
 public:
  // Checks the header and the size of the file. Every failure is Fault::kModelFile (kRequest if it cannot be
  // opened) and names the file.
  static Result<LogitsReader> open(const std::string& path);
  LogitsReader(LogitsReader&& other) noexcept;
  LogitsReader& operator=(LogitsReader&&) = delete;
  ~LogitsReader();

  const LogitsHeader& header() const { return header_; }
  // Rows [count, V] of positions first ... first + count - 1 of a window; valid until the next call.
  Result<std::span<const float>> read(int64_t window, int64_t first, int64_t count);

 private:
  LogitsReader(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  Status read_header();
  Status read_bytes(void* to, int64_t bytes, int64_t offset);

  std::string path_;
  int fd_;
  LogitsHeader header_;
  int64_t data_offset_ = 0;
  std::vector<float> rows_;
};

}  // namespace quire
