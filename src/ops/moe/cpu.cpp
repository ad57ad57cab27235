// moe on a CPU. A first region computes the router in float32 and each token's experts. Then tokens are
// grouped by expert, and a second region packs each group, multiplies gate and up of all chosen experts (jobs
// of neighbouring rows of one expert, handed out on demand, so that threads are busy at any routing), and at
// last takes the rows of the output in pieces: for one piece all experts' down projections into a buffer in
// the cache, which is then combined in the order of each token's ranks.
#include <algorithm>
#include <cmath>

#include "ops/gemm/core.h"
#include "ops/moe/kernels.h"

namespace quire::moe_detail {
namespace {

// The routed experts' matrices, or the shared one's, as the core that serves them reads them.
struct Experts {
  Experts(const gemm::Core& preferred, const Weight& gate_, const Weight& up_, const Weight& down_)
      : core(gemm::core_for(preferred, {&gate_, &up_, &down_})),
        gate(gemm::as_read(core, gate_)),
        up(gemm::as_read(core, up_)),
        down(gemm::as_read(core, down_)) {}
  const gemm::Core& core;
  Weight gate, up, down;
};

// Tokens that go through one expert, or all tokens through the shared one.
struct Group {
  const Experts* of = nullptr;
  int64_t expert = 0;
  const int32_t* token = nullptr;  // null: all in order
  const int32_t* entry = nullptr;  // the row of the ranked buffer: token * top_k + rank, shared ones behind
  gemm::Packed x, mid;
  bool packing = true;

