#include "lab/profile_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

namespace quire::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownKernels = 12;
constexpr std::string_view kCopies = "copies", kIdle = "idle";

double microseconds(double seconds) {
  return seconds * 1e6;
}

bool is_kernel(const GpuActivity& a) {
  return a.kind == GpuActivity::Kind::kKernel;
}

std::string_view owner(const LoggedLaunch* launch) {
  return launch == nullptr ? kCopies : std::string_view(launch->op);
}

std::string record_name(const GpuActivity& a) {
  return is_kernel(a) ? kernel_name(a.name) : a.name;
}

// Walks the launches of a step as its kernels come.
class Launches {
 public:
  explicit Launches(const LoggedStep& step) : step_(step) {}
  // Whose the next kernel is; null: there are no more.
  const LoggedLaunch* next() {
    while (at_ < step_.launches.size() && used_ == step_.launches[at_].kernels) ++at_, used_ = 0;
    if (at_ == step_.launches.size()) return nullptr;
    ++used_;
    return &step_.launches[at_];
  }

 private:
  const LoggedStep& step_;
  size_t at_ = 0;
  int64_t used_ = 0;
};

// The row of this name, at the end if there is none.
PhaseProfile::Row& row_of(std::vector<PhaseProfile::Row>& rows, std::string_view name) {
  for (PhaseProfile::Row& r : rows)
    if (r.name == name) return r;
  return rows.emplace_back(PhaseProfile::Row{.name = std::string(name), .time = {}, .traffic = {}});
}

}  // namespace

std::string kernel_name(std::string_view demangled) {
  // What comes before template arguments and parameters ends with it. "(anonymous namespace)" is no list of parameters.
  constexpr std::string_view kAnonymous = "(anonymous namespace)";
  size_t end = demangled.find_first_of("<(");
  while (end != demangled.npos && demangled.substr(end).starts_with(kAnonymous))
    end = demangled.find_first_of("<(", end + kAnonymous.size());
  const std::string_view name = demangled.substr(0, end);
  const size_t last = name.find_last_of(": ");
  return std::string(last == name.npos ? name : name.substr(last + 1));
}

Result<Attribution> attribute(std::span<const GpuActivity> activities, const LoggedSteps& steps) {
  Attribution a;
  a.of.resize(activities.size());
  size_t first = 0;
  for (const std::shared_ptr<const LoggedStep>& step : steps) {
    Launches launches(*step);
    size_t i = first;
    for (; i < activities.size() && activities[i].kind != GpuActivity::Kind::kToHost; ++i) {
      if (!is_kernel(activities[i])) continue;
      a.of[i] = launches.next();
      if (a.of[i] == nullptr)
        return Error{Fault::kBug, fmt::format("step {} has more kernels than its operators launched, from {} on",
                                              a.steps.size(), kernel_name(activities[i].name))};
    }
    if (const LoggedLaunch* const missing = launches.next(); missing != nullptr)
      return Error{Fault::kBug, fmt::format("step {} has fewer kernels than its operators launched: {} lacks some",
                                            a.steps.size(), missing->op)};
    if (i == activities.size())
      return Error{Fault::kBug, fmt::format("the records end within step {} of {}", a.steps.size(), steps.size())};
    // Drafts, hidden states and log-probabilities of prompts are copied behind the results; the next step begins with a
    // copy to the device.
    while (i + 1 < activities.size() && activities[i + 1].kind == GpuActivity::Kind::kToHost) ++i;
    a.steps.push_back({first, i + 1, step.get()});
    first = i + 1;
  }
  for (size_t i = first; i < activities.size(); ++i)
    if (is_kernel(activities[i]))
      return Error{Fault::kBug, fmt::format("kernels after the last of {} steps: {}", steps.size(),
                                            kernel_name(activities[i].name))};
  return a;
}

