#include "cache/storage.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace quire {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kAlign = 64;  // of every member of a block or slot

// Adds up sizes of factors from files; nothing once a sum or product is beyond 64 bits (with room for rounding up).
class Bytes {
 public:
  void add(DType dtype, std::span<const int64_t> dims) {
    int64_t elems = 1;
    for (const int64_t d : dims) ok_ = ok_ && d >= 0 && !__builtin_mul_overflow(elems, d, &elems);
    ok_ = ok_ && elems < INT64_MAX / 16;
    if (ok_) add_bytes(dtype_bytes(dtype, elems), 1);
  }
  void add_bytes(int64_t bytes, int64_t times) {
    ok_ = ok_ && bytes <= INT64_MAX - kPage;
    if (!ok_) return;
    bytes = (bytes + kAlign - 1) / kAlign * kAlign;
    ok_ = !__builtin_mul_overflow(bytes, times, &bytes) && !__builtin_add_overflow(sum_, bytes, &sum_) &&
          sum_ <= INT64_MAX - kPage;
  }
  std::optional<int64_t> sum() const { return ok_ ? std::optional(sum_) : std::nullopt; }

 private:
  int64_t sum_ = 0;
  bool ok_ = true;
};

// One tensor of those that a layer keeps in each unit of a pool.
struct Part {
  DType dtype;
  std::vector<int64_t> dims;
};
// Layers that keep the same, one behind the other: each its parts in their order.
struct Layers {
  int pool;
  int32_t count;
  std::vector<Part> parts;
};

std::vector<Part> parts_of(const CacheShape& s, const AttentionCacheShape& run) {
  const Part part{s.kv_dtype, {run.kv_heads, kv_head_elems(s.kv_dtype, run.head_dim)}};
  return {part, part};
}
KvLayer kv_of(std::span<const Tensor> t) {
  return {.k = t[0], .v = t[1]};
}

std::vector<Part> parts_of(const CacheShape& s, const DeltaCacheShape& n) {
  return {{DType::kF32, {n.value_heads, n.value_dim, n.key_dim}},
          {DType::kF32, {s.pending_tokens(), n.value_heads, n.value_dim}},
          {DType::kF32, {s.pending_tokens(), n.value_heads}},
          {s.activation_dtype, {s.pending_tokens(), n.key_heads, n.key_dim}},
          {s.activation_dtype, {s.ring(), n.conv_channels}}};
}
DeltaState state_of(std::span<const Tensor> t) {
  return {.state = t[0], .pending_k = t[3], .pending_u = t[1], .pending_g = t[2], .conv = t[4]};
}

// The windows that layers of a shape have blocks for, in ascending order.
std::vector<int64_t> windows_of(const CacheShape& s) {
  std::vector<int64_t> windows;
  for (const AttentionCacheShape& run : s.attention)
    if (run.window > 0) windows.push_back(run.window);
  std::ranges::sort(windows);
  windows.erase(std::unique(windows.begin(), windows.end()), windows.end());
  return windows;
}

// All layers of a shape: those of attention in their order, then the delta nets.
std::vector<Layers> layers_of(const CacheShape& s) {
  const std::vector<int64_t> windows = windows_of(s);
  std::vector<Layers> all;
  for (const AttentionCacheShape& run : s.attention) {
    const auto window = static_cast<int>(std::ranges::find(windows, run.window) - windows.begin());
    all.push_back({run.window > 0 ? 1 + window : kKvPool, run.layers, parts_of(s, run)});
  }
  if (s.has_state()) all.push_back({1 + static_cast<int>(windows.size()), s.delta.layers, parts_of(s, s.delta)});
  return all;
}

// Hands out views over the units of a pool: of every unit, the next elements.
class Carver {
 public:
  Carver(std::byte* base, int64_t units, int64_t bytes) : base_(base), units_(units), bytes_(bytes) {}
  Tensor take(const Part& part) {
    Tensor t;
    t.data = base_ + used_;
    t.dtype = part.dtype;
    t.rank = static_cast<int>(part.dims.size()) + 1;
    t.shape[0] = units_;
    std::ranges::copy(part.dims, t.shape.begin() + 1);
    int64_t elems = 1;
    for (int i = t.rank - 1; i > 0; --i) {
      t.stride[static_cast<size_t>(i)] = elems;
      elems *= t.dim(i);
    }
    t.stride[0] = bytes_ / dtype_bytes(part.dtype, 1);
    used_ += (dtype_bytes(part.dtype, elems) + kAlign - 1) / kAlign * kAlign;
    return t;
  }
  Tensor whole() const { return make_tensor(base_, DType::kF32, {units_, bytes_ / 4}); }

 private:
  std::byte* base_;
  int64_t units_, bytes_, used_ = 0;
};

// Units that a pool of so many has in memory.
int64_t with_filler(const CachePoolSpec& pool, int32_t units) {
  return int64_t{units} + (pool.is_window() && units > 0);
}

}  // namespace

