// What takes a product, and its launch.
#include "ops/gemm/cuda/gemm.h"

#include <algorithm>

#include "ops/gemm/cuda/choose.h"
#include "ops/gemm/cuda/k_slices.cuh"
#include "ops/gemm/cuda/launch.h"
#include "ops/gemm/cuda/problem.cuh"
#include "ops/gemm/cuda/stream_plan.cuh"
#include "ops/gemm/cuda/sweep_plan.cuh"
#include "ops/gemm/cuda/tile.cuh"
#include "ops/gemm/cuda/tile_mma.cuh"
#include "ops/gemm/cuda/with_format.h"

namespace quire::gemm {
namespace {

Error misfit(std::string_view what) {
  return {Fault::kBug, fmt::format("a product of packed weights: {}", what)};
}

// Why no kernel takes it; empty: one may.
std::string_view misfit_of(const Product& p) {
  const Problem& k = p.problem;
  if (!p.misfit.empty()) return p.misfit;
  if (k.part_count == 0) return "no parts";
  for (int i = 0; i < k.part_count; ++i)
    if (k.part[i].y == nullptr) return "a part without output";
  if (k.x_stride % 8 != 0 || reinterpret_cast<uintptr_t>(k.x) % 16 != 0) return "rows of x must be aligned to 16 bytes";
  if (p.apart && (p.grouped() || k.part_count != 1 || k.paired || k.part[0].out != Out::kF32 ||
                  k.part[0].scale != nullptr || k.part[0].bias != nullptr))
    return "K slices apart are a matter of one plain weight";
  return {};
}

template <TileFormat F>
TileLimits tile_limits(const cuda::DeviceLimits& device) {
  if (device.wgmma)
    return {device.multiprocessors, Widths<F, TileSums::kTotals, false>::kMost, Widths<F, TileSums::kOne, false>::kMost,
            true, kHasNarrow<Decoder<F>> ? kNarrowRows : 0};
  return {device.multiprocessors, 128, kHasWideTiles<Decoder<F>> ? 256 : 128, false, 0};
}

// Rows of x in a unit of work of streams and sweeps.
int32_t unit_rows(const Product& p) {
  const int64_t rows = p.grouped() ? p.problem.rows / p.problem.experts : p.problem.rows;
  return rows <= 8 ? 8 : 32;
}

// Whether there is a plan; `forced`: also one that would be slow.
template <TileFormat F>
bool can_sweep(const Product& p, const cuda::DeviceLimits& device, bool forced) {
  LaunchChoice choice;
  choice.device = device;
  choice.block_rows = unit_rows(p);
  choice.forced = forced;
  return plan_sweep(p.problem, choice, Decoder<F>::kTileBytes, kSweepWarps<Decoder<F>>).has_value();
}

// Rows of x of the widest tile that may be handed over; 0 where that is none.
int32_t dealt_width(const Product& p, const cuda::DeviceLimits& device) {
  if (!device.wgmma || p.grouped() || p.apart) return 0;
  const int32_t rows = p.problem.rows;
  const bool forced = p.path == Path::kDealt;
  if (!forced && p.row_blocks() * ((rows + 31) / 32) < device.multiprocessors) return 0;
  return rows > 128 ? 256 : rows > 64 ? 128 : 64;
}

template <TileFormat F>
Path choose(const Product& p, const cuda::DeviceLimits& device) {
  return choose_path(p, tile_limits<F>(device), cuda::card_costs(device).product,
                     [&] { return can_sweep<F>(p, device, false); });
}

template <TileFormat F>
bool fits(const Product& p, const cuda::DeviceLimits& device) {
  if (p.apart) return plan_k_slices(p.problem, Decoder<F>::kTileBytes, 4, device.shared_bytes).has_value();
  switch (p.path) {
    case Path::kAuto:
      return true;
    case Path::kStream: {
      LaunchChoice choice;
      choice.device = device;
      return plan_stream(p.problem, choice, Decoder<F>::kTileBytes, kStreamThreads<Decoder<F>> / 32).ok();
    }
    case Path::kSweep:
      return can_sweep<F>(p, device, true);
    case Path::kTile:
      return p.problem.x_rows == nullptr;
    case Path::kSliced:
      return p.problem.rows <= sliced_room(p, cuda::card_costs(device).product).most_rows;
    case Path::kDealt:
      return device.wgmma && !p.grouped();
  }
  return false;
}

template <TileFormat F>
Status launch_tiles(cudaStream_t stream, const Problem& p, const LaunchChoice& choice) {
  const bool totals = p.k_slices > 1 && !choice.sliced;
  if (!choice.device.wgmma)
    return totals ? launch_mma_tiles<F, true>(stream, p, choice) : launch_mma_tiles<F, false>(stream, p, choice);
  if (choice.sliced) return launch_wgmma_tiles<F, TileSums::kApart>(stream, p, choice);
  return totals ? launch_wgmma_tiles<F, TileSums::kTotals>(stream, p, choice)
                : launch_wgmma_tiles<F, TileSums::kOne>(stream, p, choice);
}

template <TileFormat F>
Status launch(cudaStream_t stream, Product p, const cuda::DeviceLimits& device) {
  if (!p.apart && p.path == Path::kAuto) p.path = choose<F>(p, device);
  if (p.path == Path::kDealt && !device.wgmma) p.path = Path::kTile;
  if (!fits<F>(p, device)) return misfit("what was chosen does not take it");
  if (p.apart) return launch_k_slices<F>(stream, p.problem, device);
  LaunchChoice choice;
  choice.device = device;
  choice.block_rows = unit_rows(p);
  if (p.path == Path::kStream) return launch_stream<F>(stream, p.problem, choice);
  if (p.path == Path::kSweep) {
    choice.forced = !can_sweep<F>(p, device, false);
    QUIRE_TRY(const bool launched, launch_sweep<F>(stream, p.problem, choice));
    return launched ? Status{} : misfit("no product for a sweep");
  }
  const TileLimits limits = tile_limits<F>(device);
  const bool sliced = p.path == Path::kSliced, room = p.room && p.path == Path::kDealt;
  choice.dealt = sliced ? limits.deals : room;
  choice.block_rows = p.tile_rows != 0 ? std::min(p.tile_rows, limits.most_rows(p.problem, sliced))
                                       : choose_tiles(p, limits, cuda::card_costs(device).product, sliced, room).rows;
  if ((sliced || room) && p.sums == nullptr) return misfit("no room for sums");
  choice.sliced = sliced;
  choice.sums = p.sums;
  QUIRE_CHECKED(launch_tiles<F>(stream, p.problem, choice));
  if (!sliced) return {};
  return launch_add_k_slices(stream, p.problem, apart_sums(p.problem, p.sums), tile_unit(p.format));
}

}  // namespace

bool takes(const Product& p, const cuda::DeviceLimits& device) {
  return misfit_of(p).empty() && with_format(p.format, [&]<TileFormat F>() { return fits<F>(p, device); });
}

Path choose_path(const Product& p, const cuda::DeviceLimits& device) {
  if (p.path != Path::kAuto || !misfit_of(p).empty()) return p.path;  // a misfit: launch_gemm says so
  return with_format(p.format, [&]<TileFormat F>() { return choose<F>(p, device); });
}

TileLimits tile_limits(TileFormat format, const cuda::DeviceLimits& device) {
  return with_format(format, [&]<TileFormat F>() { return tile_limits<F>(device); });
}

bool can_sweep(const Product& p, const cuda::DeviceLimits& device) {
  return with_format(p.format, [&]<TileFormat F>() { return can_sweep<F>(p, device, false); });
}

int64_t sliced_floats(const Product& p, const cuda::DeviceLimits& device) {
  const SlicedRoom room = sliced_room(p, cuda::card_costs(device).product);
  const int64_t apart = room.floats_per_row * blocks_of(std::min(room.most_rows, p.problem.rows), 8) * 8;
  const int32_t width = dealt_width(p, device);
  return width == 0 ? apart : std::max(apart, hand_over_floats(device.multiprocessors, width));
}

Status launch_gemm(cudaStream_t stream, const Product& p) {
  if (p.problem.rows < 0) return misfit("negative rows");
  if (p.problem.rows == 0) return {};
  if (const std::string_view why = misfit_of(p); !why.empty()) return misfit(why);
  QUIRE_TRY(const cuda::DeviceLimits device, cuda::device_limits());
  return with_format(p.format, [&]<TileFormat F>() { return launch<F>(stream, p, device); });
}

}  // namespace quire::gemm
