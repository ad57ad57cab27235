// Files that keep prefixes: what they hold, and that no bytes in them do more harm than to be refused.
#include "cache/prefix_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

namespace quire {
namespace {

using testing::HasSubstr;

constexpr size_t kBlock = 96, kState = 160, kWindow = 32, kHead = 128;
constexpr std::string_view kFingerprint = "quire-test/of this engine";
// The pools of an engine: blocks and states, in this order; blocks and those of windows.
const CachePools kPools = {{.name = "kv", .bytes = kBlock},
                           {.name = "state", .unit = CachePoolSpec::Unit::kSequence, .bytes = kState}};
const CachePools kWithWindows = {{.name = "kv", .bytes = kBlock}, {.name = "window", .bytes = kWindow, .window = 40}};
// Where the pools' part of the head begins and how long that of one is, where records begin, and how long one without
// a state is. What of a record there is: its blocks, and bits for a pool of states, or blocks, behind them.
constexpr size_t kPoolHead = 32, kFirst = kHead + 2 * kPoolHead + kFingerprint.size() + 16,
                 kPlain = 56 + 256 + 4 * kBlock + 16;
constexpr uint32_t kBlocks = 0xf, kWithState = 0x1f;
const KeyedHash kChunks(11, 22);

// Every block and state is filled with its number.
class Plain : public CacheMemory {
 public:
  explicit Plain(CachePools pools) : pools_(std::move(pools)), written(pools_.size()) {}
  Status read(int pool, std::span<const int32_t> units, std::span<std::byte> to) override {
    const size_t each = bytes_of(pool);
    EXPECT_EQ(to.size(), units.size() * each);
    for (size_t i = 0; i < units.size(); ++i)
      if (units[i] >= 0) std::memset(to.data() + i * each, (100 * pool + units[i]) % 251, each);
    return {};
  }
  Status write(int pool, std::span<const int32_t> units, std::span<const std::byte> from) override {
    const size_t each = bytes_of(pool);
    EXPECT_EQ(from.size(), units.size() * each);
    for (size_t i = 0; i < units.size(); ++i) {
      if (pools_[static_cast<size_t>(pool)].is_window())
        EXPECT_EQ(from[i * each] != std::byte{}, units[i] >= 0);
      else
        EXPECT_GE(units[i], 0);
      written[static_cast<size_t>(pool)] += units[i] >= 0;
    }
    return fails && pool == kKvPool ? Status(capacity_error("no such memory")) : Status();
  }

 private:
  size_t bytes_of(int pool) const {
    EXPECT_FALSE(is_on_host(pool)) << "there are no pages of the host";
    return static_cast<size_t>(pools_[static_cast<size_t>(pool)].bytes);
  }
  CachePools pools_;

