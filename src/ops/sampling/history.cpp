#include "ops/sampling/history.h"

#include <algorithm>
#include <cstring>

#include "ops/kernel_table.h"
#include "ops/sampling/cuda/kernels.h"
#include "ops/sampling/internal.h"

namespace quire {
namespace {

int64_t rounded(int64_t elems) {
  return (elems * static_cast<int64_t>(sizeof(int32_t)) + 63) / 64 * 64;
}

void note_range(const UpdateHistoryArgs& a, const HistoryUpdate& range) {
  for (int32_t i = 0; i < range.count; ++i)
    sampling::note(a.history, range.history, a.tokens[range.begin + i], i < range.prompt);
}

// Empties a history over the whole vocabulary: right whatever its list says.
void reference(const OpContext&, const UpdateHistoryArgs& a) {
  for (int32_t r = 0; r < a.range_count; ++r) {
    const HistoryUpdate& range = a.ranges[r];
    if (range.history < 0) continue;
    if (range.reset != 0) {
      std::memset(a.history.counts + int64_t{range.history} * a.history.vocab, 0,
                  static_cast<size_t>(a.history.vocab) * sizeof(int32_t));
      a.history.seen_count[range.history] = 0;
    }
    note_range(a, range);
  }
}

void cpu(const OpContext& ctx, const UpdateHistoryArgs& a) {
  ctx.pool.parallel_for(a.range_count, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const HistoryUpdate& range = a.ranges[r];
      if (range.history < 0) continue;
      if (range.reset != 0) sampling::empty(a.history, range.history);
      note_range(a, range);
    }
  });
}

constexpr auto kKernels = joined(  //
    cuda_rows<UpdateHistoryArgs>({
        {"cuda", fits_always<UpdateHistoryArgs>, cuda::update_history, GpuLevel::kMma},
    }),
    kernel_rows<UpdateHistoryArgs>({
        {"cpu", fits_always<UpdateHistoryArgs>, cpu},
        {"reference", fits_always<UpdateHistoryArgs>, reference},
    }));

// Each token, and its count read and written.
Traffic traffic_of(const UpdateHistoryArgs& a) {
  return {.bytes = a.token_count * 3 * static_cast<int64_t>(sizeof(int32_t))};
}

std::string describe_args(const UpdateHistoryArgs& a) {
  return fmt::format("{} tokens in {} ranges", a.token_count, a.range_count);
}

}  // namespace

int64_t token_history_bytes(int64_t rows, int64_t vocab, int64_t capacity) {
  return rounded(rows * vocab) + rounded(rows * capacity) + rounded(rows);
}

TokenHistory lay_out_token_history(void* memory, int64_t rows, int64_t vocab, int64_t capacity) {
  QUIRE_CHECK(
      rows >= 0 && vocab >= 0 && capacity >= 0 && rows <= INT32_MAX && vocab <= INT32_MAX && capacity <= INT32_MAX,
      "{} histories of {} tokens, {} distinct", rows, vocab, capacity);
  TokenHistory h;
  auto* at = static_cast<std::byte*>(memory);
  h.counts = reinterpret_cast<int32_t*>(at);
  h.seen = reinterpret_cast<int32_t*>(at += rounded(rows * vocab));
  h.seen_count = reinterpret_cast<int32_t*>(at + rounded(rows * capacity));
  h.rows = static_cast<int32_t>(rows);
  h.vocab = static_cast<int32_t>(vocab);
  h.capacity = static_cast<int32_t>(capacity);
  return h;
}

constinit const Operator<UpdateHistoryArgs> kUpdateHistoryOp{"update_history", kKernels, traffic_of, describe_args};

// What the ranges say was checked where the step was built: here they may lie in memory that the host cannot
// read.
void update_history(const OpContext& ctx, const UpdateHistoryArgs& a) {
  if (a.range_count == 0) return;
  QUIRE_CHECK(a.range_count > 0 && a.ranges != nullptr, "{} ranges", a.range_count);
  QUIRE_CHECK(a.token_count >= 0 && (a.token_count == 0 || a.tokens != nullptr), "{} tokens", a.token_count);
  QUIRE_CHECK(a.history.rows > 0 && a.history.counts != nullptr, "ranges of tokens, but no history");
  dispatch(kUpdateHistoryOp, ctx, a);
}

}  // namespace quire
