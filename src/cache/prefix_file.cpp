#include "cache/prefix_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <vector>

#include "core/atomic_file.h"

namespace quire {
namespace {

std::vector<int32_t> numbers(std::span<const BlockId> blocks) {
  std::vector<int32_t> all;
  for (const BlockId b : blocks) all.push_back(b.v);
  return all;
}

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[8] = {'Q', 'U', 'I', 'R', 'E', 'P', 'F', 'X'};
constexpr uint32_t kVersion = 1;
constexpr size_t kMaxFingerprint = 4096;
constexpr int64_t kNoRecord = -1;  // the parent of what begins a prompt
constexpr uint32_t kHasState = 1;
constexpr int kWindowFlags = 4;  // the bits from here on: which window blocks are there

struct Head {
  char magic[8];
  uint32_t version;
  uint32_t chunk_tokens, chunk_blocks;
  uint32_t fingerprint_bytes;
  int64_t block_bytes, state_bytes;
  int64_t records, states;
  uint64_t salt_key[2];
  int64_t window_block_bytes, windows;  // records with window blocks
  uint8_t unused[40];
};
static_assert(sizeof(Head) == 128);

struct RecordHead {
  int64_t number, parent;  // of a record before it
  uint32_t flags, unused;
  Hash128 salt;
  TokenId tokens[kChunkTokens];
};
static_assert(sizeof(RecordHead) == 40 + 4 * kChunkTokens);

// Against damage alone, so the key is no secret.
Hash128 checksum(std::span<const std::byte> bytes) {
  static const KeyedHash hash(0x7072656669786573, 0x6b65707420686572);
  return hash(bytes);
}

template <class T>
std::span<std::byte> bytes_of(T& x) {
  return std::as_writable_bytes(std::span(&x, 1));
}

// What a record has beside its blocks.
struct Parts {
  bool state = false;
  uint32_t windows = 0;  // bit i: the i-th window block

  static Parts of(const PrefixCache::Chunk& c) {
    Parts p{.state = c.has_state()};
    for (int b = 0; b < kChunkBlocks; ++b) p.windows |= uint32_t{c.windows[b].valid()} << b;
    return p;
  }
  static Parts of(uint32_t flags) { return {(flags & kHasState) != 0, flags >> kWindowFlags}; }
  uint32_t flags() const { return (state ? kHasState : 0) | windows << kWindowFlags; }
};

// How long things are. Sizes come from an engine, counts perhaps from a file.
struct Sizes {
  int64_t blocks, state, windows;  // of a record
  explicit Sizes(const PrefixFileOwner& o)
      : blocks(kChunkBlocks * o.block_bytes), state(o.state_bytes), windows(kChunkBlocks * o.window_block_bytes) {}
  int64_t plain() const {
    return static_cast<int64_t>(sizeof(RecordHead)) + blocks + static_cast<int64_t>(sizeof(Hash128));
  }
  int64_t record(const Parts& p) const { return plain() + (p.windows != 0 ? windows : 0) + (p.state ? state : 0); }
  static int64_t head(size_t fingerprint) { return static_cast<int64_t>(sizeof(Head) + fingerprint + sizeof(Hash128)); }
  // Nothing if that is no number of bytes.
  std::optional<int64_t> file(size_t fingerprint, int64_t records, int64_t states, int64_t with_windows) const {
    int64_t all = 0, of_states = 0, of_windows = 0;
    if (__builtin_mul_overflow(records, plain(), &all) || __builtin_mul_overflow(states, state, &of_states) ||
        __builtin_mul_overflow(with_windows, windows, &of_windows) || __builtin_add_overflow(all, of_states, &all) ||
        __builtin_add_overflow(all, of_windows, &all) || __builtin_add_overflow(all, head(fingerprint), &all))
      return std::nullopt;
    return all;
  }
};

// One record in memory: its head, blocks, window blocks, state and checksum, as they lie in the file.
class Record {
 public:
  explicit Record(const Sizes& sizes)
      : sizes_(sizes), bytes_(static_cast<size_t>(sizes.record({.state = true, .windows = 1}))) {}
  RecordHead head{};
  std::span<std::byte> blocks() { return part(sizeof(RecordHead), sizes_.blocks); }
  std::span<std::byte> windows() { return part(behind_blocks(), sizes_.windows); }
  std::span<std::byte> state(const Parts& p) {
    return part(behind_blocks() + (p.windows != 0 ? static_cast<size_t>(sizes_.windows) : 0), sizes_.state);
  }
  // Everything; the checksum last.
  std::span<std::byte> all(const Parts& p) { return part(0, sizes_.record(p)); }