 public:
  std::vector<size_t> written;  // units of each pool
  bool fails = false;
};

PrefixFileOwner owner() {
  return {.fingerprint = std::string(kFingerprint), .pools = kPools, .vocab = 5000};
}

std::vector<TokenId> tokens(int64_t count, TokenId variant, int64_t from = 0) {
  std::vector<TokenId> t(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    t[static_cast<size_t>(i)] = static_cast<TokenId>(i % 97 + (i >= from ? 100 * variant : 0));
  return t;
}

struct Rig {
  BlockPool blocks;
  StatePool slots;
  PrefixCache cache;
  KeyedHash salts{1, 2};
  Plain memory{kPools};

  explicit Rig(int32_t total = 64, int32_t states = 8)
      : blocks(total), slots(std::max(0, states)), cache(blocks, slots, states) {}

  void compute(const std::vector<TokenId>& t, std::string_view salt, std::vector<int64_t> saved) {
    const PrefixHashes hashes = hash_prefixes(kChunks, salts(std::as_bytes(std::span(salt))), t);
    const PrefixCache::Prompt p{t, hashes};
    BlockTable table;
    PrefixCache::Match m;
    cache.find(p, m);
    if (m.usable > 0) cache.take(m, {&table, 1});
    const int32_t needed = table.blocks_needed(std::ssize(t));
    if (needed > blocks.free_count()) cache.make_room(needed);
    ASSERT_TRUE(table.reserve(blocks, m.usable, std::ssize(t)));
    cache.publish(p, std::ssize(t), {&table, 1});
    for (const int64_t at : saved)
      if (const StateSlot s = cache.allocate_state(); s.valid()) cache.publish_state(p, at, s);
  }
  int64_t found(const std::vector<TokenId>& t, std::string_view salt) {
    const PrefixHashes hashes = hash_prefixes(kChunks, salts(std::as_bytes(std::span(salt))), t);
    PrefixCache::Match m;
    cache.find({t, hashes}, m);
    return m.usable;
  }
  void expect_books() const {
    for (const Status& s : {blocks.check(), slots.check(), cache.check()})
      EXPECT_TRUE(s.ok()) << (s.ok() ? "" : s.error().message);
    EXPECT_EQ(slots.used_count(), cache.states_held());
    EXPECT_EQ(blocks.used_count(), 0);
  }
};

class PrefixFile : public testing::Test {
 protected:
  PrefixFile() {
    std::string pattern = (std::filesystem::temp_directory_path() / "quire-test-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    path_ = folder_ / "prefixes";
  }
  ~PrefixFile() override { std::filesystem::remove_all(folder_); }

  std::string bytes() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void put(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }
  Result<PrefixFileContent> read(Rig& rig) const {
    return read_prefix_file(path_, owner(), rig.salts, kChunks, rig.cache, rig.memory);
  }
  // Two prompts with a common beginning, and one under another salt.
  std::string write_some() const {
    Rig rig;
    rig.compute(tokens(200, 0), "a", {128, 192});
    rig.compute(tokens(270, 1, 150), "a", {256});
    rig.compute(tokens(130, 0), "b", {128});
    write_prefix_file(path_, owner(), rig.salts, rig.cache, rig.memory, 1 << 20).value();
    return bytes();
  }
  // Refused with one line, and nothing is left of it.
  void expect_refused(const std::string& file, const std::string& why = "") const {
    put(file);
    Rig rig;
    rig.salts = KeyedHash(77, 88);
    const auto r = read(rig);
    ASSERT_FALSE(r.ok());
    EXPECT_EQ(r.error().fault, Fault::kModelFile);
    EXPECT_TRUE(r.error().message.starts_with(path_.string() + ": it")) << r.error().message;
    EXPECT_EQ(r.error().message.find('\n'), std::string::npos);
    EXPECT_THAT(r.error().message, HasSubstr(why));
    EXPECT_EQ(rig.cache.stats().nodes, 0);
    EXPECT_EQ(rig.cache.states_held(), 0);
    EXPECT_EQ(rig.blocks.free_count(), rig.blocks.total());
    EXPECT_EQ(rig.salts.key()[0], 77u);
    rig.expect_books();
  }
  // The checksum of the head, made right again.
  static std::string sealed(std::string file) {
    const size_t said = kFirst - 16;
    const Hash128 sum = KeyedHash(0x7072656669786573, 0x6b65707420686572)(std::as_bytes(std::span(file.data(), said)));
    std::memcpy(file.data() + said, &sum, sizeof sum);
    return file;
  }
  template <class T>
  static std::string poked(std::string file, size_t at, T x) {
    std::memcpy(file.data() + at, &x, sizeof x);
    return file;
  }
  // Every byte of the beginning and of a first record's head, and some of the rest.
  static size_t step_at(size_t at) { return at < 250 ? 1 : 13; }
  std::filesystem::path folder_, path_;
};

TEST_F(PrefixFile, KeepsTheTreeAndItsSalts) {
  const std::string file = write_some();
  Rig rig;
  rig.salts = KeyedHash(77, 88);
  const PrefixFileContent content = read(rig).value();
  EXPECT_EQ(content.chunks, 3 + 2 + 2);
  EXPECT_EQ(content.states, 4);
  EXPECT_EQ(content.bytes, std::ssize(file));
  EXPECT_EQ(rig.memory.written, (std::vector<size_t>{4 * 7, 4}));
  rig.expect_books();
  EXPECT_EQ(rig.found(tokens(200, 0), "a"), 192);
  EXPECT_EQ(rig.found(tokens(270, 1, 150), "a"), 256);
  EXPECT_EQ(rig.found(tokens(200, 0), "b"), 128);
  EXPECT_EQ(rig.found(tokens(200, 0), "c"), 0);
  EXPECT_EQ(file.find("of this engine") != std::string::npos, true);
  // The same file again, record by record.
  write_prefix_file(path_, owner(), rig.salts, rig.cache, rig.memory, 1 << 20).value();
  EXPECT_EQ(bytes().size(), file.size());
}

// What is read is used less recently than what is computed from then on, and in the order in which it was used.
TEST_F(PrefixFile, KeepsTheOrderOfUse) {
  Rig rig(64, -1);
  for (TokenId i = 0; i < 4; ++i) rig.compute(tokens(130, i), "", {});
  PrefixFileOwner o = owner();
  o.pools.pop_back();
  write_prefix_file(path_, o, rig.salts, rig.cache, rig.memory, 1 << 20).value();
  Rig next(16, -1);
  const auto content = read_prefix_file(path_, o, next.salts, kChunks, next.cache, next.memory).value();
  EXPECT_EQ(content.chunks, 4);
  EXPECT_EQ(content.skipped, 4);
  EXPECT_EQ(next.found(tokens(130, 3), ""), 128);
  EXPECT_EQ(next.found(tokens(130, 2), ""), 128);
  EXPECT_EQ(next.found(tokens(130, 1), ""), 0);
  next.cache.make_room(4);
  EXPECT_EQ(next.found(tokens(130, 3), ""), 128);
  EXPECT_EQ(next.found(tokens(130, 2), ""), 64);
  next.expect_books();
}

TEST_F(PrefixFile, WhatLeadsToNoStateIsNotKept) {
  Rig rig;
  rig.compute(tokens(400, 0), "", {128});
  EXPECT_EQ(write_prefix_file(path_, owner(), rig.salts, rig.cache, rig.memory, 1 << 20).value().chunks, 2);
  // Room for the first chunk, and not for the second with its state.
  const auto size = static_cast<int64_t>(bytes().size());
  EXPECT_EQ(write_prefix_file(path_, owner(), rig.salts, rig.cache, rig.memory, size - 1).value().chunks, 0);
  EXPECT_EQ(std::ssize(bytes()), size) << "nothing to keep: the old one stays";
}

TEST_F(PrefixFile, IsRefusedHoweverItIsCut) {
  const std::string file = write_some();
  for (size_t length = 0; length < file.size(); length += step_at(length)) expect_refused(file.substr(0, length));
  for (size_t at = kFirst; at < file.size(); at += kPlain + (file[at + 16] == kWithState ? kState : 0))
    for (const size_t length : {at - 1, at, at + 1, at + 55, at + 56}) expect_refused(file.substr(0, length));
  expect_refused(file + '\0', "which are not 7 chunks");
  expect_refused(std::string(5000, '\0'), "it is no prefix cache");
  expect_refused(std::string(5000, '\xff'), "it is no prefix cache");
}

TEST_F(PrefixFile, IsRefusedWhicheverBitIsWrong) {
  const std::string file = write_some();
  for (size_t at = 0; at < file.size(); at += step_at(at))
    expect_refused(poked(file, at, static_cast<char>(file[at] ^ 1 << at % 8)));
}

TEST_F(PrefixFile, CountsAreNotBelieved) {
  const std::string file = write_some();
  ASSERT_EQ(sealed(file), file);
  constexpr size_t kVersion = 8, kLength = 20, kCount = 24, kRecords = 32;
  constexpr size_t kOfBlocks = kHead, kOfStates = kHead + kPoolHead, kUnit = 0, kBytes = 8, kOfWindow = 16, kSome = 24;
  expect_refused(sealed(poked(file, kVersion, 1u)), "it has version 1 of the format, and this program reads 3");
  for (const uint32_t n : {0u, 9u, 0xffffffffu}) expect_refused(sealed(poked(file, kCount, n)), "kinds of cache");
  for (const uint32_t n : {1u, 3u, 8u}) expect_refused(poked(file, kCount, n), "");
  for (const uint32_t n : {4097u, 0x7fffffffu, 0xffffffffu})
    expect_refused(poked(file, kLength, n), "its fingerprint is too long");
  expect_refused(poked(file, kLength, 3000u), "");
  for (const int64_t n : {int64_t{-1}, int64_t{0}, int64_t{6}, int64_t{8}, int64_t{1} << 40, INT64_MAX, INT64_MIN})
    expect_refused(sealed(poked(file, kRecords, n)), "it is damaged");
  for (const int64_t n : {int64_t{-1}, int64_t{3}, int64_t{5}, int64_t{8}, INT64_MAX, INT64_MIN})
    expect_refused(sealed(poked(file, kOfStates + kSome, n)), "it is damaged");
  for (const int64_t n : {int64_t{-1}, int64_t{0}, int64_t{6}, int64_t{8}, INT64_MAX, INT64_MIN})
    expect_refused(sealed(poked(file, kOfBlocks + kSome, n)), "it is damaged");
  for (const size_t at : {kOfBlocks + kBytes, kOfStates + kBytes, kOfBlocks + kOfWindow})
    for (const int64_t n : {int64_t{1}, int64_t{-1}, INT64_MAX})
      expect_refused(sealed(poked(file, at, n)), "laid out in another way");
  expect_refused(sealed(poked(file, kOfStates + kUnit, 0u)), "laid out in another way");
  expect_refused(sealed(poked(file, kHead + 2 * kPoolHead + 3, 'X')), "written by another engine");
}

// Records that are whole, and say what cannot be.
TEST_F(PrefixFile, RecordsAreNotBelieved) {
  const std::string file = write_some();
  const auto resealed = [&](std::string f, size_t record, bool state) {
    const size_t said = kPlain - 16 + (state ? kState : 0);
    const Hash128 sum =
        KeyedHash(0x7072656669786573, 0x6b65707420686572)(std::as_bytes(std::span(f.data() + record, said)));
    std::memcpy(f.data() + record + said, &sum, sizeof sum);
    return f;
  };
  ASSERT_EQ(resealed(file, kFirst, false), file);
  const size_t second = kFirst + kPlain;
  ASSERT_EQ(resealed(file, second, true), file);
  for (const int64_t parent : {int64_t{1}, int64_t{2}, int64_t{-2}, INT64_MIN, INT64_MAX})
    expect_refused(resealed(poked(file, second + 8, parent), second, true), "which does not come before it");
  for (const int64_t number : {int64_t{0}, int64_t{2}, INT64_MAX})
    expect_refused(resealed(poked(file, second, number), second, true), "record 1 is none");
  for (const uint32_t parts : {0u, 1u, 0x17u, 0x10u, 0x2fu, 0x3fu, 0x11fu, 0x8000001fu})
    expect_refused(resealed(poked(file, second + 16, parts), second, (parts & 0x10) != 0), "record 1 is none");
  expect_refused(resealed(poked(file, second + 16, kBlocks), second, false), "");
  for (const TokenId t : {-1, 5000, INT32_MAX, INT32_MIN})
    expect_refused(resealed(poked(file, second + 56 + 4 * 63, t), second, true), "record 1 has token");
  // A chunk that is there twice is left out, and so is what continues it.
  put(resealed(poked(file, second + 8, int64_t{-1}), second, true));
  Rig rig;
  rig.salts = KeyedHash(77, 88);
  EXPECT_TRUE(read(rig).ok());
  rig.expect_books();
}

// Anything may stand in records whose checksums are right.
TEST_F(PrefixFile, RandomRecordsKeepTheBooks) {
  const std::string file = write_some();
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::string f = file;
    size_t at = kFirst;
    for (int64_t i = 0; i < 7; ++i) {
      uint32_t flags = 0;
      std::memcpy(&flags, f.data() + at + 16, sizeof flags);
      const size_t said = kPlain - 16 + (flags == kWithState ? kState : 0);
      if (random() % 2 == 0) {
        const auto parent = static_cast<int64_t>(random() % static_cast<unsigned>(i + 1)) - 1;
        std::memcpy(f.data() + at + 8, &parent, sizeof parent);
        for (int k = 0; k < 3; ++k) f[at + 24 + random() % 16] = static_cast<char>(random() % 2);
        const auto token = static_cast<TokenId>(random() % 2);
        std::memcpy(f.data() + at + 56, &token, sizeof token);
      }
      const Hash128 sum =
          KeyedHash(0x7072656669786573, 0x6b65707420686572)(std::as_bytes(std::span(f.data() + at, said)));
      std::memcpy(f.data() + at + said, &sum, sizeof sum);
      at += said + 16;
    }
    put(f);
    Rig rig(static_cast<int32_t>(13 + random() % 30), static_cast<int32_t>(random() % 5));
    EXPECT_TRUE(read(rig).ok());
    rig.expect_books();
    rig.compute(tokens(200, 0), "a", {128});
    rig.cache.make_room(1);
    rig.expect_books();
  }
}

// What windows look back on, where it is kept.
TEST_F(PrefixFile, WindowsComeBackWithTheirChunks) {
  const PrefixFileOwner with_windows = {.fingerprint = std::string(kFingerprint), .pools = kWithWindows, .vocab = 5000};
  struct WindowRig {
    BlockPool blocks{64}, windows;
    StatePool slots{0};
    PrefixCache cache;
    Plain memory{kWithWindows};
    KeyedHash salts{1, 2};
    explicit WindowRig(int32_t window_blocks)
        : windows(window_blocks), cache(blocks, slots, -1, nullptr, {{&windows, 40}}) {}
    int64_t found(const std::vector<TokenId>& t) {
      PrefixCache::Match m;
      const PrefixHashes hashes = hash_prefixes(kChunks, salts(std::as_bytes(std::span(std::string_view()))), t);
      cache.find({t, hashes}, m);
      return m.usable;
    }
  };
  const std::vector<TokenId> text = tokens(270, 1);
  {
    WindowRig rig(64);
    const PrefixHashes hashes = hash_prefixes(kChunks, rig.salts(std::as_bytes(std::span(std::string_view()))), text);
    BlockTable tables[2];
    ASSERT_TRUE(tables[0].reserve(rig.blocks, 0, 270) && tables[1].reserve(rig.windows, 0, 270));
    rig.cache.publish({text, hashes}, 270, tables);
    rig.cache.keep_windows({text, hashes}, 192);
    const auto kept = write_prefix_file(path_, with_windows, rig.salts, rig.cache, rig.memory, 1 << 20).value();
    EXPECT_EQ(kept.chunks, 4);
    EXPECT_EQ(kept.bytes, static_cast<int64_t>(kFirst + 4 * kPlain + 4 * kWindow)) << "one chunk has three of them";
  }
  const auto load = [&](WindowRig& rig) {
    return read_prefix_file(path_, with_windows, rig.salts, kChunks, rig.cache, rig.memory);
  };
  WindowRig rig(8), short_of(2);
  ASSERT_TRUE(load(rig).ok());
  EXPECT_EQ(rig.memory.written[1], 3u);
  EXPECT_EQ(rig.windows.cached_count(), 3);
  EXPECT_EQ(rig.found(text), 192);
  EXPECT_TRUE(rig.cache.check().ok());
  ASSERT_TRUE(load(short_of).ok());
  EXPECT_EQ(short_of.found(text), 0) << "there was no room for them";
  EXPECT_TRUE(short_of.cache.check().ok());
  // An engine that has no window blocks, or other ones, has no use for it.
  Rig other;
  EXPECT_FALSE(read(other).ok());
  // Damage is found.
  std::string file = bytes();
  file[file.size() - 16 - kPlain - 5] ^= 1;
  put(file);
  WindowRig damaged(8);
  EXPECT_FALSE(load(damaged).ok());
  EXPECT_EQ(damaged.windows.free_count(), 8);
}

TEST_F(PrefixFile, WhatCannotBeReadOrWrittenIsSaid) {
  Rig rig;
  EXPECT_EQ(read(rig).error().fault, Fault::kRequest);
  std::filesystem::create_directory(path_);
  EXPECT_THAT(read(rig).error().message, HasSubstr("it is no regular file"));
  std::filesystem::remove(path_);
  write_some();
  rig.memory.fails = true;
  EXPECT_THAT(read(rig).error().message, HasSubstr("no such memory"));
  EXPECT_EQ(rig.cache.stats().nodes, 0);
  rig.expect_books();
  rig.compute(tokens(200, 0), "a", {128});
  path_ = folder_ / "none" / "prefixes";
  EXPECT_FALSE(write_prefix_file(path_, owner(), rig.salts, rig.cache, rig.memory, 1 << 20).ok());
}

}  // namespace
}  // namespace quire
