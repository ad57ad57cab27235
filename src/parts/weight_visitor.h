// How weights are looked at, and moved to where a backend wants them. Weights of a part have a function `visit` that
// shows all of them, constant ones to a WeightVisitor and others to a WeightPlacer.
#pragma once

#include <type_traits>

#include "core/tensor.h"
#include "ops/op.h"

namespace quire {

// Is shown everything of a model that operators read, in the order of use; empty ones too. Two kinds: WeightVisitor
// looks, WeightPlacer changes a copy of the weights to where a backend wants them (Decoder::placed).
template <bool kMayChange>
class BasicWeightVisitor {
 public:
  using W = std::conditional_t<kMayChange, Weight, const Weight>;
  using T = std::conditional_t<kMayChange, Tensor, const Tensor>;
  virtual ~BasicWeightVisitor() = default;

  virtual void matrix(W& w) = 0;          // to multiply by; `scale` belongs to it
  virtual void gate_up(W& gate, W& up) {  // two that SwiGLU puts together; of equal shapes
    matrix(gate);
    matrix(up);
  }
  // The matrices of experts; the shared ones may be empty.
  virtual void experts(W& gate, W& up, W& down, W& shared_gate, W& shared_up, W& shared_down) {
    gate_up(gate, up);
    matrix(down);
    gate_up(shared_gate, shared_up);
    matrix(shared_down);
  }
  virtual void table(W& w) = 0;   // whose rows are looked up
  virtual void vector(T& t) = 0;  // norms, biases, convolution taps, frequencies: float32; tokens of a head: i32
};
using WeightVisitor = BasicWeightVisitor<false>;
using WeightPlacer = BasicWeightVisitor<true>;

}  // namespace quire
