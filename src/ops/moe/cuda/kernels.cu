// moe on a GPU. Nothing is read back by the host, whatever the router chooses.
//
// Kernels, each one launch: router; top-k with its weights and counting sort (one kernel up to 8 rows, else two);
// gate-up with SwiGLU; down; combine. Up to 8 rows all after the router is one kernel (few.h), where there is one for
// the formats. The shared expert is one more expert of the stacked weights, chosen by every token, where it was placed
// behind them, else two products of its own.
//
// Each (token, expert) result is rounded to bf16 before it is weighted and added in float32: x, then the top-k experts
// in the order of their rank, then the shared one.
#include "ops/moe/cuda/kernels.h"

#include <algorithm>

#include "ops/cuda/arguments.h"
#include "ops/cuda/context.h"
#include "ops/cuda/weights.h"
#include "ops/gemm/cuda/gemm.h"
#include "ops/gemm/cuda/rounded.h"
#include "ops/moe/cuda/few.h"
#include "ops/moe/cuda/routing.h"

namespace quire::moe_cuda {
namespace {

// Up to here the router's K slices are apart (gemm::Product::apart): tiles of its few rows of weights, or whole rows of
// them, would occupy as few multiprocessors, and the time of all is that of one walk along the columns.
constexpr int32_t kApartRows = 512;

// Whether the shared expert was placed as one more of the others.
bool lies_behind(const Weight& w, const gemm::PackedWeight& packed, const Weight& shared) {
  return shared.data == w.data + packed.expert_bytes() * packed.experts && shared.dtype == w.dtype &&
         shared.rows == w.rows && shared.cols == w.cols;
}

// The arguments, and what follows from them: how the weights lie packed, and counts.
struct Call {
  const MoeArgs& args;
  gemm::PackedWeight router;         // [E, D]
  gemm::PackedWeight gate_up, down;  // paired, E or with the shared one E + 1 experts of [Fe, D]; of [D, Fe]
  gemm::PackedWeight shared_gate_up, shared_down;  // of a shared expert that lies elsewhere
  int32_t rows, experts;
  int32_t results;  // of a token: top_k, and one of the shared expert if there is any
  int32_t sorted;   // rows sorted by expert
  // What tokens become, and whose.
  struct Rounded {
    TokenRounding to = TokenRounding::kNone;
    bool up = false, down = false, shared_up = false, shared_down = false;
    bool any() const { return up || down || shared_up || shared_down; }
  } rounded;

  explicit Call(const MoeArgs& a)
      : args(a),
        router(cuda::packed(a.router)),
        gate_up(cuda::packed_pair(a.gate)),
        down(cuda::packed(a.down)),
        rows(cuda::narrow(a.h.dim(0))),
        experts(cuda::narrow(a.router.rows)),
        results(a.top_k + (a.shared_gate.empty() ? 0 : 1)) {
    if (!a.shared_gate.empty()) {
      if (lies_behind(a.gate, gate_up, a.shared_gate) && lies_behind(a.down, down, a.shared_down)) {
        ++gate_up.experts;
        ++down.experts;
      } else {
        shared_gate_up = cuda::packed_pair(a.shared_gate);
        shared_down = cuda::packed(a.shared_down);
      }
    }
    sorted = rows * (a.top_k + (shared_stacked() ? 1 : 0));
  }
  bool shared_stacked() const { return gate_up.experts == experts + 1; }
  bool shared_apart() const { return !shared_gate_up.empty(); }
};

// Scratch, carved twice: to count it, and to use it.
struct Scratch {
  float *logits, *weights;
  uint16_t* choice;
  int32_t *offsets, *tokens, *slots, *positions;
  __nv_bfloat16 *mid, *shared_mid, *results_of_experts;
  std::byte* rounded;  // tokens
  int64_t bytes = 0;

  Scratch(const Call& c, std::byte* base) {
    const auto take = [&]<class T>(T*& to, int64_t count) {
      to = reinterpret_cast<T*>(base + bytes);
      bytes += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    };
    const int64_t rows = c.rows;
    // Never less for more rows.
    take(logits, c.experts * std::max(rows, std::min<int64_t>(rows, kApartRows) * c.router.k_slices()));
    take(weights, rows * c.results);
    take(choice, (rows * c.args.top_k + 7) / 8 * 8);
    take(offsets, c.experts + 2);
    take(tokens, c.sorted);
    take(slots, c.sorted);
    take(positions, rows * c.results);
    take(mid, int64_t{c.sorted} * c.gate_up.rows);
    take(shared_mid, c.shared_apart() ? rows * c.shared_gate_up.rows : 0);
    take(results_of_experts, rows * c.results * c.down.rows);
    take(rounded, rounded_bytes(c, *this));
  }

