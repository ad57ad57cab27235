// Texts that know where they come from: what a template writes is its maker's word, what it was handed from outside
// is not, and stays apart through everything that a template does with it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::jinja {

struct ByteRange {
  std::size_t begin = 0, end = 0;
  bool operator==(const ByteRange&) const = default;
};

// Ranges of a text's bytes, in order; they neither overlap nor touch, and none is empty.
class ByteRanges {
 public:
  ByteRanges() = default;
  static ByteRanges whole(std::size_t bytes) {
    ByteRanges r;
    r.add(0, bytes);
    return r;
  }

  // [begin, end), which stands behind everything that was added before.
  void add(std::size_t begin, std::size_t end) {
    if (begin == end) return;
    if (!ranges_.empty() && ranges_.back().end == begin)
      ranges_.back().end = end;
    else
      ranges_.push_back({begin, end});
  }
  // What lies in [begin, end) of another text, which now stands at `at`. Returns how many ranges that were.
  std::size_t add_piece(const ByteRanges& of, std::size_t begin, std::size_t end, std::size_t at) {
    auto r =
        std::partition_point(of.ranges_.begin(), of.ranges_.end(), [&](const ByteRange& x) { return x.end <= begin; });
    std::size_t count = 0;
    for (; r != of.ranges_.end() && r->begin < end; ++r, ++count)
      add(at + std::max(r->begin, begin) - begin, at + std::min(r->end, end) - begin);
    return count;
  }

  bool empty() const { return ranges_.empty(); }
  const std::vector<ByteRange>& all() const { return ranges_; }

 private:
  std::vector<ByteRange> ranges_;
};

enum class Origin { kOwn, kOutside };

struct Text {
  Text() = default;
  // Written by the template, or by us.
  explicit Text(std::string own) : bytes(std::move(own)) {}
  // Handed to the template.
  static Text from_outside(std::string bytes) {
    Text t(std::move(bytes));
    t.foreign = ByteRanges::whole(t.bytes.size());
    return t;
  }
  static Text of(Origin origin, std::string bytes) {
    return origin == Origin::kOwn ? Text(std::move(bytes)) : from_outside(std::move(bytes));
  }
  // A part of this text: `part` lies within `bytes`.
  Text piece(std::string_view part) const {
    Text t{std::string(part)};
    const std::size_t begin = offset(part);
    t.foreign.add_piece(foreign, begin, begin + part.size(), 0);
    return t;
  }
  std::size_t offset(std::string_view part) const {
    return part.empty() ? 0 : static_cast<std::size_t>(part.data() - bytes.data());
  }
  // What was made of this text by rules that do not say which byte became which: all of it is from outside if
  // anything here is.
  Text changed_to(std::string result) const {
    return foreign.empty() ? Text(std::move(result)) : from_outside(std::move(result));
  }

  std::string bytes;
  ByteRanges foreign;  // of the bytes, those that come from outside
};

}  // namespace quire::jinja
