// What every operator shares: the context it runs in, its name, and the ordered table of kernels behind it, of all
// devices.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "core/thread_pool.h"
#include "core/workspace.h"
#include "ops/forced.h"
#include "ops/launches.h"
#include "ops/machine.h"
#include "ops/segments.h"

namespace quire {

class InputObserver;  // ops/observer.h

// Where the operators of Device::kCuda enqueue, as far as no CUDA header is needed for it: each is a cuda::Context
// (ops/cuda/context.h).
struct GpuContext {
  // Operators take their scratch memory and enqueue nothing: finds out how much a step needs.
  bool dry = false;
  // The first thing that went wrong since it was last looked at. Operators after it may enqueue nonsense, whose results
  // nobody reads.
  Status status;

  void keep(Status s) {
    if (status.ok() && !s.ok()) status = std::move(s);
  }
};

struct OpContext {
  ThreadPool& pool;
  Workspace& workspace;
  Machine machine;
  const KernelChoice* choice = nullptr;  // may be null
  ForcedCounts* forced = nullptr;        // may be null: is told what became of the choice
  InputObserver* observer = nullptr;     // not null: is shown what weights are multiplied by
  LaunchObserver* launches = nullptr;    // not null: is shown which kernels take the calls
  // Kernels are chosen and shown to `launches`, and none of them runs: arguments need no memory behind them, and a
  // GPU's kernels no GPU.
  bool only_chooses = false;
  GpuContext* gpu = nullptr;  // Device::kCuda, unless only_chooses
};

// One entry of an operator's table.
template <class Args>
struct Kernel {
  std::string_view name;  // no two of a table have the same
  // Whether it computes such a call on such a machine: everything that limits it, and nothing else. Looks at shapes,
  // types, strides and the machine. Asked on machines that reach `needs` alone. A kernel never looks at which rows
  // share the batch when it decides how to add.
  bool (*fits)(const Machine& m, const Args& a);
  // On a GPU: takes its scratch memory, and enqueues if the context is not dry; errors are kept there.
  void (*launch)(const OpContext& ctx, const Args& a);
  // What a machine must have for `fits` to hold for any arguments: conformance fails for a kernel that the machine
  // reaches and no case does.
  Needs needs = CpuLevel::kBase;
  // Of those that fit, the first that prefers the call runs; null: always. What it costs is weighed here.
  bool (*prefers)(const Machine& m, const Args& a) = nullptr;
  std::string_view takes = {};  // its limits in words, for the error about a call that nobody takes
  // launch() calls other operators and does nothing else, so a dry step goes on into it.
  bool of_operators = false;
};

template <class Args>
bool fits_always(const Machine&, const Args&) {
  return true;
}
template <class Args>
bool has_avx512(const Machine& m, const Args&) {
  return m.cpu.avx512;
}

// An operator: one object for each, named k...Op beside its contract, and one line in ops/registry.cpp. It is the only
// place that holds the operator's name.
template <class Args>
struct Operator {
  std::string_view name;
  // In order of preference, those of all devices. The last is the reference, fits everything, and is a CPU's.
  std::span<const Kernel<Args>> kernels;
  // From shapes and from what the host knows of segments; looks at no element, so arguments may lie on a device. Where
  // elements decide (experts that are chosen, lengths of prompts), the contract says what is taken for them.
  Traffic (*traffic)(const Args& a);
  std::string (*describe)(const Args& a) = nullptr;  // types and shapes: "x bf16 [8, 1024], w q4_k [64, 1024]"