  std::span<const std::byte> seal(const Parts& p) {
    const std::span<std::byte> whole = all(p), said = whole.first(whole.size() - sizeof(Hash128));
    std::memcpy(whole.data(), &head, sizeof head);
    const Hash128 sum = checksum(said);
    std::memcpy(whole.data() + said.size(), &sum, sizeof sum);
    return whole;
  }
  bool is_whole(const Parts& p) {
    const std::span<std::byte> whole = all(p), said = whole.first(whole.size() - sizeof(Hash128));
    const Hash128 sum = checksum(said);
    return std::memcmp(whole.data() + said.size(), &sum, sizeof sum) == 0;
  }
  void read_head() { std::memcpy(&head, bytes_.data(), sizeof head); }

 private:
  size_t behind_blocks() const { return sizeof(RecordHead) + static_cast<size_t>(sizes_.blocks); }
  std::span<std::byte> part(size_t from, int64_t count) {
    return std::span(bytes_).subspan(from, static_cast<size_t>(count));
  }
  Sizes sizes_;
  std::vector<std::byte> bytes_;
};

// Which nodes a file of so many bytes gets, in its order.
std::vector<int32_t> choose(const PrefixCache& cache, const PrefixFileOwner& owner, int64_t max_bytes) {
  const Sizes sizes(owner);
  int64_t left = max_bytes - Sizes::head(owner.fingerprint.size());
  const std::vector<int32_t> by_use = cache.by_use();
  std::vector<bool> marked(static_cast<size_t>(*std::ranges::max_element(by_use)) + 1);
  marked[PrefixCache::kNoParent] = true;
  std::vector<int32_t> chosen;
  for (const int32_t node : by_use) {
    const PrefixCache::Chunk c = cache.chunk(node);
    if (!marked[static_cast<size_t>(c.parent)]) continue;
    if (cache.recurrent() && !c.has_state() && !c.state_below) continue;
    if ((left -= sizes.record(Parts::of(c))) < 0) break;
    marked[static_cast<size_t>(node)] = true;
    chosen.push_back(node);
  }
  if (!cache.needs_more_than_blocks()) return chosen;
  // From the end: what leads to no place where a prompt can go on is left out. A state may have had no room any more.
  marked.assign(marked.size(), false);
  std::vector<int32_t> useful;
  for (auto node = chosen.rbegin(); node != chosen.rend(); ++node) {
    const PrefixCache::Chunk c = cache.chunk(*node);
    if (!c.resumes && !marked[static_cast<size_t>(*node)]) continue;
    marked[static_cast<size_t>(c.parent)] = true;
    useful.push_back(*node);
  }
  std::ranges::reverse(useful);
  return useful;
}

class Writer {
 public:
  Writer(const PrefixFileOwner& owner, const PrefixCache& cache, CacheMemory& memory)
      : owner_(owner), cache_(cache), memory_(memory), sizes_(owner), record_(sizes_) {}

  Result<PrefixFileContent> write(const std::string& path, const KeyedHash& salts, std::span<const int32_t> nodes) {
    PrefixFileContent content{.chunks = std::ssize(nodes), .skipped = cache_.stats().nodes - std::ssize(nodes)};
    int64_t windows = 0;
    for (const int32_t n : nodes) {
      const PrefixCache::Chunk c = cache_.chunk(n);
      content.states += c.has_state();
      windows += c.has_windows();
    }
    content.bytes = sizes_.file(owner_.fingerprint.size(), content.chunks, content.states, windows).value();
    QUIRE_CHECKED(check_prefix_place(path));
    QUIRE_TRY(AtomicFile file, AtomicFile::create(path, static_cast<uint64_t>(content.bytes), 0600));
    QUIRE_CHECKED(write_head(file, salts, content, windows));
    std::vector<int64_t> number_of;
    for (int64_t i = 0; i < content.chunks; ++i) {
      const int32_t node = nodes[static_cast<size_t>(i)];
      number_of.resize(std::max(number_of.size(), static_cast<size_t>(node) + 1), kNoRecord);
      number_of[static_cast<size_t>(node)] = i;
      QUIRE_CHECKED(write_record(file, i, cache_.chunk(node), number_of));
    }
    QUIRE_CHECKED(check_prefix_place(path));  // it took a while
    QUIRE_CHECKED(file.commit());
    return content;
  }

