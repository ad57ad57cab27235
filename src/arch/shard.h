// How the ranks of a tensor-parallel model share its tensors: a division for each role, and what of a dimension is
// whose. A rank has some heads of attention and of delta nets, some columns of what a feed-forward has inside, and some
// rows of the head. What it puts out of a mixer or a feed-forward is a partial result, and the ranks' are added up.
// Source: "Megatron-LM" (arXiv:1909.08053), which cuts the first matrix of a pair by its outputs and the second by its
// inputs.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "arch/tensors.h"
#include "core/result.h"

namespace quire {

// As many as operators add up results of (RankLink::kMost).
inline constexpr int32_t kMostRanks = 8;

// One rank of those that share a model.
struct Shard {
  int32_t rank = 0, of = 1;
  bool whole_experts = false;  // a rank has some of the experts as they are; otherwise a part of each
  // What the ranks' parts of a feed-forward's inner columns are multiples of: the block of the types that the matrices
  // have which are cut along these (their down matrices).
  struct Grains {
    int64_t ffn = 16, expert_ffn = 16, shared_ffn = 16;
  } grains = {};

  bool is_whole() const { return of == 1; }
};

enum class Division : uint8_t {
  kWhole,    // every rank has all of it
  kRows,     // some rows: outputs of a matrix, or what belongs to them
  kColumns,  // some columns: inputs of a matrix, whose result is partial then; or elements of a vector
  kFirst,    // it is added to partial results: the first rank has it, and the others zeros
};

struct TensorShare {
  TensorRole role;
  Division division = Division::kWhole;
  bool by_expert = false;  // one for each expert: with whole_experts, a rank has those of its own experts, undivided
};
const TensorShare& tensor_share(TensorRole role);

struct ShareRange {
  int64_t begin = 0, count = 0;
  bool operator==(const ShareRange&) const = default;
};

// What a rank has of a dimension, in ascending order. A dimension that ranks do not share is theirs as a whole.
std::vector<ShareRange> share_of(Extent e, const ModelSizes& whole, const Shard& s);
// The experts that a rank has, as they are or in part.
ShareRange expert_share(int64_t experts, const Shard& s);
// The numbers of a rank's shapes: size_of(e, share_sizes(whole, s)) is what share_of(e, whole, s) adds up to.
ModelSizes share_sizes(const ModelSizes& whole, const Shard& s);

// Where the rows of a head begin that each rank has, and where the last one's end: [kMostRanks + 1].
std::array<int64_t, kMostRanks + 1> head_begins(int64_t vocab, const Shard& s);

// Whether so many ranks can share layers of these sizes; otherwise an error that says which number does not divide, and
// which numbers of ranks are possible.
Status check_shares(const ModelSizes& whole, const Shard& s);

}  // namespace quire