  // This expert's of the biases [E, n]; null where there are none. The shared expert, which has no tokens of its own
  // choice, has none.
  const float* bias(const Tensor& of_all) const {
    return of_all.empty() || token == nullptr ? nullptr : of_all.row<float>(expert);
  }
};

struct Routing {
  int32_t* chosen;  // [T, k]
  float* weight;    // [T, k]
  float* shared;    // [T] weight of the shared expert, or null
};

Routing route_tokens(const OpContext& ctx, const MoeArgs& a, Workspace::Scope& scope) {
  const gemm::Core& core = gemm::kBaseCore;  // float32 as the contract demands
  const Tensor& read = a.router_input();
  const int64_t tokens = a.h.dim(0), width = a.h.dim(1), experts = a.router.rows, k = a.top_k;
  const int64_t threads = ctx.pool.size();
  const bool packing = !core.in_place(read);
  gemm::Packed h{static_cast<std::byte*>(read.data), tokens, width};
  if (packing) h.data = scope.take<std::byte>(core.packed_bytes(tokens, width));
  float* const logits = scope.take<float>(tokens * experts);
  const bool plain = a.choice.plain();
  float* const choice_scratch = plain ? nullptr : scope.take<float>(2 * experts * threads);
  Routing r{scope.take<int32_t>(tokens * k), scope.take<float>(tokens * k), nullptr};
  Weight gate;
  if (!a.shared_router.empty()) {
    r.shared = scope.take<float>(tokens);
    gate = {DType::kF32, static_cast<const std::byte*>(a.shared_router.data), 1, width};
  }
  gemm::Epilogue to_logits, to_shared;
  to_logits.y = logits;
  if (!a.router_bias.empty()) to_logits.bias = a.router_bias.as<float>();
  to_logits.stride = experts;
  to_shared.y = r.shared;
  to_shared.stride = 1;

  const int64_t scratch_bytes = core.scratch_bytes(1, tokens, width);
  std::byte* const scratch = scope.take<std::byte>(scratch_bytes * threads);
  const int64_t panels = gemm::panels(experts);
  constexpr int64_t kRouted = 16;  // tokens of a piece
  Phase pack_jobs(packing ? h.tiles() : 0), logit_jobs(panels + (gate.empty() ? 0 : 1)),
      route_jobs((tokens + kRouted - 1) / kRouted);
  ctx.pool.share([&](int thread) {
    std::byte* const mine = scratch + thread * scratch_bytes;
    pack_jobs.each(false, [&](int64_t tile, int64_t) { core.pack(read, nullptr, tile, h); });
    pack_jobs.wait();
    logit_jobs.each(false, [&](int64_t job, int64_t) {
      if (job < panels)
        core.project({&a.router, 0, job * gemm::kPanelRows, 1, &h, &to_logits}, mine);
      else
        core.project({&gate, 0, 0, 1, &h, &to_shared}, mine);
    });
    logit_jobs.wait();
    route_jobs.each(false, [&](int64_t piece, int64_t) {
      for (int64_t t = piece * kRouted; t < std::min((piece + 1) * kRouted, tokens); ++t) {
        if (plain) {
          route(logits + t * experts, static_cast<int>(experts), a.top_k, r.chosen + t * k, r.weight + t * k);
        } else {
          float* const scores = choice_scratch + 2 * experts * thread;
          route(a.choice, logits + t * experts, static_cast<int>(experts), a.top_k, scores, scores + experts,
                r.chosen + t * k, r.weight + t * k);
        }
        if (r.shared != nullptr) r.shared[t] = 1.0f / (1.0f + std::exp(-r.shared[t]));
        if (!a.chosen.empty()) std::copy_n(r.chosen + t * k, k, a.chosen.row<int32_t>(t));
      }
    });
  });
  return r;
}

// The groups of all experts here that were chosen, in the order of experts, then that of the shared expert.
std::span<Group> group_tokens(const MoeArgs& a, const Experts& routed, const Experts& shared, const int32_t* chosen,
                              Workspace::Scope& scope) {
  const int64_t tokens = a.h.dim(0), experts = a.router.rows, k = a.top_k, entries = tokens * k;
  int32_t* const end = scope.take<int32_t>(experts + 1);  // first the counts, then where each group ends
  std::fill_n(end, experts + 1, 0);
  for (int64_t i = 0; i < entries; ++i) ++end[chosen[i] + 1];
  for (int64_t e = 0; e < experts; ++e) end[e + 1] += end[e];
  int32_t* const token = scope.take<int32_t>(entries);
  int32_t* const entry = scope.take<int32_t>(entries + tokens);
  for (int64_t i = 0; i < entries; ++i) {  // end[e] walks from the group's begin to its end
    const int32_t at = end[chosen[i]]++;
    token[at] = static_cast<int32_t>(i / k);
    entry[at] = static_cast<int32_t>(i);
  }
  for (int64_t t = 0; t < tokens; ++t) entry[entries + t] = static_cast<int32_t>(entries + t);

  Group* const groups = scope.take<Group>(std::min(experts, entries) + 1);
  size_t count = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const int32_t begin = e == 0 ? 0 : end[e - 1];
    if (begin == end[e] || a.here(e) < 0) continue;
    groups[count++] = {&routed, a.here(e), token + begin, entry + begin, {nullptr, end[e] - begin}, {}};
  }
  if (!a.shared_gate.empty()) groups[count++] = {&shared, 0, nullptr, entry + entries, {nullptr, tokens}, {}};
  return {groups, count};
}

// x[t][n] (or 0) += the weighted sum over ranks, then the shared expert, for `cols` columns from `begin`.
void combine(const MoeArgs& a, const Routing& r, const float* ranked, int64_t begin, int64_t cols) {
  const int64_t tokens = a.h.dim(0), k = a.top_k;
  for (int64_t t = 0; t < tokens; ++t) {
    float* const x = a.x.row<float>(t) + begin;
    if (!a.add_to_x) std::fill_n(x, cols, 0.0f);
    const auto add = [&](int64_t row, float weight) {
      for (int64_t c = 0; c < cols; ++c) x[c] += weight * ranked[row * cols + c];
    };
    for (int64_t i = t * k; i < (t + 1) * k; ++i)
      if (a.here(r.chosen[i]) >= 0) add(i, r.weight[i]);
    if (!a.shared_gate.empty()) add(tokens * k + t, r.shared == nullptr ? 1.0f : r.shared[t]);
  }
}

// Memory for the packed tokens of all groups, and for what is between their two products: as much as any routing may
// need, so that it depends on shapes alone. A tile belongs to one group.
class PackedRoom {
 public:
  PackedRoom(const Experts& routed, const Experts& shared, const MoeArgs& a, Workspace::Scope& scope)
      : core_(routed.core),
        width_(a.h.dim(1)),
        inner_(a.gate.rows),
        x_(scope.take<std::byte>(tiles(a) * tile(width_))),
        mid_(scope.take<std::byte>(tiles(a) * tile(inner_))) {
    if (a.shared_gate.empty()) return;
    shared_x_ = scope.take<std::byte>(shared.core.packed_bytes(a.h.dim(0), width_));
    shared_mid_ = scope.take<std::byte>(shared.core.packed_bytes(a.h.dim(0), a.shared_gate.rows));
  }
  std::byte* take_x(int64_t rows, bool shared) { return shared ? shared_x_ : take(x_, rows, width_); }
  std::byte* take_mid(int64_t rows, bool shared) { return shared ? shared_mid_ : take(mid_, rows, inner_); }

