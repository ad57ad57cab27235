#include "cli/inspect_cards.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "command/display.h"
#include "core/escape.h"
#include "core/output.h"
#include "engine/card_plan.h"

namespace quire::cli {
namespace {

nlohmann::ordered_json json_of(int32_t gb, const CardFit& fit) {
  nlohmann::ordered_json one = {{"gb", gb}, {"runs", fit.runs()}};
  if (!fit.runs()) one["cards"] = fit.cards > 0 ? nlohmann::ordered_json(fit.cards) : nlohmann::ordered_json();
  if (fit.cards == 0) return one;
  if (!fit.runs()) {
    nlohmann::ordered_json& split = one["layers"] = nlohmann::ordered_json::array();
    for (const LayerRange& r : fit.split) split.push_back(r.count());
  }
  one["sequences"] = fit.plan.plan.max_sequences;
  one["kv_tokens"] = fit.plan.shares.kv_tokens;
  if (fit.runs()) one["longest_context"] = fit.longest_context;
  return one;
}

std::string text_of(const CardFit& fit) {
  if (fit.cards == 0) return fmt::format("too small: not even {} of them have the memory", kMostStages);
  const std::string has =
      fmt::format("{} sequence{} at once, a cache of {} tokens", fit.plan.plan.max_sequences,
                  fit.plan.plan.max_sequences == 1 ? "" : "s", human_count(fit.plan.shares.kv_tokens));
  if (fit.runs()) return fmt::format("one card: {}; one sequence of up to {} tokens", has, fit.longest_context);
  std::string layers;
  for (const LayerRange& r : fit.split) layers += fmt::format("{}{}", layers.empty() ? "" : ", ", r.count());
  return fmt::format("{} cards (--pipeline-parallel-size {}), of {} layers: {}", fit.cards, fit.cards, layers, has);
}

}  // namespace

void report_cards(const gguf::File& file, const ModelConfig& model, int64_t context, std::span<const int32_t> cards,
                  nlohmann::ordered_json* out) {
  std::string text;
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  bool any = false;
  for (const int32_t gb : cards) {
    const Result<CardFit> fit = fit_card(model, layer_bytes(file, model, false), card_bytes(gb), context);
    if (!fit.ok()) {
      if (out == nullptr) print_out("\ncards: unknown: {}\n", escaped(fit.error().message));
      return;
    }
    any |= fit->runs();
    all.push_back(json_of(gb, *fit));
    text += fmt::format("  {:>4} GB  {}\n", gb, text_of(*fit));
  }
  if (out != nullptr) {
    (*out)["cards"] = {{"context", context}, {"of", std::move(all)}};
    return;
  }
  print_out("\nNVIDIA cards for sequences of {} tokens, by memory alone\n{}", context, text);
  if (any) print_out("  More than one card that it runs on: a whole model on each (--data-parallel-size).\n");
}

}  // namespace quire::cli
