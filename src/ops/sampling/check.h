// What the conformance cases of sampling share: histories and outputs between guards, and their oracle.
#pragma once

#include <map>

#include "ops/conformance/conformance.h"
#include "ops/sampling/history.h"
#include "ops/sampling/sampling.h"

namespace quire::conformance {

// What one sequence has seen, told from its tokens and nothing else.
struct SeenTokens {
  std::vector<int32_t> prompt, output;
  std::map<int32_t, int32_t> counts() const;  // as in TokenHistory::counts, of those that are not 0
};

// Histories between guards, empty at first.
struct HistoryBuffers {
  Buffer counts, seen, seen_count;

  HistoryBuffers(int64_t rows, int64_t vocab, int64_t capacity);
  TokenHistory view() const;
  // Writes a sequence's tokens into an empty history, its list in an order of its own (which kernels must not
  // mind).
  void set(int32_t history, const SeenTokens& tokens, Rng& rng);
  bool guards_intact() const;
};

// Puts a history on a GPU.
void place_history(Operands& o, TokenHistory& h);

// Empty if a history says exactly what these tokens make of it, else what is wrong. Its list may be in any
// order.
std::string wrong_history(const TokenHistory& h, int32_t history, const SeenTokens& want);

// Whether a token is the one that row r draws, given the histories that the call found. Without filters, and with top-k
// alone, it is the reference's. Kernels sum float32 weights and the reference float64 ones: a token within 1e-5 of a
// filter's border may be in or out.
bool draws_token(const SampleArgs& a, size_t r, int32_t token);

}  // namespace quire::conformance