 private:
  Status write_head(AtomicFile& file, const KeyedHash& salts, const PrefixFileContent& content, int64_t windows) {
    Head h{.version = kVersion,
           .chunk_tokens = kChunkTokens,
           .chunk_blocks = kChunkBlocks,
           .fingerprint_bytes = static_cast<uint32_t>(owner_.fingerprint.size()),
           .block_bytes = owner_.block_bytes,
           .state_bytes = owner_.state_bytes,
           .records = content.chunks,
           .states = content.states,
           .salt_key = {salts.key()[0], salts.key()[1]},
           .window_block_bytes = owner_.window_block_bytes,
           .windows = windows};
    std::memcpy(h.magic, kMagic, sizeof kMagic);
    std::vector<std::byte> bytes(sizeof h + owner_.fingerprint.size());
    std::memcpy(bytes.data(), &h, sizeof h);
    std::memcpy(bytes.data() + sizeof h, owner_.fingerprint.data(), owner_.fingerprint.size());
    const Hash128 sum = checksum(bytes);
    QUIRE_CHECKED(file.write(bytes.data(), bytes.size()));
    return file.write(&sum, sizeof sum);
  }

  Status write_record(AtomicFile& file, int64_t number, const PrefixCache::Chunk& c,
                      std::span<const int64_t> number_of) {
    const Parts parts = Parts::of(c);
    const bool begins = c.parent == PrefixCache::kNoParent;
    record_.head = {.number = number,
                    .parent = begins ? kNoRecord : number_of[static_cast<size_t>(c.parent)],
                    .flags = parts.flags(),
                    .salt = c.salt};
    std::ranges::copy(c.tokens, record_.head.tokens);
    QUIRE_CHECKED(c.on_device() ? memory_.read(CachePool::kBlocks, numbers(c.blocks), record_.blocks())
                                : memory_.read(CachePool::kPages, c.block_pages, record_.blocks()));
    if (parts.windows != 0) {
      std::ranges::fill(record_.windows(), std::byte{});
      QUIRE_CHECKED(memory_.read(CachePool::kWindows, numbers(c.windows), record_.windows()));
    }
    if (parts.state)
      QUIRE_CHECKED(c.state.valid() ? memory_.read(CachePool::kStates, {&c.state.v, 1}, record_.state(parts))
                                    : memory_.read(CachePool::kPages, c.state_pages, record_.state(parts)));
    const std::span<const std::byte> whole = record_.seal(parts);
    return file.write(whole.data(), whole.size());
  }

  const PrefixFileOwner& owner_;
  const PrefixCache& cache_;
  CacheMemory& memory_;
  Sizes sizes_;
  Record record_;
};

class Reader {
 public:
  Reader(const PrefixFileOwner& owner, PrefixCache& cache, CacheMemory& memory)
      : owner_(owner), cache_(cache), memory_(memory), sizes_(owner) {}
  ~Reader() {
    if (fd_ >= 0) close(fd_);
  }

  Status open(const std::string& path) {
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat s {};
    if (fd_ < 0 || fstat(fd_, &s) != 0) return request_error("{}", std::strerror(errno));
    if (!S_ISREG(s.st_mode)) return request_error("it is no regular file");
    bytes_ = s.st_size;
    return {};
  }

