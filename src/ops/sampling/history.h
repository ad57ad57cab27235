// Keeping the history that penalties look back on (TokenHistory) up to date on the device that samples.
#pragma once

#include "ops/op.h"
#include "ops/sampling/sample_row.h"

namespace quire {

// The memory of histories, to be allocated by whoever owns the device's memory, and the views of it. `memory`
// holds zeros. Bytes are 4 * rows * (vocab + capacity + 1), each array rounded up to a multiple of 64.
int64_t token_history_bytes(int64_t rows, int64_t vocab, int64_t capacity);
TokenHistory lay_out_token_history(void* memory, int64_t rows, int64_t vocab, int64_t capacity);

// Adds tokens to histories: prompts, chunk by chunk or at once, and whatever was generated without `sample`
// having noted it (accepted drafts, a sequence that is resumed).
//   tokens  [T] i32                  may be the step's own token array. Ids outside [0, vocab), such as the
//                                    mark of a token that only the device knows, are skipped
//   ranges  [range_count] HistoryUpdate  in `tokens`; histories in [-1, history.rows), distinct except for -1
// Ranges run in parallel. Bound: one access to the counts per token.
struct UpdateHistoryArgs {
  const int32_t* tokens = nullptr;
  int64_t token_count = 0;  // T
  const HistoryUpdate* ranges = nullptr;
  int32_t range_count = 0;
  TokenHistory history;
};
static_assert(std::is_trivially_copyable_v<UpdateHistoryArgs>);
void update_history(const OpContext& ctx, const UpdateHistoryArgs& a);
extern const Operator<UpdateHistoryArgs> kUpdateHistoryOp;

}  // namespace quire
