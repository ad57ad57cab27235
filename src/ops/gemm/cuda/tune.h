// Fits the costs of a card (ops/cuda/card_costs.h) to times that were measured on it. A function of numbers: measure.h
// has what measures them. No CUDA headers.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ops/gemm/cuda/choose.h"

namespace quire::gemm {

// The time of a product by one family of kernels, a median of several.
struct Timing {
  Path path = Path::kStream;
  int32_t tile_rows = 0;  // of tiles: rows of x in one
  double us = 0;
};

// A product and what it took by everything that takes it. Of experts only tiles are timed: streams need no gathered
// tokens, whose cost is not part of a product.
struct TunedCase {
  std::string name;  // for messages and files
  Product product;
  TileLimits limits;
  std::vector<Timing> timings;
};

// How well the model of tiles' times predicts the measured ones: |predicted / measured - 1|.
struct Prediction {
  double median = 0, worst = 0;
  int64_t timings = 0;
};
// How much slower what is chosen is than what was measured to be fastest: time / best - 1.
struct Regret {
  double mean = 0, worst = 0;
  std::string worst_case;
  int64_t cases = 0;       // of which what is chosen was measured
  int64_t unmeasured = 0;  // all others
};

struct FittedCosts {
  cuda::ProductCosts costs;
  double launch_us = 0;  // of every product, whatever is chosen; no cost of the card, but part of the times
  Prediction today_predicts, predicts;
  Regret today_regret, regret;
};

// Constants of the model of tiles by least squares of relative errors, in which outliers weigh less; limits one after
// the other, to the value with the least regret, beside those constants and beside today's: what chooses better is
// taken. What the timings say nothing about keeps its value of today, and so does what another value does not better.
FittedCosts fit_costs(std::span<const TunedCase> cases, const cuda::ProductCosts& today);

// The names of what fit_costs() may change.
std::span<const std::string_view> fitted_names();

}  // namespace quire::gemm
