#include "engine/gpu_placement.h"

#include "ops/cuda/weights.h"
#include "ops/rows/cuda/limits.h"

namespace quire {
namespace {

class Thought final : public WeightPlacer {
 public:
  void matrix(Weight&) override {}
  void table(Weight& w) override { w.dtype = table_type_on_gpu(w); }
  void vector(Tensor&) override {}
  void experts(Weight& gate, Weight& up, Weight& down, Weight& shared_gate, Weight& shared_up,
               Weight& shared_down) override {
    if (!stacks_shared_expert(gate, up, down, shared_gate, shared_up, shared_down)) return;
    const gemm::PackedWeight pair = cuda::packed_pair(gate), other = cuda::packed(down);
    shared_gate.data = shared_up.data = gate.data + gate.experts * pair.expert_bytes();
    up.data = gate.data;
    shared_down.data = down.data + down.experts * other.expert_bytes();
  }
};

}  // namespace

bool stacks_shared_expert(const Weight& gate, const Weight& up, const Weight& down, const Weight& shared_gate,
                          const Weight& shared_up, const Weight& shared_down) {
  const auto alike = [](const Weight& a, const Weight& b) {
    return a.dtype == b.dtype && a.rows == b.rows && a.cols == b.cols && b.experts == 1;
  };
  return gate.experts > 1 && !shared_gate.empty() && alike(gate, shared_gate) && alike(up, shared_up) &&
         alike(down, shared_down);
}

DType table_type_on_gpu(const Weight& table) {
  return cuda::embed_takes(table.dtype, table.cols) ? table.dtype : DType::kF16;
}

Decoder placed_in_thought(const Decoder& decoder) {
  Thought thought;
  return decoder.placed(thought);
}

std::unique_ptr<const VisionTower> placed_in_thought(const VisionTower& tower) {
  Thought thought;
  return tower.placed(thought);
}

}  // namespace quire
