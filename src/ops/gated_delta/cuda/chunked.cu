#include "ops/gated_delta/cuda/chunked.h"

#include "ops/gated_delta/cuda/chunk.cuh"

namespace quire::cuda {

int64_t gdn_chunked_workspace_bytes(const DeltaShape& shape, int64_t prompt_rows, int64_t prompts) {
  return (prompt_rows / kChunk + prompts) * shape.Hv * static_cast<int64_t>(sizeof(ChunkData));
}

Status launch_gdn_chunked(cudaStream_t stream, const GdnChunkedParams& p) {
  const int prompts = p.segments.count - p.segments.decodes;
  if (prompts <= 0 || p.prompt_rows <= 0) return {};
  QUIRE_CHECKED(launch_chunk_products(stream, p, int64_t{p.prompt_rows} / kChunk + prompts));
  return launch_chunk_scan(stream, p);
}

}  // namespace quire::cuda
