#include "ops/gemm/cuda/tune.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

namespace quire::gemm {
namespace {

// ---- The model of tiles: a time is the sum of six counts (TileWork) and of one launch, each times a constant.

constexpr size_t kTerms = 7;
using Terms = std::array<double, kTerms>;
enum Term : size_t { kColumn, kColumnTile, kNarrowPair, kTile, kHandOver, kAddedFloat, kLaunch };

bool is_modelled(const TunedCase& c, const Timing& t) {
  return !c.product.grouped() && (t.path == Path::kTile || t.path == Path::kDealt || t.path == Path::kSliced);
}

Terms terms_of(const TunedCase& c, const Timing& t) {
  const TileWork w = tile_work(c.product, t.path, t.tile_rows, c.limits);
  const auto number = [](int64_t n) { return static_cast<double>(n); };
  return {number(w.columns),
          number(w.column_tiles),
          number(w.narrow_pairs),
          number(w.tiles),
          number(w.hand_overs),
          number(w.added_floats),
          1};
}

// In microseconds.
Terms constants_of(const cuda::ProductCosts& c, double launch_us) {
  const double column = c.column_ns * 1e-3;
  return {column,
          column * static_cast<double>(c.column_overhead),
          column * static_cast<double>(c.narrow_overhead),
          column * static_cast<double>(c.tile_overhead),
          column * static_cast<double>(c.hand_over),
          column / static_cast<double>(c.sliced_floats_per_column),
          launch_us};
}

double predicted(const Terms& terms, const Terms& constants) {
  double us = 0;
  for (size_t i = 0; i < kTerms; ++i) us += terms[i] * constants[i];
  return us;
}

struct Row {
  Terms terms;
  double us;
};
std::vector<Row> modelled_rows(std::span<const TunedCase> cases) {
  std::vector<Row> rows;
  for (const TunedCase& c : cases)
    for (const Timing& t : c.timings)
      if (is_modelled(c, t) && t.us > 0) rows.push_back({terms_of(c, t), t.us});
  return rows;
}

double middle(std::vector<double> v) {
  if (v.empty()) return 0;
  const auto at = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
  std::nth_element(v.begin(), at, v.end());
  return *at;
}

// The constants of `free` terms that fit the rows best, weighted; nothing where they do not follow from the rows. Terms
// are scaled to their largest value, or the equations would be of very different sizes.
std::optional<Terms> solve(std::span<const Row> rows, std::span<const double> weights,
                           const std::array<bool, kTerms>& free) {
  Terms scale{};
  for (const Row& r : rows)
    for (size_t i = 0; i < kTerms; ++i) scale[i] = std::max(scale[i], std::fabs(r.terms[i]) / r.us);
  std::vector<size_t> at;
  for (size_t i = 0; i < kTerms; ++i)
    if (free[i] && scale[i] > 0) at.push_back(i);
  const size_t n = at.size();
  std::array<std::array<double, kTerms + 1>, kTerms> m{};
  for (size_t k = 0; k < rows.size(); ++k)
    for (size_t i = 0; i < n; ++i) {
      const auto value = [&](size_t t) { return rows[k].terms[at[t]] / rows[k].us / scale[at[t]]; };
      for (size_t j = 0; j < n; ++j) m[i][j] += weights[k] * value(i) * value(j);
      m[i][n] += weights[k] * value(i);
    }
  for (size_t i = 0; i < n; ++i) {
    size_t pivot = i;
    for (size_t r = i + 1; r < n; ++r)
      if (std::fabs(m[r][i]) > std::fabs(m[pivot][i])) pivot = r;
    std::swap(m[i], m[pivot]);
    if (std::fabs(m[i][i]) < 1e-9 * static_cast<double>(rows.size())) return {};
    for (size_t r = 0; r < n; ++r) {
      if (r == i) continue;
      const double factor = m[r][i] / m[i][i];
      for (size_t j = i; j <= n; ++j) m[r][j] -= factor * m[i][j];
    }
  }
  Terms constants{};
  for (size_t i = 0; i < n; ++i) constants[at[i]] = m[i][n] / m[i][i] / scale[at[i]];
  return constants;
}

// Rounds of least squares in which a row weighs the less, the further it is from the fit before (Huber): beyond 1.5
// times the usual distance its pull does not grow.
std::optional<Terms> fit_robust(std::span<const Row> rows, const std::array<bool, kTerms>& free) {
  std::vector<double> weights(rows.size(), 1.0);
  std::optional<Terms> constants;
  for (int round = 0; round < 30; ++round) {
    constants = solve(rows, weights, free);
    if (!constants) return {};
    std::vector<double> off;
    for (const Row& r : rows) off.push_back(std::fabs(predicted(r.terms, *constants) / r.us - 1));
    const double usual = std::max(1.4826 * middle(off), 1e-9);
    for (size_t k = 0; k < rows.size(); ++k) weights[k] = off[k] <= 1.5 * usual ? 1.0 : 1.5 * usual / off[k];
  }
  return constants;
}

// No constant is negative: one that would be is left out, and the others are fitted again.
std::optional<Terms> fit_model(std::span<const Row> rows) {
  std::array<bool, kTerms> free{};
  free.fill(true);
  for (size_t left = kTerms; left > 0 && rows.size() >= 2 * kTerms; --left) {
    const std::optional<Terms> constants = fit_robust(rows, free);
    if (!constants) return {};
    const auto least = std::min_element(constants->begin(), constants->end());
    if (*least >= 0) return constants;
    free[static_cast<size_t>(least - constants->begin())] = false;
  }
  return {};
}

bool has_term(std::span<const Row> rows, Term term) {
  return std::any_of(rows.begin(), rows.end(), [&](const Row& r) { return r.terms[term] != 0; });
}

void take_constants(cuda::ProductCosts& costs, const Terms& fitted, std::span<const Row> rows) {
  const double column = fitted[kColumn];
  if (!(column > 0)) return;
  (void)set_cost(costs, "column_ns", std::round(column * 1e6) / 1e3);
  const auto take = [&](Term term, std::string_view name, double value) {
    if (has_term(rows, term)) (void)set_cost(costs, name, std::round(value));
  };
  take(kColumnTile, "column_overhead", fitted[kColumnTile] / column);
  take(kNarrowPair, "narrow_overhead", fitted[kNarrowPair] / column);
  take(kTile, "tile_overhead", fitted[kTile] / column);
  take(kHandOver, "hand_over", fitted[kHandOver] / column);
  if (fitted[kAddedFloat] > 0) take(kAddedFloat, "sliced_floats_per_column", column / fitted[kAddedFloat]);
}

Prediction prediction(std::span<const Row> rows, const Terms& constants) {
  Prediction p;
  std::vector<double> off;
  for (const Row& r : rows) off.push_back(std::fabs(predicted(r.terms, constants) / r.us - 1));
  p.timings = static_cast<int64_t>(off.size());
  if (!off.empty()) p.worst = *std::max_element(off.begin(), off.end());
  p.median = middle(std::move(off));
  return p;
}

// Today's costs say nothing of a launch: what fits them best is the middle of what is missing.
double launch_of(std::span<const Row> rows, const cuda::ProductCosts& costs) {
  std::vector<double> missing;
  for (const Row& r : rows) missing.push_back(r.us - predicted(r.terms, constants_of(costs, 0)));
  return std::max(0.0, middle(std::move(missing)));
}

// ---- What is chosen

struct Chosen {
  double us = 0, best = 0;
};
// Nothing where what would be chosen was not measured.
std::optional<Chosen> chosen(const TunedCase& c, const cuda::ProductCosts& costs) {
  const auto timing = [&](Path path, int32_t tile_rows) -> const Timing* {
    for (const Timing& t : c.timings)
      if (t.path == path && t.tile_rows == tile_rows) return &t;
    return nullptr;
  };
  const bool sweeps = timing(Path::kSweep, 0) != nullptr;
  const Path path = c.product.grouped() ? Path::kTile : choose_path(c.product, c.limits, costs, [&] { return sweeps; });
  const bool sliced = path == Path::kSliced;
  int32_t rows = 0;
  if (path == Path::kTile || path == Path::kDealt || sliced)
    rows = std::min(choose_tiles(c.product, c.limits, costs, sliced, c.product.room && path == Path::kDealt).rows,
                    c.limits.most_rows(c.product.problem, sliced));
  const Timing* const taken = timing(path, rows);
  if (taken == nullptr) return {};
  Chosen result{taken->us, taken->us};
  for (const Timing& t : c.timings) result.best = std::min(result.best, t.us);
  return result;
}

Regret regret_of(std::span<const TunedCase> cases, const cuda::ProductCosts& costs) {
  Regret r;
  for (const TunedCase& c : cases) {
    const std::optional<Chosen> took = chosen(c, costs);
    if (!took) {
      ++r.unmeasured;
      continue;
    }
    const double slower = took->us / took->best - 1;
    ++r.cases;
    r.mean += slower;
    if (slower > r.worst || r.cases == 1) r.worst = slower, r.worst_case = c.name;
  }
  if (r.cases > 0) r.mean /= static_cast<double>(r.cases);
  return r;
}

// What limits are moved for: products that are slower by the same share count the same. What was not measured counts
// as twice as slow, so that no limit moves to where nothing is known.
double objective(std::span<const TunedCase> cases, const cuda::ProductCosts& costs) {
  double sum = 0;
  for (const TunedCase& c : cases) {
    const std::optional<Chosen> took = chosen(c, costs);
    sum += took ? std::log(took->us / took->best) : std::log(2.0);
  }
  return sum;
}

// ---- Limits, and the values that are tried

constexpr int64_t kRowValues[] = {0, 1, 2, 4, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 192, 256};
constexpr int64_t kTileValues[] = {0, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096};
constexpr int64_t kBlockValues[] = {1, 2, 3, 4, 6, 8, 16};

struct Limit {
  std::string_view name;
  std::span<const int64_t> values;
};
constexpr Limit kLimits[] = {
    {"stream_rows", kRowValues},
    {"stream_rows_small", kRowValues},
    {"small_row_tiles", kTileValues},
    {"sweep_rows_few", kRowValues},
    {"sweep_rows_bf16", kRowValues},
    {"sweep_rows_dealt", kRowValues},
    {"sweep_rows", kRowValues},
    {"sweep_col_tiles", kTileValues},
    {"sweep_col_tiles_many", kTileValues},
    {"many_row_tiles", kBlockValues},
    {"most_dealt_blocks", kBlockValues},
    {"least_sliced_rows", kRowValues},
    {"grouped_rows_32", kRowValues},
    {"grouped_rows_64", kRowValues},
    {"grouped_rows_128", kRowValues},
    {"least_sliced_rows_many", kRowValues},
};
constexpr auto kFitted = [] {
  std::array<std::string_view, std::size(kLimits) + 6> names{
      "column_ns", "column_overhead", "narrow_overhead", "tile_overhead", "hand_over", "sliced_floats_per_column"};
  for (size_t i = 0; i < std::size(kLimits); ++i) names[6 + i] = kLimits[i].name;
  return names;
}();

void fit_limits(std::span<const TunedCase> cases, cuda::ProductCosts& costs) {
  constexpr double kBetter = 1e-3;  // of one product: less is chance
  for (int round = 0; round < 3; ++round) {
    bool moved = false;
    for (const Limit& limit : kLimits) {
      double least = objective(cases, costs) - kBetter;
      cuda::ProductCosts best = costs;
      for (const int64_t value : limit.values) {
        cuda::ProductCosts tried = costs;
        if (!set_cost(tried, limit.name, static_cast<double>(value))) continue;
        const double slower = objective(cases, tried);
        if (slower >= least) continue;
        least = slower - 1e-12;
        best = tried;
        moved = true;
      }
      costs = best;
    }
    if (!moved) break;
  }
}

}  // namespace

FittedCosts fit_costs(std::span<const TunedCase> cases, const cuda::ProductCosts& today) {
  const std::vector<Row> rows = modelled_rows(cases);
  FittedCosts fit{.costs = today, .today_predicts = {}, .predicts = {}, .today_regret = {}, .regret = {}};
  fit.today_predicts = prediction(rows, constants_of(today, launch_of(rows, today)));
  fit.today_regret = regret_of(cases, today);
  // Constants that predict times better need not choose better: limits are fitted to both.
  cuda::ProductCosts fitted = today;
  if (const std::optional<Terms> constants = fit_model(rows)) take_constants(fitted, *constants, rows);
  fit_limits(cases, fit.costs);
  fit_limits(cases, fitted);
  if (objective(cases, fitted) < objective(cases, fit.costs)) fit.costs = fitted;
  fit.launch_us = launch_of(rows, fit.costs);
  fit.predicts = prediction(rows, constants_of(fit.costs, fit.launch_us));
  fit.regret = regret_of(cases, fit.costs);
  return fit;
}

std::span<const std::string_view> fitted_names() {
  return kFitted;
}

}  // namespace quire::gemm
