// A model file made ready to compute with: configuration, weights where they are mapped, and what of the file is
// read on demand.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "cache/shape.h"
#include "model/config.h"
#include "model/decoder.h"
#include "model/shard.h"
#include "model/weights.h"
#include "parts/attention/rope.h"

namespace quire {

// A multi-token-prediction block, for drafts of the tokens that follow. It holds what was converted out of the file's
// mapping for it.
struct MtpBlock {
  WeightLoader::Arena arena;
  MtpWeights weights;
};

// Immutable: shared by engines and threads.
class Model {
 public:
  // Reads the configuration, finds and checks every tensor that a pass reads, and refuses a file with tensors in its
  // blocks that would change what these compute and that no operator takes. The file must outlive the model: weights
  // stay in its mapping.
  //
  // Of a shard, what that rank has: its decoder runs with the others' (ForwardOptions::ranks). Whoever says how many
  // ranks there are need not say what their parts are multiples of; that follows from the file.
  static Result<std::unique_ptr<const Model>> load(const gguf::File& file, const Shard& shard = {});
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const { return decoder_->config(); }  // of the rank
  const Decoder& decoder() const { return *decoder_; }              // weights where they are mapped
  // Without room for drafts.
  CacheShape cache_shape(Device device, KvCacheType kv = KvCacheType::kAuto) const;
  // Weights converted out of the mapping (norms and other vectors that the file keeps in 16 bits), and what of a shard
  // is no view of it.
  int64_t owned_bytes() const { return arena_.bytes; }
  // What forward multiplies by, in the order of use.
  std::vector<Weight> matrices() const;
  // Tensors of the file that nothing reads and that may stay unread, those of multi-token prediction aside; any other
  // is an error of load. Views of the file's names.
  const std::vector<std::string_view>& unread() const { return unread_; }

  // Loads and checks the multi-token-prediction block of the model's file, or of another file, which must outlive it. A
  // model serves without it, so nothing is known of it before: an error says that the file claims none
  // (config().mtp_layers is 0), or what is missing, damaged, not supported or not of this model.
  Result<MtpBlock> mtp(const gguf::File& file) const;
  Result<MtpBlock> mtp() const { return mtp(file_); }

 private:
  Model(const gguf::File& file, const Shard& shard) : file_(file), shard_(shard) {}
  Status load_weights(ModelConfig config);
  Result<int64_t> mtp_block_of(const gguf::File& file) const;  // its number there

  const gguf::File& file_;
  Shard shard_;
  std::shared_ptr<const ModelConfig> whole_;  // as in the file; the decoder's, if this is no shard
  WeightLoader::Arena arena_;
  RopeTable rope_table_, local_rope_table_;
  std::optional<Decoder> decoder_;  // set once loaded
  std::vector<std::string_view> unread_;
};

}  // namespace quire
