// How parts read what they are from a file's metadata.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arch/architecture.h"
#include "core/result.h"
#include "gguf/reader.h"

namespace quire {

inline constexpr int64_t kMaxBlocks = 512, kMaxExperts = 1024, kMaxWidth = 1 << 20, kMaxHeads = 1024,
                         kMaxHeadDim = 1024;

// One model's keys "<architecture>.<key>", with ranges. An error names the key.
class ModelKeys {
 public:
  ModelKeys(const gguf::File& file, std::string architecture) : file_(file), arch_(std::move(architecture)) {}
  // How many blocks are executed in the main pass, and how many follow them: said before lists of blocks are read.
  void set_layers(int32_t executed, int32_t following) { layers_ = executed, blocks_ = executed + following; }

  const gguf::File& file() const { return file_; }
  const std::string& architecture() const { return arch_; }
  int32_t layers() const { return layers_; }
  int32_t blocks() const { return blocks_; }
  std::string full(std::string_view key) const { return fmt::format("{}.{}", arch_, key); }
  bool has(std::string_view key) const { return file_.has(full(key)); }

  Status number(std::string_view key, int64_t lo, int64_t hi, int64_t& out) const {
    QUIRE_TRY(const uint32_t v, file_.get_u32(full(key)));
    return ranged(key, v, lo, hi, out);
  }
  Status number_or(std::string_view key, int64_t absent, int64_t lo, int64_t hi, int64_t& out) const {
    if (has(key)) return number(key, lo, hi, out);
    out = absent;
    return {};
  }
  Status number32(std::string_view key, int64_t lo, int64_t hi, int32_t& out) const {
    int64_t v = 0;
    QUIRE_CHECKED(number(key, lo, hi, v));
    out = static_cast<int32_t>(v);
    return {};
  }
  Status number32_or(std::string_view key, int64_t absent, int64_t lo, int64_t hi, int32_t& out) const {
    int64_t v = 0;
    QUIRE_CHECKED(number_or(key, absent, lo, hi, v));
    out = static_cast<int32_t>(v);
    return {};
  }
  // A value that files may give once or per block: of the executed layers.
  Status each(std::string_view key, int64_t lo, int64_t hi, std::vector<int64_t>& out) const {
    QUIRE_TRY(const std::vector<uint32_t> v, file_.get_u32_per_layer(full(key), blocks_));
    out.assign(v.begin(), v.begin() + layers_);
    for (int64_t& x : out) QUIRE_CHECKED(ranged(key, x, lo, hi, x));
    return {};
  }
  // The same of those that must agree.
  Status uniform(std::string_view key, int64_t lo, int64_t hi, int64_t& out) const {
    std::vector<int64_t> all;
    QUIRE_CHECKED(each(key, lo, hi, all));
    out = all.front();
    if (std::ranges::count(all, out) == std::ssize(all)) return {};
    return file_error("{}: differs between blocks, which is not supported", full(key));
  }
  // `out` stays as it is without the key.
  Status positive(std::string_view key, float& out) const {
    QUIRE_CHECKED(real(key, out));
    return out > 0.0f ? Status() : file_error("{}: {} is not positive", full(key), out);
  }
  Status real(std::string_view key, float& out) const {
    QUIRE_TRY(out, file_.get_f32_or(full(key), out));
    return {};
  }
  // For values that no operator takes.
  Error unsupported(std::string_view key, std::string_view what) const {
    return file_error("{}: {} not supported", full(key), what);
  }

 private:
  Status ranged(std::string_view key, int64_t v, int64_t lo, int64_t hi, int64_t& out) const {
    if (v < lo || v > hi) return file_error("{}: {} is not between {} and {}", full(key), v, lo, hi);
    out = v;
    return {};
  }

  const gguf::File& file_;
  std::string arch_;
  int32_t layers_ = 0, blocks_ = 0;
};

}  // namespace quire
