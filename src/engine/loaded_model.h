// A model file made ready: mapping, weights, tokenizer and chat template together.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

#include "engine/loaded_vision.h"
#include "engine/rope_override.h"
#include "gguf/reader.h"
#include "model/model.h"
#include "ops/gemm/repack.h"
#include "tokenizer/tokenizer.h"

namespace quire {

class CudaWeights;  // engine/cuda_weights.h
class CudaTower;

struct LoadOptions {
  std::string mtp;    // not empty: another model, with this one's block for multi-token prediction
  RopeOverride rope;  // replaces what the file says of positions
  // The vision tower: a file; or, where that is empty, what the model has beside it or in its folder, if it has one.
  std::string mmproj;
  bool vision = true;  // false: no tower is looked for
  PictureOptions pictures;
};

// Immutable after loading, but for what it keeps for engines; shared by engines and threads. The members
// depend on each other in this order.
struct LoadedModel {
  std::shared_ptr<const void> memory;  // that the file was parsed from; null: it has mappings of its own
  std::shared_ptr<const void> rope;    // values of a RopeOverride that the file's metadata has; null: none
  gguf::File file;
  std::optional<gguf::File> mtp_file;  // with the block for multi-token prediction, where that is not the model's own
  std::unique_ptr<const Model> model;
  std::optional<Tokenizer> tokenizer;          // absent when the file holds none: requests then speak tokens only
  std::unique_ptr<const LoadedVision> vision;  // null: it takes no images
  double load_seconds = 0.0;

  explicit LoadedModel(gguf::File f, std::shared_ptr<const void> m = nullptr)
      : memory(std::move(m)), file(std::move(f)) {}

  // Which model it is: a hash of the metadata, of every tensor's name, type and shape, and of samples of its bytes. Two
  // files that compute the same have the same, whatever they are called.
  uint64_t identity() const { return identity_; }

  // Whether a file claims to have a block for multi-token prediction; and that, loaded when it is first asked for, or
  // what is wrong with it.
  bool has_mtp() const { return mtp_file || model->config().mtp_layers > 0; }
  Result<const MtpBlock*> mtp() const;

  // Copies of the weights for generating faster (ops/gemm/repack.h), if memory holds them beside the file;
  // and `beside` more bytes, which caches may come to take; else null. Made for the first engine that asks, and kept as
  // long as an engine has them.
  std::shared_ptr<const RepackedWeights> repacked(ThreadPool& pool, int64_t beside = 0) const;
  // The weights of these layers on the current GPU, with those of the block for multi-token prediction or without;
  // likewise. In programs with CUDA only. `threads` read the file; 0: all CPUs.
  Result<std::shared_ptr<const CudaWeights>> on_gpu(int threads, bool with_mtp, LayerRange layers) const;
  // The vision tower, which there is, likewise.
  Result<std::shared_ptr<const CudaTower>> tower_on_gpu(int threads = 0) const;

 private:
  friend Result<std::shared_ptr<const LoadedModel>> load_model(const std::string&, const LoadOptions&);
  friend Result<std::shared_ptr<const LoadedModel>> load_model(gguf::File, const std::string&,
                                                               std::shared_ptr<const void>);
  Status make_ready(const std::string& name);
  Status take_vision(const std::string& path, const LoadOptions& options);
  uint64_t identity_ = 0;
  mutable std::mutex copies_mutex_;
  mutable std::optional<Result<MtpBlock>> mtp_;
  mutable std::weak_ptr<const RepackedWeights> repacked_;
  // By the GPU's number, whether the block for multi-token prediction is there, and the layers.
  mutable std::map<std::tuple<int, bool, int32_t, int32_t>, std::weak_ptr<const CudaWeights>> on_gpu_;
  mutable std::map<int, std::weak_ptr<const CudaTower>> tower_on_gpu_;
};

// Opens a GGUF file or a model folder (convert/open.h), checks every tensor and builds the tokenizer. Weights are used
// where they are mapped: of a file nothing is copied, of a folder what cannot be used as it is there
// (File::made_bytes()).
Result<std::shared_ptr<const LoadedModel>> load_model(const std::string& path, const LoadOptions& options = {});
// The same of a file that is open, or was parsed from `memory`, which lives as long as the model. Errors begin with
// `name`.
Result<std::shared_ptr<const LoadedModel>> load_model(gguf::File file, const std::string& name,
                                                      std::shared_ptr<const void> memory);

}  // namespace quire
