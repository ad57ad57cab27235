#include "eval/logits_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/hash.h"

namespace quire {
namespace {

constexpr std::string_view kMagic = "QUIRELGT";
constexpr uint32_t kVersion = 1;
constexpr int64_t kMaxName = 4096, kMaxWindow = int64_t{1} << 24;

// The header up to the name, as it lies in the file.
struct Fixed {
  char magic[8];
  uint32_t version, vocab;
  uint64_t window, windows, tokens_hash, vocabulary_hash;
  uint32_t name_bytes;
} __attribute__((packed));
static_assert(sizeof(Fixed) == 52);

std::string_view stored_name(const LogitsHeader& h) {
  return std::string_view(h.model).substr(0, kMaxName);
}

}  // namespace

std::optional<int64_t> LogitsHeader::file_bytes() const {
  int64_t bytes = 4;
  if (__builtin_mul_overflow(bytes, vocab, &bytes) || __builtin_mul_overflow(bytes, positions_per_window(), &bytes) ||
      __builtin_mul_overflow(bytes, windows, &bytes) ||
      __builtin_add_overflow(bytes, static_cast<int64_t>(sizeof(Fixed) + stored_name(*this).size()), &bytes))
    return std::nullopt;
  return bytes;
}

uint64_t vocabulary_hash(const Tokenizer& tokenizer) {
  uint64_t h = kFnvStart;
  for (TokenId t = 0; t < tokenizer.size(); ++t) {
    const auto type = static_cast<int32_t>(tokenizer.vocab().type(t));
    h = fnv1a(fnv1a(h, tokenizer.token_text(t)), &type, sizeof type);
  }
  return h;
}

uint64_t token_ids_hash(std::span<const TokenId> tokens) {
  return fnv1a(kFnvStart, tokens.data(), tokens.size_bytes());
}

Result<LogitsWriter> LogitsWriter::create(const std::string& path, const LogitsHeader& header) {
  const std::optional<int64_t> bytes = header.file_bytes();
  if (!bytes) return request_error("{}: logits of this size make no file", path);
  QUIRE_TRY(AtomicFile file, AtomicFile::create(path, static_cast<uint64_t>(*bytes)));
  const std::string_view name = stored_name(header);
  Fixed f{.version = kVersion,
          .vocab = static_cast<uint32_t>(header.vocab),
          .window = static_cast<uint64_t>(header.window),
          .windows = static_cast<uint64_t>(header.windows),
          .tokens_hash = header.tokens_hash,
          .vocabulary_hash = header.vocabulary_hash,
          .name_bytes = static_cast<uint32_t>(name.size())};
  std::memcpy(f.magic, kMagic.data(), kMagic.size());
  QUIRE_CHECKED(file.write(&f, sizeof f));
  QUIRE_CHECKED(file.write(name));
  return LogitsWriter(std::move(file), *bytes - static_cast<int64_t>(sizeof f + name.size()));
}

Status LogitsWriter::write(std::span<const float> logits) {
  left_ -= static_cast<int64_t>(logits.size_bytes());
  QUIRE_CHECK(left_ >= 0, "{} bytes of logits too many", -left_);
  return file_.write(logits.data(), logits.size_bytes());
}

Status LogitsWriter::finish() {
  QUIRE_CHECK(left_ == 0, "{} bytes of logits are missing", left_);
  return file_.commit();
}

Result<LogitsReader> LogitsReader::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return request_error("{}: {}", path, std::strerror(errno));
  LogitsReader reader(path, fd);
  QUIRE_CHECKED(reader.read_header().context(path));
  return reader;
}

LogitsReader::LogitsReader(LogitsReader&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      header_(std::move(other.header_)),
      data_offset_(other.data_offset_),
      rows_(std::move(other.rows_)) {}

LogitsReader::~LogitsReader() {
  if (fd_ >= 0) close(fd_);
}

Status LogitsReader::read_header() {
  struct stat s {};
  if (fstat(fd_, &s) != 0) return file_error("{}", std::strerror(errno));
  if (!S_ISREG(s.st_mode)) return file_error("is not a regular file");
  Fixed f;
  if (s.st_size < static_cast<int64_t>(sizeof f))
    return file_error("{} bytes are no file of reference logits (quire compare --save-logits writes them)", s.st_size);
  QUIRE_CHECKED(read_bytes(&f, sizeof f, 0));
  if (std::string_view(f.magic, sizeof f.magic) != kMagic)
    return file_error("is no file of reference logits (quire compare --save-logits writes them)");
  if (f.version != kVersion)
    return file_error("its format has version {}, this program reads {}; save the logits again", uint32_t{f.version},
                      kVersion);
  if (f.vocab < 1 || f.vocab > INT32_MAX || f.window < 2 || f.window > kMaxWindow || f.windows < 1 ||
      f.windows > INT64_MAX || f.name_bytes > kMaxName)
    return file_error("its header is damaged (vocabulary {}, window {}, windows {}, name of {} bytes)",
                      uint32_t{f.vocab}, uint64_t{f.window}, uint64_t{f.windows}, uint32_t{f.name_bytes});
  header_ = {.vocab = f.vocab,
             .window = static_cast<int64_t>(f.window),
             .windows = static_cast<int64_t>(f.windows),
             .tokens_hash = f.tokens_hash,
             .vocabulary_hash = f.vocabulary_hash,
             .model = std::string(f.name_bytes, '\0')};
  const std::optional<int64_t> bytes = header_.file_bytes();
  if (bytes != s.st_size)
    return file_error("has {} bytes, but its header says {}: it is cut short or damaged, save it again", s.st_size,
                      bytes ? fmt::to_string(*bytes) : "more than any file has");
  data_offset_ = static_cast<int64_t>(sizeof f + f.name_bytes);
  return read_bytes(header_.model.data(), f.name_bytes, sizeof f);
}

Status LogitsReader::read_bytes(void* to, int64_t bytes, int64_t offset) {
  char* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n = pread(fd_, at, static_cast<size_t>(bytes), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return file_error("byte {}: {}", offset, std::strerror(errno));
    if (n == 0) return file_error("ends at byte {}: it has been cut short since it was opened", offset);
    at += n;
    bytes -= n;
    offset += n;
  }
  return {};
}

Result<std::span<const float>> LogitsReader::read(int64_t window, int64_t first, int64_t count) {
  const int64_t per_window = header_.positions_per_window();
  QUIRE_CHECK(window >= 0 && window < header_.windows && first >= 0 && count >= 0 && first + count <= per_window,
              "positions {} to {} of window {}", first, first + count, window);
  rows_.resize(static_cast<size_t>(count * header_.vocab));
  const int64_t row_bytes = header_.vocab * static_cast<int64_t>(sizeof(float));
  QUIRE_CHECKED(read_bytes(rows_.data(), count * row_bytes, data_offset_ + (window * per_window + first) * row_bytes)
                    .context(path_));
  return std::span<const float>(rows_);
}

}  // namespace quire
