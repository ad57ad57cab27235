#include "cli/profile_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "arch/tensors.h"

namespace quire::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownKernels = 12;

double microseconds(double seconds) {
  return seconds * 1e6;
}

// Which bucket multiplies by a matrix; nothing for what is no matrix.
std::optional<Bucket> bucket_of_matrix(const TensorSpec& spec, bool tied) {
  using enum TensorRole;
  if (spec.role == kTokenEmbedding) return tied ? std::optional(Bucket::kHead) : std::nullopt;
  if (spec.kind == TensorKind::kVector) return std::nullopt;
  switch (spec.role) {
    case kOutput:
      return Bucket::kHead;
    case kRouter:
      return Bucket::kRouting;
    case kExpertsGateUp:
    case kExpertsGate:
    case kExpertsUp:
    case kExpertsDown:
    case kSharedGate:
    case kSharedUp:
    case kSharedDown:
      return Bucket::kExperts;
    case kFfnGate:
    case kFfnUp:
    case kFfnDown:
      return Bucket::kFeedForward;
    default:
      return Bucket::kProjections;
  }
}

// Share of the experts that a step reads if its tokens choose independently and uniformly.
double touched_share(const ModelCost& cost, int32_t sequences) {
  return 1 - std::pow(1 - cost.routed_share, sequences);
}

}  // namespace

PhaseProfile profile_phase(std::span<const GpuActivity> activities, std::span<const Bucket> buckets,
                           const ProfiledSteps& steps) {
  PhaseProfile p{.steps = steps};
  std::map<std::pair<std::string_view, Bucket>, BucketTime> kernels;
  int64_t covered = steps.begin_ns;
  BucketTime& idle = p.buckets[static_cast<size_t>(Bucket::kIdle)];
  for (size_t i = steps.first; i < steps.end; ++i) {
    const GpuActivity& a = activities[i];
    if (a.begin > covered) {
      idle.seconds += static_cast<double>(a.begin - covered) * 1e-9;
      ++idle.launches;
      covered = a.begin;
    }
    const double seconds = static_cast<double>(std::max<int64_t>(a.end - covered, 0)) * 1e-9;
    covered = std::max(covered, a.end);
    const std::string_view name =
        a.kind == GpuActivity::Kind::kKernel ? kernel_name(a.name) : std::string_view(a.name);
    for (BucketTime* t : {&p.buckets[static_cast<size_t>(buckets[i])], &kernels[{name, buckets[i]}]}) {
      t->seconds += seconds;
      ++t->launches;
    }
  }
  for (const auto& [key, time] : kernels)
    p.kernels.push_back({.name = std::string(key.first), .bucket = key.second, .time = time});
  std::sort(p.kernels.begin(), p.kernels.end(), [](const auto& a, const auto& b) {
    return a.time.seconds != b.time.seconds ? a.time.seconds > b.time.seconds : a.name < b.name;
  });
  return p;
}

double bucket_bytes(Bucket b, const gguf::File& file, const ModelCost& cost, int32_t sequences,
                    double context) {
  if (b == Bucket::kAttention) return cost.kv_token_bytes * sequences * context;
  if (b == Bucket::kDelta)
    return sequences *
           (cost.state_bytes * (1 + 1.0 / kWindowTokens) + cost.window_bytes * (kWindowTokens / 2));
  const bool tied = file.find_tensor(tensor_name(TensorRole::kOutput)) == nullptr;
  double bytes = 0;
  for (const gguf::TensorInfo& t : file.tensors()) {
    const std::optional<TensorId> id = find_tensor_spec(t.name);
    if (!id || bucket_of_matrix(*id->spec, tied) != b) continue;
    const bool experts = id->spec->kind == TensorKind::kExperts;
    bytes += static_cast<double>(t.bytes) * (experts ? touched_share(cost, sequences) : 1);
  }
  return bytes;
}