  Status read_head() {
    if (bytes_ < Sizes::head(0))
      return file_error("it has {} bytes, which is less than the beginning of a prefix cache", bytes_);
    QUIRE_CHECKED(read(bytes_of(head_)));
    if (std::memcmp(head_.magic, kMagic, sizeof kMagic) != 0) return file_error("it is no prefix cache");
    if (head_.version != kVersion)
      return file_error("it has version {} of the format, and this program reads {}", head_.version, kVersion);
    if (head_.fingerprint_bytes > kMaxFingerprint || Sizes::head(head_.fingerprint_bytes) > bytes_)
      return damaged("its fingerprint is too long");
    std::vector<std::byte> said(sizeof head_ + head_.fingerprint_bytes);
    std::memcpy(said.data(), &head_, sizeof head_);
    Hash128 sum;
    QUIRE_CHECKED(read(std::span(said).subspan(sizeof head_)));
    QUIRE_CHECKED(read(bytes_of(sum)));
    if (!(checksum(said) == sum)) return damaged("the checksum of its beginning is wrong");
    return check_head({reinterpret_cast<const char*>(said.data()) + sizeof head_, head_.fingerprint_bytes});
  }

  Result<PrefixFileContent> read_records(const KeyedHash& chunks) {
    Record record(sizes_);
    // As many as the file has bytes for: check_head() compared.
    std::vector<int32_t> node_of(static_cast<size_t>(head_.records), -1);
    PrefixFileContent content{.bytes = bytes_};
    for (int64_t i = 0; i < head_.records; ++i) {
      QUIRE_CHECKED(read_record(record, i));
      const RecordHead& h = record.head;
      const Parts parts = Parts::of(h.flags);
      const int32_t parent = h.parent == kNoRecord ? PrefixCache::kNoParent : node_of[static_cast<size_t>(h.parent)];
      // What has no room is less recently used than what has, but its checksum counts.
      const int32_t node =
          parent < 0 ? -1 : cache_.restore(chunks, parent, h.salt, h.tokens, parts.state, parts.windows);
      node_of[static_cast<size_t>(i)] = node;
      if (node < 0) {
        ++content.skipped;
        continue;
      }
      const PrefixCache::Chunk made = cache_.chunk(node);
      QUIRE_CHECKED(made.on_device() ? memory_.write(CachePool::kBlocks, numbers(made.blocks), record.blocks())
                                     : memory_.write(CachePool::kPages, made.block_pages, record.blocks()));
      ++content.chunks;
      if (made.has_windows())
        QUIRE_CHECKED(memory_.write(CachePool::kWindows, numbers(made.windows), record.windows()));
      if (!made.has_state()) continue;
      QUIRE_CHECKED(made.state.valid() ? memory_.write(CachePool::kStates, {&made.state.v, 1}, record.state(parts))
                                       : memory_.write(CachePool::kPages, made.state_pages, record.state(parts)));
      ++content.states;
    }
    if (left_states_ != 0) return damaged("it has fewer states than it says");
    if (left_windows_ != 0) return damaged("it has fewer windows than it says");
    return content;
  }

  KeyedHash salts() const { return {head_.salt_key[0], head_.salt_key[1]}; }

 private:
  template <class... Args>
  static Error damaged(fmt::format_string<Args...> f, Args&&... args) {
    return file_error("it is damaged: {}", fmt::format(f, std::forward<Args>(args)...));
  }

  Status check_head(std::string_view fingerprint) {
    if (fingerprint != owner_.fingerprint)
      return file_error("it was written by another engine: another model, device, version or arithmetic");
    if (head_.chunk_tokens != kChunkTokens || head_.chunk_blocks != kChunkBlocks ||
        head_.block_bytes != owner_.block_bytes || head_.state_bytes != owner_.state_bytes ||
        head_.window_block_bytes != owner_.window_block_bytes)
      return file_error("its blocks and states are laid out in another way than this engine's");
    if (head_.records < 0 || head_.states < 0 || head_.states > head_.records ||
        (head_.states > 0 && owner_.state_bytes == 0))
      return damaged("it says that it has {} chunks and {} states", head_.records, head_.states);
    if (head_.windows < 0 || head_.windows > head_.records || (head_.windows > 0 && owner_.window_block_bytes == 0))
      return damaged("it says that it has {} chunks and {} windows", head_.records, head_.windows);
    const std::optional<int64_t> bytes = sizes_.file(fingerprint.size(), head_.records, head_.states, head_.windows);
    if (bytes != bytes_)
      return damaged("it has {} bytes, which are not {} chunks and {} states", bytes_, head_.records, head_.states);
    left_states_ = head_.states;
    left_windows_ = head_.windows;
    return {};
  }

