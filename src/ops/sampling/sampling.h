// From logits to a token. A row's result depends on its logits, its parameters, its history and (seed,
// position) only.
#pragma once

#include <vector>

#include "ops/op.h"
#include "ops/sampling/gumbel.h"
#include "ops/sampling/params.h"
#include "ops/sampling/sample_row.h"

namespace quire {

// Where the results of a call go.
//   tokens        [R] i32          the row's target if it has one; -1: none was possible, or the row is idle
//   logprobs      [R] f32          of the token under the unmodified distribution (log softmax of the raw
//                                  logits); 0 unless the row asks for it
//   top_ids       [R, max_top] i32 the likeliest tokens of that distribution, likeliest first, lower ids
//                                  first among equals
//   top_logprobs  [R, max_top] f32 their log-probabilities
//   top_count     [R] i32          how many they are: fewer than asked for if the others have probability 0,
//                                  and never more than max_top, which may be 0. Entries beyond stay as they
//                                  are
//   ranks         [R] i32          of rows with a target: 1 + how many tokens are likelier. 0 for other rows. May be
//                                  an empty tensor if no row has a target
//   sampled       [batch_slots] i32     the token of the row whose `batch_slot` it is, which the next step's rows read:
//                                  -1 there must be a token without effect. Other batch slots keep theirs. May be
//                                  an empty tensor if no row has a batch slot
struct SampleOutputs {
  Tensor tokens, logprobs, top_ids, top_logprobs, top_count, ranks, sampled;
};

// logits [R, V] f32, left unchanged; rows[i] describes row i. Rows run in parallel.
//   rows         [R] SampleRow
//   bias_ids     i32 in [0, V), distinct within a row: what rows' bias_begin and bias_count refer to (unnoted_begin and
//                unnoted_count too, where they may repeat), and
//   bias_values  f32. A bias of -infinity forbids a token to one row
//   suppressed   [suppressed_count] i32 in [0, V): tokens that no row may have (they may repeat)
//   masks        [..., ceil(V / 32)] u32: what SampleRow::mask counts. Bits past the vocabulary mean nothing
//   ids          [V] i32, ascending: the tokens that the columns of logits stand for, of which tokens get their noise
//                and by which `tokens` and `sampled` name them. Null: a column is its own token. With it, rows have no
//                histories, targets, biases, masks or log-probabilities, no token is suppressed, and max_top is 0
//   history      the tokens that penalties count, beside those that rows say it lacks. A row that is not tentative adds
//                its token there, so that the next step's penalties see it before the host does. Without rows if no row
//                has a history
// Places, and histories, of rows that are neither idle nor tentative belong to no other row of the call.
// A row whose logits hold a NaN or +infinity, or none of whose tokens is possible (all -infinity, suppressed or
// masked), reports token -1, also in `sampled`, and adds nothing: the caller ends that request with an
// error. Sums of probabilities are in float64 over float32 terms, in an order that depends on the row alone.
// Scratch is taken from the workspace as the rows need it; sample_workspace_bytes says how much at most.
// Bound: one read of the logits for greedy and without filters, where a draw adds ten products for every two tokens;
// with filters one more read, with an exponential per logit.
// Traffic: as if all rows were greedy.
struct SampleArgs {
  Tensor logits;
  const SampleRow* rows = nullptr;
  const int32_t* bias_ids = nullptr;
  const float* bias_values = nullptr;
  const int32_t* suppressed = nullptr;
  int32_t suppressed_count = 0;
  const uint32_t* masks = nullptr;
  const int32_t* ids = nullptr;
  TokenHistory history;
  SampleOutputs out;
};
static_assert(std::is_trivially_copyable_v<SampleArgs>);
void sample(const OpContext& ctx, const SampleArgs& a);
extern const Operator<SampleArgs> kSampleOp;
// Bytes of workspace that no call of `sample` with so many rows exceeds on a CPU, whatever the rows ask for.
int64_t sample_workspace_bytes(int64_t rows, int64_t vocab, int threads);

// A row of the results on the host.
struct TokenLogprob {
  int32_t token = -1;
  float logprob = 0.0f;
};
struct Sampled {
  int32_t token = -1;
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;
};
// Reads row r of outputs that lie in the host's memory.
Sampled read_sampled(const SampleOutputs& out, int64_t r);

}  // namespace quire
