// The delta rule's two forms beside what the machine could do at most: the recurrent form against a pass that
// reads and writes the same number of bytes, the chunked form against AMX (or AVX-512) peak.
//   bench_gated_delta [--benchmark_filter=chunked] ...; every kernel that fits, on all CPUs and on one.
#include <benchmark/benchmark.h>

#include <random>

#include "ops/gated_delta/gated_delta.h"
#include "ops/probe/bench.h"

namespace quire {
namespace {

struct Problem {
  int64_t rows, slots, Hk, Hv, D;
  std::vector<bf16> q, k, v, out;
  std::vector<float> g, beta, state, pending_u, pending_g;
  std::vector<bf16> pending_k;
  std::vector<Segment> segments;
  int32_t decodes;

  Problem(int64_t segment_count, int32_t tokens, bool decode, int64_t Hk_, int64_t Hv_, int64_t D_)
      : rows(segment_count * tokens), slots(segment_count), Hk(Hk_), Hv(Hv_), D(D_) {
    std::mt19937 gen(1);
    std::normal_distribution<float> normal(0.0f, 1.0f / std::sqrt(static_cast<float>(D)));
    const auto fill = [&](std::vector<bf16>& x, int64_t n) {
      x.resize(static_cast<size_t>(n));
      for (bf16& e : x) e = to_bf16(normal(gen));
    };
    fill(q, rows * Hk * D);
    fill(k, rows * Hk * D);
    fill(v, rows * Hv * D);
    fill(out, rows * Hv * D);
    g.assign(static_cast<size_t>(rows * Hv), -0.05f);
    beta.assign(static_cast<size_t>(rows * Hv), 0.5f);
    state.assign(static_cast<size_t>(slots * Hv * D * D), 0.01f);
    fill(pending_k, slots * kPendingTokens * Hk * D);
    pending_u.assign(static_cast<size_t>(slots * kPendingTokens * Hv * D), 0.01f);
    pending_g.assign(static_cast<size_t>(slots * kPendingTokens * Hv), -0.05f);
    // Sequences have every number of pending tokens.
    for (int32_t i = 0; i < segment_count; ++i)
      segments.push_back({i * tokens, tokens, decode ? 64 + i % kPendingTokens : 64, i, 64});
    decodes = decode ? static_cast<int32_t>(segment_count) : 0;
  }
  GatedDeltaArgs args() {
    return {make_tensor(q.data(), {rows, Hk, D}),
            make_tensor(k.data(), {rows, Hk, D}),
            make_tensor(v.data(), {rows, Hv, D}),
            make_tensor(g.data(), {rows, Hv}),
            make_tensor(beta.data(), {rows, Hv}),
            HeadMap::kTiled,
            {.state = make_tensor(state.data(), {slots, Hv, D, D}),
             .pending_k = make_tensor(pending_k.data(), {slots, kPendingTokens, Hk, D}),
             .pending_u = make_tensor(pending_u.data(), {slots, kPendingTokens, Hv, D}),
             .pending_g = make_tensor(pending_g.data(), {slots, kPendingTokens, Hv})},
            {.data = segments.data(),
             .count = static_cast<int32_t>(segments.size()),
             .decodes = decodes,
             .decode_rows = decodes > 0 ? static_cast<int32_t>(rows) : 0,
             .prompt_rows = decodes > 0 ? 0 : static_cast<int32_t>(rows)},
            make_tensor(out.data(), {rows, Hv, D})};
  }
  // The next token of every sequence.
  void advance() {
    for (Segment& s : segments) {
      s.anchor = anchor_after_decode(s);
      s.position += s.count;
    }
  }
};

// Bytes per second of reading and writing the state once, plainly, all threads.
void probe(benchmark::State& st, int64_t bytes, int threads) {
  ThreadPool pool(threads);
  const int64_t n = bytes / static_cast<int64_t>(sizeof(float));
  std::vector<float> x(static_cast<size_t>(n), 1.0f);
  for (auto _ : st) {
    pool.parallel_for(n, 1 << 14, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) x[static_cast<size_t>(i)] *= 0.999f;
    });
    benchmark::ClobberMemory();
  }
  bench::report_rates(st, {.bytes = bytes * 2});
}

void recurrent(benchmark::State& st, const Kernel<GatedDeltaArgs>& k, int64_t sequences, int32_t rows, int threads) {
  ThreadPool pool(threads);
  Workspace workspace;
  Problem p(sequences, rows, true, 16, 32, 128);
  const OpContext ctx{pool, workspace};
  for (auto _ : st) {
    k.launch(ctx, p.args());
    p.advance();
  }
  bench::report_rates(st, kGdnRecurrentOp.traffic(p.args()));
}

void chunked(benchmark::State& st, const Kernel<GatedDeltaArgs>& k, int64_t Hv, int32_t tokens, int threads) {
  ThreadPool pool(threads);
  Workspace workspace;
  Problem p(1, tokens, false, 16, Hv, 128);
  const OpContext ctx{pool, workspace};
  for (auto _ : st) k.launch(ctx, p.args());
  bench::report_rates(st, kGdnChunkedOp.traffic(p.args()));
}

void add_all() {
  const auto add = [](const std::string& name, auto fn) { bench::add(name, fn)->Unit(benchmark::kMicrosecond); };
  std::vector<int> teams{1};
  if (available_cpus() > 1) teams.push_back(available_cpus());
  constexpr int64_t kStateBytes = 32 * 128 * 128 * 4;
  for (const int threads : teams) {
    for (const int64_t sequences : {1, 64})
      add(fmt::format("probe/read_write/{}_MiB/threads:{}", (sequences * kStateBytes) >> 20, threads),
          [=](benchmark::State& st) { probe(st, sequences * kStateBytes, threads); });
    for (const auto& k : bench::kernels(kGdnRecurrentOp))
      for (const int64_t sequences : {1, 16, 64})
        add(fmt::format("recurrent/{}/sequences:{}/threads:{}", k.name, sequences, threads),
            [=](benchmark::State& st) { recurrent(st, k, sequences, 1, threads); });
    for (const auto& k : bench::kernels(kGdnChunkedOp))
      for (const int64_t Hv : {16, 32})
        add(fmt::format("chunked/{}/heads:{}/tokens:512/threads:{}", k.name, Hv, threads),
            [=](benchmark::State& st) { chunked(st, k, Hv, 512, threads); });
  }
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::bench::main(argc, argv, quire::add_all);
}
