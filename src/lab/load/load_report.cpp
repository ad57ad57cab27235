#include "lab/load/load_report.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "gguf/metadata.h"

namespace quire::cli::load {

Spread Spread::of(std::vector<double> v) {
  Spread s;
  if (v.empty()) return s;
  s.count = v.size();
  std::sort(v.begin(), v.end());
  s.mean = std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size());
  const auto quantile = [&](double q) {
    const double at = q * static_cast<double>(v.size() - 1);
    const auto below = static_cast<size_t>(at);
    const size_t above = std::min(below + 1, v.size() - 1);
    return v[below] + (at - static_cast<double>(below)) * (v[above] - v[below]);
  };
  s.p50 = quantile(0.5);
  s.p90 = quantile(0.9);
  s.p99 = quantile(0.99);
  return s;
}

LoadSummary summarize(std::string load, const std::vector<Sample>& samples) {
  LoadSummary r{.load = std::move(load), .requests = samples.size()};
  std::vector<double> ttft, itl, rates;
  double begin = INFINITY, end = 0;
  for (const Sample& s : samples) {
    begin = std::min(begin, s.sent);
    end = std::max(end, s.end);
    if (!s.error.empty()) {
      if (++r.errors == 1) r.first_error = s.error;
      continue;
    }
    r.prompt_tokens += s.prompt_tokens;
    r.tokens += s.tokens;
    if (s.text.empty()) continue;
    ttft.push_back(s.first - s.sent);
    itl.insert(itl.end(), s.gaps.begin(), s.gaps.end());
    if (s.tokens > 1 && s.last > s.first) rates.push_back(static_cast<double>(s.tokens - 1) / (s.last - s.first));
  }
  r.seconds = samples.empty() ? 0 : end - begin;
  r.ttft = Spread::of(std::move(ttft));
  r.itl = Spread::of(std::move(itl));
  r.sequence_rate = Spread::of(std::move(rates));
  return r;
}

std::string load_table(const std::vector<LoadSummary>& levels) {
  std::string out =
      "| load | requests | errors | decode tokens/s | prompt tokens/s | tokens/s each, p50 | TTFT ms mean / "
      "p50 / p90 / "
      "p99 | ITL ms mean / p50 / p90 / p99 |\n|---|---:|---:|---:|---:|---:|---:|---:|\n";
  const auto ms = [](const Spread& s) -> std::string {
    if (s.count == 0) return "-";
    return fmt::format("{:.1f} / {:.1f} / {:.1f} / {:.1f}", s.mean * 1e3, s.p50 * 1e3, s.p90 * 1e3, s.p99 * 1e3);
  };
  for (const LoadSummary& l : levels) {
    const std::string each = l.sequence_rate.count == 0 ? "-" : fmt::format("{:.1f}", l.sequence_rate.p50);
    out += fmt::format("| {} | {} | {} | {:.1f} | {:.1f} | {} | {} | {} |\n", l.load, l.requests, l.errors,
                       l.decode_rate(), l.prompt_rate(), each, ms(l.ttft), ms(l.itl));
  }
  return out;
}

server::Json load_json(const LoadSummary& l) {
  const auto spread = [](const Spread& s) -> server::Json {
    if (s.count == 0) return nullptr;
    return {{"mean", s.mean}, {"p50", s.p50}, {"p90", s.p90}, {"p99", s.p99}};
  };
  return {{"load", l.load},
          {"requests", l.requests},
          {"errors", l.errors},
          {"first_error", l.first_error},
          {"seconds", l.seconds},
          {"prompt_tokens", l.prompt_tokens},
          {"completion_tokens", l.tokens},
          {"decode_tokens_per_second", l.decode_rate()},
          {"prompt_tokens_per_second", l.prompt_rate()},
          {"sequence_tokens_per_second", spread(l.sequence_rate)},
          {"ttft_seconds", spread(l.ttft)},
          {"itl_seconds", spread(l.itl)}};
}

Agreement compare_texts(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  Agreement r{.compared = std::min(a.size(), b.size())};
  for (size_t i = 0; i < r.compared; ++i) {
    if (a[i] == b[i]) {
      ++r.equal;
      continue;
    }
    if (!r.first_difference.empty()) continue;
    const auto at =
        static_cast<size_t>(std::mismatch(a[i].begin(), a[i].end(), b[i].begin(), b[i].end()).first - a[i].begin());
    r.first_difference = fmt::format("request {} differs from byte {} on: {} and {}", i + 1, at,
                                     gguf::printable(std::string_view(a[i]).substr(std::min(at, a[i].size()), 40)),
                                     gguf::printable(std::string_view(b[i]).substr(std::min(at, b[i].size()), 40)));
  }
  return r;
}

}  // namespace quire::cli::load
