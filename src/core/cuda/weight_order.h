// In which order the kernels of a step read weights. A step's memory has idle moments: where one is short of work, it
// can fetch what the next product will read into the L2.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace quire::cuda {

class WeightOrder {
 public:
  struct Range {
    const std::byte* data = nullptr;
    int64_t bytes = 0;
  };
  using Read = std::array<Range, 2>;  // by one operator: its largest weights

  // `record`: from here on read() notes what comes, in place of what was noted before.
  void begin_step(bool record) {
    at_ = 0;
    if (record) order_.clear();
  }
  // An operator that reads these is enqueued. Some that were noted may be left out in between.
  void read(const Read& weights, bool record) {
    // An operator that is called again and again over parts of its rows reads the same, which is no news.
    if (record && (order_.empty() || order_.back()[0].data != weights[0].data)) order_.push_back(weights);
    const auto found = std::find_if(order_.begin() + static_cast<std::ptrdiff_t>(at_), order_.end(),
                                    [&](const Read& r) { return r[0].data == weights[0].data; });
    if (found != order_.end()) at_ = static_cast<size_t>(found - order_.begin()) + 1;
  }
  // By the operator after the last one that was enqueued; empty if that is not known.
  Read next() const { return at_ < order_.size() ? order_[at_] : Read{}; }

 private:
  std::vector<Read> order_;
  size_t at_ = 0;  // of the next one
};

// A block's share of what is to be fetched.
struct Prefetch {
  const std::byte* data[2];
  int64_t stride[2];  // from one block's share to the next, bytes
  int32_t bytes[2];   // multiples of a line
};

inline constexpr int64_t kLineBytes = 128;

// At most `most` bytes of them, taken evenly from the shares that as many blocks will read.
inline Prefetch share_out(const WeightOrder::Read& weights, int32_t blocks, int64_t most) {
  Prefetch p{};
  const int64_t all = weights[0].bytes + weights[1].bytes;
  for (size_t i = 0; i < weights.size(); ++i) {
    const int64_t each = weights[i].bytes / blocks / kLineBytes * kLineBytes;
    const double part = all == 0 ? 0.0 : static_cast<double>(weights[i].bytes) / static_cast<double>(all);
    const auto share = static_cast<int64_t>(part * static_cast<double>(most)) / blocks / kLineBytes * kLineBytes;
    p.data[i] = weights[i].data;
    p.stride[i] = each;
    p.bytes[i] = static_cast<int32_t>(std::min(each, share));
  }
  return p;
}

}  // namespace quire::cuda
