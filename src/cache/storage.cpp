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
  void add(DType dtype, std::initializer_list<int64_t> dims) {
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

// Hands out views over `rows` rows of `row_bytes` each: of every row, the next elements.
class Carver {
 public:
  Carver(std::byte* base, int64_t rows, int64_t row_bytes) : base_(base), rows_(rows), row_bytes_(row_bytes) {}
  Tensor take(DType dtype, std::initializer_list<int64_t> dims) {
    Tensor t;
    t.data = base_ + used_;
    t.dtype = dtype;
    t.rank = static_cast<int>(dims.size()) + 1;
    t.shape[0] = rows_;
    std::copy(dims.begin(), dims.end(), t.shape.begin() + 1);
    int64_t elems = 1;
    for (int i = t.rank - 1; i > 0; --i) {
      t.stride[static_cast<size_t>(i)] = elems;
      elems *= t.dim(i);
    }
    t.stride[0] = row_bytes_ / dtype_bytes(dtype, 1);
    used_ += (dtype_bytes(dtype, elems) + kAlign - 1) / kAlign * kAlign;
    return t;
  }

 private:
  std::byte* base_;
  int64_t rows_, row_bytes_, used_ = 0;
};

Tensor all_of(std::byte* base, int64_t rows, int64_t row_bytes) {
  return make_tensor(base, DType::kF32, {rows, row_bytes / 4});
}

}  // namespace

int32_t CacheShape::attention_layers() const {
  int32_t layers = 0;
  for (const AttentionCacheShape& run : attention) layers += run.layers;
  return layers;
}

bool CacheShape::has_window_blocks() const {
  return std::ranges::any_of(attention, [](const AttentionCacheShape& run) { return run.apart; });
}

void CacheShape::add_attention(int32_t layers, int32_t kv_heads, int32_t head_dim, bool apart) {
  if (layers == 0) return;
  AttentionCacheShape* const last = attention.empty() ? nullptr : &attention.back();
  if (last != nullptr && last->kv_heads == kv_heads && last->head_dim == head_dim && last->apart == apart)
    last->layers += layers;
  else
    attention.push_back({.layers = layers, .kv_heads = kv_heads, .head_dim = head_dim, .apart = apart});
}

std::optional<int64_t> CacheShape::attention_bytes(bool apart) const {
  Bytes all;
  for (const AttentionCacheShape& run : attention) {
    if (run.apart != apart) continue;
    Bytes layer;
    for (int i = 0; i < 2; ++i) layer.add(kv_dtype, {run.kv_heads, kv_head_elems(kv_dtype, run.head_dim)});
    if (!layer.sum()) return std::nullopt;
    all.add_bytes(*layer.sum(), run.layers);
  }
  return all.sum();
}

std::optional<int64_t> CacheShape::state_bytes() const {
  Bytes layer, all;
  layer.add(DType::kF32, {delta.value_heads, delta.value_dim, delta.key_dim});
  layer.add(DType::kF32, {window(), delta.value_heads, delta.value_dim});
  layer.add(DType::kF32, {window(), delta.value_heads});
  layer.add(activation_dtype, {window(), delta.key_heads, delta.key_dim});
  layer.add(activation_dtype, {ring(), delta.conv_channels});
  if (!layer.sum()) return std::nullopt;
  all.add_bytes(*layer.sum(), delta.layers);
  return all.sum();
}

std::optional<int64_t> CacheViews::bytes(const CacheShape& shape, const CacheCounts& counts) {
  const std::optional<int64_t> block = shape.block_bytes(), window = shape.window_block_bytes(),
                               slot = shape.state_bytes();
  if (!block || !window || !slot) return std::nullopt;
  Bytes total;
  total.add_bytes(*block, counts.blocks);
  total.add_bytes(*window, counts.window_blocks);
  total.add_bytes(*slot, counts.slots);
  return total.sum();
}

CacheViews::CacheViews(const CacheShape& shape, std::byte* base, const CacheCounts& counts) : shape_(shape) {
  const int64_t block = *shape.block_bytes(), window = *shape.window_block_bytes(), slot = *shape.state_bytes();
  std::byte* const windows = base + block * counts.blocks;
  std::byte* const states = windows + window * counts.window_blocks;
  Carver all(base, counts.blocks, block), apart(windows, counts.window_blocks, window),
      state(states, counts.slots, slot);
  for (const AttentionCacheShape& run : shape.attention) {
    const int64_t head = kv_head_elems(shape.kv_dtype, run.head_dim);
    Carver& kv = run.apart ? apart : all;
    for (int i = 0; i < run.layers; ++i) {
      KvLayer& l = kv_.emplace_back();
      l.k = kv.take(shape.kv_dtype, {run.kv_heads, head});
      l.v = kv.take(shape.kv_dtype, {run.kv_heads, head});
    }
  }
  const DeltaCacheShape& n = shape.delta;
  for (int i = 0; i < n.layers; ++i) {
    DeltaState& d = states_.emplace_back();
    d.state = state.take(DType::kF32, {n.value_heads, n.value_dim, n.key_dim});
    d.window_u = state.take(DType::kF32, {shape.window(), n.value_heads, n.value_dim});
    d.window_g = state.take(DType::kF32, {shape.window(), n.value_heads});
    d.window_k = state.take(shape.activation_dtype, {shape.window(), n.key_heads, n.key_dim});
    d.conv = state.take(shape.activation_dtype, {shape.ring(), n.conv_channels});
  }
  blocks_ = all_of(base, counts.blocks, block);
  window_blocks_ = all_of(windows, counts.window_blocks, window);
  slots_ = all_of(states, counts.slots, slot);
}

Result<CacheStorage> CacheStorage::create(const CacheShape& shape, const CacheCounts& counts) {
  const std::optional<int64_t> total = bytes(shape, counts);
  if (!total)
    return capacity_error("{} KV blocks and {} recurrent states of this model are more bytes than can be counted",
                          counts.blocks, counts.slots);
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
