// What every operator shares: the context it runs in, its name, and the ordered table of kernels behind it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/cpu.h"
#include "core/tensor.h"
#include "core/thread_pool.h"
#include "core/workspace.h"
#include "ops/forced.h"
#include "ops/segments.h"

namespace quire {

enum class Device {
  kReference,  // plain loops in float32/float64, activations float32: the oracle
  kCpu,        // the fast kernels, activations bf16
  kCuda,       // an NVIDIA GPU: everything that operators read and write lies in its memory, activations bf16
};

class InputObserver;  // ops/observer.h
namespace cuda {
struct Context;  // ops/cuda/context.h
}

// What a kernel may be chosen by, besides shapes and types.
struct Machine {
  Device device = Device::kCpu;
  CpuFeatures cpu = cpu_features();  // tests switch features off to walk the whole table
};

struct OpContext {
  ThreadPool& pool;
  Workspace& workspace;
  Machine machine;
  const KernelChoice* choice = nullptr;  // may be null
  ForcedCounts* forced = nullptr;        // may be null: is told what became of the choice
  InputObserver* observer = nullptr;     // not null: is shown what weights are multiplied by
  cuda::Context* cuda = nullptr;         // Device::kCuda: where operators enqueue

  bool on_gpu() const { return machine.device == Device::kCuda; }
};

// One entry of an operator's table. `fits` looks at shapes, types and the machine only. The last entry is the
// reference and fits everything. A kernel never looks at which rows share the batch when it decides how to
// add. `needs` is what a CPU must have for `fits` to hold for any arguments: conformance fails for a kernel
// that this CPU reaches and no case does.
template <class Args>
struct Kernel {
  std::string_view name;
  bool (*fits)(const Machine& m, const Args& a);
  void (*launch)(const OpContext& ctx, const Args& a);
  CpuLevel needs = CpuLevel::kAvx2;
};

template <class Args>
bool fits_always(const Machine&, const Args&) {
  return true;
}

// What a call moves and computes if everything that the contract names is read once and written once. What lies
// between two phases of an operator does not count, nor do scratch memory and lists of segments.
struct Traffic {
  int64_t bytes = 0;
  int64_t flops = 0;  // multiplications and additions; an exponential is kExpFlops of them

  Traffic& operator+=(const Traffic& t) {
    bytes += t.bytes, flops += t.flops;
    return *this;
  }
};
inline constexpr int64_t kExpFlops = 12;
inline constexpr int64_t kSiluFlops = kExpFlops + 3;

// An operator: one object for each, named k...Op beside its contract, and one line in ops/registry.cpp. It is the only
// place that holds the operator's name.
template <class Args>
struct Operator {
  std::string_view name;
  std::span<const Kernel<Args>> kernels;  // in order of preference
  // From shapes and from what the host knows of segments; looks at no element, so arguments may lie on a device. Where
  // elements decide (experts that are chosen, lengths of prompts), the contract says what is taken for them.
  Traffic (*traffic)(const Args& a);

  const Kernel<Args>& reference() const { return kernels.back(); }
};

// Picks the forced kernel if it fits, the reference on Device::kReference, or the first that fits, and runs it.
template <class Args>
void dispatch(const Operator<Args>& op, const OpContext& ctx, const Args& a) {
  if (ctx.choice != nullptr) {
    if (const std::string_view name = ctx.choice->find(op.name); !name.empty()) {
      for (const Kernel<Args>& k : op.kernels)
        if (k.name == name && k.fits(ctx.machine, a)) {
          if (ctx.forced != nullptr) ctx.forced->ran(op.name);
          return k.launch(ctx, a);
        }
      if (ctx.forced != nullptr) ctx.forced->replaced(op.name);
    }
  }
  if (ctx.machine.device == Device::kReference) return op.reference().launch(ctx, a);
  for (const Kernel<Args>& k : op.kernels)
    if (k.fits(ctx.machine, a)) return k.launch(ctx, a);
  QUIRE_CHECK(false, "{}: no kernel fits", op.name);
}

// A weight matrix as it lies in the file: `experts` matrices of [rows, cols], rows packed in blocks along
// cols.
//   y = scale[e] * W x,  W[r][c] decoded exactly by quant::decode_row; cols is a multiple of the block size.
// Always address rows through row(): a matrix may be part of a fused tensor (Q, K and V in one, gate and up
// in one).
struct Weight {
  DType dtype = DType::kF32;
  const std::byte* data = nullptr;
  int64_t rows = 0;  // outputs
  int64_t cols = 0;  // inputs
  int64_t experts = 1;
  const float* scale = nullptr;         // [experts] or null for 1: the per-tensor factor of NVFP4 files
  int64_t expert_stride = 0;            // rows from one expert to the next; 0 means `rows`
  const std::byte* repacked = nullptr;  // not null: its copy in the integer core's order (gemm/repack.h)

  bool empty() const { return data == nullptr; }
  int64_t row_bytes() const { return dtype_bytes(dtype, cols); }
  int64_t bytes() const { return empty() ? 0 : experts * rows * row_bytes(); }
  int64_t params() const { return empty() ? 0 : experts * rows * cols; }
  const std::byte* row(int64_t r, int64_t expert = 0) const {
    return data + (expert * (expert_stride == 0 ? rows : expert_stride) + r) * row_bytes();
  }
  float scale_of(int64_t expert = 0) const { return scale == nullptr ? 1.0f : scale[expert]; }
  // Rows [begin, begin + count) of every expert.
  Weight row_slice(int64_t begin, int64_t count) const {
    Weight w = *this;
    w.data = row(begin);
    w.expert_stride = expert_stride == 0 ? rows : expert_stride;
    w.rows = count;
    w.repacked = nullptr;
    return w;
  }
  // One expert as a plain matrix.
  Weight expert_slice(int64_t expert) const {
    Weight w = *this;
    w.data = row(0, expert);
    w.experts = 1;
    w.scale = scale == nullptr ? nullptr : scale + expert;
    w.expert_stride = 0;
    w.repacked = nullptr;
    return w;
  }
};

}  // namespace quire