 private:
  static int64_t tiles_of(int64_t rows) { return (rows + gemm::kTileTokens - 1) / gemm::kTileTokens; }
  static int64_t tiles(const MoeArgs& a) {
    const int64_t entries = a.h.dim(0) * a.top_k;
    return tiles_of(entries) + std::min(entries, a.router.rows);
  }
  int64_t tile(int64_t cols) const { return (core_.packed_bytes(gemm::kTileTokens, cols) + 63) / 64 * 64; }
  std::byte* take(std::byte*& from, int64_t rows, int64_t cols) {
    std::byte* const at = from;
    QUIRE_CHECK(core_.packed_bytes(rows, cols) <= tiles_of(rows) * tile(cols), "moe: {} rows pack into {} bytes", rows,
                core_.packed_bytes(rows, cols));
    from += tiles_of(rows) * tile(cols);
    return at;
  }

  const gemm::Core& core_;
  int64_t width_, inner_;
  std::byte *x_, *mid_, *shared_x_ = nullptr, *shared_mid_ = nullptr;
};

}  // namespace

void run(const gemm::Core& core, const OpContext& ctx, const MoeArgs& a) {
  Workspace::Scope scope(ctx.workspace);
  const int64_t tokens = a.h.dim(0), width = a.h.dim(1), threads = ctx.pool.size();
  const Routing routing = route_tokens(ctx, a, scope);
  if (ctx.pool.dry())  // nothing was computed; any choice will do, because the scratch does not depend on it
    for (int64_t i = 0; i < tokens * a.top_k; ++i) routing.chosen[i] = static_cast<int32_t>(i % a.router.rows);
  const Experts routed(core, a.gate, a.up, a.down), shared(core, a.shared_gate, a.shared_up, a.shared_down);
  const std::span<Group> groups = group_tokens(a, routed, shared, routing.chosen, scope);

  int64_t tiles = 0, units = 0, most = 0, inner = width;
  PackedRoom room(routed, shared, a, scope);
  for (Group& g : groups) {
    const Tensor only = a.h.rows(g.token == nullptr ? 0 : g.token[0], g.x.rows);  // a row, if it is only one
    g.packing = !((g.x.rows == 1 || g.token == nullptr) && g.of->core.in_place(only));
    g.x = {static_cast<std::byte*>(only.data), g.x.rows, width};
    if (g.packing) g.x.data = room.take_x(g.x.rows, g.token == nullptr);
    g.mid = {nullptr, g.x.rows, g.of->gate.rows};
    g.mid.data = room.take_mid(g.x.rows, g.token == nullptr);
    tiles += g.packing ? g.x.tiles() : 0;
    units += gemm::swiglu_units(g.mid.cols);
    most = std::max(most, g.x.rows);
    inner = std::max(inner, g.mid.cols);
  }
  const int64_t unit_job = gemm::job_units(units, ctx.pool.size(), a.gate.row_bytes() * 32, most, width);
  const auto jobs_of = [&](const Group& g) { return (gemm::swiglu_units(g.mid.cols) + unit_job - 1) / unit_job; };
  int64_t up_jobs = 0;
  for (const Group& g : groups) up_jobs += jobs_of(g);

  const int64_t panels = gemm::panels(width), rows = tokens * (a.top_k + 1);
  const int64_t panel_job = tokens > gemm::kTileTokens ? 1 : gemm::job_panels(panels, ctx.pool.size(), 1, 1, inner);
  const auto scratch_of = [&](const gemm::Core& c) {
    return (c.scratch_bytes(gemm::kBlockPanels, tokens, inner) + 63) / 64 * 64;
  };
  const int64_t scratch_bytes = std::max(scratch_of(routed.core), scratch_of(shared.core));
  const int64_t ranked_floats = rows * panel_job * gemm::kPanelRows;
  std::byte* const scratch = scope.take<std::byte>(scratch_bytes * threads);
  float* const ranked = scope.take<float>(ranked_floats * threads);

  // Finds the group that piece `i` of all groups' pieces belongs to; i becomes the number within the group.
  const auto find = [&](int64_t& i, auto&& pieces) -> const Group& {
    for (const Group& g : groups) {
      const int64_t n = pieces(g);
      if (i < n) return g;
      i -= n;
    }
    fatal(__FILE__, __LINE__, "moe: no such piece");
  };
  Phase pack_queue(tiles), up_queue(up_jobs), down_queue((panels + panel_job - 1) / panel_job);
  ctx.pool.share([&](int thread) {
    std::byte* const mine = scratch + thread * scratch_bytes;
    pack_queue.each(true, [&](int64_t i, int64_t) {
      const Group& g = find(i, [](const Group& f) { return f.packing ? f.x.tiles() : 0; });
      g.of->core.pack(a.h, g.token, i, g.x);
    });
    pack_queue.wait();
    up_queue.each(true, [&](int64_t i, int64_t next) {
      const Group& g = find(i, jobs_of);
      const int64_t first = i * unit_job, left = gemm::swiglu_units(g.mid.cols) - first;
      gemm::SwigluJob j{.gate = &g.of->gate,
                        .up = &g.of->up,
                        .expert = g.expert,
                        .row = first * gemm::kPairRows,
                        .units = std::min(unit_job, left),
                        .gate_bias = g.bias(a.gate_bias),
                        .up_bias = g.bias(a.up_bias),
                        .x = &g.x,
                        .mid = &g.mid,
                        .round_to_bf16 = a.h.dtype == DType::kBF16,
                        .activation = a.activation};
      if (next >= 0) {
        const Group& n = find(next, jobs_of);
        j.prefetch = gemm::prefetch_of(n.of->gate, n.of->up, n.expert, next * unit_job * gemm::kPairRows, unit_job);
      }
      g.of->core.swiglu(j, mine);
    });
    up_queue.wait();
    down_queue.each(true, [&](int64_t i, int64_t next) {
      const int64_t first = i * panel_job, count = std::min(panel_job, panels - first);
      const int64_t begin = first * gemm::kPanelRows;
      const int64_t cols = std::min(count * gemm::kPanelRows, width - begin);
      float* const results = ranked + thread * ranked_floats;
      for (const Group& g : groups) {
        const gemm::Epilogue out{results, DType::kF32, cols, g.bias(a.down_bias), g.entry, false, begin};
        gemm::ProjectJob j{&g.of->down, g.expert, begin, count, &g.mid, &out};
        const bool last = &g == &groups.back();
        const Group& n = last ? groups.front() : (&g)[1];
        const int64_t row = last ? next * panel_job * gemm::kPanelRows : begin;
        if (!last || next >= 0) j.prefetch = gemm::prefetch_of(n.of->down, n.expert, row, panel_job);
        g.of->core.project(j, mine);
      }
      combine(a, routing, results, begin, cols);
    });
    core.finish();
  });
}

}  // namespace quire::moe_detail
