#include "ops/gemm/cuda/e4m3.h"

#include <algorithm>

#include "core/cuda/launch.h"
#include "core/cuda/tensor_map.h"
#include "ops/gemm/cuda/quantize_e4m3.cuh"
#include "ops/gemm/cuda/tile_e4m3.cuh"

namespace quire::gemm {
namespace {

// Where rounded rows lie in their room: codes, then scales.
struct RoundedRoom {
  int64_t scale_stride, code_bytes, bytes;

  explicit RoundedRoom(const Problem& p) {
    const int64_t between = p.offsets != nullptr ? 4 * int64_t{p.experts} : 0;  // first_scale_of()
    scale_stride = blocks_of(p.rows + between, 256) * 256 + 256;                // tiles copy as many as they are wide
    code_bytes = blocks_of(int64_t{p.rows} * p.cols, 256) * 256;
    bytes = code_bytes + p.cols / e4m3::kBlockCols * scale_stride * 4;
  }
  e4m3::RoundedRows within(std::byte* room) const {
    return {reinterpret_cast<uint8_t*>(room), reinterpret_cast<float*>(room + code_bytes), scale_stride};
  }
};

// What a tile costs, in rows of x of a block of 128 columns, measured on an H200.
constexpr int64_t kBlockOverhead = 80, kTileOverhead = 600;

template <int kRows, bool kPaired, bool kGrouped>
Status launch_tiles(cudaStream_t stream, const Product& product, const cuda::DeviceLimits& device,
                    const e4m3::RoundedRows& rows) {
  const Problem& p = product.problem;
  e4m3::Plan plan{};
  plan.block = kRows;
  plan.k_slices = 1;
  plan.row_blocks = static_cast<int32_t>(product.row_blocks());
  if (!e4m3::lay_out<kRows>(plan, block_table_bytes(p, kRows), device.shared_bytes))
    return Error{Fault::kBug, fmt::format("tiles of E4M3 for {} rows do not fit shared memory", kRows)};
  const int64_t blocks = kGrouped ? block_bound(p.rows, p.experts, kRows) : blocks_of(p.rows, kRows);
  const int64_t tiles = plan.row_blocks * blocks;
  if (tiles >= INT32_MAX) return Error{Fault::kBug, "a product of more than 2^31 tiles"};
  constexpr int kBox = e4m3::Widths<kRows, kGrouped>::kBox;
  // Two codes are copied as if they were a bf16.
  QUIRE_TRY(const CUtensorMap map, cuda::tensor_map_bf16(rows.codes, p.rows, p.cols / 2, p.cols, kBox));
  const auto grid = static_cast<unsigned>(std::clamp<int64_t>(tiles, 1, device.multiprocessors));
  return cuda::launch(stream, "a product in E4M3", e4m3::e4m3_tiles<kRows, kPaired, kGrouped>, dim3(grid),
                      e4m3::kThreads, plan.shared_bytes, p, plan, rows, map);
}

template <int kRows, bool kGrouped>
Status launch_tiles(cudaStream_t stream, const Product& product, const cuda::DeviceLimits& device,
                    const e4m3::RoundedRows& rows) {
  return product.problem.paired ? launch_tiles<kRows, true, kGrouped>(stream, product, device, rows)
                                : launch_tiles<kRows, false, kGrouped>(stream, product, device, rows);
}

Status launch_rounding(cudaStream_t stream, const Problem& p, const e4m3::RoundedRows& to) {
  const e4m3::Quantize q{p.x, p.x_stride, p.x_rows, p.offsets, p.rows, p.cols, p.experts, to};
  constexpr int kRowsOfBlock = e4m3::kQuantizeThreads / 32;
  const dim3 grid(static_cast<unsigned>(blocks_of(p.rows, kRowsOfBlock)),
                  static_cast<unsigned>(std::min<int64_t>(blocks_of(p.cols, 256), 8)));
  return cuda::launch(stream, "rounding to E4M3", e4m3::quantize_e4m3, grid, e4m3::kQuantizeThreads, 0, q);
}

}  // namespace

bool takes_e4m3(const Product& p, const cuda::DeviceLimits& device) {
  Product any = p;
  any.path = Path::kAuto;
  return device.wgmma && p.format == TileFormat::kFp8 && !p.apart && p.problem.cols % e4m3::kBlockCols == 0 &&
         takes(any, device);
}

int64_t e4m3_bytes(const Product& p) {
  return RoundedRoom(p.problem).bytes;
}

int32_t e4m3_tile_rows(const Product& p, int multiprocessors) {
  const int64_t blocks = blocks_of(p.problem.cols, e4m3::kBlockCols);
  int64_t least = INT64_MAX;
  int32_t best = 0;
  for (const int32_t rows : {64, 128, 256}) {
    const int64_t waves = blocks_of(p.row_blocks() * blocks_of(p.problem.rows, rows), multiprocessors);
    const int64_t cost = waves * (blocks * (rows + kBlockOverhead) + kTileOverhead);
    if (cost < least) least = cost, best = rows;
  }
  return best;
}

Status launch_e4m3(cudaStream_t stream, const Product& product, std::byte* room) {
  const Problem& p = product.problem;
  if (p.rows == 0) return {};
  QUIRE_TRY(const cuda::DeviceLimits device, cuda::device_limits());
  if (!takes_e4m3(product, device) || room == nullptr)
    return Error{Fault::kBug, "a product in E4M3: not of this card, format or shape, or no room"};
  const e4m3::RoundedRows rows = RoundedRoom(p).within(room);
  QUIRE_CHECKED(launch_rounding(stream, p, rows));
  if (product.grouped()) return launch_tiles<e4m3::kGroupedRows, true>(stream, product, device, rows);
  switch (e4m3_tile_rows(product, device.multiprocessors)) {
    case 64:
      return launch_tiles<64, false>(stream, product, device, rows);
    case 128:
      return launch_tiles<128, false>(stream, product, device, rows);
    default:
      return launch_tiles<256, false>(stream, product, device, rows);
  }
}

}  // namespace quire::gemm
