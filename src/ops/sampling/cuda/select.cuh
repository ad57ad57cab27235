// The second kernel of sampling: from the blocks' summaries to a token.
#pragma once

#include "ops/sampling/cuda/blocks.cuh"

namespace quire::cuda {

Status launch_select(cudaStream_t stream, const SampleParams& p, const BlockStats& stats);

}  // namespace quire::cuda