std::optional<Phases> find_phases(std::span<const GpuActivity> activities, const Attribution& a, int64_t decode_steps) {
  size_t prompts = 0;
  for (size_t i = 0; i < a.steps.size(); ++i)
    if (a.steps[i].logged->prompts) prompts = i + 1;
  const auto end = prompts + static_cast<size_t>(std::max<int64_t>(decode_steps, 0));
  if (prompts == 0 || decode_steps < 1 || a.steps.size() < end) return std::nullopt;
  const int64_t middle = activities[a.steps[prompts - 1].end - 1].end;
  return Phases{
      .prompts = {.first = 0, .end = prompts, .begin_ns = activities.front().begin, .end_ns = middle},
      .decode = {.first = prompts, .end = end, .begin_ns = middle, .end_ns = activities[a.steps[end - 1].end - 1].end}};
}

PhaseProfile profile_phase(std::span<const GpuActivity> activities, const Attribution& a, const Phase& phase) {
  PhaseProfile p{.phase = phase, .rows = {}, .kernels = {}};
  for (size_t s = phase.first; s < phase.end; ++s)
    for (const LoggedLaunch& l : a.steps[s].logged->launches) row_of(p.rows, l.op).traffic += l.traffic;
  (void)row_of(p.rows, kCopies);
  (void)row_of(p.rows, kIdle);
  using Key = std::tuple<std::string, std::string_view, std::string_view>;
  std::map<Key, ProfiledTime> kernels;
  int64_t covered = phase.begin_ns;
  for (size_t i = a.steps[phase.first].first; i < a.steps[phase.end - 1].end; ++i) {
    const GpuActivity& one = activities[i];
    if (one.begin > covered) {
      ProfiledTime& idle = row_of(p.rows, kIdle).time;
      idle.seconds += static_cast<double>(one.begin - covered) * 1e-9;
      ++idle.launches;
      covered = one.begin;
    }
    const double seconds = static_cast<double>(std::max<int64_t>(one.end - covered, 0)) * 1e-9;
    covered = std::max(covered, one.end);
    const std::string_view kernel = a.of[i] == nullptr ? std::string_view() : a.of[i]->kernel;
    for (ProfiledTime* t :
         {&row_of(p.rows, owner(a.of[i])).time, &kernels[{record_name(one), owner(a.of[i]), kernel}]}) {
      t->seconds += seconds;
      ++t->launches;
    }
  }
  for (const auto& [key, time] : kernels)
    p.kernels.push_back({.name = std::get<0>(key),
                         .op = std::string(std::get<1>(key)),
                         .kernel = std::string(std::get<2>(key)),
                         .time = time});
  std::sort(p.kernels.begin(), p.kernels.end(), [](const auto& x, const auto& y) {
    return x.time.seconds != y.time.seconds ? x.time.seconds > y.time.seconds : x.name < y.name;
  });
  return p;
}

std::string phase_table(const PhaseProfile& p, const PhaseHeading& h) {
  const auto steps = static_cast<double>(p.phase.steps()), tokens = static_cast<double>(h.tokens);
  std::string out =
      fmt::format("{}: {} steps of {:.3f} ms, {:.1f} tokens/s, {:.2f} us a token\n\n", h.title, p.phase.steps(),
                  p.seconds() * 1e3 / steps, tokens / p.seconds(), microseconds(p.seconds()) / tokens);
  out += fmt::format("| {:<17} | {:>10} | {:>10} | {:>6} | {:>8} | {:>9} | {:>8} |\n", "", "us/step", "us/token",
                     "share", "launches", "GB/step", "of limit");
  out += fmt::format("|{:-<19}|{:->11}:|{:->11}:|{:->7}:|{:->9}:|{:->10}:|{:->9}:|\n", "", "", "", "", "", "", "");
  for (const PhaseProfile::Row& r : p.rows) {
    if (r.time.launches == 0) continue;
    std::string moved, share;
    if (r.traffic.bytes > 0 && r.time.seconds > 0) {
      const auto bytes = static_cast<double>(r.traffic.bytes);
      moved = fmt::format("{:.4f}", bytes * 1e-9 / steps);
      if (h.bandwidth > 0) share = fmt::format("{:.1f}%", 100 * bytes / r.time.seconds / h.bandwidth);
    }
    out += fmt::format("| {:<17} | {:>10.2f} | {:>10.3f} | {:>5.1f}% | {:>8.1f} | {:>9} | {:>8} |\n", r.name,
                       microseconds(r.time.seconds) / steps, microseconds(r.time.seconds) / tokens,
                       100 * r.time.seconds / p.seconds(), static_cast<double>(r.time.launches) / steps, moved, share);
  }
  out += "\n";
  for (size_t i = 0; i < std::min(p.kernels.size(), kShownKernels); ++i) {
    const PhaseProfile::Kernel& k = p.kernels[i];
    const auto launches = static_cast<double>(k.time.launches);
    out += fmt::format("  {:<22} {:<17} {:<17} {:>8.1f} a step of {:>8.2f} us  {:>5.1f}%\n", k.name, k.op, k.kernel,
                       launches / steps, microseconds(k.time.seconds) / launches, 100 * k.time.seconds / p.seconds());
  }
  return out;
}

