// Times products on a GPU, for fit_costs(). No CUDA headers.
#pragma once

#include <functional>
#include <vector>

#include "core/result.h"
#include "ops/gemm/cuda/tune.h"

namespace quire::gemm {

// A weight and what becomes of its results: a product but for the number of rows.
struct TunedShape {
  TileFormat format = TileFormat::kBf16;
  int32_t rows = 0, cols = 0;  // of the weight, of one expert
  bool paired = false;
  int32_t experts = 1;  // more than 1: rows of x sorted by expert, as many for each
  Out out = Out::kBf16;
};
struct MeasuredCard {
  std::string name;
  cuda::DeviceLimits limits;
};

// Of the models that Quire is measured with, and between them.
std::vector<TunedShape> tuned_shapes();
// Rows of x that each is timed with.
std::vector<int32_t> tuned_rows(const TunedShape& shape);

// Times every shape with all its rows on GPU `gpu`, about two minutes: each by everything that takes it, in turns, the
// median of several. `progress` is told of each case that is done. An error without CUDA, a GPU or memory for it.
Result<std::vector<TunedCase>> measure_products(int gpu, MeasuredCard& card,
                                                const std::function<void(const TunedCase&)>& progress);

}  // namespace quire::gemm
