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

using Parts = PrefixCache::Parts;

static_assert(std::endian::native == std::endian::little);

constexpr char kMagic[8] = {'Q', 'U', 'I', 'R', 'E', 'P', 'F', 'X'};
constexpr uint32_t kVersion = 3;
constexpr size_t kMaxFingerprint = 4096;
constexpr int64_t kNoRecord = -1;  // the parent of what begins a prompt

struct Head {
  char magic[8];
  uint32_t version;
  uint32_t chunk_tokens, chunk_blocks;
  uint32_t fingerprint_bytes;
  uint32_t pools, unused;
  int64_t records;
  uint64_t salt_key[2];
  uint8_t more_unused[72];
};
static_assert(sizeof(Head) == 128);

struct PoolHead {
  uint32_t unit, unused;  // CachePoolSpec::Unit
  int64_t bytes, window;
  int64_t records;  // that have some of it
};
static_assert(sizeof(PoolHead) == 32);

struct RecordHead {
  int64_t number, parent;  // of a record before it
  Parts parts;
  uint32_t unused;
  Hash128 salt, pictures;
  TokenId tokens[kChunkTokens];
};
static_assert(sizeof(RecordHead) == 56 + 4 * kChunkTokens);

// Against damage alone, so the key is no secret.
Hash128 checksum(std::span<const std::byte> bytes) {
  static const KeyedHash hash(0x7072656669786573, 0x6b65707420686572);
  return hash(bytes);
}

template <class T>
std::span<std::byte> bytes_of(T& x) {
  return std::as_writable_bytes(std::span(&x, 1));
}

// How long things are. Sizes come from an engine, counts perhaps from a file.
class Sizes {
 public:
  explicit Sizes(const PrefixFileOwner& o) : head_(sizeof(Head) + o.pools.size() * sizeof(PoolHead)) {
    for (const CachePoolSpec& p : o.pools)
      of_chunk_.push_back(p.bytes * (p.unit == CachePoolSpec::Unit::kBlock ? kChunkBlocks : 1));
  }
  int pools() const { return static_cast<int>(of_chunk_.size()); }
  // Of a record: a pool's part, where that begins, and all of it.
  int64_t of_chunk(int pool) const { return of_chunk_[static_cast<size_t>(pool)]; }
  int64_t before(Parts parts, int pool) const {
    auto bytes = static_cast<int64_t>(sizeof(RecordHead));
    for (int p = 0; p < pool; ++p) bytes += PrefixCache::of_pool(parts, p) != 0 ? of_chunk(p) : 0;
    return bytes;
  }
  int64_t record(Parts parts) const { return before(parts, pools()) + static_cast<int64_t>(sizeof(Hash128)); }
  // With some of every pool.
  int64_t largest() const { return record(~Parts{0}); }

  int64_t head(size_t fingerprint) const { return static_cast<int64_t>(head_ + fingerprint + sizeof(Hash128)); }
  // Of a file with so many records, and of each pool records[i] that have some of it. Nothing if that is no number of
  // bytes.
  std::optional<int64_t> file(size_t fingerprint, int64_t count, std::span<const int64_t> records) const {
    int64_t all = 0, of_pool = 0;
    bool ok = !__builtin_mul_overflow(count, record(0), &all);
    for (int p = 0; p < pools(); ++p)
      ok = ok && !__builtin_mul_overflow(records[static_cast<size_t>(p)], of_chunk(p), &of_pool) &&
           !__builtin_add_overflow(all, of_pool, &all);
    if (!ok || __builtin_add_overflow(all, head(fingerprint), &all)) return std::nullopt;
    return all;
  }

 private:
  size_t head_;
  std::vector<int64_t> of_chunk_;
};

// One record in memory: its head, its parts and its checksum, as they lie in the file.
class Record {
 public:
  explicit Record(const Sizes& sizes) : sizes_(sizes), bytes_(static_cast<size_t>(sizes.largest())) {}
  RecordHead head{};
  std::span<std::byte> of_pool(int pool) { return part(sizes_.before(head.parts, pool), sizes_.of_chunk(pool)); }
  // Everything that its head says; the checksum last.
  std::span<std::byte> all() { return part(0, sizes_.record(head.parts)); }
  std::span<std::byte> head_bytes() { return part(0, sizeof(RecordHead)); }

  std::span<const std::byte> seal() {
    const std::span<std::byte> whole = all(), said = whole.first(whole.size() - sizeof(Hash128));
    std::memcpy(whole.data(), &head, sizeof head);
    const Hash128 sum = checksum(said);
    std::memcpy(whole.data() + said.size(), &sum, sizeof sum);
    return whole;
  }
  bool is_whole() {
    const std::span<std::byte> whole = all(), said = whole.first(whole.size() - sizeof(Hash128));
    const Hash128 sum = checksum(said);
    return std::memcmp(whole.data() + said.size(), &sum, sizeof sum) == 0;
  }
  void read_head() { std::memcpy(&head, bytes_.data(), sizeof head); }

