#include "ops/moe/cuda/moe.h"

#include <algorithm>

#include "ops/moe/cuda/few.h"
#include "ops/moe/cuda/routing.h"

namespace quire::moe_cuda {
namespace {

// Up to here the router's segments are apart (GemmParams::split): tiles of its few rows of weights, or whole rows of
// them, would occupy as few multiprocessors, and the time of all is that of one walk along the columns.
constexpr int32_t kSplitRows = 512;

// Scratch, carved twice: to count it, and to use it.
struct Scratch {
  float *logits, *weights;
  uint16_t* choice;
  int32_t *offsets, *tokens, *slots;
  __nv_bfloat16 *mid, *shared_mid, *results;
  int64_t bytes = 0;

  Scratch(const MoeParams& p, std::byte* base) {
    const auto take = [&]<class T>(T*& to, int64_t count) {
      to = reinterpret_cast<T*>(base + bytes);
      bytes += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    };
    const int64_t rows = p.rows, results_per_row = p.top_k + (p.has_shared() ? 1 : 0);
    const int64_t sorted = rows * (p.top_k + (p.shared_stacked() ? 1 : 0));
    // Never less for more rows.
    take(logits, p.experts * std::max(rows, std::min<int64_t>(rows, kSplitRows) * p.router.segments()));
    take(weights, rows * results_per_row);
    take(choice, (rows * p.top_k + 7) / 8 * 8);
    take(offsets, p.experts + 2);
    take(tokens, sorted);
    take(slots, sorted);
    take(mid, sorted * p.gate_up.rows);
    take(shared_mid, p.shared_gate_up.empty() ? 0 : rows * p.shared_gate_up.rows);
    take(results, rows * results_per_row * p.down.rows);
  }
};

gemm::GemmParams product(const MoeParams& p, const gemm::GemmPart& part, const __nv_bfloat16* x, int64_t x_stride,
                         int32_t rows) {
  gemm::GemmParams g;
  g.parts = &part;
  g.part_count = 1;
  g.x = x;
  g.x_stride = x_stride;
  g.rows = rows;
  g.path = p.path;
  return g;
}

Status launch_router(cudaStream_t stream, const MoeParams& p, const Scratch& s) {
  gemm::GemmPart part;
  part.weight = p.router;
  part.y = s.logits;
  part.y_stride = p.experts;
  part.out = gemm::Out::kF32;
  gemm::GemmParams g = product(p, part, p.h, p.h_stride, p.rows);
  g.split = p.rows <= kSplitRows;
  if (g.split) g.path = gemm::Path::kStream;  // only streams leave segments apart
  return launch_gemm(stream, g).context("moe: router");
}

Routing routing(const MoeParams& p, const Scratch& s) {
  Routing r{};
  r.logits = s.logits;
  r.parts = p.rows <= kSplitRows ? p.router.segments() : 1;
  r.scale = p.router_scale;
  r.rows = p.rows;
  r.experts = p.experts;
  r.top_k = p.top_k;
  r.results = p.top_k + (p.has_shared() ? 1 : 0);
  r.shared_sorted = p.shared_stacked();
  r.h = p.h;
  r.h_stride = p.h_stride;
  r.width = p.gate_up.cols;
  r.shared_router = p.shared_router;
  r.choice = s.choice;
  r.chosen = p.chosen;
  r.weights = s.weights;
  r.offsets = s.offsets;
  r.tokens = s.tokens;
  r.slots = s.slots;
  return r;
}

gemm::GemmPart gate_up_part(const MoeParams& p, const Scratch& s) {
  gemm::GemmPart part;
  part.weight = p.gate_up;
  part.scale = p.gate_scale;
  part.scale2 = p.up_scale;
  part.y = s.mid;
  part.y_stride = p.gate_up.rows;
  return part;
}
gemm::GemmPart down_part(const MoeParams& p, const Scratch& s) {
  gemm::GemmPart part;
  part.weight = p.down;
  part.scale = p.down_scale;
  part.y = s.results;
  part.y_stride = p.down.rows;
  return part;
}
// Rows sorted by expert.
int32_t sorted_rows(const MoeParams& p) {
  return p.rows * (p.top_k + (p.shared_stacked() ? 1 : 0));
}

FewRows few_rows(const MoeParams& p, const Scratch& s) {
  return {.routing = routing(p, s),
          .up = {p.gate_up, p.gate_scale, p.up_scale},
          .down = {p.down, p.down_scale, nullptr},
          .mid = s.mid,
          .x = p.x,
          .x_stride = p.x_stride,
          .add_to_x = p.add_to_x,
          .barrier = p.barrier,
          .next = {},
          .plan = {}};
}

// Rows sorted by expert, as they lie before tiles ask for them.
gemm::GemmParams grouped_product(const MoeParams& p, const Scratch& s, const gemm::GemmPart& part) {
  gemm::GemmParams g = product(p, part, p.h, p.h_stride, sorted_rows(p));
  g.grouped = {s.offsets, s.tokens, nullptr, p.rows};
  if (p.by == Experts::kStream) g.path = gemm::Path::kStream;
  if (p.by == Experts::kTile) g.path = gemm::Path::kTile;
  return g;
}

Status launch_experts(cudaStream_t stream, const MoeParams& p, const Scratch& s, const cuda::DeviceLimits& device) {
  const int32_t sorted = sorted_rows(p);
  const gemm::GemmPart part = gate_up_part(p, s);
  gemm::GemmParams g = grouped_product(p, s, part);
  g.path = choose_path(g, device);
  const gemm::Path path = g.path;
  if (path == gemm::Path::kTile) {
    // Where the results will be: nobody needs the rows then.
    const int32_t* count = s.offsets + p.experts + (p.shared_stacked() ? 1 : 0);
    QUIRE_CHECKED(launch_gather(stream, {p.h, p.h_stride, s.tokens, count, sorted, p.gate_up.cols, s.results}));
    g.x = s.results;
    g.x_stride = p.gate_up.cols;
    g.grouped.x_rows = nullptr;
  }
  QUIRE_CHECKED(launch_gemm(stream, g).context("moe: gate and up"));

  const gemm::GemmPart down = down_part(p, s);
  g = product(p, down, s.mid, p.gate_up.rows, sorted);
  g.grouped = {s.offsets, nullptr, s.slots, p.rows};
  g.path = path;
  return launch_gemm(stream, g).context("moe: down");
}

// A shared expert that could not be stacked: its results lie behind the experts' of each token.
Status launch_shared(cudaStream_t stream, const MoeParams& p, const Scratch& s) {
  gemm::GemmPart part;
  part.weight = p.shared_gate_up;
  part.scale = p.shared_gate_scale;
  part.scale2 = p.shared_up_scale;
  part.y = s.shared_mid;
  part.y_stride = p.shared_gate_up.rows;
  QUIRE_CHECKED(launch_gemm(stream, product(p, part, p.h, p.h_stride, p.rows)).context("moe: shared gate and up"));
  gemm::GemmPart down;
  down.weight = p.shared_down;
  down.scale = p.shared_down_scale;
  down.y = s.results + static_cast<int64_t>(p.top_k) * p.down.rows;
  down.y_stride = static_cast<int64_t>(p.top_k + 1) * p.down.rows;
  return launch_gemm(stream, product(p, down, s.shared_mid, p.shared_gate_up.rows, p.rows)).context("moe: shared down");
}

}  // namespace

int64_t moe_workspace_bytes(const MoeParams& p) {
  return Scratch(p, nullptr).bytes;
}

bool few_rows_fit(const MoeParams& p, const cuda::DeviceLimits& device) {
  if (p.rows > kFewRows || p.experts > kFewExperts || !p.shared_gate_up.empty()) return false;
  return plan_few_rows(few_rows(p, Scratch(p, nullptr)), p.gate_up.format, p.down.format, device).has_value();
}

bool experts_take_tiles(const MoeParams& p, const cuda::DeviceLimits& device) {
  const Scratch s(p, reinterpret_cast<std::byte*>(uintptr_t{256}));  // some address: nothing is read
  const gemm::GemmPart part = gate_up_part(p, s);
  return choose_path(grouped_product(p, s, part), device) == gemm::Path::kTile;
}

Status launch_moe(cudaStream_t stream, const MoeParams& p) {
  if (p.rows == 0) return {};
  const Scratch s(p, p.workspace);
  QUIRE_CHECKED(launch_router(stream, p, s));
  QUIRE_TRY(const cuda::DeviceLimits device, cuda::device_limits());
  const bool few = p.by == Experts::kFew || (p.by == Experts::kAuto && p.path == gemm::Path::kAuto);
  if (few && p.barrier != nullptr && few_rows_fit(p, device)) {
    FewRows rows = few_rows(p, s);
    return launch_few_rows(stream, rows, p.next, p.gate_up.format, p.down.format, device);
  }
  QUIRE_CHECKED(launch_routing(stream, routing(p, s)));
  QUIRE_CHECKED(launch_experts(stream, p, s, device));
  if (!p.shared_gate_up.empty()) QUIRE_CHECKED(launch_shared(stream, p, s));
  Combine c{};
  c.results = s.results;
  c.weights = s.weights;
  c.x = p.x;
  c.x_stride = p.x_stride;
  c.add_to_x = p.add_to_x;
  c.rows = p.rows;
  c.count = p.top_k + (p.has_shared() ? 1 : 0);
  c.width = p.down.rows;
  return launch_combine(stream, c);
}

}  // namespace quire::moe_cuda
