// A vision tower's weights, found in an mmproj file and checked.
#pragma once

#include <limits>
#include <vector>

#include "parts/weight_loader.h"
#include "vision/config.h"

namespace quire {

// Empty is what a tower has no tensor for.
struct VisionNorm {
  Tensor weight, bias;

  static void visit(auto& n, auto& v) {
    v.vector(n.weight);
    v.vector(n.bias);
  }
};
// What a product takes and puts out is held between two bounds; numbers of the host.
struct VisionBounds {
  float low = -std::numeric_limits<float>::infinity(), high = std::numeric_limits<float>::infinity();

  bool any() const { return *this != VisionBounds{}; }
  friend bool operator==(const VisionBounds&, const VisionBounds&) = default;
};
struct VisionLinear {
  Weight w;
  Tensor bias;
  VisionBounds in, out;

  static void visit(auto& l, auto& v) {
    v.matrix(l.w);
    v.vector(l.bias);
  }
};

struct VisionBlock {
  VisionNorm norm1, norm2;
  VisionLinear qkv;          // rows of queries, keys and values in one,
  VisionLinear q, k, value;  // or apart
  VisionLinear out, gate, up, down;
  Tensor q_norm, k_norm, out_norm, ffn_norm;  // Gemma 4, which has no biases

  static void visit(auto& b, auto& v) {
    VisionNorm::visit(b.norm1, v);
    for (auto* l : {&b.qkv, &b.q, &b.k, &b.value, &b.out}) VisionLinear::visit(*l, v);
    VisionNorm::visit(b.norm2, v);
    for (auto* l : {&b.gate, &b.up, &b.down}) VisionLinear::visit(*l, v);
    for (auto* n : {&b.q_norm, &b.k_norm, &b.out_norm, &b.ffn_norm}) v.vector(*n);
  }
};

// A norm and a feed-forward that make one token of merge x merge patches.
struct VisionMerger {
  VisionNorm norm;
  VisionLinear up, down;

  static void visit(auto& m, auto& v) {
    VisionNorm::visit(m.norm, v);
    for (auto* l : {&m.up, &m.down}) VisionLinear::visit(*l, v);
  }
};

struct VisionWeights {
  VisionLinear patch;  // over colour, frame, row and column of a patch, and zeros up to patch_columns()
  Tensor padding;      // as many zeros; empty where there are none
  Tensor colours;      // [3, 256]: what each byte of a colour becomes
  Tensor positions;    // [side * side, width]; of Gemma 4 [2 * positions, width], columns first
  Tensor inv_freq;     // [head_dim / 4]; empty where nothing rotates
  std::vector<VisionBlock> blocks;
  VisionMerger merger;                  // Qwen
  std::vector<VisionMerger> deepstack;  // one for each of VisionConfig::deepstack; the norm is as wide as the merged
  VisionNorm post_norm;                 // Gemma 3: before pooling
  Tensor value_norm;                    // Gemma 4: ones, for the norm of values
  Tensor pooled_shift, pooled_scale;    // Gemma 4: of columns of what is pooled; may be empty
  Tensor projection_norm;               // Gemma: of what is pooled, of Gemma 4 ones;
  Weight projection;                    // and the product behind that

  static void visit(auto& w, auto& v) {
    VisionLinear::visit(w.patch, v);
    v.vector(w.padding);
    v.vector(w.colours);
    v.vector(w.positions);
    v.vector(w.inv_freq);
    for (auto& b : w.blocks) VisionBlock::visit(b, v);
    for (auto& m : w.deepstack) VisionMerger::visit(m, v);
    VisionMerger::visit(w.merger, v);
    VisionNorm::visit(w.post_norm, v);
    for (auto* t : {&w.value_norm, &w.pooled_shift, &w.pooled_scale, &w.projection_norm}) v.vector(*t);
    v.matrix(w.projection);
  }
};

// Matrices stay where they are mapped, but for those that operators want in another order: the patches' convolution,
// whose two frames become one matrix and whose rows are padded, and Gemma 3's projection, which files have transposed.
// These, and small vectors that are not float32 in the file, go into `arena`, which must live as long as the weights,
// as the file must. An error names the tensor: one that is missing, has another shape, or belongs to the tower ("v.",
// "mm.") and is not computed.
Result<VisionWeights> load_vision_weights(const gguf::File& file, const VisionConfig& config,
                                          WeightLoader::Arena& arena);

}  // namespace quire
