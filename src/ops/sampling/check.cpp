#include "ops/sampling/check.h"

#include <algorithm>

#include "ops/conformance/gpu.h"

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

}  // namespace quire::conformance
