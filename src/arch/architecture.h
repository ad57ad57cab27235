// The architectures that Quire runs and converts, one row each: in what their blocks differ, and what they are
// called. A model of another architecture that is made of the same parts is another row.
// Source: the GGUF description of these architectures and their model classes in the transformers library.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "arch/tensors.h"

namespace quire {

enum class RopePairs : uint8_t {
  kNeighbours,  // elements 2j and 2j + 1 of a head rotate together
  kHalves,      // elements j and j + n_rot / 2
};

enum class Presence : uint8_t { kNever, kMaybe, kAlways };

struct Architecture {
  std::string_view name;                         // general.architecture, and what its metadata keys begin with
  std::array<std::string_view, 2> classes = {};  // of the transformers library
  RopePairs rope = RopePairs::kHalves;
  bool qk_norm = false;      // every head of queries and keys is normalised before it rotates
  bool gated_query = false;  // the query projection has a gate for each head of attention's result
  bool qkv_bias = false;     // checkpoints always have them; of files, biases are used where they are found
  bool delta_net = false;    // the mixer of most blocks is a gated delta net
  Presence experts = Presence::kNever;
  bool shared_expert = false;
  bool experts_as_wide = false;                // as feed_forward_length, where no key says otherwise
  bool mtp = false;                            // blocks for multi-token prediction may follow the others
  TensorRole ffn_norm = TensorRole::kFfnNorm;  // the tensor that normalises what the feed-forward reads
  bool centred_norms = false;                  // checkpoints keep norms as their difference from 1
  int64_t checkpoint_head_dim = 0;             // where config.json has no head_dim; 0: hidden_size / heads
};

std::span<const Architecture> architectures();
const Architecture* find_architecture(std::string_view name);  // null if there is no such row
std::string architecture_names();                              // "llama, qwen2, ..."

// A tensor that would change what a block computes and that no operator takes. A file that has one in a block is
// refused, in these words.
struct UnsupportedTensor {
  std::string_view name;  // in GGUF, behind the block's prefix
  std::string_view what;
};
// What such a tensor is, or null: `name` as in the file. Only of names that the architecture does not read.
const UnsupportedTensor* find_unsupported_tensor(std::string_view name);

}  // namespace quire
