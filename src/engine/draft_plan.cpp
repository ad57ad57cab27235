#include "engine/draft_plan.h"

#include <algorithm>
#include <cmath>

namespace quire {
namespace {

constexpr double kObservedShare = 1.0 / 16;  // of an observed step in the points around it

bool ascends(const std::vector<double>& axis) {
  return !axis.empty() && std::adjacent_find(axis.begin(), axis.end(), std::greater_equal<>()) == axis.end() &&
         std::all_of(axis.begin(), axis.end(), [](double x) { return std::isfinite(x); });
}

// Drafts by how likely they are to be reached and accepted, in bins of 1/128 from the likeliest on: an order to take
// them in without sorting.
constexpr int kLikelihoodBins = 128;
int bin_of(double likelihood) {
  return std::clamp(static_cast<int>((1 - likelihood) * kLikelihoodBins), 0, kLikelihoodBins - 1);
}
// Drafts by what they need: MTP's of depth 1 to kMostDrafts, and 0 for lookup's, which need nothing.
struct Bin {
  std::array<int32_t, kMostDrafts + 1> drafts{};
  std::array<double, kMostDrafts + 1> tokens{};
};
size_t kind_of(DraftSource source, int depth) {
  return source == DraftSource::kMtp ? static_cast<size_t>(depth) : 0;
}

// Calls fn(depth, likelihood) for the drafts on offer of a source.
template <class Fn>
void for_each_draft(const DraftOffer& offer, DraftSource source, Fn fn) {
  double likelihood = 1;
  const int count = std::clamp<int>(offer.count[static_cast<size_t>(source)], 0, kMostDrafts);
  for (int depth = 1; depth <= count; ++depth)
    fn(depth, likelihood *= static_cast<double>(offer.averages->rate(source, depth)));
}
double expected(const DraftOffer& offer, DraftSource source) {
  double tokens = 0;
  for_each_draft(offer, source, [&](int, double likelihood) { tokens += likelihood; });
  return tokens;
}

// Which drafts are taken: those of the bins before `bin`, and so many of that one; of MTP's only down to a depth.
struct Border {
  DraftPlan plan;
  int bin = -1, mtp_depth = 0;
  int64_t in_last = 0;
};
Border best_border(const StepCosts& costs, const std::array<Bin, kLikelihoodBins>& bins, int deepest, int64_t sequences,
                   double keys, int64_t row_budget) {
  const auto count = static_cast<double>(sequences);
  const DraftPlan plain{.rows = sequences, .tokens = count, .seconds = costs.seconds(count, count, keys)};
  Border best{.plan = plain};
  for (int depth = 0; depth <= deepest; ++depth) {
    DraftPlan now = plain;
    for (int b = 0; b < kLikelihoodBins && now.rows < row_budget; ++b) {
      int64_t drafts = 0;
      double tokens = 0;
      for (size_t kind = 0; kind <= static_cast<size_t>(depth); ++kind) {
        drafts += bins[static_cast<size_t>(b)].drafts[kind];
        tokens += bins[static_cast<size_t>(b)].tokens[kind];
      }
      if (drafts == 0) continue;
      const int64_t taken = std::min(drafts, row_budget - now.rows);
      now.rows += taken;
      now.tokens += tokens * static_cast<double>(taken) / static_cast<double>(drafts);
      now.seconds = costs.seconds(count, static_cast<double>(now.rows), keys) + depth * costs.mtp_draft_seconds();
      if (now.tokens * best.plan.seconds > best.plan.tokens * now.seconds)
        best = {.plan = now, .bin = b, .mtp_depth = depth, .in_last = taken};
    }
  }
  return best;
}

}  // namespace

Result<StepCosts> StepCosts::make(Points p) {
  if (!ascends(p.sequences) || !ascends(p.rows) || !ascends(p.keys))
    return Error{Fault::kBug, "step costs: an axis is empty or does not ascend"};
  if (p.seconds.size() != p.sequences.size() * p.rows.size() * p.keys.size())
    return Error{Fault::kBug, fmt::format("step costs: {} times for {} x {} x {} points", p.seconds.size(),
                                          p.sequences.size(), p.rows.size(), p.keys.size())};
  for (const double s : p.seconds)
    if (!(s > 0) || !std::isfinite(s)) return Error{Fault::kBug, fmt::format("step costs: a step of {} s", s)};
  if (!(p.mtp_draft_seconds >= 0) || !std::isfinite(p.mtp_draft_seconds))
    return Error{Fault::kBug, fmt::format("step costs: an MTP draft of {} s", p.mtp_draft_seconds)};
  return StepCosts(std::move(p));
}

StepCosts::Place StepCosts::place(const std::vector<double>& axis, double x) {
  if (axis.size() == 1 || x <= axis.front()) return {};
  const auto next = std::upper_bound(axis.begin() + 1, axis.end() - 1, x);
  const auto at = static_cast<size_t>(next - axis.begin()) - 1;
  return {at, (x - axis[at]) / (axis[at + 1] - axis[at])};
}

// Calls fn(point, weight) for the corners of the cell; weights add up to 1, and some are negative beyond the last
// point.
template <class Fn>
void StepCosts::around(double sequences, double rows, double keys, Fn fn) const {
  const Place s = place(points_.sequences, sequences), r = place(points_.rows, rows), k = place(points_.keys, keys);
  for (size_t corner = 0; corner < 8; ++corner) {
    const size_t ds = corner / 4, dr = corner / 2 % 2, dk = corner % 2;
    const double weight =
        (ds == 1 ? s.share : 1 - s.share) * (dr == 1 ? r.share : 1 - r.share) * (dk == 1 ? k.share : 1 - k.share);
    if (weight != 0) fn(((s.at + ds) * points_.rows.size() + r.at + dr) * points_.keys.size() + k.at + dk, weight);
  }
}

double StepCosts::seconds(double sequences, double rows, double keys) const {
  double sum = 0, least = points_.seconds[0];
  around(sequences, rows / std::max(sequences, 1.0), keys, [&](size_t point, double weight) {
    sum += weight * points_.seconds[point];
    least = std::min(least, points_.seconds[point]);
  });
  return std::max(sum, least);  // a table that falls towards its end does not go on to nothing
}

void StepCosts::observe(double sequences, double rows, double keys, double seconds) {
  if (!(seconds > 0) || !std::isfinite(seconds)) return;
  const double off = std::clamp(seconds / this->seconds(sequences, rows, keys), 0.25, 4.0) - 1;
  around(sequences, rows / std::max(sequences, 1.0), keys, [&](size_t point, double weight) {
    points_.seconds[point] *= 1 + kObservedShare * std::clamp(weight, 0.0, 1.0) * off;
  });
}

void AcceptanceAverages::observe(DraftSource source, int drafted, int accepted) {
  const auto s = static_cast<size_t>(source);
  if (drafted <= 0) return;
  for (int i = 0; i < std::min({drafted, accepted + 1, kMostDrafts}); ++i) {
    const auto d = static_cast<size_t>(i);
    if (static_cast<float>(observed_[s][d]) < kWindow) ++observed_[s][d];
    const float weight = 1 / std::min(kPriorWeight + static_cast<float>(observed_[s][d]), kWindow);
    rates_[s][d] += weight * ((i < accepted ? 1.0f : 0.0f) - rates_[s][d]);
  }
  for (int i = std::max(drafted, 1); i < kMostDrafts; ++i) {
    const auto d = static_cast<size_t>(i);
    if (priors_[s][d - 1] <= 0) continue;
    const float usual = std::min(1.0f, rates_[s][d - 1] * priors_[s][d] / priors_[s][d - 1]);
    rates_[s][d] += kDrift * (usual - rates_[s][d]);
  }
}

DraftPlan plan_drafts(const StepCosts& costs, std::span<const DraftOffer> offers, double keys, int64_t row_budget,
                      std::span<DraftChoice> choices) {
  QUIRE_CHECK(choices.size() == offers.size(), "{} choices for {} sequences", choices.size(), offers.size());
  const auto sequences = std::ssize(offers);
  std::array<Bin, kLikelihoodBins> bins{};
  int deepest = 0;  // of MTP's
  for (size_t i = 0; i < offers.size(); ++i) {
    choices[i] = {};
    if (expected(offers[i], DraftSource::kLookup) >= expected(offers[i], DraftSource::kMtp))
      choices[i].source = DraftSource::kLookup;
    for_each_draft(offers[i], choices[i].source, [&](int depth, double likelihood) {
      Bin& bin = bins[static_cast<size_t>(bin_of(likelihood))];
      const size_t kind = kind_of(choices[i].source, depth);
      ++bin.drafts[kind];
      bin.tokens[kind] += likelihood;
      deepest = std::max(deepest, static_cast<int>(kind));
    });
  }
  const Border border = best_border(costs, bins, deepest, sequences, keys, row_budget);
  int64_t in_last = border.in_last;
  for (size_t i = 0; i < offers.size(); ++i) {
    for_each_draft(offers[i], choices[i].source, [&](int depth, double likelihood) {
      const int b = bin_of(likelihood);
      if (b > border.bin || choices[i].count != depth - 1) return;
      if (static_cast<int>(kind_of(choices[i].source, depth)) > border.mtp_depth) return;
      if (b == border.bin && in_last-- <= 0) return;
      choices[i].count = static_cast<int8_t>(depth);
    });
  }
  return border.plan;
}

bool probe_due(double plain, double probe, int64_t steps) {
  return probe - plain <= kProbeShare * plain * static_cast<double>(steps);
}

}  // namespace quire
