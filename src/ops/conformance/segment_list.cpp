#include <algorithm>

#include "ops/conformance/conformance.h"

namespace quire::conformance {

SegmentList::SegmentList(std::initializer_list<Segment> decoding, std::initializer_list<Segment> prompts) {
  for (const Segment& s : decoding) add_decode(s);
  for (const Segment& s : prompts) add(s);
}

void SegmentList::add_decode(const Segment& s, std::span<const int32_t> blocks) {
  QUIRE_CHECK(decodes_ == static_cast<int32_t>(segments_.size()), "decode segments come first");
  add(s, blocks);
  ++decodes_;
}

void SegmentList::add(const Segment& s, std::span<const int32_t> blocks) {
  const auto pitch = std::max(pitch_, static_cast<int32_t>(blocks.size()));
  if (pitch > pitch_) {
    std::vector<int32_t> wider(segments_.size() * static_cast<size_t>(pitch), -1);
    for (size_t i = 0; i < segments_.size(); ++i)
      std::copy_n(tables_.begin() + static_cast<int64_t>(i) * pitch_, pitch_,
                  wider.begin() + static_cast<int64_t>(i) * pitch);
    tables_ = std::move(wider);
    pitch_ = pitch;
  }
  segments_.push_back(s);
  tables_.resize(segments_.size() * static_cast<size_t>(pitch_), -1);
  std::copy(blocks.begin(), blocks.end(), tables_.end() - pitch_);
}

}  // namespace quire::conformance
