#include "ops/sampling/check.h"

#include <algorithm>

#include "ops/conformance/gpu.h"
#include "ops/sampling/internal.h"

namespace quire::conformance {

std::map<int32_t, int32_t> SeenTokens::counts() const {
  std::map<int32_t, int32_t> counts;
  for (const int32_t id : output) ++counts[id];
  for (const int32_t id : prompt) counts[id] |= kInPrompt;
  return counts;
}

HistoryBuffers::HistoryBuffers(int64_t rows, int64_t vocab, int64_t capacity)
    : counts(DType::kI32, {rows, vocab}), seen(DType::kI32, {rows, capacity}), seen_count(DType::kI32, {rows}) {
  // The list's memory keeps its marks: what a count of 0 leaves unread need not be initialised.
  counts.fill([] { return 0.0f; });
  seen_count.fill([] { return 0.0f; });
}

TokenHistory HistoryBuffers::view() const {
  return {.counts = counts.tensor().as<int32_t>(),
          .seen = seen.tensor().as<int32_t>(),
          .seen_count = seen_count.tensor().as<int32_t>(),
          .rows = static_cast<int32_t>(counts.tensor().dim(0)),
          .vocab = static_cast<int32_t>(counts.tensor().dim(1)),
          .capacity = static_cast<int32_t>(seen.tensor().dim(1))};
}

void HistoryBuffers::set(int32_t history, const SeenTokens& tokens, Rng& rng) {
  std::vector<int32_t> list;
  for (const auto& [id, count] : tokens.counts()) {
    counts.tensor().row<int32_t>(history)[id] = count;
    list.push_back(id);
  }
  std::shuffle(list.begin(), list.end(), rng.engine());
  std::copy(list.begin(), list.end(), seen.tensor().row<int32_t>(history));
  seen_count.tensor().as<int32_t>()[history] = static_cast<int32_t>(list.size());
}

bool HistoryBuffers::guards_intact() const {
  return counts.guards_intact() && seen.guards_intact() && seen_count.guards_intact();
}

void place_history(Operands& o, TokenHistory& h) {
  o.array(h.counts, int64_t{h.rows} * h.vocab);
  o.array(h.seen, int64_t{h.rows} * h.capacity);
  o.array(h.seen_count, h.rows);
}

std::string wrong_history(const TokenHistory& h, int32_t history, const SeenTokens& want) {
  const std::map<int32_t, int32_t> counts = want.counts();
  const int32_t* const got = h.counts + int64_t{history} * h.vocab;
  for (int32_t id = 0; id < h.vocab; ++id) {
    const auto it = counts.find(id);
    const int32_t expected = it == counts.end() ? 0 : it->second;
    if (got[id] != expected)
      return fmt::format("history {}: the count of token {} is {:#x}, not {:#x}", history, id, got[id], expected);
  }
  const int32_t n = h.seen_count[history];
  if (n != std::ssize(counts)) return fmt::format("history {}: {} distinct tokens, not {}", history, n, counts.size());
  const int32_t* const seen = h.seen + int64_t{history} * h.capacity;
  std::vector<int32_t> list(seen, seen + n);
  std::sort(list.begin(), list.end());
  auto at = list.begin();
  for (const auto& [id, count] : counts)
    if (*at++ != id) return fmt::format("history {}: token {} is not listed once", history, id);
  return "";
}

bool draws_token(const SampleArgs& a, size_t r, int32_t token) {
  std::vector<SampleRow> rows(a.rows, a.rows + a.logits.dim(0));
  SampleArgs nudged = a;
  nudged.rows = rows.data();
  const auto near = [](float p, float neutral) {
    return p == neutral ? std::vector<float>{p} : std::vector<float>{p, p - 1e-5f, p + 1e-5f};
  };
  for (const float top_p : near(a.rows[r].top_p, 1.0f))
    for (const float typical_p : near(a.rows[r].typical_p, 1.0f))
      for (const float min_p : near(a.rows[r].min_p, 0.0f)) {
        rows[r].top_p = top_p, rows[r].typical_p = typical_p, rows[r].min_p = min_p;
        const auto at = static_cast<int64_t>(r);
        const int32_t column = sampling::reference_draw(nudged, at, sampling::reference_distribution(nudged, at));
        if (token == (column < 0 ? -1 : sampling::token_of(a, column))) return true;
      }
  return false;
}

}  // namespace quire::conformance
