// Which kernel takes a product, and in what tiles. Whatever is chosen, the bits are the same.
#include "ops/gemm/cuda/gemm.h"

#include <algorithm>

#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/cuda/problem.cuh"

namespace quire::gemm {
namespace {

Error misfit(std::string_view what) {
  return {Fault::kBug, fmt::format("a product of packed weights: {}", what)};
}

Status check_part(const GemmPart& part, const GemmPart& first, const GemmParams& p) {
  const PackedWeight &w = part.weight, &f = first.weight;
  if (w.empty() || w.rows <= 0 || part.y == nullptr) return misfit("a part without weight or output");
  if (w.format != f.format || w.cols != f.cols || w.paired != f.paired ||
      w.segment_columns() != f.segment_columns() || w.experts != f.experts)
    return misfit("parts of different kinds in one launch");
  if (w.paired && part.out != Out::kBf16) return misfit("SwiGLU goes to bf16");
  if (p.grouped.offsets == nullptr && w.experts != 1) return misfit("experts without rows sorted by expert");
  if (p.grouped.offsets != nullptr && (part.bias != nullptr || part.bias2 != nullptr))
    return misfit("experts have no bias");
  return {};
}

Result<Problem> describe(const GemmParams& p) {
  if (p.part_count < 1 || p.part_count > kMaxParts) return misfit("too many parts, or none");
  if (p.grouped.offsets != nullptr && p.part_count != 1) return misfit("experts are one part");
  const PackedWeight& w = p.parts[0].weight;
  if (w.cols <= 0 || w.cols % 8 != 0 || p.x_stride % 8 != 0 || reinterpret_cast<uintptr_t>(p.x) % 16 != 0)
    return misfit("rows of x must be aligned to 16 bytes and a multiple of them");
  if (p.x_stride < 0 || static_cast<int64_t>(p.rows) * (p.x_stride / 8) > UINT32_MAX)
    return misfit("x is too large");
  if (w.segment_columns() % kTileCols != 0) return misfit("a segment is whole tiles");
  Problem k{};
  for (int i = 0; i < p.part_count; ++i) {
    const GemmPart& part = p.parts[i];
    QUIRE_CHECKED(check_part(part, p.parts[0], p));
    k.part[i] = {reinterpret_cast<const uint8_t*>(part.weight.data),
                 part.scale,
                 part.scale2,
                 part.bias,
                 part.bias2,
                 part.y,
                 part.y_stride,
                 part.weight.expert_bytes(),
                 part.weight.row_tiles(),
                 part.weight.rows,
                 part.out};
    k.all_row_tiles += part.weight.row_tiles();
  }
  k.x = p.x;
  k.x_stride = p.x_stride;
  k.offsets = p.grouped.offsets;
  k.x_rows = p.grouped.x_rows;
  k.y_rows = p.grouped.y_rows;
  k.part_count = p.part_count;
  k.experts = w.experts;
  k.rows = p.rows;
  k.most_rows = p.grouped.most > 0 ? p.grouped.most : p.rows;
  k.cols = w.cols;
  k.col_tiles = w.col_tiles();
  k.segment_tiles = w.segment_columns() / kTileCols;
  k.segments = (k.col_tiles + k.segment_tiles - 1) / k.segment_tiles;
  k.paired = w.paired;
  if (k.segments > kMaxSegments) return misfit("too many segments");
  if (p.split && (k.offsets != nullptr || p.part_count != 1 || k.paired || p.parts[0].out != Out::kF32 ||
                  p.parts[0].scale != nullptr || p.parts[0].bias != nullptr))
    return misfit("segments apart are a matter of one plain weight");
  return k;
}

// Rows of x in a tile, so that the last wave of tiles wastes least: a tile costs its columns and about 48 more, for
// decoding and for what a tile does once.
int32_t choose_tile_rows(const Problem& p, int multiprocessors) {
  if (p.offsets != nullptr) {
    // An expert gets rows / experts on average: small tiles while memory decides, then large ones, which
    // find_block cuts evenly.
    const int64_t mean = p.rows / p.experts;
    return mean < 24 ? 32 : mean < 48 ? 64 : mean < 96 ? 128 : 256;
  }
  int64_t row_blocks = 0, best_cost = INT64_MAX;
  for (int i = 0; i < p.part_count; ++i) row_blocks += (p.part[i].row_tiles + 7) / 8;
  int32_t best = 32;
  for (const int32_t rows : {32, 64, 128, 192, 256}) {
    if (p.segments > 1 && rows > 192) break;
    const int64_t tiles = row_blocks * ((p.rows + rows - 1) / rows);
    const int64_t cost = (tiles + multiprocessors - 1) / multiprocessors * (rows + 48);
    if (cost < best_cost) best_cost = cost, best = rows;
  }
  return best;
}

// Few rows go to the stream kernel: it keeps every multiprocessor reading. With more rows its tokens cost more of the
// L2's bandwidth than tiles, which read them once for 128 rows of a weight.
bool prefers_stream(const Problem& p) {
  if (p.offsets != nullptr) return p.rows < 10 * p.experts;  // of an expert, on average
  if (p.rows <= 8) return true;
  return p.rows <= 32 && p.all_row_tiles < 8 * 64;
}

template <TileFormat F>
Status launch(cudaStream_t stream, const Problem& k, const GemmParams& p, LaunchChoice choice) {
  const bool tiles_exist = choice.device.major == 9;
  if (p.path == Path::kTile && !tiles_exist) return misfit("the tile kernel is for sm_90");
  if (p.split || p.path == Path::kStream || !tiles_exist || (p.path == Path::kAuto && prefers_stream(k))) {
    const int64_t rows = k.offsets == nullptr ? k.rows : k.rows / k.experts;
    choice.block_rows = rows <= 8 ? 8 : 32;
    return launch_stream<F>(stream, k, choice);
  }
  choice.block_rows = p.tile_rows != 0 ? p.tile_rows : choose_tile_rows(k, choice.device.multiprocessors);
  return launch_tile<F>(stream, k, choice);
}

}  // namespace

Status launch_gemm(cudaStream_t stream, const GemmParams& p) {
  if (p.rows < 0) return misfit("negative rows");
  if (p.rows == 0) return {};
  QUIRE_TRY(const Problem k, describe(p));
  LaunchChoice choice;
  QUIRE_TRY(choice.device, cuda::device_limits());
  choice.split = p.split;
  choice.overlap = p.overlap;
  switch (p.parts[0].weight.format) {
    case TileFormat::kBf16:
      return launch<TileFormat::kBf16>(stream, k, p, choice);
    case TileFormat::kBf16x2:
      return launch<TileFormat::kBf16x2>(stream, k, p, choice);
    case TileFormat::kBf16x3:
      return launch<TileFormat::kBf16x3>(stream, k, p, choice);
    case TileFormat::kQ8_0:
      return launch<TileFormat::kQ8_0>(stream, k, p, choice);
    case TileFormat::kQ4_K:
      return launch<TileFormat::kQ4_K>(stream, k, p, choice);
    case TileFormat::kQ6_K:
      return launch<TileFormat::kQ6_K>(stream, k, p, choice);
    case TileFormat::kMxfp4:
      return launch<TileFormat::kMxfp4>(stream, k, p, choice);
    case TileFormat::kNvfp4:
      return launch<TileFormat::kNvfp4>(stream, k, p, choice);
  }
  return misfit("no such format");
}

}  // namespace quire::gemm
