// Whether two sets of measurements differ by more than noise. Pure functions of numbers.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/snapshot/record.h"

namespace quire::cli::snapshot {

// The t of Student's distribution that is exceeded, upwards or downwards, with this probability.
double student_t(double degrees, double probability);

// Where a mean lies, with a given confidence.
struct Interval {
  double middle = 0, half_width = 0;
  double low() const { return middle - half_width; }
  double high() const { return middle + half_width; }
  // Wholly above `least` or wholly below -`least`.
  bool beyond(double least) const { return low() > least || high() < -least; }
};

// Mean of `values`, none of them weighted, at least two.
Interval mean_interval(std::span<const double> values, double probability);

// Mean of b minus mean of a, each without its two fifths at the ends (Yuen's test, with Welch's degrees of freedom): a
// disturbed reading here and there does not count. At least four of each.
Interval trimmed_difference(std::span<const double> a, std::span<const double> b, double probability);

// Without its fifth at either end.
double trimmed_mean(std::vector<double> values);
double standard_deviation(std::span<const double> values);

// With how many chances in all a comparison of two programs that are the same may report any change.
inline constexpr double kFalseAlarm = 0.01;
// What differs by less is no change, however certain: 3% between two runs, 1.5% in turns within one.
inline constexpr double kLeastChange = 0.03, kLeastChangeInTurns = 0.015;

enum class Verdict { kSame, kSlower, kFaster, kUnclear };
std::string_view verdict_name(Verdict v);

// A figure of two programs or runs. Changes are of its value, in parts of it: 0.1 is a tenth more.
struct FigureChange {
  std::string name, unit;
  double before = 0, after = 0;      // trimmed means
  Interval change;                   // as measured
  Interval normalised;               // by what the fixed loops beside each reading did; as `change` without these
  double drift = 0;                  // of these loops from one to the other
  Verdict verdict = Verdict::kSame;  // kUnclear: it differs, but so does the machine
};

// The same figure of two runs. `figures`: how many are compared at once.
FigureChange compare_runs(const Figure& before, const Figure& after, size_t figures);

// The same figure of two programs that were run in turns: of each pair of launches, what the second was to the first.
FigureChange compare_turns(const std::string& name, const std::string& unit, bool more_is_better,
                           std::span<const double> before, std::span<const double> after, size_t figures);

}  // namespace quire::cli::snapshot
