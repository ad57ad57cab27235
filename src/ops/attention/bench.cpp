// Speed of paged_attention and attention_prepare for every kernel of their tables, on all CPUs.
//   prefill: one sequence from position 0, below the diagonal only
//   decode:  one row of each of several sequences whose caches together leave the CPU's caches
//   read:    the same amount of memory, only summed: what decode can hope for
#include <benchmark/benchmark.h>

#include <numeric>
#include <random>

#include "ops/attention/attention.h"
#include "ops/probe/bench.h"

namespace quire {
namespace {

struct Shape {
  const char* name;
  int heads, kv_heads, d;
};
constexpr Shape kShapes[] = {{"16q8kv_d128", 16, 8, 128}, {"16q2kv_d256", 16, 2, 256}, {"24q4kv_d256", 24, 4, 256}};

// A batch of `sequences` sequences with `count` new tokens after `position`, blocks in random order. Prompts begin at
// 0.
struct Setup {
  ThreadPool pool{available_cpus()};
  Workspace workspace;
  OpContext context{pool, workspace};
  std::vector<bf16> k, v, q, out, projections;
  std::vector<int32_t> table;
  std::vector<Segment> segments;
  std::vector<float> inv_freq;
  PagedAttentionArgs attend;
  AttentionPrepareArgs prepare;

  Setup(const Shape& s, int64_t sequences, int64_t position, int64_t count) {
    const int64_t blocks_each = (position + count + kBlockTokens - 1) / kBlockTokens, blocks = sequences * blocks_each;
    const int64_t rows = sequences * count;
    std::mt19937 gen(1);
    table.resize(static_cast<size_t>(blocks));
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), gen);
    const auto random = [&](std::vector<bf16>& x, int64_t n) {
      std::normal_distribution<float> normal;
      std::vector<bf16> some(4099);  // a prime: repeats, but not in step with rows
      for (bf16& e : some) e = to_bf16(normal(gen));
      x.resize(static_cast<size_t>(n));
      for (size_t i = 0; i < x.size(); ++i) x[i] = some[i % some.size()];
    };
    random(k, blocks * s.kv_heads * kBlockTokens * s.d);
    random(v, blocks * s.kv_heads * kBlockTokens * s.d);
    random(q, rows * s.heads * s.d);
    random(projections, rows * (s.heads + 2 * s.kv_heads) * s.d);
    out.resize(q.size());
    for (int64_t i = 0; i < sequences; ++i)
      segments.push_back({.row = static_cast<int32_t>(i * count),
                          .count = static_cast<int32_t>(count),
                          .position = static_cast<int32_t>(position)});
    const bool decodes = position > 0;
    const SegmentArray array{segments.data(),
                             static_cast<int32_t>(sequences),
                             decodes ? static_cast<int32_t>(sequences) : 0,
                             table.data(),
                             static_cast<int32_t>(blocks_each),
                             decodes ? static_cast<int32_t>(rows) : 0,
                             decodes ? 0 : static_cast<int32_t>(rows),
                             decodes ? sequences * (position + count) : 0};
    attend.q = make_tensor(q.data(), {rows, s.heads, s.d});
    attend.kv = {make_tensor(k.data(), {blocks, s.kv_heads, kBlockTokens * s.d}),
                 make_tensor(v.data(), {blocks, s.kv_heads, kBlockTokens * s.d})};
    attend.segments = array;
    attend.scale = 1.0f / std::sqrt(static_cast<float>(s.d));
    attend.out = make_tensor(out.data(), {rows, s.heads * s.d});

    for (int j = 0; j < s.d / 2; ++j)
      inv_freq.push_back(std::pow(1e6f, -2.0f * static_cast<float>(j) / static_cast<float>(s.d)));
    const Tensor all = make_tensor(projections.data(), {rows, (s.heads + 2 * s.kv_heads) * s.d});
    prepare.q_proj = all.cols(0, s.heads * s.d);
    prepare.k_proj = all.cols(s.heads * s.d, s.kv_heads * s.d);
    prepare.v_proj = all.cols((s.heads + s.kv_heads) * s.d, s.kv_heads * s.d);
    prepare.rope = {Rope::Style::kHalves, s.d, make_tensor(inv_freq.data(), {s.d / 2}), 1.0f};
    prepare.segments = array;
    prepare.q = attend.q;
    prepare.kv = attend.kv;
  }
};

void prefill(benchmark::State& state, const Kernel<PagedAttentionArgs>& kernel, const Shape& s, int64_t tokens) {
  Setup b(s, 1, 0, tokens);
  for (auto _ : state) kernel.launch(b.context, b.attend);
  bench::report_rates(state, kPagedAttentionOp.traffic(b.attend));
}

void decode(benchmark::State& state, const Kernel<PagedAttentionArgs>& kernel, const Shape& s, int64_t context) {
  const int64_t bytes_each = context * s.kv_heads * s.d * 4;
  Setup b(s, (int64_t{400} << 20) / bytes_each, context - 1, 1);
  for (auto _ : state) kernel.launch(b.context, b.attend);
  bench::report_rates(state, kPagedAttentionOp.traffic(b.attend));
}

void prepare(benchmark::State& state, const Kernel<AttentionPrepareArgs>& kernel, const Shape& s, int64_t tokens) {
  Setup b(s, 1, 0, tokens);
  for (auto _ : state) kernel.launch(b.context, b.prepare);
  bench::report_rates(state, kAttentionPrepareOp.traffic(b.prepare));
}

void read(benchmark::State& state) {
  ThreadPool pool(available_cpus());
  std::vector<uint64_t> memory(size_t{400} << 17, 1);
  const auto n = static_cast<int64_t>(memory.size());
  for (auto _ : state)
    pool.parallel_for(n, 1 << 15, [&](int64_t begin, int64_t end, int) {
      uint64_t sum = 0;
      for (int64_t i = begin; i < end; ++i) sum += memory[static_cast<size_t>(i)];
      benchmark::DoNotOptimize(sum);
    });
  bench::report_rates(state, {.bytes = n * 8});
}

void add_all() {
  bench::add("read", read);
  const auto add = [](const char* what, auto fn, const auto& kernel, std::initializer_list<int64_t> sizes) {
    for (const Shape& s : kShapes)
      for (const int64_t n : sizes)
        bench::add(fmt::format("{}/{}/{}/{}", what, s.name, n, kernel.name), [=](benchmark::State& state) {
          fn(state, kernel, s, n);
        })->Unit(benchmark::kMicrosecond);
  };
  for (const auto& kernel : bench::kernels(kPagedAttentionOp)) {
    add("prefill", prefill, kernel, {512, 2048});
    add("decode", decode, kernel, {1024, 8192});
  }
  for (const auto& kernel : bench::kernels(kAttentionPrepareOp)) add("prepare", prepare, kernel, {1, 512});
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::bench::main(argc, argv, quire::add_all);
}
