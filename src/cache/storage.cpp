#include "cache/storage.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace quire {
namespace {

constexpr int64_t kPage = 4096;

int64_t padded(int64_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

// Hands out consecutive tensors; with a null base it only counts.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  Tensor take(DType dtype, std::initializer_list<int64_t> dims) {
    Tensor t = make_tensor(base_ == nullptr ? nullptr : base_ + used_, dtype, dims);
    used_ += padded(dtype_bytes(dtype, t.elems()));
    return t;
  }
  int64_t used() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

void lay_out(const CacheShape& s, int64_t blocks, int64_t slots, Carver& mem, std::vector<KvLayer>& kv,
             std::vector<DeltaState>& states) {
  for (int i = 0; i < s.attention_layers; ++i) {
    const int64_t elems = int64_t{kBlockTokens} * s.head_dim;
    KvLayer l;
    l.k = mem.take(s.kv_dtype, {blocks, s.kv_heads, elems});
    l.v = mem.take(s.kv_dtype, {blocks, s.kv_heads, elems});
    kv.push_back(l);
  }
  for (int i = 0; i < s.delta_layers; ++i) {
    DeltaState d;
    d.conv = mem.take(DType::kF32, {slots, s.conv_taps, s.conv_channels});
    d.state = mem.take(DType::kF32, {slots, s.value_heads, s.value_dim, s.key_dim});
    states.push_back(d);
  }
}

}  // namespace

int64_t CacheShape::block_bytes() const {
  return 2 * attention_layers * dtype_bytes(kv_dtype, int64_t{kv_heads} * kBlockTokens * head_dim);
}

int64_t CacheShape::state_bytes() const {
  return delta_layers * 4 * (conv_taps * conv_channels + int64_t{value_heads} * value_dim * key_dim);
}

Result<CacheStorage> CacheStorage::create(const CacheShape& shape, int32_t blocks, int32_t slots) {
  CacheStorage c;
  c.shape_ = shape;
  Carver count(nullptr);
  lay_out(shape, blocks, slots, count, c.kv_, c.states_);
  c.kv_.clear();
  c.states_.clear();
  c.bytes_ = padded(count.used() + 1);
  void* p = mmap(nullptr, static_cast<size_t>(c.bytes_), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    return capacity_error(
        "cannot reserve {} MiB for the KV cache and recurrent states ({}); use a smaller --context",
        c.bytes_ >> 20, std::strerror(errno));
  c.base_ = static_cast<std::byte*>(p);
  Carver mem(c.base_);
  lay_out(shape, blocks, slots, mem, c.kv_, c.states_);
  for (const KvLayer& l : c.kv_) c.block_pools_.insert(c.block_pools_.end(), {l.k, l.v});
  for (const DeltaState& d : c.states_) c.state_pools_.insert(c.state_pools_.end(), {d.conv, d.state});
  return c;
}

CacheStorage::CacheStorage(CacheStorage&& o) noexcept {
  *this = std::move(o);
}

CacheStorage& CacheStorage::operator=(CacheStorage&& o) noexcept {
  std::swap(shape_, o.shape_);
  std::swap(base_, o.base_);
  std::swap(bytes_, o.bytes_);
  std::swap(kv_, o.kv_);
  std::swap(states_, o.states_);
  std::swap(block_pools_, o.block_pools_);
  std::swap(state_pools_, o.state_pools_);
  return *this;
}

CacheStorage::~CacheStorage() {
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(bytes_));
}

int64_t CacheStorage::resident_bytes() const {
  std::vector<unsigned char> in(static_cast<size_t>(bytes_ / kPage));
  if (base_ == nullptr || mincore(base_, static_cast<size_t>(bytes_), in.data()) != 0) return 0;
  int64_t pages = 0;
  for (unsigned char c : in) pages += c & 1;
  return pages * kPage;
}

}  // namespace quire
