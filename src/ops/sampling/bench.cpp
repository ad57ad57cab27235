// One row of V = 248320 logits (Qwen3.5) on one thread. `plain` logits: normal noise and a few likely tokens,
// as a language model makes them; `flat`: noise alone at a high temperature, where top-p keeps most of the
// vocabulary.
#include <benchmark/benchmark.h>

#include <random>

#include "ops/probe/bench.h"
#include "ops/sampling/history.h"
#include "ops/sampling/rows.h"

namespace quire {
namespace {

constexpr int64_t kVocab = 248320;

struct Setup {
  const char* name;
  bool flat;
  SamplingParams params;
  int seen = 0;  // tokens of the sequence so far, drawn from 4096 different ones
};

std::vector<Setup> setups() {
  const auto with = [](auto change) {
    SamplingParams p;
    p.temperature = 0.7f;
    change(p);
    return p;
  };
  return {
      {"greedy", false, {}},
      {"temperature", false, with([](SamplingParams&) {})},
      {"top_k 20, top_p 0.8", false, with([](SamplingParams& p) { p.top_k = 20, p.top_p = 0.8f; })},
      {"top_k 5000", false, with([](SamplingParams& p) { p.top_k = 5000; })},
      {"top_p 0.95", false, with([](SamplingParams& p) { p.top_p = 0.95f; })},
      {"min_p 0.05", false, with([](SamplingParams& p) { p.min_p = 0.05f; })},
      {"typical_p 0.95", false, with([](SamplingParams& p) { p.typical_p = 0.95f; })},
      {"flat: temperature", true, with([](SamplingParams& p) { p.temperature = 1.5f; })},
      {"flat: top_p 0.95", true, with([](SamplingParams& p) { p.temperature = 1.5f, p.top_p = 0.95f; })},
      {"flat: typical_p 0.95", true, with([](SamplingParams& p) { p.temperature = 1.5f, p.typical_p = 0.95f; })},
      {"greedy, 20 logprobs", false, with([](SamplingParams& p) { p.temperature = 0, p.logprobs = 20; })},
      {"penalties, 1000 tokens", false, with([](SamplingParams& p) { p.repetition_penalty = 1.1f; }), 1000},
      {"penalties, 100000 tokens", false, with([](SamplingParams& p) { p.repetition_penalty = 1.1f; }), 100000},
  };
}

void run(benchmark::State& state, const Kernel<SampleArgs>& kernel, const Setup& setup) {
  std::mt19937_64 gen(1);
  std::normal_distribution<float> noise(0.0f, 2.0f);
  std::vector<float> logits(kVocab);
  for (float& x : logits) x = noise(gen);
  if (!setup.flat)
    for (int i = 0; i < 40; ++i) logits[gen() % kVocab] = 10.0f + noise(gen) * 2;
  std::vector<int32_t> seen(static_cast<size_t>(setup.seen));
  for (int32_t& id : seen) id = static_cast<int32_t>(gen() % 4096 * 60);

  ThreadPool pool(1);
  Workspace workspace;
  const OpContext ctx{pool, workspace};
  std::vector<int32_t> history(static_cast<size_t>(token_history_bytes(1, kVocab, kVocab)) / sizeof(int32_t));
  const TokenHistory h = lay_out_token_history(history.data(), 1, kVocab, kVocab);
  const HistoryUpdate range{.history = 0, .count = setup.seen, .prompt = setup.seen / 2};
  update_history(ctx, {seen.data(), setup.seen, &range, 1, h});

  constexpr int kTop = 20;
  SampleRow row;
  SampleRowList list({kVocab, 0, 1, kTop, 0}, {{&row, 1}, {}, {}});
  const Status added = list.add(setup.params, {.history = setup.seen > 0 ? 0 : -1, .tentative = true});
  QUIRE_CHECK(added.ok(), "{}", added.error().message);
  int32_t token = 0, top_count = 0, top_ids[kTop];
  float logprob = 0, top_logprobs[kTop];
  const SampleArgs args{.logits = make_tensor(logits.data(), {1, kVocab}),
                        .rows = &row,
                        .history = h,
                        .out = {.tokens = make_tensor(&token, {1}),
                                .logprobs = make_tensor(&logprob, {1}),
                                .top_ids = make_tensor(top_ids, {1, kTop}),
                                .top_logprobs = make_tensor(top_logprobs, {1, kTop}),
                                .top_count = make_tensor(&top_count, {1})}};
  for (auto _ : state) {
    ++row.position;
    kernel.launch(ctx, args);
    benchmark::DoNotOptimize(token);
  }
  bench::report_rates(state, kSampleOp.traffic(args));
}

void add_all() {
  for (const Kernel<SampleArgs>& kernel : bench::kernels(kSampleOp))
    for (const Setup& s : setups())
      bench::add(fmt::format("{}/{}", kernel.name, s.name), [=](benchmark::State& state) {
        run(state, kernel, s);
      })->Unit(benchmark::kMicrosecond);
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::bench::main(argc, argv, quire::add_all);
}
