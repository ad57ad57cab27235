// The memory of the caches: KV blocks of the attention layers and state slots of the delta-net layers. All
// layers of a block, and of a slot, lie together, so that copying or swapping one is one contiguous copy:
//   blocks  [blocks][attention layer][k | v][kv_heads][kv_head_elems]   heads may differ from layer to layer
//   window blocks  [blocks][attention layer that attends to a window][as above]   where these are kept apart
//   slots   [slots][delta layer][state | window_u | window_g | window_k | conv]
// Layers see strided views.
#pragma once

#include <bit>
#include <optional>
#include <span>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/gated_delta/gated_delta.h"

namespace quire {

// What keys and values are kept in, as options name it.
enum class KvCacheType {
  kAuto,  // the activations' type: bf16, or float32 on the reference
  kBf16,
  kFp8,  // E4M3, each head of a token under a scale of its own (ops/attention/scale.h)
};
constexpr DType kv_dtype(KvCacheType t, DType activations) {
  return t == KvCacheType::kFp8 ? DType::kF8E4M3 : t == KvCacheType::kBf16 ? DType::kBF16 : activations;
}

// What layers of one kind keep. Of attention: of some layers that follow each other.
struct AttentionCacheShape {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  bool apart = false;  // in window blocks
};
struct DeltaCacheShape {
  int32_t layers = 0;
  int32_t conv_taps = 0;      // Kc - 1 inputs kept
  int64_t conv_channels = 0;  // C
  int32_t value_heads = 0, value_dim = 0, key_heads = 0, key_dim = 0;
};

// What a model's caches look like; 0 layers of a kind is legal.
struct CacheShape {
  std::vector<AttentionCacheShape> attention;  // all layers in their order: runs of those that have equal heads
  DeltaCacheShape delta;
  int32_t drafts = 0;                     // tentative rows that a sequence may have in a step
  DType kv_dtype = DType::kBF16;          // of keys and values
  DType activation_dtype = DType::kBF16;  // of what states keep of tokens

  // A GPU's kernel has all tokens since the anchor at hand, with the segment's own. The anchor lies up to 15 tokens and
  // the drafts of the step before behind the segment.
  int32_t window() const { return kWindowTokens + 2 * drafts; }
  // The inputs before a segment, and those of its rows.
  int32_t ring() const {
    return static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(delta.conv_taps + 1 + drafts)));
  }
  bool has_state() const { return delta.layers > 0; }  // sequences have a slot
  int32_t attention_layers() const;
  // Whether layers that attend to a window have blocks of their own.
  bool has_window_blocks() const;
  // `layers` more of them behind the others.
  void add_attention(int32_t layers, int32_t kv_heads, int32_t head_dim, bool apart = false);

  // One block over all attention layers that are not kept apart, keys and values; one over those that are; one slot
  // over all delta-net layers. Nothing if that is no number of bytes (sizes come from files).
  std::optional<int64_t> block_bytes() const { return attention_bytes(false); }
  std::optional<int64_t> window_block_bytes() const { return attention_bytes(true); }
  std::optional<int64_t> state_bytes() const;

 private:
  std::optional<int64_t> attention_bytes(bool apart) const;
};

// How many of each the caches have.
struct CacheCounts {
  int32_t blocks = 0, slots = 0;
  int32_t window_blocks = 0;  // the one that stays zero among them (window_filler)
};

// Where the caches lie in some memory.
class CacheViews {
 public:
  CacheViews() = default;
  // base: bytes() of them, aligned to 64.
  CacheViews(const CacheShape& shape, std::byte* base, const CacheCounts& counts);
  // Nothing if that is no number of bytes.
  static std::optional<int64_t> bytes(const CacheShape& shape, const CacheCounts& counts);

  const CacheShape& shape() const { return shape_; }
  const KvLayer& kv(int attention_layer) const { return kv_[static_cast<size_t>(attention_layer)]; }
  const DeltaState& state(int delta_layer) const { return states_[static_cast<size_t>(delta_layer)]; }
  // Blocks [blocks, elements] and slots [slots, elements], a row for all layers: for copy_slots.
  const Tensor& blocks() const { return blocks_; }
  const Tensor& window_blocks() const { return window_blocks_; }
  const Tensor& slots() const { return slots_; }

 private:
  CacheShape shape_;
  std::vector<KvLayer> kv_;
  std::vector<DeltaState> states_;
  Tensor blocks_, window_blocks_, slots_;
};

// A CPU's: reserves address space for everything at once and touches none of it. The kernel hands out pages as blocks
// are first written, so memory follows use, not the configured maximum.
class CacheStorage : public CacheViews {
 public:
  static Result<CacheStorage> create(const CacheShape& shape, const CacheCounts& counts);
  CacheStorage(CacheStorage&& o) noexcept { *this = std::move(o); }
  CacheStorage& operator=(CacheStorage&& o) noexcept;
  ~CacheStorage();

  // What is reserved; whole pages.
  std::span<std::byte> memory() const { return {base_, static_cast<size_t>(bytes_)}; }

 private:
  CacheStorage(const CacheShape& shape, std::byte* base, int64_t bytes, const CacheCounts& counts)
      : CacheViews(shape, base, counts), base_(base), bytes_(bytes) {}
  std::byte* base_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace quire
