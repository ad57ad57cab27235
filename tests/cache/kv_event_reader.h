// Who is told what a prefix cache holds, as a router reads it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "cache/prefix_cache.h"

namespace quire {

class KvEventReader : public KvEventSink {
 public:
  bool put(std::vector<KvEvent> events) override {
    if (full) return false;
    ++batches;
    for (const KvEvent& e : events) read(e);
    return true;
  }
  bool none_waits() const override { return !busy; }

  struct Block {
    uint64_t parent = 0;  // 0: none
    std::vector<TokenId> tokens;
    int children = 0;
  };
  // The tokens up to each block's end, which are the path's.
  std::set<std::vector<TokenId>> paths() const {
    std::set<std::vector<TokenId>> all;
    for (const auto& [hash, block] : blocks) {
      std::vector<TokenId> path;
      for (uint64_t h = hash; h != 0; h = blocks.at(h).parent)
        path.insert(path.begin(), blocks.at(h).tokens.begin(), blocks.at(h).tokens.end());
      all.insert(path);
    }
    return all;
  }
  // How much of a prompt it believes to be there.
  int64_t known(const std::vector<TokenId>& tokens) const {
    const auto all = paths();
    int64_t known = 0;
    while (known + kChunkTokens <= std::ssize(tokens) &&
           all.contains({tokens.begin(), tokens.begin() + known + kChunkTokens}))
      known += kChunkTokens;
    return known;
  }

  std::unordered_map<uint64_t, Block> blocks;
  int batches = 0, cleared = 0;
  bool full = false, busy = false;

 private:
  void read(const KvEvent& e) {
    switch (e.kind) {
      case KvEvent::Kind::kCleared:
        ++cleared;
        blocks.clear();
        return;
      case KvEvent::Kind::kStored:
        EXPECT_FALSE(blocks.contains(e.hash)) << "stored twice";
        if (e.parent) {
          EXPECT_TRUE(blocks.contains(*e.parent)) << "before its parent";
          ++blocks[*e.parent].children;
        }
        blocks[e.hash].parent = e.parent.value_or(0);
        if (e.has_tokens) blocks[e.hash].tokens = {e.tokens.begin(), e.tokens.end()};
        return;
      case KvEvent::Kind::kRemoved:
        ASSERT_TRUE(blocks.contains(e.hash)) << "removed, and never stored";
        EXPECT_EQ(blocks[e.hash].children, 0) << "before what hangs from it";
        if (const uint64_t parent = blocks[e.hash].parent; parent != 0) --blocks[parent].children;
        blocks.erase(e.hash);
    }
  }
};

// What of a cache's nodes a prompt can go on from, or goes through to get there.
inline std::set<std::vector<TokenId>> useful_paths(const PrefixCache& cache) {
  std::set<std::vector<TokenId>> all;
  for (const int32_t node : cache.by_use()) {
    if (!cache.chunk(node).resumes) continue;
    std::vector<std::vector<TokenId>> chunks;
    for (int32_t i = node; i != PrefixCache::kNoParent; i = cache.chunk(i).parent) {
      const std::span<const TokenId> t = cache.chunk(i).tokens;
      chunks.insert(chunks.begin(), {t.begin(), t.end()});
    }
    std::vector<TokenId> path;
    for (const auto& c : chunks) {
      path.insert(path.end(), c.begin(), c.end());
      all.insert(path);
    }
  }
  return all;
}

// The salts of a rig's prompts that say none, and of one more.
inline std::vector<Hash128> open_salts(const KeyedHash& hash, std::string_view other = "") {
  return {hash(std::as_bytes(std::span(std::string_view()))), hash(std::as_bytes(std::span(other)))};
}

}  // namespace quire
