// The matrix product behind linear, swiglu_mlp and moe, once per instruction set. A core multiplies a panel
// of 32 weight rows with all tokens of a call; the operators share out panels between threads and say what
// becomes of the results. Weights stay as they lie in the file and are decoded on the way in.
//
// Row invariance: for every core, an output element is a sum over K in one order that depends on K alone. How
// many tokens there are only decides how often a decoded weight is used.
#pragma once

#include <algorithm>

#include "ops/gemm/activation.h"
#include "ops/op.h"
#include "quant/format_table.h"

namespace quire::gemm {

inline constexpr int64_t kPanelRows = 32;  // weight rows of a panel
inline constexpr int64_t kPairRows = 16;   // gate rows, and as many up rows, of a unit of swiglu
inline constexpr int64_t kTileTokens = 16;

// Tokens in the form a core wants. `data` is private to the core.
struct Packed {
  std::byte* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t tiles() const { return (rows + kTileTokens - 1) / kTileTokens; }
};

// What becomes of a sum: y[r] = scale * sum + bias (+ y[r]) for the token t of the call, r = row_of[t], or t if
// there is no map.
struct Epilogue {
  void* y = nullptr;
  DType dtype = DType::kF32;
  int64_t stride = 0;
  const float* bias = nullptr;      // [N] or null
  const int32_t* row_of = nullptr;  // [tokens] or null
  bool add = false;                 // y is f32 then
  int64_t first = 0;                // the weight row whose result lies at y[0]
};

// The weights of a thread's next job, two times 16 rows: what it may prefetch while it works on this one.
struct Prefetch {
  const std::byte* rows[2] = {nullptr, nullptr};  // null: nothing
  int64_t row_bytes = 0;
  // How many groups of 16 rows there are, repacked or as they lie, and the bytes from one of them to the one
  // after the next. The first two are at `rows`.
  int64_t groups = 0, group_stride = 0;
};

struct ProjectJob {
  const Weight* w = nullptr;
  int64_t expert = 0;
  int64_t row = 0;     // rows [row, row + 32 panels) as far as they exist
  int64_t panels = 1;  // at most kBlockPanels
  const Packed* x = nullptr;
  const Epilogue* out = nullptr;
  Prefetch prefetch = {};
};

// mid[t][row + i] = gated(gate row + i, up row + i) in the packed form, zeros where F ends.
struct SwigluJob {
  const Weight* gate = nullptr;
  const Weight* up = nullptr;
  int64_t expert = 0;
  int64_t row = 0;
  int64_t units = 2;                 // of 16 rows, even, at most kBlockPanels; those past F are written as zeros
  const float* gate_bias = nullptr;  // [F] or null
  const float* up_bias = nullptr;
  const Packed* x = nullptr;
  const Packed* mid = nullptr;
  bool round_to_bf16 = true;  // mid has the activations' type
  GateActivation activation = GateActivation::kSilu;
  Prefetch prefetch = {};
};

// A job of `panels` panels from `row` on, or of `units` of swiglu.
Prefetch prefetch_of(const Weight& w, int64_t expert, int64_t row, int64_t panels);
Prefetch prefetch_of(const Weight& gate, const Weight& up, int64_t expert, int64_t row, int64_t units);

struct Core {
  int64_t (*packed_bytes)(int64_t rows, int64_t cols);
  // Packs the 16 tokens of one tile: row row_of[t], or t without a map, of x [*, K] bf16 or f32.
  void (*pack)(const Tensor& x, const int32_t* row_of, int64_t tile, const Packed& to);
  // Whether x [rows, cols] is its own packed form, so that packing (and a barrier) can be left out.
  bool (*in_place)(const Tensor& x);
  // For one thread and jobs of up to `panels` panels (or units) of rows with `cols` columns.
  int64_t (*scratch_bytes)(int64_t panels, int64_t tokens, int64_t cols);
  void (*project)(const ProjectJob& job, std::byte* scratch);
  void (*swiglu)(const SwigluJob& job, std::byte* scratch);
  void (*finish)();  // on every thread at the end of a region: gives tile registers back
  bool reads_repacked = false;
  bool integers_alone = false;  // takes calls of any number of tokens, but weights of has_integers() alone
};

// w as this core reads it: with its copy where there is one that serves.
Weight as_read(const Core& core, Weight w);

extern const Core kAmxCore;     // bf16 tokens
extern const Core kAvx512Core;  // bf16 tokens
extern const Core kBaseCore;    // float32, any weight: also the router's product on every machine
// The kernel that multiplies by kIntegerBaseCore.
inline constexpr std::string_view kIntegerBaseName = kOnX86 ? "integer_avx2" : "integer_neon";
// bf16 tokens, rounded to integers: other bits than the cores above, and slow for many tokens. Generated
// tokens only.
extern const Core kIntegerCore;
// The same bits without AVX-512, for prompts as well: with AVX2 or NEON, AVX-VNNI, ARM's dot products, its I8MM.
extern const Core kIntegerBaseCore;
extern const Core kIntegerAvxVnniCore;
extern const Core kIntegerDotProdCore;
extern const Core kIntegerI8mmCore;
extern const Core kBfmmlaCore;  // ARM: BF16 weights and tokens

// Weights that the bf16 cores take; the float32 core takes any.
inline bool rounds_to_bf16(DType t) {
  return t != DType::kF32 && t != DType::kF16;
}

// Weights that the integer cores take: all block formats whose codes are integers.
inline bool has_integers(DType t) {
  const quant::FormatRow* const f = quant::find_format(t);
  return f != nullptr && quant::has_integers(*f);
}

// The core for gate, up and down of an expert in a call that `core` takes: the float32 core where it takes integers
// alone and one of them has none.
inline const Core& core_for(const Core& core, std::initializer_list<const Weight*> weights) {
  if (!core.integers_alone) return core;
  for (const Weight* w : weights)
    if (!w->empty() && !has_integers(w->dtype)) return kBaseCore;
  return core;
}

// Rows to the padded width of mid: swiglu writes whole blocks of 32 columns.
inline int64_t swiglu_units(int64_t inner) {
  return (inner + 31) / 32 * 2;
}
inline int64_t panels(int64_t rows) {
  return (rows + kPanelRows - 1) / kPanelRows;
}

// How many neighbouring panels make a job. Few tokens: enough bytes for memory to keep pace, in enough jobs
// to keep all threads busy to the end. Many: a block that shares each chunk of the tokens, since every block
// reads all tokens again; larger where those do not stay near the core anyway, and the same number of jobs
// for every thread, two at least.
inline constexpr int64_t kBlockPanels = 16;
inline int64_t job_panels(int64_t panels, int threads, int64_t panel_bytes, int64_t tokens, int64_t cols) {
  if (tokens <= kTileTokens) {
    const int64_t by_bytes = (int64_t{256} << 10) / std::max<int64_t>(panel_bytes, 1);
    return std::clamp<int64_t>(panels / (int64_t{6} * threads), 1, std::clamp<int64_t>(by_bytes, 1, 8));
  }
  constexpr int64_t kNearTokens = int64_t{1} << 20;  // bytes, packed
  const int64_t most = tokens * cols * 2 > kNearTokens ? kBlockPanels : kBlockPanels / 2;
  const auto parts = [](int64_t n, int64_t size) { return (n + size - 1) / size; };
  return std::max<int64_t>(1, parts(panels, threads * std::max<int64_t>(2, parts(panels, threads * most))));
}

// The same for units of swiglu: an even number, since a core may give 32 columns of mid something in common.
inline int64_t job_units(int64_t units, int threads, int64_t unit_bytes, int64_t tokens, int64_t cols) {
  return (job_panels(units, threads, unit_bytes, tokens, cols) + 1) / 2 * 2;
}

}  // namespace quire::gemm
