#include "cli/quantize/report.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "command/display.h"
#include "core/output.h"

namespace quire::cli {
namespace {

std::string class_name(const Job& job) {
  const gguf::TensorInfo& t = *job.in;
  if (job.choice.mtp) return "MTP block";
  switch (encoding_group(t.name, t.n_dims)) {
    case EncodingGroup::kHead:
      return "embedding, head";
    case EncodingGroup::kFfn:
      return t.n_dims == 3 ? "experts" : "feed-forward";
    case EncodingGroup::kProjection:
      return "projections";
    case EncodingGroup::kKept:
      break;
  }
  return t.n_dims >= 2 ? "routers, convolutions" : "norms, vectors";
}

void accumulate(const EncodeStats& from, EncodeStats& to) {
  to.squares += from.squares;
  to.error += from.error;
  to.weighted_squares += from.weighted_squares;
  to.weighted_error += from.weighted_error;
}

double ratio(double error, double squares) {
  return squares > 0 ? std::sqrt(error / squares) : 0;
}
double bits(int64_t bytes, int64_t elems) {
  return elems > 0 ? 8.0 * static_cast<double>(bytes) / static_cast<double>(elems) : 0;
}
std::string human(int64_t bytes) {
  return human_bytes(static_cast<uint64_t>(bytes));
}

// "a, b, c and 12 more"
std::string some(const std::vector<std::string>& names) {
  constexpr size_t kShown = 4;
  std::string out;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) out += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kShown) out += fmt::format(" and {} more", names.size() - kShown);
  return out;
}

bool is_float(DType type) {
  return dtype_info(type).block_elems == 1;
}

}  // namespace

void QuantizeReport::add(const Job& job, const EncodeStats* stats) {
  const std::string name = gguf::printable(job.in->name);
  if (job.choice.wanted) fallbacks_.push_back({name, *job.choice.wanted, job.type(), job.in->dims[0]});
  if (stats != nullptr) {
    if (!is_float(job.in->dtype)) requantised_.push_back(name);
    stats->weighted ? ++weighted_ : (unweighted_.push_back(name), 0);
    if (stats->unreached > 0) unreached_.emplace_back(name, stats->unreached);
  }
  for (Sum* s : {&sums_[{class_name(job), job.in->dtype, job.type()}], &all_}) {
    ++s->tensors;
    s->elems += job.in->elems();
    s->before += job.in->bytes;
    s->after += job.out_bytes() + (job.has_scale() ? 4 * job.matrices() : 0);
    if (stats != nullptr) accumulate(*stats, s->stats);
  }
}

void QuantizeReport::print(const Whole& w) const {
  const bool weighted = weighted_ > 0;
  const auto errors = [&](const EncodeStats& s) {
    if (s.squares == 0) return std::string();
    std::string out = fmt::format("{:>9.3f}%", 100 * ratio(s.error, s.squares));
    if (weighted) out += fmt::format("  {:>8.3f}%", 100 * ratio(s.weighted_error, s.weighted_squares));
    return out;
  };
  constexpr auto kRow = "{:<22} {:<14} {:>7} {:>10} {:>10} {:>7} {}\n";
  print_out(kRow, "tensors", "type", "count", "before", "after", "bits/w",
            weighted ? " rms error   weighted" : " rms error");
  for (const auto& [what, s] : sums_) {
    const auto& [name, from, to] = what;
    const std::string types =
        from == to ? fmt::format("{} kept", dtype_name(to)) : fmt::format("{} -> {}", dtype_name(from), dtype_name(to));
    print_out(kRow, name, types, s.tensors, human(s.before), human(s.after),
              fmt::format("{:.2f}", bits(s.after, s.elems)), errors(s.stats));
  }
  print_out(kRow, "file", "", all_.tensors, human_bytes(w.bytes_before), human_bytes(w.bytes_after),
            fmt::format("{:.2f}", bits(all_.after, all_.elems)), errors(all_.stats));
  print_notes(w);
}

void QuantizeReport::print_notes(const Whole& w) const {
  print_out("mix: {}\n", w.mix);
  std::map<std::tuple<DType, DType, int64_t>, std::vector<std::string>> by_kind;
  for (const Fallback& f : fallbacks_) by_kind[{f.wanted, f.type, f.columns}].push_back(f.tensor);
  for (const auto& [kind, names] : by_kind) {
    const auto& [wanted, type, columns] = kind;
    print_out("instead of {}, {} for rows of {} elements (no multiple of {}): {}\n", dtype_name(wanted),
              dtype_name(type), columns, dtype_info(wanted).block_elems, some(names));
  }
  if (!requantised_.empty())
    print_out("encoded before, so errors add up (start from 16 bits if you can): {}\n", some(requantised_));
  if (!w.importance.empty()) {
    print_out("importance from {}: {} of {} encoded tensors\n", w.importance, weighted_,
              weighted_ + std::ssize(unweighted_));
    if (!unweighted_.empty()) print_out("no importance, columns count alike: {}\n", some(unweighted_));
    for (const auto& [name, experts] : unreached_)
      print_out("{}: no token reached {} experts, their columns count alike\n", name, experts);
  }
  print_out("{:.1f} s, {} of buffers, {}\n", w.seconds, human(w.buffer_bytes),
            w.search == "best" ? "scales searched for least error" : "scales by the plain rule (--rtn)");
}

void QuantizeReport::print_json(const Whole& w) const {
  using Json = nlohmann::ordered_json;
  const auto sum_json = [](const Sum& s) {
    Json j = {{"tensors", s.tensors},
              {"parameters", s.elems},
              {"bytes_before", s.before},
              {"bytes_after", s.after},
              {"bits_per_weight", bits(s.after, s.elems)}};
    if (s.stats.squares == 0) return j;
    j["relative_rms_error"] = ratio(s.stats.error, s.stats.squares);
    j["weighted_relative_rms_error"] = ratio(s.stats.weighted_error, s.stats.weighted_squares);
    return j;
  };
  Json classes = Json::array(), fallbacks = Json::array(), unreached = Json::array();
  for (const auto& [what, s] : sums_) {
    const auto& [name, from, to] = what;
    Json j = {{"class", name}, {"from", dtype_name(from)}, {"to", dtype_name(to)}};
    j.update(sum_json(s));
    classes.push_back(j);
  }
  for (const Fallback& f : fallbacks_)
    fallbacks.push_back(
        {{"tensor", f.tensor}, {"wanted", dtype_name(f.wanted)}, {"type", dtype_name(f.type)}, {"columns", f.columns}});
  for (const auto& [name, experts] : unreached_) unreached.push_back({{"tensor", name}, {"experts", experts}});
  Json j = {{"input", w.input},
            {"output", w.output},
            {"type", w.type},
            {"mix", w.mix},
            {"search", w.search},
            {"file", {{"bytes_before", w.bytes_before}, {"bytes_after", w.bytes_after}}},
            {"all", sum_json(all_)},
            {"classes", classes},
            {"fallbacks", fallbacks},
            {"requantised", requantised_},
            {"buffer_bytes", w.buffer_bytes},
            {"seconds", w.seconds}};
  if (!w.importance.empty())
    j["importance"] = {
        {"file", w.importance}, {"tensors", weighted_}, {"missing", unweighted_}, {"unreached", unreached}};
  print_out("{}\n", j.dump(1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace quire::cli