 private:
  std::span<std::byte> part(int64_t from, int64_t count) {
    return std::span(bytes_).subspan(static_cast<size_t>(from), static_cast<size_t>(count));
  }
  const Sizes& sizes_;
  std::vector<std::byte> bytes_;
};

// How many records have some of each pool.
void count_parts(Parts parts, std::span<int64_t> records, int64_t by) {
  for (int p = 0; p < std::ssize(records); ++p)
    records[static_cast<size_t>(p)] += PrefixCache::of_pool(parts, p) != 0 ? by : 0;
}

// Which nodes a file of so many bytes gets, in its order.
std::vector<int32_t> choose(const PrefixCache& cache, const PrefixFileOwner& owner, int64_t max_bytes) {
  const Sizes sizes(owner);
  int64_t left = max_bytes - sizes.head(owner.fingerprint.size());
  const std::vector<int32_t> by_use = cache.by_use();
  std::vector<bool> marked(static_cast<size_t>(*std::ranges::max_element(by_use)) + 1);
  marked[PrefixCache::kNoParent] = true;
  std::vector<int32_t> chosen;
  for (const int32_t node : by_use) {
    const PrefixCache::Chunk c = cache.chunk(node);
    if (!marked[static_cast<size_t>(c.parent)]) continue;
    if (cache.recurrent() && !c.has_state && !c.state_below) continue;
    if ((left -= sizes.record(c.parts)) < 0) break;
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
    std::vector<int64_t> records(owner_.pools.size());
    for (const int32_t n : nodes) {
      const PrefixCache::Chunk c = cache_.chunk(n);
      content.states += c.has_state;
      count_parts(c.parts, records, 1);
    }
    content.bytes = sizes_.file(owner_.fingerprint.size(), content.chunks, records).value();
    QUIRE_CHECKED(check_prefix_place(path));
    QUIRE_TRY(AtomicFile file, AtomicFile::create(path, static_cast<uint64_t>(content.bytes), 0600));
    QUIRE_CHECKED(write_head(file, salts, content.chunks, records));
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
  Status write_head(AtomicFile& file, const KeyedHash& salts, int64_t count, std::span<const int64_t> records) {
    Head h{.version = kVersion,
           .chunk_tokens = kChunkTokens,
           .chunk_blocks = kChunkBlocks,
           .fingerprint_bytes = static_cast<uint32_t>(owner_.fingerprint.size()),
           .pools = static_cast<uint32_t>(owner_.pools.size()),
           .records = count,
           .salt_key = {salts.key()[0], salts.key()[1]}};
    std::memcpy(h.magic, kMagic, sizeof kMagic);
    std::vector<std::byte> bytes;
    const auto add = [&](const void* from, size_t size) {
      const auto* const first = static_cast<const std::byte*>(from);
      bytes.insert(bytes.end(), first, first + size);
    };
    add(&h, sizeof h);
    for (size_t p = 0; p < owner_.pools.size(); ++p) {
      const CachePoolSpec& pool = owner_.pools[p];
      const PoolHead of{
          .unit = static_cast<uint32_t>(pool.unit), .bytes = pool.bytes, .window = pool.window, .records = records[p]};
      add(&of, sizeof of);
    }
    add(owner_.fingerprint.data(), owner_.fingerprint.size());
    const Hash128 sum = checksum(bytes);
    add(&sum, sizeof sum);
    return file.write(bytes.data(), bytes.size());
  }

  Status write_record(AtomicFile& file, int64_t number, const PrefixCache::Chunk& c,
                      std::span<const int64_t> number_of) {
    const bool begins = c.parent == PrefixCache::kNoParent;
    record_.head = {.number = number,
                    .parent = begins ? kNoRecord : number_of[static_cast<size_t>(c.parent)],
                    .parts = c.parts,
                    .salt = c.salt,
                    .pictures = c.pictures};
    std::ranges::copy(c.tokens, record_.head.tokens);
    for (int p = 0; p < sizes_.pools(); ++p) {
      if (PrefixCache::of_pool(c.parts, p) == 0) continue;
      const PrefixCache::Chunk::Units& from = c.pools[static_cast<size_t>(p)];
      std::ranges::fill(record_.of_pool(p), std::byte{});
      QUIRE_CHECKED(from.units.empty() ? memory_.read(on_host(p), from.pages, record_.of_pool(p))
                                       : memory_.read(p, from.units, record_.of_pool(p)));
    }
    const std::span<const std::byte> whole = record_.seal();
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
    if (bytes_ < static_cast<int64_t>(sizeof head_))
      return file_error("it has {} bytes, which is less than the beginning of a prefix cache", bytes_);
    QUIRE_CHECKED(read(bytes_of(head_)));
    if (std::memcmp(head_.magic, kMagic, sizeof kMagic) != 0) return file_error("it is no prefix cache");
    if (head_.version != kVersion)
      return file_error("it has version {} of the format, and this program reads {}", head_.version, kVersion);
    if (head_.fingerprint_bytes > kMaxFingerprint) return damaged("its fingerprint is too long");
    if (head_.pools < 1 || head_.pools > kMostPools) return damaged("it has {} kinds of cache", head_.pools);
    std::vector<std::byte> said(sizeof head_ + head_.pools * sizeof(PoolHead) + head_.fingerprint_bytes);
    std::memcpy(said.data(), &head_, sizeof head_);
    Hash128 sum;
    QUIRE_CHECKED(read(std::span(said).subspan(sizeof head_)));
    QUIRE_CHECKED(read(bytes_of(sum)));
    if (!(checksum(said) == sum)) return damaged("the checksum of its beginning is wrong");
    pools_.resize(head_.pools);
    std::memcpy(pools_.data(), said.data() + sizeof head_, pools_.size() * sizeof(PoolHead));
    const std::span<const std::byte> fingerprint = std::span(said).last(head_.fingerprint_bytes);
    return check_head({reinterpret_cast<const char*>(fingerprint.data()), fingerprint.size()});
  }

  Result<PrefixFileContent> read_records(const KeyedHash& chunks) {
    Record record(sizes_);
    // As many as the file has bytes for: check_head() compared.
    std::vector<int32_t> node_of(static_cast<size_t>(head_.records), -1);
    PrefixFileContent content{.bytes = bytes_};
    for (int64_t i = 0; i < head_.records; ++i) {
      QUIRE_CHECKED(read_record(record, i));
      const RecordHead& h = record.head;
      const int32_t parent = h.parent == kNoRecord ? PrefixCache::kNoParent : node_of[static_cast<size_t>(h.parent)];
      // What has no room is less recently used than what has, but its checksum counts.
      const int32_t node = parent < 0 ? -1 : cache_.restore(chunks, parent, h.salt, h.pictures, h.tokens, h.parts);
      node_of[static_cast<size_t>(i)] = node;
      if (node < 0) {
        ++content.skipped;
        continue;
      }
      const PrefixCache::Chunk made = cache_.chunk(node);
      for (int p = 0; p < sizes_.pools(); ++p) {
        if (PrefixCache::of_pool(made.parts, p) == 0) continue;
        const PrefixCache::Chunk::Units& to = made.pools[static_cast<size_t>(p)];
        QUIRE_CHECKED(to.units.empty() ? memory_.write(on_host(p), to.pages, record.of_pool(p))
                                       : memory_.write(p, to.units, record.of_pool(p)));
      }
      ++content.chunks;
      content.states += made.has_state;
    }
    if (std::ranges::any_of(left_, [](int64_t n) { return n != 0; }))
      return damaged("it has fewer blocks of windows, or states, than it says");
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
    const auto same = [](const PoolHead& has, const CachePoolSpec& pool) {
      return has.unit == static_cast<uint32_t>(pool.unit) && has.bytes == pool.bytes && has.window == pool.window;
    };
    if (head_.chunk_tokens != kChunkTokens || head_.chunk_blocks != kChunkBlocks ||
        !std::ranges::equal(pools_, owner_.pools, same))
      return file_error("its blocks and states are laid out in another way than this engine's");
    for (const PoolHead& p : pools_) {
      if (p.records < 0 || p.records > head_.records)
        return damaged("it says that {} of {} chunks have a part", p.records, head_.records);
      left_.push_back(p.records);
    }
    const std::optional<int64_t> bytes = sizes_.file(fingerprint.size(), head_.records, left_);
    if (bytes != bytes_) return damaged("it has {} bytes, which are not {} chunks", bytes_, head_.records);
    return {};
  }

  // Every chunk has its blocks, and of a pool of states there is one.
  bool may_have(Parts parts) const {
    for (int p = 0; p < kMostPools; ++p) {
      const Parts of = PrefixCache::of_pool(parts, p);
      const bool is_pool = p < sizes_.pools();
      const bool blocks = is_pool && owner_.pools[static_cast<size_t>(p)].unit == CachePoolSpec::Unit::kBlock;
      if ((p == kKvPool && of != PrefixCache::kBlocksPart) || (!is_pool && of != 0) || (!blocks && of > 1))
        return false;
      if (of != 0 && left_[static_cast<size_t>(p)] == 0) return false;
    }
    return true;
  }

  Status read_record(Record& record, int64_t number) {
    QUIRE_CHECKED(read(record.head_bytes()));
    record.read_head();
    const RecordHead& h = record.head;
    if (h.number != number || !may_have(h.parts)) return damaged("record {} is none", number);
    QUIRE_CHECKED(read(record.all().subspan(sizeof(RecordHead))));
    if (!record.is_whole()) return damaged("the checksum of record {} is wrong", number);
    count_parts(h.parts, left_, -1);
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
  int64_t bytes_ = 0;
  Head head_{};
  std::vector<PoolHead> pools_;
  std::vector<int64_t> left_;  // records that are still to come, of each pool
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
