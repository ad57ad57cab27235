// The draw on a CPU: which of the tokens left has the largest score (draw_score, gumbel.h). Hardly any score is
// computed: the best one so far says how small a token's random bits must at least be for it to matter, and bits are
// integers that vectors compare.
#pragma once

#include "ops/sampling/noise.h"
#include "ops/sampling/scan.h"

namespace quire::sampling {

class Draw {
 public:
  // ids: of the row's columns, ascending; null if a column is its own id.
  Draw(const NoiseCpu& cpu, const NoiseStream& stream, float inverse_temperature, const int32_t* ids)
      : cpu_(cpu), stream_(stream), inverse_temperature_(inverse_temperature), ids_(ids) {}

  // The column drawn of a whole row, of which one is possible. `limit` has room for a number per block.
  int32_t from(const Row& r, uint32_t* limit);
  // Of candidates (at least one, in the order of their columns), whose weights are those of this softmax.
  int32_t from(const Candidate* c, int64_t n, const Softmax& softmax);

 private:
  int32_t id_of(int64_t column) const { return ids_ == nullptr ? static_cast<int32_t>(column) : ids_[column]; }
  // What scores and their bounds may be off by, of logits this large.
  float slack(float scaled_logit) const;
  void consider(float logit, int64_t column, uint32_t bits);
  // The tokens of a block whose bits are within the limit.
  void consider_block(const Row& r, int64_t block, uint32_t limit);
  void bound_blocks(const Row& r, int64_t begin, int64_t end, uint32_t* limit) const;

  const NoiseCpu& cpu_;
  const NoiseStream stream_;
  const float inverse_temperature_;
  const int32_t* const ids_;
  float best_ = kMinusInf;
  int32_t column_ = -1;
};

}  // namespace quire::sampling
