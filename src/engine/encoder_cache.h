// Which pictures' rows the device has: books alone. Internal to the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/keyed_hash.h"

namespace quire {

// Rows [0, rows) of the device's memory, given out to pictures in one piece each, and taken back from those that were
// used longest ago.
class EncoderCache {
 public:
  static constexpr size_t kMostPictures = 1024;

  explicit EncoderCache(int64_t rows) : rows_(rows) {}

  // Where a picture's rows begin; none: it is not there. With `touch` it is used now.
  std::optional<int64_t> find(const Hash128& key, bool touch = true);
  // Room for pictures side by side, of so many rows each, which are there from now on; where the first one begins.
  // Pictures for which `is_kept` stay. None: that leaves no room.
  struct Picture {
    Hash128 key;
    int64_t rows = 0;
  };
  std::optional<int64_t> add(std::span<const Picture> pictures, const std::function<bool(const Hash128&)>& is_kept);

  int64_t rows() const { return rows_; }
  int64_t used() const;

 private:
  struct Entry {
    Hash128 key;
    int64_t begin = 0, rows = 0;
    uint64_t used = 0;
  };
  std::vector<Entry>::iterator at(int64_t begin);
  // The beginning of a free piece; none: there is none of that length.
  std::optional<int64_t> gap(int64_t rows) const;

  // Keys are hashes already.
  struct HashOfKey {
    size_t operator()(const Hash128& key) const { return key.low; }
  };

  int64_t rows_;
  std::vector<Entry> entries_;  // by where they begin
  std::unordered_map<Hash128, int64_t, HashOfKey> begins_;
  uint64_t clock_ = 0;
};

}  // namespace quire
