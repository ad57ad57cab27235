// Sets of characters, as the classes of regular expressions name them.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire {

constexpr char32_t kLastCharacter = 0x10ffff;

// Ranges, both ends included. Any thread.
class CharacterSet {
 public:
  CharacterSet() = default;
  CharacterSet(std::initializer_list<std::pair<char32_t, char32_t>> ranges) : ranges_(ranges) {}

  // Characters whose general category has this name: "L", "Lu", "Letter", "Uppercase_Letter", "LC", "Any". False: there
  // is none of that name (scripts and other properties are none).
  static bool of_category(std::string_view name, CharacterSet& set);

  void add(char32_t first, char32_t last) { ranges_.emplace_back(first, last); }
  void add(const CharacterSet& other) { ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end()); }
  // The other case of each letter (the simple mappings of Unicode).
  void add_other_case();
  CharacterSet complement() const;
  // In order, none beside or within another.
  const std::vector<std::pair<char32_t, char32_t>>& ranges();
  size_t size() const { return ranges_.size(); }  // ranges, in the order and number in which they were added

 private:
  void normalise();
  std::vector<std::pair<char32_t, char32_t>> ranges_;
};

}  // namespace quire