std::string phase_table(const PhaseProfile& p, const PhaseHeading& h) {
  const auto steps = static_cast<double>(p.steps.steps), tokens = static_cast<double>(h.tokens);
  std::string out =
      fmt::format("{}: {} steps of {:.3f} ms, {:.1f} tokens/s, {:.2f} us a token\n\n", h.title, p.steps.steps,
                  p.seconds() * 1e3 / steps, tokens / p.seconds(), microseconds(p.seconds()) / tokens);
  out += fmt::format("| {:<15} | {:>10} | {:>10} | {:>6} | {:>8} | {:>9} | {:>8} |\n", "", "us/step",
                     "us/token", "share", "launches", "GB/step", "of limit");
  out += fmt::format("|{:-<17}|{:->11}:|{:->11}:|{:->7}:|{:->9}:|{:->10}:|{:->9}:|\n", "", "", "", "", "", "",
                     "");
  for (int i = 0; i < kBuckets; ++i) {
    const BucketTime& t = p.buckets[i];
    if (t.launches == 0) continue;
    const double bytes = h.bytes.empty() ? 0 : h.bytes[static_cast<size_t>(i)];
    std::string moved, share;
    if (bytes > 0 && t.seconds > 0) {
      moved = fmt::format("{:.4f}", bytes * 1e-9);
      if (h.bandwidth > 0) share = fmt::format("{:.1f}%", 100 * bytes * steps / t.seconds / h.bandwidth);
    }
    out += fmt::format("| {:<15} | {:>10.2f} | {:>10.3f} | {:>5.1f}% | {:>8.1f} | {:>9} | {:>8} |\n",
                       bucket_name(static_cast<Bucket>(i)), microseconds(t.seconds) / steps,
                       microseconds(t.seconds) / tokens, 100 * t.seconds / p.seconds(),
                       static_cast<double>(t.launches) / steps, moved, share);
  }
  out += "\n";
  for (size_t i = 0; i < std::min(p.kernels.size(), kShownKernels); ++i) {
    const PhaseProfile::Kernel& k = p.kernels[i];
    const auto launches = static_cast<double>(k.time.launches);
    out += fmt::format("  {:<26} {:<15} {:>8.1f} a step of {:>8.2f} us  {:>5.1f}%\n", k.name,
                       bucket_name(k.bucket), launches / steps, microseconds(k.time.seconds) / launches,
                       100 * k.time.seconds / p.seconds());
  }
  return out;
}

Json phase_json(const PhaseProfile& p, const PhaseHeading& h) {
  Json out = {{"steps", p.steps.steps},
              {"tokens", h.tokens},
              {"seconds", p.seconds()},
              {"buckets", Json::object()},
              {"kernels", Json::array()}};
  for (int i = 0; i < kBuckets; ++i) {
    const BucketTime& t = p.buckets[i];
    Json one = {{"seconds", t.seconds}, {"share", t.seconds / p.seconds()}, {"launches", t.launches}};
    const double bytes = h.bytes.empty() ? 0 : h.bytes[static_cast<size_t>(i)];
    if (bytes > 0) {
      one["bytes_per_step"] = bytes;
      if (h.bandwidth > 0 && t.seconds > 0)
        one["share_of_limit"] = bytes * static_cast<double>(p.steps.steps) / t.seconds / h.bandwidth;
    }
    out["buckets"][std::string(bucket_name(static_cast<Bucket>(i)))] = std::move(one);
  }
  for (const PhaseProfile::Kernel& k : p.kernels)
    out["kernels"].push_back({{"name", k.name},
                              {"bucket", bucket_name(k.bucket)},
                              {"seconds", k.time.seconds},
                              {"launches", k.time.launches}});
  return out;
}

std::string chrome_trace(std::span<const GpuActivity> activities, std::span<const Bucket> buckets) {
  Json events = Json::array();
  const auto row = [&](int id, std::string_view name) {
    events.push_back(
        {{"name", "thread_name"}, {"ph", "M"}, {"pid", 0}, {"tid", id}, {"args", {{"name", name}}}});
    events.push_back({{"name", "thread_sort_index"},
                      {"ph", "M"},
                      {"pid", 0},
                      {"tid", id},
                      {"args", {{"sort_index", id}}}});
  };
  row(0, "steps");
  for (int i = 0; i < kBuckets - 1; ++i) row(i + 1, bucket_name(static_cast<Bucket>(i)));
  if (activities.empty()) return Json{{"traceEvents", events}}.dump();
  const int64_t zero = activities.front().begin;
  const auto event = [&](int id, std::string_view name, int64_t begin, int64_t end, Json more) {
    events.push_back({{"name", name},
                      {"ph", "X"},
                      {"pid", 0},
                      {"tid", id},
                      {"ts", static_cast<double>(begin - zero) * 1e-3},
                      {"dur", static_cast<double>(end - begin) * 1e-3},
                      {"args", std::move(more)}});
  };
  int64_t step = 0, step_begin = zero;
  for (size_t i = 0; i < activities.size(); ++i) {
    const GpuActivity& a = activities[i];
    const bool kernel = a.kind == GpuActivity::Kind::kKernel;
    event(static_cast<int>(buckets[i]) + 1, kernel ? kernel_name(a.name) : std::string_view(a.name), a.begin,
          a.end,
          kernel ? Json{{"kernel", a.name}, {"grid", a.grid}, {"block", a.block}} : Json{{"bytes", a.bytes}});
    if (a.kind != GpuActivity::Kind::kToHost) continue;
    event(0, fmt::format("step {}", step++), step_begin, a.end, Json::object());
    step_begin = a.end;
  }
  return Json{{"traceEvents", events}, {"displayTimeUnit", "ns"}}.dump(-1, ' ', false,
                                                                       Json::error_handler_t::replace);
}

}  // namespace quire::cli