  Status read_record(Record& record, int64_t number) {
    QUIRE_CHECKED(read(record.all({}).first(sizeof(RecordHead))));
    record.read_head();
    const RecordHead& h = record.head;
    const Parts parts = Parts::of(h.flags);
    if (parts.flags() != h.flags || parts.windows >> kChunkBlocks != 0 || (parts.state && left_states_ == 0) ||
        (parts.windows != 0 && left_windows_ == 0) || h.number != number)
      return damaged("record {} is none", number);
    QUIRE_CHECKED(read(record.all(parts).subspan(sizeof(RecordHead))));
    if (!record.is_whole(parts)) return damaged("the checksum of record {} is wrong", number);
    left_states_ -= parts.state;
    left_windows_ -= parts.windows != 0;
    if (h.parent < kNoRecord || h.parent >= number)
      return damaged("record {} continues record {}, which does not come before it", number, h.parent);
    for (const TokenId t : h.tokens)
      if (t < 0 || t >= owner_.vocab) return damaged("record {} has token {}", number, t);
    return {};
  }

  Status read(std::span<std::byte> to) {
    while (!to.empty()) {
      const ssize_t n = ::read(fd_, to.data(), std::min<size_t>(to.size(), size_t{1} << 30));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return request_error("{}", std::strerror(errno));
      if (n == 0) return damaged("it ends too early");
      to = to.subspan(static_cast<size_t>(n));
    }
    return {};
  }

  const PrefixFileOwner& owner_;
  PrefixCache& cache_;
  CacheMemory& memory_;
  Sizes sizes_;
  int fd_ = -1;
  int64_t bytes_ = 0, left_states_ = 0, left_windows_ = 0;
  Head head_{};
};

}  // namespace

Status check_prefix_place(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && errno == ENOENT) return {};
  if (fd < 0) return request_error("{}: it is there and cannot be read: {}", path, std::strerror(errno));
  struct stat s {};
  const bool regular = fstat(fd, &s) == 0 && S_ISREG(s.st_mode);
  char magic[sizeof kMagic];
  const bool ours =
      regular && pread(fd, magic, sizeof magic, 0) == sizeof magic && std::memcmp(magic, kMagic, sizeof kMagic) == 0;
  close(fd);
  if (!regular) return request_error("{}: it is no regular file", path);
  if (!ours)
    return request_error(
        "{}: there is a file that is no prefix cache, and it is not replaced; name another one, or "
        "remove it",
        path);
  return {};
}

Result<PrefixFileContent> write_prefix_file(const std::string& path, const PrefixFileOwner& owner,
                                            const KeyedHash& salts, const PrefixCache& cache, CacheMemory& memory,
                                            int64_t max_bytes) {
  QUIRE_CHECK(owner.fingerprint.size() <= kMaxFingerprint, "a fingerprint of {} bytes", owner.fingerprint.size());
  const std::vector<int32_t> nodes = cache.stats().nodes > 0 ? choose(cache, owner, max_bytes) : std::vector<int32_t>();
  if (nodes.empty()) return PrefixFileContent{.skipped = cache.stats().nodes};
  return Writer(owner, cache, memory).write(path, salts, nodes);
}

Result<PrefixFileContent> read_prefix_file(const std::string& path, const PrefixFileOwner& owner, KeyedHash& salts,
                                           const KeyedHash& chunks, PrefixCache& cache, CacheMemory& memory) {
  Reader reader(owner, cache, memory);
  QUIRE_CHECKED(reader.open(path).context(path));
  QUIRE_CHECKED(reader.read_head().context(path));
  Result<PrefixFileContent> content = reader.read_records(chunks);
  if (content.ok())
    salts = reader.salts();
  else
    cache.clear();
  return std::move(content).context(path);
}

}  // namespace quire
