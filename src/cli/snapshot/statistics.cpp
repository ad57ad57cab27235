#include "cli/snapshot/statistics.h"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <numeric>

namespace quire::cli::snapshot {
namespace {

constexpr double kTrimmed = 0.2;  // at either end
// Readings of one run are not independent: a neighbour who is busy for a minute disturbs many of them and none of the
// other run's. A difference that is smaller than this many standard deviations of single readings is never told apart
// from that, however many readings there are.
constexpr double kLeastDeviations = 1.5;
// The fixed loops are not the program: of a drift that they show so much may be left after normalising.
constexpr double kDriftLeft = 0.5;

double mean(std::span<const double> v) {
  return std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size());
}

size_t trimmed_at_each_end(size_t n) {
  return static_cast<size_t>(kTrimmed * static_cast<double>(n));
}

// Sum of squares about the mean of what is left when the ends are replaced by their inner neighbours.
struct Winsorized {
  double mean = 0, squares = 0, kept = 0;

  explicit Winsorized(std::span<const double> values) {
    std::vector<double> v(values.begin(), values.end());
    std::sort(v.begin(), v.end());
    const size_t cut = trimmed_at_each_end(v.size());
    kept = static_cast<double>(v.size() - 2 * cut);
    mean = trimmed_mean(v);
    for (size_t i = 0; i < cut; ++i) {
      v[i] = v[cut];
      v[v.size() - 1 - i] = v[v.size() - 1 - cut];
    }
    const double centre = snapshot::mean(v);
    for (const double x : v) squares += (x - centre) * (x - centre);
  }
  // Of the trimmed mean.
  double variance() const { return squares / (kept * (kept - 1)); }
};

// What the fixed loops did beside a reading, as one number; 0 where they did not run.
double calibration(const Reading& r) {
  return r.compute > 0 && r.memory > 0 ? 0.5 * (std::log(r.compute) + std::log(r.memory)) : 0.0;
}

// Logarithms of a figure's readings, and of what they would be if the loops had always taken as long.
struct Logs {
  std::vector<double> raw, normalised, loops;

  explicit Logs(const Figure& f) {
    for (const Reading& r : f.readings) {
      const double x = std::log(r.value), c = calibration(r);
      raw.push_back(x);
      loops.push_back(c);
      // A rate falls with the loops' rates, a time rises.
      normalised.push_back(f.more_is_better ? x - c : x + c);
    }
  }
};

Interval widened(Interval i, std::span<const double> a, std::span<const double> b, double drift) {
  const double spread =
      kLeastDeviations * std::sqrt(std::max(Winsorized(a).squares / static_cast<double>(a.size() - 1),
                                            Winsorized(b).squares / static_cast<double>(b.size() - 1)));
  i.half_width = std::hypot(std::max(i.half_width, spread), kDriftLeft * drift);
  return i;
}

// From logarithms to parts of the value.
Interval of_ratio(const Interval& log) {
  const double low = std::expm1(log.low()), high = std::expm1(log.high());
  return {std::expm1(log.middle), (high - low) / 2};
}

Verdict judged(bool changed, double change, bool more_is_better) {
  if (!changed) return Verdict::kSame;
  return (change > 0) == more_is_better ? Verdict::kFaster : Verdict::kSlower;
}

}  // namespace

double student_t(double degrees, double probability) {
  const boost::math::students_t_distribution<double> t(std::clamp(degrees, 1.0, 1e6));
  return boost::math::quantile(boost::math::complement(t, probability / 2));
}

double trimmed_mean(std::vector<double> v) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  const size_t cut = trimmed_at_each_end(v.size());
  return mean(std::span(v).subspan(cut, v.size() - 2 * cut));
}

double standard_deviation(std::span<const double> v) {
  if (v.size() < 2) return 0;
  const double centre = mean(v);
  double squares = 0;
  for (const double x : v) squares += (x - centre) * (x - centre);
  return std::sqrt(squares / static_cast<double>(v.size() - 1));
}

Interval mean_interval(std::span<const double> v, double probability) {
  const auto n = static_cast<double>(v.size());
  return {mean(v), student_t(n - 1, probability) * standard_deviation(v) / std::sqrt(n)};
}

Interval trimmed_difference(std::span<const double> a, std::span<const double> b, double probability) {
  const Winsorized wa(a), wb(b);
  const double va = wa.variance(), vb = wb.variance(), sum = va + vb;
  Interval i{wb.mean - wa.mean, 0};
  if (sum == 0) return i;
  const double degrees = sum * sum / (va * va / (wa.kept - 1) + vb * vb / (wb.kept - 1));
  i.half_width = student_t(degrees, probability) * std::sqrt(sum);
  return i;
}

std::string_view verdict_name(Verdict v) {
  switch (v) {
    case Verdict::kSame:
      return "no change";
    case Verdict::kSlower:
      return "slower";
    case Verdict::kFaster:
      return "faster";
    case Verdict::kUnclear:
      return "unclear";
  }
  return "unknown";
}

FigureChange compare_runs(const Figure& before, const Figure& after, size_t figures) {
  FigureChange c{.name = before.name,
                 .unit = before.unit,
                 .before = trimmed_mean(before.values()),
                 .after = trimmed_mean(after.values())};
  // Bonferroni's correction: so many figures, of which none may cry wolf.
  const double probability = kFalseAlarm / static_cast<double>(std::max<size_t>(1, figures));
  const Logs a(before), b(after);
  const double drift = trimmed_mean(b.loops) - trimmed_mean(a.loops);
  c.drift = std::expm1(drift);
  const Interval raw = widened(trimmed_difference(a.raw, b.raw, probability), a.raw, b.raw, 0);
  const Interval normalised =
      widened(trimmed_difference(a.normalised, b.normalised, probability), a.normalised, b.normalised, drift);
  c.change = of_ratio(raw);
  c.normalised = of_ratio(normalised);
  const bool raw_says = raw.beyond(kLeastChange), loops_say = normalised.beyond(kLeastChange);
  const bool agree = raw_says && loops_say && (raw.middle > 0) == (normalised.middle > 0);
  c.verdict = judged(agree, raw.middle, before.more_is_better);
  if (!agree && (raw_says || loops_say)) c.verdict = Verdict::kUnclear;
  return c;
}

FigureChange compare_turns(const std::string& name, const std::string& unit, bool more_is_better,
                           std::span<const double> before, std::span<const double> after, size_t figures) {
  FigureChange c{.name = name,
                 .unit = unit,
                 .before = trimmed_mean({before.begin(), before.end()}),
                 .after = trimmed_mean({after.begin(), after.end()})};
  std::vector<double> ratios;
  for (size_t i = 0; i < before.size(); ++i) ratios.push_back(std::log(after[i] / before[i]));
  const Interval log = mean_interval(ratios, kFalseAlarm / static_cast<double>(std::max<size_t>(1, figures)));
  c.change = c.normalised = of_ratio(log);
  c.verdict = judged(log.beyond(kLeastChangeInTurns), log.middle, more_is_better);
  return c;
}

}  // namespace quire::cli::snapshot