int32_t CacheShape::attention_layers() const {
  int32_t layers = 0;
  for (const AttentionCacheShape& run : attention) layers += run.layers;
  return layers;
}

void CacheShape::add_attention(int32_t layers, int32_t kv_heads, int32_t head_dim, int64_t window) {
  if (layers == 0) return;
  AttentionCacheShape* const last = attention.empty() ? nullptr : &attention.back();
  if (last != nullptr && last->kv_heads == kv_heads && last->head_dim == head_dim && last->window == window)
    last->layers += layers;
  else
    attention.push_back({.layers = layers, .kv_heads = kv_heads, .head_dim = head_dim, .window = window});
}

std::optional<CachePools> CacheShape::pools() const {
  CachePools pools = {{.name = "kv"}};
  const std::vector<int64_t> windows = windows_of(*this);
  for (const int64_t w : windows)
    pools.push_back({.name = windows.size() == 1 ? "window" : fmt::format("window_{}", w), .window = w});
  if (has_state()) pools.push_back({.name = "state", .unit = CachePoolSpec::Unit::kSequence});
  QUIRE_CHECK(pools.size() <= kMostPools, "{} kinds of cache: at most {} are known", pools.size(), kMostPools);
  std::vector<Bytes> units(pools.size());
  for (const Layers& l : layers_of(*this)) {
    Bytes layer;
    for (const Part& part : l.parts) layer.add(part.dtype, part.dims);
    if (!layer.sum()) return std::nullopt;
    units[static_cast<size_t>(l.pool)].add_bytes(*layer.sum(), l.count);
  }
  for (size_t i = 0; i < pools.size(); ++i) {
    if (!units[i].sum()) return std::nullopt;
    pools[i].bytes = *units[i].sum();
  }
  return pools;
}

PoolCounts CacheShape::counts(int32_t blocks, int32_t sequences) const {
  PoolCounts all(1 + windows_of(*this).size(), blocks);
  if (has_state()) all.push_back(sequences);
  return all;
}

std::optional<int64_t> CacheViews::bytes(const CacheShape& shape, const PoolCounts& counts) {
  const std::optional<CachePools> pools = shape.pools();
  if (!pools) return std::nullopt;
  QUIRE_CHECK(counts.size() == pools->size(), "counts of {} pools, of which there are {}", counts.size(),
              pools->size());
  Bytes total;
  for (size_t i = 0; i < counts.size(); ++i) total.add_bytes((*pools)[i].bytes, with_filler((*pools)[i], counts[i]));
  return total.sum();
}

CacheViews::CacheViews(const CacheShape& shape, std::byte* base, const PoolCounts& counts)
    : shape_(shape), pools_(shape.pools().value()) {
  QUIRE_CHECK(counts.size() == pools_.size(), "counts of {} pools, of which there are {}", counts.size(),
              pools_.size());
  std::vector<Carver> carvers;
  for (size_t i = 0; i < counts.size(); ++i) {
    const int64_t units = with_filler(pools_[i], counts[i]);
    carvers.emplace_back(base, units, pools_[i].bytes);
    units_.push_back(carvers.back().whole());
    base += units * pools_[i].bytes;
  }
  std::vector<Tensor> tensors;
  for (const Layers& l : layers_of(shape)) {
    for (int i = 0; i < l.count; ++i) {
      tensors.clear();
      for (const Part& part : l.parts) tensors.push_back(carvers[static_cast<size_t>(l.pool)].take(part));
      if (pools_[static_cast<size_t>(l.pool)].unit == CachePoolSpec::Unit::kSequence) {
        states_.push_back(state_of(tensors));
      } else {
        kv_.push_back(kv_of(tensors));
        kv_pools_.push_back(l.pool);
      }
    }
  }
}

Result<CacheStorage> CacheStorage::create(const CacheShape& shape, const PoolCounts& counts) {
  const std::optional<int64_t> total = bytes(shape, counts);
  if (!total)
    return capacity_error("{} KV blocks of this model, and what else it caches, are more bytes than can be counted",
                          counts[kKvPool]);
  const int64_t pages = (*total / kPage + 1) * kPage;
  void* p = mmap(nullptr, static_cast<size_t>(pages), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    return capacity_error("cannot reserve {} MiB for the KV cache and recurrent states ({}); use a smaller --context",
                          pages >> 20, std::strerror(errno));
  return CacheStorage(shape, static_cast<std::byte*>(p), pages, counts);
}

CacheStorage& CacheStorage::operator=(CacheStorage&& o) noexcept {
  CacheViews::operator=(static_cast<const CacheViews&>(o));
  std::swap(base_, o.base_);
  std::swap(bytes_, o.bytes_);
  return *this;
}

CacheStorage::~CacheStorage() {
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(bytes_));
}

}  // namespace quire
