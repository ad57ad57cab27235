#include "lab/snapshot/published.h"

#include <fmt/format.h>

#include <algorithm>

namespace quire::cli::snapshot {
namespace {

// Of one card without a gap: published_for() returns a run of them.
constexpr PublishedSpeed kPublished[] = {
    {"GB10", "Qwen3.6-35B-A3B NVFP4", "vLLM 0.28, drafts by MTP", "prompts of 8000 tokens", 6265, 6265},
    {"GB10", "Qwen3.6-35B-A3B NVFP4", "vLLM 0.28, drafts by MTP", "generation, one sequence", 97.7, 97.7},
    {"GB10", "Qwen3.6-35B-A3B Q8_0", "llama.cpp", "generation, one sequence", 50, 56},
    {"GB10", "Qwen3-Coder-30B-A3B MXFP4", "llama.cpp", "prompts of 2048 tokens", 3441, 3441},
    {"GB10", "Qwen3-Coder-30B-A3B MXFP4", "llama.cpp", "generation, one sequence", 86, 86},
    {"GB10", "Qwen3-Coder-30B-A3B FP8", "vLLM", "prompts of 2048 tokens", 9155, 9155},
    {"GB10", "Qwen3.8-27B NVFP4", "drafts of blocks", "generation, one sequence", 34, 50},
};

double median(const Figure& f) {
  std::vector<double> values;
  for (const Reading& r : f.readings) values.push_back(r.value);
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace

std::span<const PublishedSpeed> published_for(std::string_view gpu) {
  const auto is_of = [&](const PublishedSpeed& p) { return gpu.find(p.card) != gpu.npos; };
  const auto* const first = std::find_if(std::begin(kPublished), std::end(kPublished), is_of);
  return {first, std::find_if_not(first, std::end(kPublished), is_of)};
}

std::string speeds_text(const Snapshot& s) {
  std::string text;
  for (const Figure& f : s.figures)
    if (f.more_is_better && !f.readings.empty()) text += fmt::format("{:<16}{:>12.1f} {}\n", f.name, median(f), f.unit);
  if (text.empty() || s.device != "cuda" || s.hardware.gpus.empty()) return text;
  const std::span<const PublishedSpeed> others = published_for(s.hardware.gpus.front().name);
  if (others.empty()) return text;
  text += fmt::format("\npublished by others for a {}, tokens/s; compare where model and type are the same:\n",
                      others.front().card);
  for (const PublishedSpeed& p : others)
    text += fmt::format("{:<28}{:<26}{:<26}{:>12}\n", p.model, p.engine, p.what,
                        p.least == p.most ? fmt::format("{}", p.most) : fmt::format("{} to {}", p.least, p.most));
  return text;
}

}  // namespace quire::cli::snapshot
