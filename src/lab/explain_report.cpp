#include "lab/explain_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "command/display.h"

namespace quire::cli {
namespace {

std::string microseconds(const std::optional<double>& seconds) {
  return seconds ? fmt::format("{:.1f} us", *seconds * 1e6) : "-";
}

std::string bytes_of(const Traffic& t) {
  return human_bytes(static_cast<uint64_t>(t.bytes));
}

Traffic times(const Traffic& t, int64_t calls) {
  return {.bytes = t.bytes * calls, .flops = t.flops * calls};
}

}  // namespace

std::optional<double> MachineLimits::seconds(const Traffic& t) const {
  if (bandwidth <= 0 && flops <= 0) return std::nullopt;
  double longest = 0;
  if (bandwidth > 0) longest = static_cast<double>(t.bytes) / bandwidth;
  if (flops > 0) longest = std::max(longest, static_cast<double>(t.flops) / flops);
  return longest;
}

void ExplainedStep::begin(const Launch& launch) {
  // Calls of a part are told apart by whose part it is.
  path_.resize(static_cast<size_t>(depth_));
  path_.push_back(
      fmt::format("{}\n{}\n{}\n{}", path_.empty() ? "" : path_.back(), launch.op, launch.kernel, launch.arguments));
  const auto [at, fresh] = known_.try_emplace(path_.back(), calls_.size());
  if (fresh) calls_.push_back({.launch = launch, .depth = depth_});
  ++calls_[at->second].calls;
  ++depth_;
}

void ExplainedStep::refused(const Error& error) {
  if (!refusal_) refusal_ = error;
}

Traffic ExplainedStep::total() const {
  Traffic sum;
  for (const ExplainedCalls& c : calls_)
    if (c.depth == 0) sum += times(c.launch.traffic, c.calls);
  return sum;
}

std::string why(const Launch& launch) {
  if (launch.forced) return "forced";
  if (launch.passed.empty()) return "first choice";
  std::string text = "before it: ";
  for (size_t i = 0; i < launch.passed.size(); ++i)
    text += fmt::format("{}{} ({})", i == 0 ? "" : ", ", launch.passed[i].kernel, reason(launch.passed[i].why));
  return text;
}

std::string explained_table(const ExplainedStep& step, const MachineLimits& limits) {
  std::string text =
      fmt::format("{:<22}{:>6}  {:<17}{:>10}{:>10}{:>12}\n", "operator", "calls", "kernel", "bytes", "FLOPs", "floor");
  const auto row = [&](std::string_view op, const std::string& calls, std::string_view kernel, const Traffic& t) {
    text += fmt::format("{:<22}{:>6}  {:<17}{:>10}{:>10}{:>12}\n", op, calls, kernel, bytes_of(t), human_count(t.flops),
                        microseconds(limits.seconds(t)));
  };
  for (const ExplainedCalls& c : step.calls()) {
    const std::string indent(static_cast<size_t>(2 * c.depth), ' ');
    row(indent + std::string(c.launch.op), fmt::format("{}", c.calls), c.launch.kernel,
        times(c.launch.traffic, c.calls));
    text += fmt::format("{}    {}\n{}    {}\n", indent, c.launch.arguments, indent, why(c.launch));
  }
  row("total", "", "", step.total());
  return text;
}

nlohmann::ordered_json explained_json(const ExplainedStep& step, const MachineLimits& limits) {
  using Json = nlohmann::ordered_json;
  const auto traffic = [&](Json& to, const Traffic& t) {
    to["bytes"] = t.bytes;
    to["flops"] = t.flops;
    const std::optional<double> floor = limits.seconds(t);
    to["floor_seconds"] = floor ? Json(*floor) : Json();
  };
  Json calls = Json::array();
  for (const ExplainedCalls& c : step.calls()) {
    Json passed = Json::array();
    for (const PassedOver& p : c.launch.passed) passed.push_back({{"kernel", p.kernel}, {"why", reason(p.why)}});
    Json one = {{"operator", c.launch.op},        {"depth", c.depth},          {"calls", c.calls},
                {"kernel", c.launch.kernel},      {"forced", c.launch.forced}, {"passed_over", passed},
                {"arguments", c.launch.arguments}};
    traffic(one, times(c.launch.traffic, c.calls));
    calls.push_back(std::move(one));
  }
  Json total;
  traffic(total, step.total());
  return {{"calls", std::move(calls)}, {"total", std::move(total)}};
}

}  // namespace quire::cli
