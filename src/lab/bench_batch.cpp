// quire bench-batch: prompts and generation of many sequences at once, for a list of widths.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "command/display.h"
#include "command/options.h"
#include "core/escape.h"
#include "core/output.h"
#include "core/progress.h"
#include "lab/batch_workload.h"
#include "lab/commands.h"
#include "lab/model_source.h"

namespace quire::cli {
namespace {

struct BenchBatchOptions {
  ModelSource source;
  ModelOptions model{.device = Device::kCpu};
  ComputeOptions compute;
  int64_t prompt = 128, generate = 128;
  std::vector<int32_t> widths = {1, 8, 32, 64, 128, 256};
  int repetitions = 3;
  int32_t batch_tokens = 0;
  uint64_t seed = 1;
  std::vector<float> accept;
  bool json = false;

  Status check() const;
  // What --accept makes of speculation.
  Status simulate(SpeculativeOptions& to) const;
};

Status BenchBatchOptions::check() const {
  QUIRE_CHECKED(source.check());
  return {};
}

// A width and what its repetitions took.
struct Width {
  BatchShape shape;
  std::vector<BatchRun> runs = {};

  template <class Of>
  std::vector<double> each(Of&& of) const {
    std::vector<double> values;
    for (const BatchRun& r : runs) values.push_back(of(r));
    return values;
  }
};

// What is reported of a width: the median over its repetitions.
struct Figure {
  const char *heading, *key;
  int decimals;
  double unit;  // of the table, in what `of` gives
  double (*of)(const BatchShape&, const BatchRun&);
};
constexpr Figure kFigures[] = {
    {"prefill t/s", "prefill_tokens_per_second", 1, 1,
     [](const BatchShape& s, const BatchRun& r) { return r.prefill_rate(s); }},
    {"decode t/s", "decode_tokens_per_second", 1, 1,
     [](const BatchShape&, const BatchRun& r) { return r.decode_rate(); }},
    {"total t/s", "tokens_per_second", 1, 1, [](const BatchShape& s, const BatchRun& r) { return r.total_rate(s); }},
    {"TTFT ms", "first_token_seconds", 2, 1e-3,
     [](const BatchShape&, const BatchRun& r) { return r.first_token_seconds; }},
    {"step ms", "step_seconds", 3, 1e-3, [](const BatchShape& s, const BatchRun& r) { return r.step_seconds(s); }},
    {"tokens/step", "tokens_per_step", 2, 1, [](const BatchShape&, const BatchRun& r) { return r.tokens_per_step; }},
    {"host us", "step_host_seconds", 1, 1e-6, [](const BatchShape&, const BatchRun& r) { return r.step_host_seconds; }},
};

std::vector<double> values_of(const Width& w, const Figure& f) {
  return w.each([&](const BatchRun& r) { return f.of(w.shape, r); });
}

// A first round is not counted: it touches memory and captures graphs. Widths take turns, so that a slow minute of the
// machine falls on all of them.
Status measure(const BenchBatchOptions& o, Engine& engine, std::vector<Width>& widths) {
  BatchWorkload workload(engine, o.seed);
  Progress progress("measuring", static_cast<int64_t>(widths.size()) * (o.repetitions + 1));
  for (int round = 0; round <= o.repetitions; ++round)
    for (Width& w : widths) {
      QUIRE_TRY(const BatchRun run, workload.run(w.shape));
      if (round > 0) w.runs.push_back(run);
      progress.add(1);
    }
  return {};
}

void print_table(const BenchBatchOptions& o, const Engine& engine, const std::vector<Width>& widths) {
  const MemoryUse m = engine.memory();
  print_out("{}: prompts of {} tokens, {} generated, steps of up to {} tokens, median of {}\n",
            escaped(o.source.name()), o.prompt, o.generate, engine.plan().max_batch_tokens, o.repetitions);
  if (!o.accept.empty()) print_out("acceptance of drafts is simulated, by depth: {}\n", fmt::join(o.accept, ", "));
  print_out("{}; weights {} mapped and {} packed, caches {}, scratch {}\n\n", engine.fingerprint(),
            human_bytes(static_cast<uint64_t>(m.mapped)), human_bytes(static_cast<uint64_t>(m.repacked)),
            human_bytes(static_cast<uint64_t>(m.kv_and_state)), human_bytes(static_cast<uint64_t>(m.workspace)));
  print_out("| {:>9} |", "sequences");
  for (const Figure& f : kFigures) print_out(" {:>11} |", f.heading);
  print_out("\n|{:->10}:|", "");
  for ([[maybe_unused]] const Figure& f : kFigures) print_out("{:->12}:|", "");
  for (const Width& w : widths) {
    print_out("\n| {:>9} |", w.shape.sequences);
    for (const Figure& f : kFigures) print_out(" {:>11.{}f} |", median(values_of(w, f)) / f.unit, f.decimals);
  }
  print_out("\n");
}

void print_json(const BenchBatchOptions& o, const Engine& engine, const std::vector<Width>& widths) {
  const MemoryUse m = engine.memory();
  nlohmann::ordered_json out = {
      {"version", QUIRE_VERSION},
      {"model", o.source.name()},
      {"device", name_of(kDevices, engine.plan().device)},
      {"fingerprint", engine.fingerprint()},
      {"prompt_tokens", o.prompt},
      {"generated_tokens", o.generate},
      {"batch_tokens", engine.plan().max_batch_tokens},
      {"simulated_acceptance", o.accept},
      {"memory",
       {{"mapped", m.mapped}, {"repacked", m.repacked}, {"cache", m.kv_and_state}, {"workspace", m.workspace}}}};
  auto& list = out["widths"] = nlohmann::ordered_json::array();
  for (const Width& w : widths) {
    nlohmann::ordered_json one = {{"sequences", w.shape.sequences}};
    for (const Figure& f : kFigures) one[f.key] = median(values_of(w, f));
    auto& runs = one["repetitions"] = nlohmann::ordered_json::object();
    for (const Figure& f : kFigures) runs[f.key] = values_of(w, f);
    list.push_back(std::move(one));
  }
  print_out("{}\n", out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

Status BenchBatchOptions::simulate(SpeculativeOptions& to) const {
  if (accept.empty()) return {};
  if (std::ssize(accept) > kMostDrafts) return request_error("--accept: at most {} numbers", kMostDrafts);
  for (const float share : accept)
    if (!(share >= 0 && share <= 1)) return request_error("--accept {}: shares are between 0 and 1", share);
  if (to.mode == Speculative::kOff) to.mode = Speculative::kAuto;
  to.tokens = static_cast<int32_t>(accept.size());
  to.simulated = accept;
  return {};
}

Status bench_batch(const BenchBatchOptions& o) {
  QUIRE_CHECKED(o.check());
  std::vector<Width> widths;
  std::vector<BatchShape> shapes;
  for (const int32_t n : o.widths) {
    shapes.push_back({.sequences = n, .prompt = o.prompt, .generate = o.generate});
    widths.push_back({.shape = shapes.back()});
  }
  EngineOptions options;
  QUIRE_CHECKED(o.model.apply(options));
  QUIRE_CHECKED(o.compute.apply(options));
  QUIRE_CHECKED(o.simulate(options.speculative));
  QUIRE_TRY(const std::shared_ptr<const LoadedModel> model, o.source.load(options.device));
  QUIRE_TRY(const std::unique_ptr<Engine> engine,
            Engine::create(model, options_for(shapes, std::move(options), o.batch_tokens)));
  tell(engine->capacity());
  QUIRE_CHECKED(measure(o, *engine, widths));
  if (o.json) {
    print_json(o, *engine, widths);
  } else {
    print_table(o, *engine, widths);
  }
  report_forced(engine->forced_kernels());
  return {};
}

}  // namespace

Action add_bench_batch(Flags& flags) {
  auto o = std::make_shared<BenchBatchOptions>();
  o->compute.speculative.method = Speculative::kOff;
  o->source.add(flags);
  o->model.add_compute(flags);
  o->compute.add(flags);
  flags.add("-npp,--npp", &o->prompt, between(1, 1 << 20), "Tokens of every prompt");
  flags.add("-ntg,--ntg", &o->generate, between(1, 1 << 20), "Tokens that every sequence generates after its first");
  flags.add("-npl,--npl", &o->widths, between(1, 4096), "Sequences at once; several numbers, several rows");
  flags.add("-r,--repetitions", &o->repetitions, between(1, 1000), "Repetitions, after one that is not counted");
  flags.add("--accept 0.9,0.8,...", &o->accept,
            "Measure speculation: chance takes so large a share of the drafts at each depth for right ones, and "
            "texts mean nothing. As many drafts as numbers");
  flags.add("--batch-tokens", &o->batch_tokens, at_least(0),
            "Rows of a step: the largest piece of prompts; 0: 8192 on a GPU, else 512");
  flags.add("--seed", &o->seed, "Seed of the random prompts").any_bits();
  flags.add("--json", &o->json, "Print one JSON object, with every repetition");
  flags.footer(
      "All prompts of a width are there before the first step. Prefill lasts until every sequence has its "
      "first\ntoken, decode from then until the first one ends. One engine, made for the widest, serves all "
      "widths.");
  return [o] { return bench_batch(*o); };
}

}  // namespace quire::cli