  const Kernel<Args>& reference() const { return kernels.back(); }
};

// "bf16 [8, 1024]"; "none" if it is empty. Of a matrix with experts: "q4_k 64 x [512, 1024]".
struct Weight;
std::string describe(const Tensor& t);
std::string describe(const Weight& w);

// The reference on Device::kReference. Elsewhere, of the device's kernels that fit, the first that prefers the call, or
// else the first; null where none fits, which only a GPU knows.
template <class Args>
const Kernel<Args>* choose(const Operator<Args>& op, const Machine& m, const Args& a) {
  if (m.device == Device::kReference) return &op.reference();
  const Kernel<Args>* able = nullptr;
  for (const Kernel<Args>& k : op.kernels) {
    if (!is_for(m.device, k.needs) || !reaches(m, k.needs) || !k.fits(m, a)) continue;
    if (k.prefers == nullptr || k.prefers(m, a)) return &k;
    if (able == nullptr) able = &k;
  }
  return able;
}

// The one that is asked for; null where none is, or it does not take the call, which ctx.forced is told.
template <class Args>
const Kernel<Args>* find_forced(const Operator<Args>& op, const OpContext& ctx, const Args& a) {
  if (ctx.choice == nullptr) return nullptr;
  const std::string_view name = ctx.choice->find(op.name);
  if (name.empty()) return nullptr;
  for (const Kernel<Args>& k : op.kernels) {
    if (k.name != name || !is_for(ctx.machine.device, k.needs)) continue;
    if (!reaches(ctx.machine, k.needs) || !k.fits(ctx.machine, a)) break;
    if (ctx.forced != nullptr) ctx.forced->ran(op.name);
    return &k;
  }
  if (ctx.forced != nullptr) ctx.forced->replaced(op.name);
  return nullptr;
}

// What ctx.launches is told of a call that `chosen` takes.
template <class Args>
Launch describe_launch(const Operator<Args>& op, const OpContext& ctx, const Kernel<Args>& chosen, bool forced,
                       const Args& a) {
  Launch launch{.op = op.name, .kernel = chosen.name, .arguments = {}, .passed = {}, .forced = forced, .traffic = {}};
  if (op.describe != nullptr) launch.arguments = op.describe(a);
  if (op.traffic != nullptr) launch.traffic = op.traffic(a);
  for (const Kernel<Args>& k : op.kernels) {
    if (&k == &chosen) break;
    if (!is_for(ctx.machine.device, k.needs)) continue;
    using Why = PassedOver::Why;
    const Why why = !reaches(ctx.machine, k.needs) ? Why::kLacks
                    : !k.fits(ctx.machine, a)      ? Why::kDoesNotFit
                    : forced                       ? Why::kNotForced
                                                   : Why::kNotPreferred;
    launch.passed.push_back({k.name, why});
  }
  return launch;
}

// Says that no kernel takes a call: to ctx.launches, and in ctx.gpu. Nobody calls an operator without either on a GPU.
void refuse(const OpContext& ctx, Error error);
// "linear: no kernel takes x f32 [8, 64], ... on a GPU of ...; there are: stream (rows of ...)".
Error no_kernel(std::string_view op, const std::string& arguments, const Machine& m,
                std::span<const std::pair<std::string_view, std::string_view>> kernels);

// Runs the forced kernel if it fits, or else the one that is chosen.
template <class Args>
void dispatch(const Operator<Args>& op, const OpContext& ctx, const Args& a) {
  const Kernel<Args>* const forced = find_forced(op, ctx, a);
  const Kernel<Args>* const k = forced != nullptr ? forced : choose(op, ctx.machine, a);
  if (k == nullptr) {
    std::vector<std::pair<std::string_view, std::string_view>> kernels;
    for (const Kernel<Args>& other : op.kernels)
      if (is_for(ctx.machine.device, other.needs)) kernels.emplace_back(other.name, other.takes);
    return refuse(ctx,
                  no_kernel(op.name, op.describe == nullptr ? "such a call" : op.describe(a), ctx.machine, kernels));
  }
  if (ctx.launches != nullptr) ctx.launches->begin(describe_launch(op, ctx, *k, forced != nullptr, a));
  if (!ctx.only_chooses || k->of_operators) k->launch(ctx, a);
  if (ctx.launches != nullptr) ctx.launches->end();
}

// A weight matrix as it lies in the file: `experts` matrices of [rows, cols], rows packed in blocks along
//   cols. y = scale[e] * W x,  W[r][c] decoded exactly by quant::decode_row; cols is a multiple of the block size.
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
