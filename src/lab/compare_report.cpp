#include "lab/compare_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "command/display.h"
#include "core/escape.h"

namespace quire::cli {
namespace {

std::string token_string(const Tokenizer& t, TokenId id) {
  const TokenId ids[] = {id};
  return t.decode(ids, true, TextPart::kContinuation);
}

std::string probabilities(const Tokenizer& t, const std::vector<TokenProbability>& tokens) {
  std::string out;
  for (const TokenProbability& p : tokens)
    out += fmt::format("{}\"{}\" {:.2f}%", out.empty() ? "" : "  ", escaped(token_string(t, p.token), 40),
                       100.0 * p.probability);
  return out;
}

nlohmann::ordered_json probabilities_json(const Tokenizer& t, const std::vector<TokenProbability>& tokens) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const TokenProbability& p : tokens)
    out.push_back({{"token", p.token}, {"text", token_string(t, p.token)}, {"probability", p.probability}});
  return out;
}

// Small numbers and large ones in one column.
std::string nats(double kl) {
  return kl != 0.0 && kl < 1e-3 ? fmt::format("{:.3e}", kl) : fmt::format("{:.6f}", kl);
}

std::string disagreement_text(const Disagreement& d, size_t rank, const Tokenizer& t) {
  return fmt::format(
      "{:>3}. KL {}  window {}, position {}\n     text       {}{}[{}]\n     reference  {}  (actual "
      "{:.2f}%)\n     model      {}  (actual {:.2f}%)\n",
      rank, nats(d.divergence.kl), d.window, d.position, d.before_is_cut ? "..." : "", escaped(d.before),
      escaped(token_string(t, d.token)), probabilities(t, d.reference),
      100.0 * std::exp(d.divergence.logprob_reference), probabilities(t, d.model),
      100.0 * std::exp(d.divergence.logprob_model));
}

}  // namespace

bool LargestDisagreements::wants(double kl) const {
  return kl > 0.0 && limit_ > 0 && (list_.size() < limit_ || kl > list_.back().divergence.kl);
}

void LargestDisagreements::add(Disagreement d) {
  const auto at = std::find_if(list_.begin(), list_.end(),
                               [&](const Disagreement& other) { return other.divergence.kl < d.divergence.kl; });
  list_.insert(at, std::move(d));
  if (list_.size() > limit_) list_.pop_back();
}

std::string comparison_table(const Comparison& c, const Tokenizer& tokenizer) {
  const DivergenceSummary& s = c.summary;
  std::string out = fmt::format("reference  {:>12.6f} perplexity  {}\n", s.perplexity_reference, escaped(c.reference));
  out += fmt::format("model      {:>12.6f} perplexity  {}\n", s.perplexity_model, escaped(c.model));
  out += fmt::format("ratio      {:>12.6f}             {} windows of {} tokens, {} positions\n\n",
                     s.perplexity_model / s.perplexity_reference, c.windows, c.window, s.positions);
  out += "KL(reference || model), nats\n";
  out += fmt::format("  mean             {:>12}  +- {} (standard error)\n", nats(s.mean), nats(s.standard_error));
  const std::pair<const char*, double> rows[] = {
      {"median", s.median}, {"90th percentile", s.p90}, {"99th percentile", s.p99}, {"largest", s.max}};
  for (const auto& [name, value] : rows) out += fmt::format("  {:<16} {:>12}\n", name, nats(value));
  out += fmt::format("same top token     {:>11.4f}%\n", 100.0 * s.top1_agreement);
  out += fmt::format("actual token's probability, root mean square change {:.4f}%\n", 100.0 * s.rms_delta_p);
  if (c.disagreements.empty()) return out;
  out += "\nlargest disagreements; the token that follows in the text is in brackets\n";
  for (size_t i = 0; i < c.disagreements.size(); ++i) out += disagreement_text(c.disagreements[i], i + 1, tokenizer);
  return out;
}

nlohmann::ordered_json comparison_json(const Comparison& c, const Tokenizer& tokenizer) {
  const DivergenceSummary& s = c.summary;
  nlohmann::ordered_json j = {{"reference", c.reference},
                              {"model", c.model},
                              {"text", c.text},
                              {"window", c.window},
                              {"windows", c.windows},
                              {"positions", s.positions},
                              {"nll_reference", s.nll_reference},
                              {"nll", s.nll_model},
                              {"ppl_reference", s.perplexity_reference},
                              {"ppl", s.perplexity_model},
                              {"ppl_ratio", s.perplexity_model / s.perplexity_reference},
                              {"mean_kl", s.mean},
                              {"mean_kl_standard_error", s.standard_error},
                              {"median_kl", s.median},
                              {"p90_kl", s.p90},
                              {"p99_kl", s.p99},
                              {"max_kl", s.max},
                              {"top1_agreement", s.top1_agreement},
                              {"rms_delta_p", s.rms_delta_p}};
  auto& bins = j["by_position"] = nlohmann::ordered_json::array();
  for (const PositionBin& b : c.by_position)
    bins.push_back({{"first", b.first}, {"last", b.last}, {"mean_kl", b.mean}, {"p90_kl", b.p90}});
  auto& list = j["disagreements"] = nlohmann::ordered_json::array();
  for (const Disagreement& d : c.disagreements)
    list.push_back({{"window", d.window},
                    {"position", d.position},
                    {"kl", d.divergence.kl},
                    {"before", d.before},
                    {"token", d.token},
                    {"token_text", token_string(tokenizer, d.token)},
                    {"logprob_reference", d.divergence.logprob_reference},
                    {"logprob", d.divergence.logprob_model},
                    {"reference_top", probabilities_json(tokenizer, d.reference)},
                    {"top", probabilities_json(tokenizer, d.model)}});
  return j;
}

}  // namespace quire::cli
