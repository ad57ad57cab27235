// Look-up by name in a list that comes from a file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string_view>
#include <vector>

namespace quire::gguf {

// A sorted list of indices instead of a hash table: O(log n) for any names, while a file can be made whose
// names all fall into one bucket.
class NameIndex {
 public:
  NameIndex() = default;
  template <class Items, class NameOf>
  NameIndex(const Items& items, NameOf name_of) : order_(items.size()) {
    std::iota(order_.begin(), order_.end(), 0u);
    // Stable: of two equal names the later one in the file is reported as the duplicate.
    std::stable_sort(order_.begin(), order_.end(),
                     [&](uint32_t a, uint32_t b) { return name_of(items[a]) < name_of(items[b]); });
    for (size_t i = 1; i < order_.size(); ++i)
      if (name_of(items[order_[i - 1]]) == name_of(items[order_[i]])) {
        duplicate_ = order_[i];
        break;
      }
  }

  // Index of an item whose name occurs earlier in the list.
  std::optional<size_t> duplicate() const { return duplicate_; }

  template <class Items, class NameOf>
  std::optional<size_t> find(const Items& items, NameOf name_of, std::string_view name) const {
    const auto at = std::lower_bound(order_.begin(), order_.end(), name,
                                     [&](uint32_t i, std::string_view n) { return name_of(items[i]) < n; });
    if (at == order_.end() || name_of(items[*at]) != name) return std::nullopt;
    return *at;
  }

 private:
  std::vector<uint32_t> order_;
  std::optional<size_t> duplicate_;
};

}  // namespace quire::gguf