Json phase_json(const PhaseProfile& p, const PhaseHeading& h) {
  Json out = {{"steps", p.phase.steps()},
              {"tokens", h.tokens},
              {"seconds", p.seconds()},
              {"operators", Json::object()},
              {"kernels", Json::array()}};
  for (const PhaseProfile::Row& r : p.rows) {
    Json one = {{"seconds", r.time.seconds}, {"share", r.time.seconds / p.seconds()}, {"launches", r.time.launches}};
    if (r.traffic.bytes > 0) {
      const auto bytes = static_cast<double>(r.traffic.bytes);
      one["bytes_per_step"] = bytes / static_cast<double>(p.phase.steps());
      one["flops_per_step"] = static_cast<double>(r.traffic.flops) / static_cast<double>(p.phase.steps());
      if (h.bandwidth > 0 && r.time.seconds > 0) one["share_of_limit"] = bytes / r.time.seconds / h.bandwidth;
    }
    out["operators"][r.name] = std::move(one);
  }
  for (const PhaseProfile::Kernel& k : p.kernels)
    out["kernels"].push_back({{"name", k.name},
                              {"operator", k.op},
                              {"entry", k.kernel},
                              {"seconds", k.time.seconds},
                              {"launches", k.time.launches}});
  return out;
}

std::string chrome_trace(std::span<const GpuActivity> activities, const Attribution& a) {
  Json events = Json::array();
  std::vector<std::string> rows = {"steps"};
  const auto row = [&](std::string_view name) {
    const auto at = std::find(rows.begin(), rows.end(), name);
    if (at == rows.end()) rows.emplace_back(name);
    return at == rows.end() ? std::ssize(rows) - 1 : at - rows.begin();
  };
  const int64_t zero = activities.empty() ? 0 : activities.front().begin;
  const auto event = [&](std::ptrdiff_t id, std::string_view name, int64_t begin, int64_t end, Json more) {
    events.push_back({{"name", name},
                      {"ph", "X"},
                      {"pid", 0},
                      {"tid", id},
                      {"ts", static_cast<double>(begin - zero) * 1e-3},
                      {"dur", static_cast<double>(end - begin) * 1e-3},
                      {"args", std::move(more)}});
  };
  for (size_t i = 0; i < activities.size(); ++i) {
    const GpuActivity& one = activities[i];
    Json more = {{"bytes", one.bytes}};
    if (is_kernel(one)) more = {{"kernel", one.name}, {"grid", one.grid}, {"block", one.block}};
    if (a.of[i] != nullptr) more["entry"] = a.of[i]->kernel;
    event(row(owner(a.of[i])), record_name(one), one.begin, one.end, std::move(more));
  }
  for (size_t s = 0; s < a.steps.size(); ++s)
    event(0, fmt::format("step {}", s), activities[a.steps[s].first].begin, activities[a.steps[s].end - 1].end,
          Json::object());
  for (size_t id = 0; id < rows.size(); ++id) {
    events.push_back({{"name", "thread_name"}, {"ph", "M"}, {"pid", 0}, {"tid", id}, {"args", {{"name", rows[id]}}}});
    events.push_back(
        {{"name", "thread_sort_index"}, {"ph", "M"}, {"pid", 0}, {"tid", id}, {"args", {{"sort_index", id}}}});
  }
  return Json{{"traceEvents", events}, {"displayTimeUnit", "ns"}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace quire::cli
