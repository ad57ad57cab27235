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

constexpr size_t kBlock = 16, kState = 48, kWindow = 16, kHead = 128, kPoolHead = 32, kSum = 16;
constexpr size_t kRecord = 40 + 4 * kChunkTokens + kChunkBlocks * kBlock;

void require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

class Memory : public CacheMemory {
 public:
  explicit Memory(const CachePools& pools) : pools_(pools) {}
  Status read(int, std::span<const int32_t>, std::span<std::byte> to) override {
    std::memset(to.data(), 1, to.size());
    return {};
  }
  Status write(int pool, std::span<const int32_t> units, std::span<const std::byte> from) override {
    require(!is_on_host(pool), "there are no pages of the host");
    const CachePoolSpec& of = pools_[static_cast<size_t>(pool)];
    require(from.size() == units.size() * static_cast<size_t>(of.bytes), "units are whole");
    for (const int32_t u : units) require(u >= 0 || of.is_window(), "a unit is one");
    return {};
  }

 private:
  const CachePools& pools_;
};

void seal(std::string& file, size_t from, size_t said) {
  if (file.size() < from + said + kSum) return;
  const Hash128 sum =
      KeyedHash(0x7072656669786573, 0x6b65707420686572)(std::as_bytes(std::span(file.data() + from, said)));
  std::memcpy(file.data() + from + said, &sum, sizeof sum);
}

// Head, then records as long as their flags say.
void seal_all(std::string& file) {
  uint32_t fingerprint = 0, pools = 0;
  if (file.size() < kHead) return;
  std::memcpy(&fingerprint, file.data() + 20, sizeof fingerprint);
  std::memcpy(&pools, file.data() + 24, sizeof pools);
  if (fingerprint > 4096 || pools > kMostPools) return;
  const size_t said_of_all = kHead + pools * kPoolHead + fingerprint;
  seal(file, 0, said_of_all);
  for (size_t at = said_of_all + kSum; at + kRecord + kSum <= file.size();) {
    uint32_t parts = 0;
    std::memcpy(&parts, file.data() + at + 16, sizeof parts);
    const bool windows = pools == 3 && (parts >> 4 & 0xf) != 0, state = pools > 1 && parts >> (4 * (pools - 1)) != 0;
    const size_t said = kRecord + (windows ? kChunkBlocks * kWindow : 0) + (state ? kState : 0);
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
  CachePools pools = {{.name = "kv", .bytes = kBlock}};
  std::vector<PrefixCache::Windows> of_windows;
  if (windows > 0) {
    pools.push_back({.name = "window", .bytes = kWindow, .window = 40});
    of_windows.push_back({&window_pool, 40});
  }
  if (states >= 0) pools.push_back({.name = "state", .unit = CachePoolSpec::Unit::kSequence, .bytes = kState});
  PrefixCache cache(pool, slots, states, nullptr, std::move(of_windows));
  Memory memory(pools);
  KeyedHash salts(1, 2);
  const PrefixFileOwner owner{.fingerprint = "fuzz", .pools = pools, .vocab = 1000};
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
