// Random values of every element type, for models of random weights.
#pragma once

#include <map>
#include <random>
#include <span>
#include <vector>

#include "core/dtype.h"
#include "lab/synth_model.h"

namespace quire::cli {

// The factor of an NVFP4 tensor whose rows have `cols` values of variance 1 / cols.
float synth_nvfp4_scale(int64_t cols);

// The payloads of tensors. Patterns are made once for each type and row length.
class SynthValueSource {
 public:
  explicit SynthValueSource(uint64_t seed) : random_(seed) {}

  // `elems` values of zero mean and variance 1 / cols. The pattern lives as long as this object.
  SynthPayload matrix(DType type, int64_t cols, int64_t elems);
  // float32; valid until the next vector.
  SynthPayload vector(SynthValues values, int64_t elems);
  SynthPayload constants(float value, int64_t elems);

 private:
  SynthPayload of_vector() const;

  std::mt19937_64 random_;
  std::map<std::pair<DType, int64_t>, std::vector<std::byte>> patterns_;
  std::vector<float> vector_;
  uint64_t turn_ = 0;
};

}  // namespace quire::cli
