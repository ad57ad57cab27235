#include "cli/snapshot/diff.h"

#include <algorithm>

#include "core/escape.h"

namespace quire::cli::snapshot {
namespace {

constexpr size_t kLeastReadings = 5;

template <class T>
const T* named(const std::vector<T>& all, const std::string& name) {
  const auto at = std::find_if(all.begin(), all.end(), [&](const T& x) { return x.name == name; });
  return at == all.end() ? nullptr : &*at;
}

void compare_figures(const Snapshot& before, const Snapshot& after, SnapshotDiff& d) {
  std::vector<std::pair<const Figure*, const Figure*>> pairs;
  for (const Figure& a : before.figures) {
    const Figure* const b = named(after.figures, a.name);
    const bool fits = b != nullptr && b->unit == a.unit && b->more_is_better == a.more_is_better &&
                      a.readings.size() >= kLeastReadings && b->readings.size() >= kLeastReadings;
    if (fits)
      pairs.emplace_back(&a, b);
    else
      d.left_out.push_back(a.name);
  }
  for (const Figure& b : after.figures)
    if (named(before.figures, b.name) == nullptr) d.left_out.push_back(b.name);
  for (const auto& [a, b] : pairs) d.changes.push_back(compare_runs(*a, *b, pairs.size()));
}

void compare_gates(const Snapshot& before, const Snapshot& after, SnapshotDiff& d) {
  for (const Gate& b : after.gates) {
    const Gate* const a = named(before.gates, b.name);
    const std::string was = a == nullptr ? "not there" : std::string(gate_result_name(a->result));
    if (was == gate_result_name(b.result)) continue;
    d.gates.push_back(fmt::format("{}: {}, then {}", b.name, was, gate_result_name(b.result)));
    if (b.result == GateResult::kFailed) ++d.newly_failed;
  }
  for (const Gate& a : before.gates)
    if (named(after.gates, a.name) == nullptr)
      d.gates.push_back(fmt::format("{}: {}, then not there", a.name, gate_result_name(a.result)));
}

// "+3.1% ± 2.0%".
std::string said(const Interval& i) {
  return fmt::format("{:+.1f}% ± {:.1f}%", 100 * i.middle, 100 * i.half_width);
}

std::string value_text(double value, const std::string& unit) {
  if (unit == "s") return fmt::format("{:.3f} ms", value * 1e3);
  return fmt::format("{:.1f} {}", value, unit);
}

}  // namespace

int SnapshotDiff::count(Verdict v) const {
  return static_cast<int>(
      std::count_if(changes.begin(), changes.end(), [v](const FigureChange& c) { return c.verdict == v; }));
}

SnapshotDiff diff(const Snapshot& before, const Snapshot& after) {
  SnapshotDiff d;
  const auto differ = [&](const char* what, const std::string& a, const std::string& b) {
    if (a != b) d.remarks.push_back(fmt::format("{}: {}, then {}", what, a.empty() ? "-" : a, b.empty() ? "-" : b));
  };
  differ("program", before.program, after.program);
  differ("model", before.model, after.model);
  differ("device", before.device, after.device);
  differ("CPU", before.hardware.cpu, after.hardware.cpu);
  differ("instructions", before.hardware.cpu_features, after.hardware.cpu_features);
  differ("GPU", before.hardware.gpus.empty() ? "" : before.hardware.gpus.front().name,
         after.hardware.gpus.empty() ? "" : after.hardware.gpus.front().name);
  differ("fingerprint", before.fingerprint, after.fingerprint);
  compare_gates(before, after, d);
  compare_figures(before, after, d);
  return d;
}

std::string changes_table(const std::vector<FigureChange>& changes) {
  std::string text = fmt::format("| {:<26} | {:>18} | {:>18} | {:>20} | {:>20} | {:<9} |\n", "figure", "before",
                                 "after", "change", "normalised", "verdict");
  text += fmt::format("|{:-<28}|{:->19}:|{:->19}:|{:->21}:|{:->21}:|{:-<11}|\n", "", "", "", "", "", "");
  for (const FigureChange& c : changes)
    text += fmt::format("| {:<26} | {:>18} | {:>18} | {:>20} | {:>20} | {:<9} |\n", escaped(c.name, 60),
                        value_text(c.before, c.unit), value_text(c.after, escaped(c.unit, 20)), said(c.change),
                        said(c.normalised), verdict_name(c.verdict));
  return text;
}

std::string diff_table(const SnapshotDiff& d) {
  std::string text;
  for (const std::string& r : d.remarks) text += fmt::format("other {}\n", escaped(r, 400));
  for (const std::string& g : d.gates) text += fmt::format("gate {}\n", escaped(g, 400));
  if (!text.empty()) text += '\n';
  text += changes_table(d.changes);
  for (const std::string& f : d.left_out)
    text += fmt::format("not compared: {} (only one has it, or it was read fewer than {} times)\n", escaped(f, 60),
                        kLeastReadings);
  text += fmt::format("\n{} figures: {} slower, {} faster, {} unclear, {} without change\n", d.changes.size(),
                      d.count(Verdict::kSlower), d.count(Verdict::kFaster), d.count(Verdict::kUnclear),
                      d.count(Verdict::kSame));
  if (d.count(Verdict::kUnclear) > 0)
    text += "unclear: the figure moved, and so did the machine; --against measures two programs in turns\n";
  return text;
}

}  // namespace quire::cli::snapshot
