#include "cache/storage.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "cache/byte_sum.h"

namespace quire {
namespace {

KvLayer kv_of(std::span<const Tensor> t) {
  return {.k = t[0], .v = t[1]};
}
DeltaState state_of(std::span<const Tensor> t) {
  return {.state = t[0], .pending_k = t[3], .pending_u = t[1], .pending_g = t[2], .conv = t[4]};
}

// Hands out views over the units of a pool: of every unit, the next elements.
class Carver {
 public:
  Carver(std::byte* base, int64_t units, int64_t bytes) : base_(base), units_(units), bytes_(bytes) {}
  Tensor take(const CachePart& part) {
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
    used_ += (dtype_bytes(part.dtype, elems) + kCacheAlign - 1) / kCacheAlign * kCacheAlign;
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

std::optional<int64_t> CacheViews::bytes(const CacheShape& shape, const PoolCounts& counts) {
  const std::optional<CachePools> pools = shape.pools();
  if (!pools) return std::nullopt;
  QUIRE_CHECK(counts.size() == pools->size(), "counts of {} pools, of which there are {}", counts.size(),
              pools->size());
  CacheBytes total;
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
  for (const CacheLayers& l : shape.in_pools()) {
    for (int i = 0; i < l.count; ++i) {
      tensors.clear();
      for (const CachePart& part : l.parts) tensors.push_back(carvers[static_cast<size_t>(l.pool)].take(part));
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
  const int64_t pages = (*total / kCachePage + 1) * kCachePage;
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
