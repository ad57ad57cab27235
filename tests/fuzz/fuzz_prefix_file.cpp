// Any bytes as a file of prefixes: refused, and nothing is left of it, or read with books that balance. With an odd
// first byte its checksums are made right, as somebody would who means harm.
//   build/fuzz/fuzz_prefix_file -max_total_time=600 -rss_limit_mb=2048 tests/fuzz/corpus/prefix_file
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "cache/prefix_file.h"

namespace quire {
namespace {

constexpr size_t kBlock = 16, kState = 48, kWindow = 16, kHead = 128, kSum = 16;
constexpr size_t kRecord = 40 + 4 * kChunkTokens + kChunkBlocks * kBlock;

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

class Memory : public CacheMemory {
 public:
  Status read(CachePool, std::span<const int32_t>, std::span<std::byte> to) override {
    std::memset(to.data(), 1, to.size());
    return {};
  }
  Status write(CachePool pool, std::span<const int32_t> entries, std::span<const std::byte> from) override {
    require(pool != CachePool::kPages, "there are no pages of the host");
    const size_t each = pool == CachePool::kStates ? kState : pool == CachePool::kWindows ? kWindow : kBlock;
    require(from.size() == entries.size() * each, "entries are whole");
    for (const int32_t e : entries) require(e >= 0 || pool == CachePool::kWindows, "an entry is one");
    return {};
  }
};

void seal(std::string& file, size_t from, size_t said) {
  if (file.size() < from + said + kSum) return;
  const Hash128 sum =
      KeyedHash(0x7072656669786573, 0x6b65707420686572)(std::as_bytes(std::span(file.data() + from, said)));
  std::memcpy(file.data() + from + said, &sum, sizeof sum);
}

// Head, then records as long as their flags say.
void seal_all(std::string& file) {
  uint32_t fingerprint = 0;
  if (file.size() < kHead) return;
  std::memcpy(&fingerprint, file.data() + 20, sizeof fingerprint);
  if (fingerprint > 4096) return;
  seal(file, 0, kHead + fingerprint);
  for (size_t at = kHead + fingerprint + kSum; at + kRecord + kSum <= file.size();) {
    uint32_t flags = 0;
    std::memcpy(&flags, file.data() + at + 16, sizeof flags);
    const size_t said = kRecord + (flags % 2 == 1 ? kState : 0) + (flags > 1 ? kChunkBlocks * kWindow : 0);
    seal(file, at, said);
    at += said + kSum;
  }
}

void check(const Status& books) {
  require(books.ok(), books.ok() ? "" : books.error().message.c_str());
}

void run(const std::string& path, int32_t blocks, int32_t states, int32_t windows) {
  BlockPool pool(blocks);
  StatePool slots(std::max(0, states));
  BlockPool window_pool(windows);
  PrefixCache cache(pool, slots, states, nullptr, {.blocks = windows > 0 ? &window_pool : nullptr, .tokens = 40});
  Memory memory;
  KeyedHash salts(1, 2);
  const PrefixFileOwner owner{.fingerprint = "fuzz",
                              .block_bytes = kBlock,
                              .state_bytes = states < 0 ? 0 : static_cast<int64_t>(kState),
                              .window_block_bytes = windows > 0 ? static_cast<int64_t>(kWindow) : 0,
                              .vocab = 1000};
  const auto read = read_prefix_file(path, owner, salts, KeyedHash(3, 4), cache, memory);
  if (!read.ok()) {
    require(read.error().fault == Fault::kModelFile, "a bad file is the file's fault");
    require(read.error().message.find('\n') == std::string::npos, "it is one line");
    require(cache.stats().nodes == 0 && pool.free_count() == blocks && slots.used_count() == 0 &&
                window_pool.free_count() == windows,
            "nothing is left of a bad file");
    require(salts.key()[0] == 1, "nor of its key");
  } else {
    require(cache.stats().nodes == read->chunks && cache.states_held() == read->states, "counts are right");
  }
  check(pool.check());
  check(window_pool.check());
  check(slots.check());
  check(cache.check());
  cache.make_room(blocks);
  check(cache.check());
  require(pool.free_count() == blocks && window_pool.free_count() == windows, "everything can make room");
}

}  // namespace
}  // namespace quire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || size > 1 << 16) return 0;
  std::string file(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 1) quire::seal_all(file);
  const int fd = memfd_create("prefixes", 0);
  quire::require(fd >= 0 && write(fd, file.data(), file.size()) == static_cast<ssize_t>(file.size()), "a file");
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  quire::run(path, 8 + data[0] % 64, data[0] % 8 == 7 ? -1 : data[0] % 8, data[0] / 64 % 2 * 6);
  close(fd);
  return 0;
}