  static int64_t rounded_bytes(const Call& c, const Scratch& s);
};

// Of all tokens, by rows of h or of what the router reads.
gemm::Product product_of_tokens(const Call& c, const Tensor& rows) {
  return {cuda::data<__nv_bfloat16>(rows), rows.stride[0], c.rows};
}

Status launch_router(cudaStream_t stream, const Call& c, const Scratch& s) {
  gemm::Product p = product_of_tokens(c, c.args.router_input());
  p.add(c.router, {.y = s.logits, .y_stride = c.experts, .out = gemm::Out::kF32});
  p.apart = c.rows <= kApartRows;
  return launch_gemm(stream, p).context("moe: router");
}

const float* floats_or_null(const Tensor& t) {
  return t.empty() ? nullptr : cuda::floats(t);
}

ExpertRule rule_of(const ExpertChoice& choice) {
  return {.selection_bias = floats_or_null(choice.selection_bias),
          .groups = choice.groups,
          .used_groups = choice.used_groups,
          .scale = choice.scale,
          .sigmoid = choice.scores == ExpertChoice::Scores::kSigmoid,
          .normalised = choice.normalised,
          .plain = choice.plain()};
}

Routing routing(const Call& c, const Scratch& s) {
  const MoeArgs& a = c.args;
  return {.logits = s.logits,
          .parts = c.rows <= kApartRows ? c.router.k_slices() : 1,
          .scale = a.router.scale,
          .bias = floats_or_null(a.router_bias),
          .rule = rule_of(a.choice),
          .rows = c.rows,
          .experts = c.experts,
          .top_k = a.top_k,
          .results = c.results,
          .shared_sorted = c.shared_stacked(),
          .h = cuda::data<__nv_bfloat16>(a.h),
          .h_stride = a.h.stride[0],
          .width = c.gate_up.cols,
          .shared_router = a.shared_gate.empty() || a.shared_router.empty() ? nullptr : cuda::floats(a.shared_router),
          .choice = s.choice,
          .chosen = a.chosen.empty() ? nullptr : cuda::data<int32_t>(a.chosen),
          .weights = s.weights,
          .offsets = s.offsets,
          .tokens = s.tokens,
          .slots = s.slots};
}

FewRows few_rows(const Call& c, const Scratch& s, cuda::GridBarrier* barrier) {
  return {.routing = routing(c, s),
          .up = {c.gate_up, c.args.gate.scale, c.args.up.scale, floats_or_null(c.args.gate_bias),
                 floats_or_null(c.args.up_bias)},
          .down = {c.down, c.args.down.scale, nullptr, floats_or_null(c.args.down_bias), nullptr},
          .mid = s.mid,
          .x = cuda::data<float>(c.args.x),
          .x_stride = c.args.x.stride[0],
          .add_to_x = c.args.add_to_x,
          .activation = c.args.activation,
          .barrier = barrier,
          .next = {},
          .plan = {}};
}

// Of tokens sorted by expert, as they lie before tiles ask for them.
gemm::Product gate_up_product(const Call& c, const Scratch& s) {
  gemm::Product p(cuda::data<__nv_bfloat16>(c.args.h), c.args.h.stride[0], c.sorted);
  p.problem.offsets = s.offsets;
  p.problem.x_rows = s.tokens;
  p.problem.most_rows = c.rows;
  p.problem.activation = c.args.activation;
  p.add(c.gate_up, {.scale = c.args.gate.scale,
                    .scale2 = c.args.up.scale,
                    .bias = floats_or_null(c.args.gate_bias),
                    .bias2 = floats_or_null(c.args.up_bias),
                    .y = s.mid,
                    .y_stride = c.gate_up.rows});
  return p;
}
gemm::Product down_product(const Call& c, const Scratch& s) {
  gemm::Product p(s.mid, c.gate_up.rows, c.sorted);
  p.problem.offsets = s.offsets;
  p.problem.y_rows = s.slots;
  p.problem.sorted_early = true;  // gate and up come between
  p.problem.most_rows = c.rows;
  p.add(c.down, {.scale = c.args.down.scale,
                 .bias = floats_or_null(c.args.down_bias),
                 .y = s.results_of_experts,
                 .y_stride = c.down.rows});
  return p;
}

gemm::Product shared_up_product(const Call& c, const Scratch& s) {
  gemm::Product up = product_of_tokens(c, c.args.h);
  up.problem.activation = c.args.activation;
  up.add(c.shared_gate_up, {.scale = c.args.shared_gate.scale,
                            .scale2 = c.args.shared_up.scale,
                            .y = s.shared_mid,
                            .y_stride = c.shared_gate_up.rows});
  return up;
}
gemm::Product shared_down_product(const Call& c, const Scratch& s) {
  gemm::Product down(s.shared_mid, c.shared_gate_up.rows, c.rows);
  down.add(c.shared_down, {.scale = c.args.shared_down.scale,
                           .y = s.results_of_experts + int64_t{c.args.top_k} * c.down.rows,
                           .y_stride = int64_t{c.results} * c.down.rows});
  return down;
}

int64_t Scratch::rounded_bytes(const Call& c, const Scratch& s) {
  int64_t most = 0;
  const auto note = [&](bool rounded, const gemm::Product& p) {
    if (rounded) most = std::max(most, gemm::rounded_bytes(c.rounded.to, p));
  };
  note(c.rounded.up, gate_up_product(c, s));
  note(c.rounded.down, down_product(c, s));
  if (c.shared_apart()) {
    note(c.rounded.shared_up, shared_up_product(c, s));
    note(c.rounded.shared_down, shared_down_product(c, s));
  }
  return most;
}

// The call with rounded tokens wherever weights are of a type that they are for.
Call call_rounded(const MoeArgs& a, const cuda::DeviceLimits& gpu) {
  Call c(a);
  const Scratch s(c, reinterpret_cast<std::byte*>(uintptr_t{256}));  // some address: nothing is read
  const auto takes = [&](const gemm::Product& p) { return takes_rounded(a.rounded.to, p, gpu); };
  c.rounded = {.to = a.rounded.to, .up = takes(gate_up_product(c, s)), .down = takes(down_product(c, s))};
  if (c.shared_apart()) {
    c.rounded.shared_up = takes(shared_up_product(c, s));
    c.rounded.shared_down = takes(shared_down_product(c, s));
  }
  return c;
}

Status launch_one(cudaStream_t stream, const Call& c, const gemm::Product& p, bool rounded, const Scratch& s) {
  return rounded ? gemm::launch_rounded(stream, c.rounded.to, p, s.rounded) : launch_gemm(stream, p);
}

Status launch_experts(cudaStream_t stream, const Call& c, const Scratch& s, gemm::Path path) {
  gemm::Product up = gate_up_product(c, s), down = down_product(c, s);
  up.path = down.path = path;
  if (path == gemm::Path::kTile && !c.rounded.up) {
    // Where the results will be: nobody needs the rows then.
    QUIRE_CHECKED(launch_scatter(stream, {.h = up.problem.x,
                                          .h_stride = up.problem.x_stride,
                                          .positions = s.positions,
                                          .rows = c.rows,
                                          .results = c.results,
                                          .copies = c.sorted / c.rows,
                                          .width = c.gate_up.cols,
                                          .to = s.results_of_experts}));
    up.problem.x = s.results_of_experts;
    up.problem.x_stride = c.gate_up.cols;
    up.problem.x_rows = nullptr;
  }
  QUIRE_CHECKED(launch_one(stream, c, up, c.rounded.up, s).context("moe: gate and up"));
  return launch_one(stream, c, down, c.rounded.down, s).context("moe: down");
}

// Of a shared expert that could not be stacked: its results lie behind the experts' of each token.
Status launch_shared(cudaStream_t stream, const Call& c, const Scratch& s) {
  QUIRE_CHECKED(
      launch_one(stream, c, shared_up_product(c, s), c.rounded.shared_up, s).context("moe: shared gate and up"));
  return launch_one(stream, c, shared_down_product(c, s), c.rounded.shared_down, s).context("moe: shared down");
}

Status launch_combine(cudaStream_t stream, const Call& c, const Scratch& s) {
  return launch_combine(stream, Combine{.results = s.results_of_experts,
                                        .weights = s.weights,
                                        .x = cuda::data<float>(c.args.x),
                                        .x_stride = c.args.x.stride[0],
                                        .rows = c.rows,
                                        .count = c.results,
                                        .width = c.down.rows,
                                        .add_to_x = c.args.add_to_x});
}

// Runs what comes after the router's product: after(call, scratch).
template <class After>
void launch(const OpContext& ctx, const Call& c, After&& after) {
  cuda::Context& context = cuda::context_of(ctx);
  context.weights.read({cuda::range_of(c.router), {}}, context.dry);
  Workspace::Scope scope(ctx.workspace);
  std::byte* const base = scope.take<std::byte>(Scratch(c, nullptr).bytes);
  if (context.dry || c.rows == 0) return;
  const Scratch s(c, base);
  const Status routed = launch_router(context.stream, c, s);
  context.keep(routed.ok() ? after(c, s) : routed);
}

void launch_routed(const OpContext& ctx, const Call& call, gemm::Path path) {
  launch(ctx, call, [&](const Call& c, const Scratch& s) -> Status {
    cudaStream_t stream = cuda::context_of(ctx).stream;
    const bool scattered = path == gemm::Path::kTile && !c.rounded.up;
    QUIRE_CHECKED(launch_routing(stream, routing(c, s), scattered ? s.positions : nullptr));
    QUIRE_CHECKED(launch_experts(stream, c, s, path));
    if (c.shared_apart()) QUIRE_CHECKED(launch_shared(stream, c, s));
    return launch_combine(stream, c, s);
  });
}

}  // namespace

bool fits_routed(const Machine&, const MoeArgs& a) {
  const auto eighths = [](const Weight& w) { return w.rows % 8 == 0 && w.cols % 8 == 0; };
  return a.has_all_experts() && a.choice.groups <= kMaxGroups && (a.gate_bias.empty() || a.shared_gate.empty()) &&
         a.h.dtype == DType::kBF16 && a.router.rows <= kMaxExperts && a.top_k <= kMaxTopK &&
         a.gate.dtype == a.up.dtype && eighths(a.gate) && cuda::aligned_rows(a.h, 8) &&
         cuda::aligned_rows(a.router_h, 8) && cuda::aligned_rows(a.x, 4) &&
         (a.shared_gate.empty() || (a.shared_gate.dtype == a.shared_up.dtype && eighths(a.shared_gate)));
}
bool prefers_tiles(const Machine& m, const MoeArgs& a) {
  const Call c(a);
  const Scratch s(c, reinterpret_cast<std::byte*>(uintptr_t{256}));  // some address: nothing is read
  return choose_path(gate_up_product(c, s), m.gpu) == gemm::Path::kTile;
}
void launch_tiles(const OpContext& ctx, const MoeArgs& a) {
  launch_routed(ctx, Call(a), gemm::Path::kTile);
}
void launch_stream(const OpContext& ctx, const MoeArgs& a) {
  launch_routed(ctx, Call(a), gemm::Path::kStream);
}

bool fits_rounded(const Machine& m, const MoeArgs& a, TokenRounding tokens) {
  return a.rounded.are(tokens) && fits_routed(m, a) && call_rounded(a, m.gpu).rounded.any();
}
void launch_rounded(const OpContext& ctx, const MoeArgs& a, TokenRounding) {
  launch_routed(ctx, call_rounded(a, ctx.machine.gpu), gemm::Path::kTile);
}

bool fits_few(const Machine& m, const MoeArgs& a) {
  if (!fits_routed(m, a)) return false;
  const Call c(a);
  if (c.rows > kFewRows || c.experts > kFewExperts || c.shared_apart()) return false;
  return plan_few_rows(few_rows(c, Scratch(c, nullptr), nullptr), c.gate_up.format, c.down.format, m.gpu).has_value();
}
void launch_few(const OpContext& ctx, const MoeArgs& a) {
  cuda::Context& context = cuda::context_of(ctx);
  launch(ctx, Call(a), [&](const Call& c, const Scratch& s) -> Status {
    if (context.barrier() == nullptr) return Error{Fault::kBug, "moe: a stream without a barrier"};
    FewRows few = few_rows(c, s, context.barrier());
    return launch_few_rows(context.stream, few, context.weights.next(), c.gate_up.format, c.down.format,
                           ctx.machine.gpu);
  });
}

}  // namespace quire::moe_cuda
