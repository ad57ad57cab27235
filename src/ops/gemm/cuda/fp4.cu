#include "ops/gemm/cuda/fp4.h"

#include <algorithm>

#include "core/cuda/launch.h"
#include "ops/gemm/cuda/quantize_fp4.cuh"
#include "ops/gemm/cuda/tile_fp4.cuh"

namespace quire::gemm {
namespace {

// Never launched: how much static shared memory it takes says what the code that the driver chose was compiled for.
constexpr int kMark = 4096;
__global__ void probe(int* out) {
  __shared__ volatile char marks[(cuda::kHasFp4 ? kMark : 0) + 1];
  marks[threadIdx.x] = 1;
  *out = marks[0];
}

// Where rounded rows lie in their room: codes, scales, factors.
struct RoundedRoom {
  int64_t row_stride, code_bytes, scale_bytes, bytes;

  explicit RoundedRoom(const Problem& p)
      : row_stride(blocks_of(p.rows, 64) * 64),
        code_bytes(p.col_tiles * row_stride * 32),
        scale_bytes(p.col_tiles * row_stride * 4),
        bytes(code_bytes + scale_bytes + row_stride * 4) {}
  fp4::RoundedRows within(std::byte* room) const {
    return {reinterpret_cast<uint32_t*>(room), reinterpret_cast<uint32_t*>(room + code_bytes),
            reinterpret_cast<float*>(room + code_bytes + scale_bytes), row_stride};
  }
};

// What a tile costs, in rows of x of a column tile: of a column tile, and besides. Estimated: weights are brought and
// put in order for any number of rows.
constexpr int64_t kColumnOverhead = 48, kTileOverhead = 600;

// Dense: rows of x in a tile, of which that is expected to be the fastest.
int32_t choose_tile_rows(const Product& p, int multiprocessors) {
  int64_t least = INT64_MAX;
  int32_t best = 0;
  for (const int32_t rows : {64, 128, 256}) {
    const int64_t tiles = p.row_blocks() * blocks_of(p.problem.rows, rows);
    const int64_t cost =
        blocks_of(tiles, multiprocessors) * (p.problem.col_tiles * (rows + kColumnOverhead) + kTileOverhead);
    if (cost < least) least = cost, best = rows;
  }
  return best;
}

template <TileFormat F>
Status launch_rounding(cudaStream_t stream, const Problem& p, const fp4::RoundedRows& to) {
  const fp4::Quantize q{p.x,    p.x_stride,  p.x_rows, p.offsets != nullptr ? p.offsets + p.experts : nullptr,
                        p.cols, p.col_tiles, to};
  return cuda::launch(stream, "rounding to FP4", fp4::quantize_fp4<F>, dim3(static_cast<unsigned>(p.rows)),
                      fp4::kQuantizeThreads, 0, q);
}

template <TileFormat F, bool kWide>
Status launch_tiles(cudaStream_t stream, const Product& product, int32_t block, const fp4::RoundedRows& rows) {
  const Problem& p = product.problem;
  TileGrid grid{};
  grid.block = block;
  grid.k_slices = 1;
  grid.row_blocks = static_cast<int32_t>(product.row_blocks());
  const int64_t blocks = product.grouped() ? block_bound(p.rows, p.experts, block) : blocks_of(p.rows, block);
  const int64_t tiles = std::max<int64_t>(grid.row_blocks * blocks, 1);
  if (tiles >= INT32_MAX) return Error{Fault::kBug, "a product of more than 2^31 tiles"};
  const int shared = fp4::Layout<F, kWide>::kTableAt + block_table_bytes(p, block);
  const auto kernel = fp4::fp4_tiles<F, kWide>;
  QUIRE_CHECKED(cuda::allow_shared_memory(reinterpret_cast<const void*>(kernel), "a product in FP4", shared));
  int resident = 0;
  QUIRE_CHECKED(cuda::check(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, fp4::kThreads, static_cast<size_t>(shared)),
      "a product in FP4: occupancy"));
  QUIRE_TRY(const cuda::DeviceLimits device, cuda::device_limits());
  const int64_t room = int64_t{device.multiprocessors} * std::max(resident, 1);
  return cuda::launch(stream, "a product in FP4", kernel, dim3(static_cast<unsigned>(std::min(room, tiles))),
                      fp4::kThreads, shared, p, grid, rows);
}

template <TileFormat F>
Status launch(cudaStream_t stream, const Product& product, int multiprocessors, std::byte* room) {
  const Problem& p = product.problem;
  const fp4::RoundedRows rows = RoundedRoom(p).within(room);
  if (p.col_tiles * rows.row_stride > INT32_MAX) return Error{Fault::kBug, "a product of more than 2^31 rows in tiles"};
  QUIRE_CHECKED(launch_rounding<F>(stream, p, rows));
  const int32_t block = product.grouped() ? 128 : choose_tile_rows(product, multiprocessors);
  return block == 256 ? launch_tiles<F, true>(stream, product, block, rows)
                      : launch_tiles<F, false>(stream, product, block, rows);
}

}  // namespace

bool has_fp4_products() {
  cudaFuncAttributes attributes{};
  if (cudaFuncGetAttributes(&attributes, probe) == cudaSuccess) return attributes.sharedSizeBytes > kMark;
  cudaGetLastError();  // no code for this device at all, which others tell of
  return false;
}

bool takes_fp4(const Product& p, const cuda::DeviceLimits& device) {
  Product any = p;
  any.path = Path::kAuto;
  return is_fp4(p.format) && !p.apart && takes(any, device);
}

int64_t fp4_bytes(const Product& p) {
  return RoundedRoom(p.problem).bytes;
}

Status launch_fp4(cudaStream_t stream, const Product& product, std::byte* room) {
  if (product.problem.rows == 0) return {};
  QUIRE_TRY(const cuda::DeviceLimits device, cuda::device_limits());
  if (!has_fp4_products() || !takes_fp4(product, device) || room == nullptr)
    return Error{Fault::kBug, "a product in FP4: not of this card, format or shape, or no room"};
  return product.format == TileFormat::kMxfp4
             ? launch<TileFormat::kMxfp4>(stream, product, device.multiprocessors, room)
             : launch<TileFormat::kNvfp4>(stream, product, device.multiprocessors, room);
}

}  // namespace quire::gemm
