// quire bench: how fast a model runs, and how much of the machine's measured limits that is.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "command/display.h"
#include "command/options.h"
#include "command/speculative_flags.h"
#include "command/text_input.h"
#include "core/escape.h"
#include "core/output.h"
#include "core/progress.h"
#include "engine/cuda_device.h"
#include "engine/engine.h"
#include "lab/batch_workload.h"
#include "lab/commands.h"
#include "lab/model_source.h"
#include "model/cost.h"
#include "ops/probe/probe.h"

namespace quire::cli {
namespace {

struct BenchOptions {
  ModelSource source;
  KvCacheOption kv_cache;
  ActivationsOption activations;
  CardCostsOption card_costs;
  Device device = Device::kCpu;
  std::string format = "md";
  int64_t prompt = 512, generate = 32;
  int repetitions = 3, threads = 0;
  int32_t batch_tokens = 512;
  int gpu = 0;
  std::vector<int32_t> batch = {1};
  bool repack = true;
  SpeculativeFlags speculative;
  std::string text;  // file that prompts are taken from; empty: random tokens
};

constexpr int64_t kShortPrompt = 16;  // before a measured generation
constexpr int64_t kTextPrompt = 64;   // the same, of a text
constexpr int32_t kMaxBatch = 1024;
constexpr int64_t kMostText = int64_t{64} << 20;

// One repetition of one test, beside the machine's limit around it.
struct Measurement {
  double seconds = 0;
  double limit = 0;  // bytes or operations per second; 0: not measured
};

// A test and its repetitions.
struct Test {
  std::string name;
  int32_t sequences = 1;
  double tokens = 0;  // computed by one repetition
  double amount = 0;  // bytes or operations of one repetition
  bool memory_bound = false;
  bool drafts = false;  // of those that are drafted for
  int64_t verified = 0, right = 0;
  std::shared_ptr<Engine> engine = nullptr;  // for so many sequences
  std::vector<Measurement> runs = {};

  template <class Of>
  double median(Of&& of) const {
    std::vector<double> values;
    for (const Measurement& m : runs) values.push_back(of(m));
    return cli::median(std::move(values));
  }
  double rate() const {
    return median([&](const Measurement& m) { return tokens / m.seconds; });
  }
  double achieved() const {
    return median([&](const Measurement& m) { return amount / m.seconds; });
  }
  double limit() const {
    return median([](const Measurement& m) { return m.limit; });
  }
  double share() const {
    return median([&](const Measurement& m) { return amount / m.seconds / m.limit; });
  }
};

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

class Bench {
 public:
  Bench(const BenchOptions& o, std::shared_ptr<const LoadedModel> model, Device device, KvCacheType kv)
      : o_(o),
        model_(std::move(model)),
        device_(device),
        kv_(kv),
        probing_(o.threads > 0 ? o.threads : available_cpus()),
        cost_(model_cost(model_->file, config(), model_->model->cache_shape(device, kv))) {}

  // Names the tests and makes their engines.
  Status prepare() {
    QUIRE_TRY(speculative_, o_.speculative.parsed());
    QUIRE_CHECKED(read_text_prompts());
    if (device_ == Device::kCuda) {
      QUIRE_TRY(const std::vector<GpuInfo> gpus, list_gpus());
      if (static_cast<size_t>(o_.gpu) < gpus.size()) gpu_bandwidth_ = gpus[static_cast<size_t>(o_.gpu)].copy_bandwidth;
    }
    if (o_.prompt > 0)
      tests_.push_back({.name = fmt::format("prompt {}", o_.prompt),
                        .tokens = static_cast<double>(o_.prompt),
                        .amount = cost_.prompt_flops(o_.prompt)});
    if (o_.generate > 0)
      for (const int32_t n : o_.batch) {
        tests_.push_back(generation(n, false));
        if (speculative_.enabled()) tests_.push_back(generation(n, true));
      }
    // A GPU holds one copy of the weights, and there the number of places decides nothing about kernels.
    if (device_ == Device::kCuda) {
      QUIRE_TRY(const std::shared_ptr<Engine> engine, make_engine(*std::max_element(o_.batch.begin(), o_.batch.end())));
      for (Test& t : tests_) t.engine = engine;
      return {};
    }
    std::shared_ptr<Engine> last;
    for (Test& t : tests_) {
      if (!t.drafts) {  // those with drafts follow the same without
        QUIRE_TRY(last, make_engine(t.sequences));
      }
      t.engine = last;
    }
    return {};
  }

  Result<std::vector<Test>> run() {
    // A first round warms the caches up and is not counted. Tests take turns, so that a slow minute of the
    // machine falls on all of them.
    Progress progress("measuring", static_cast<int64_t>(tests_.size()) * (o_.repetitions + 1));
    for (int round = 0; round <= o_.repetitions; ++round)
      for (Test& t : tests_) {
        engine_ = t.engine.get();
        const StepStats before = engine_->stats();
        QUIRE_TRY(const Measurement m, measure(t));
        const StepStats after = engine_->stats();
        if (round > 0) {
          t.runs.push_back(m);
          t.verified += after.drafts - before.drafts;
          t.right += after.drafts_accepted - before.drafts_accepted;
        }
        progress.add(1);
      }
    return tests_;
  }

 private:
  const ModelConfig& config() const { return model_->model->config(); }

  // Each test has an engine for its own number of sequences, as a server with so many places would: how many
  // there may be decides about kernels.
  Result<std::shared_ptr<Engine>> make_engine(int32_t sequences) const {
    const int64_t generation = prompt_before_generation() + o_.generate + 2;
    EngineOptions e{
        .device = device_, .gpu = o_.gpu, .threads = o_.threads, .max_sequences = sequences, .kv_cache = kv_};
    e.context = std::max(o_.prompt + 2, generation);
    e.kv_tokens = std::max(e.context, sequences * (generation + kBlockTokens)) + kBlockTokens;
    e.max_batch_tokens = o_.batch_tokens;
    e.repack = o_.repack;
    e.activations = o_.activations.activations;
    e.speculative = speculative_;
    QUIRE_TRY(std::unique_ptr<Engine> engine, Engine::create(model_, e));
    return std::shared_ptr<Engine>(std::move(engine));
  }

  Test generation(int32_t sequences, bool drafts) const {
    const auto steps = static_cast<double>(o_.generate);
    const double context = static_cast<double>(prompt_before_generation()) + (steps + 1) / 2;  // on average
    return {.name = fmt::format("generate {}{}", o_.generate, drafts ? ", drafts" : ""),
            .sequences = sequences,
            .tokens = steps * sequences,
            .amount = steps * cost_.decode_bytes(sequences, context),
            .memory_bound = true,
            .drafts = drafts};
  }
  int64_t prompt_before_generation() const { return text_.empty() ? kShortPrompt : kTextPrompt; }

  Status read_text_prompts() {
    if (o_.text.empty()) return {};
    QUIRE_TRY(const std::string text, read_text(o_.text, kMostText, "that is too much to take prompts from"));
    if (!model_->tokenizer) return request_error("--text {}: the model has no tokenizer", escaped(o_.text));
    text_ = model_->tokenizer->encode(text, {});
    if (std::ssize(text_) < 2 * kTextPrompt)
      return request_error("--text {}: {} tokens, but prompts need {}", escaped(o_.text), text_.size(),
                           2 * kTextPrompt);
    return {};
  }

  // A CPU's limit is the mean of what the probe finds before and after; a GPU is nobody else's, and is probed once.
  Result<Measurement> measure(const Test& t) {
    const auto probe = [&] {
      if (device_ == Device::kCuda) return t.memory_bound ? gpu_bandwidth_ : 0.0;
      return t.memory_bound ? measure_read_bandwidth(probing_) : measure_bf16_peak(probing_);
    };
    Measurement m;
    const double before = probe();
    QUIRE_TRY(m.seconds, t.memory_bound ? time_generation(t) : time_prompt());
    m.limit = (before + probe()) / 2;
    return m;
  }

  Request request(int64_t prompt, int64_t generate) {
    Request r;
    std::uniform_int_distribution<TokenId> any(0, static_cast<TokenId>(config().vocab - 1));
    const auto begin = text_.empty() ? 0 : std::uniform_int_distribution<size_t>(0, text_.size() - 1)(random_);
    for (int64_t i = 0; i < prompt; ++i)
      r.prompt.edit().push_back(text_.empty() ? any(random_) : text_[(begin + static_cast<size_t>(i)) % text_.size()]);
    r.max_tokens = generate;
    r.ignore_eos = true;
    return r;
  }

  // From submitting a prompt to its first token.
  Result<double> time_prompt() {
    const auto start = Clock::now();
    QUIRE_CHECKED(submit(request(o_.prompt, 1), 1));
    QUIRE_CHECKED(run_to_the_end());
    return seconds_between(start, last_);
  }

  // The steps after every sequence has its first token, as listeners hear of them.
  Result<double> time_generation(const Test& t) {
    const int64_t prompt = prompt_before_generation();
    if (t.sequences * prompt > o_.batch_tokens)
      return request_error("{} sequences do not start in one step; raise --batch-tokens to {}", t.sequences,
                           t.sequences * prompt);
    // All of them are there before the first step, which takes all prompts.
    if (!t.drafts) of_plain_ = random_;
    random_ = of_plain_;  // the same prompts with drafts and without
    for (int32_t i = 0; i < t.sequences; ++i) {
      Request r = request(prompt, o_.generate + 1);
      r.speculative = t.drafts;
      QUIRE_CHECKED(submit(std::move(r), t.sequences));
    }
    QUIRE_CHECKED(run_to_the_end());
    return seconds_between(first_, last_);
  }

  // `sequences`: the measurement begins when so many tokens have come.
  Status submit(Request r, int32_t sequences) {
    tokens_ = 0;
    const auto listener = [this, sequences](const TokenEvent& e) {
      last_ = Clock::now();
      if (e.token() >= 0 && ++tokens_ == sequences) first_ = last_;
      if (e.error() != nullptr) error_ = *e.error();
    };
    QUIRE_TRY([[maybe_unused]] const RequestId id, engine_->submit(std::move(r), listener));
    return {};
  }

  Status run_to_the_end() {
    while (engine_->busy()) engine_->step();
    if (error_) return *error_;
    return {};
  }

  const BenchOptions& o_;
  std::shared_ptr<const LoadedModel> model_;
  Device device_;
  KvCacheType kv_;
  ThreadPool probing_;
  Engine* engine_ = nullptr;  // of the test under way
  ModelCost cost_;
  double gpu_bandwidth_ = 0;  // of copies within it
  std::mt19937 random_{1}, of_plain_;
  SpeculativeOptions speculative_;
  std::vector<TokenId> text_;
  std::vector<Test> tests_;
  int64_t tokens_ = 0;              // heard since the last reset
  Clock::time_point first_, last_;  // when all sequences had their first token, and the last event
  std::optional<Error> error_;
};

void print_table(const std::vector<Test>& tests) {
  print_out("| {:<20} | {:>9} | {:>9} | {:>22} | {:>22} | {:>8} |\n", "test", "sequences", "tokens/s", "achieved",
            "measured limit", "of limit");
  print_out("|{:-<22}|{:->10}:|{:->10}:|{:->23}:|{:->23}:|{:->9}:|\n", "", "", "", "", "", "");
  for (const Test& t : tests) {
    const double unit = t.memory_bound ? 1e9 : 1e12;
    const char* name = t.memory_bound ? "GB/s read" : "TFLOP/s bf16";
    const bool limited = t.limit() > 0;
    print_out("| {:<20} | {:>9} | {:>9.1f} | {:>22} | {:>22} | {:>8} |\n", t.name, t.sequences, t.rate(),
              fmt::format("{:.2f} {}", t.achieved() / unit, name),
              limited ? fmt::format("{:.2f} {}", t.limit() / unit, name) : "-",
              limited ? fmt::format("{:.1f}%", 100 * t.share()) : "-");
  }
  for (const Test& t : tests)
    if (t.drafts)
      print_out("{} sequences: {} of {} drafts were right{}\n", t.sequences, t.right, t.verified,
                t.verified == 0 ? ": none was worth its time" : "");
}

void print_json(const std::string& model, int threads, const std::vector<Test>& tests) {
  nlohmann::ordered_json out = {{"version", QUIRE_VERSION}, {"model", model}, {"threads", threads}};
  out["tests"] = nlohmann::ordered_json::array();
  for (const Test& t : tests) {
    nlohmann::ordered_json seconds = nlohmann::ordered_json::array();
    for (const Measurement& m : t.runs) seconds.push_back(m.seconds);
    out["tests"].push_back({{"name", t.name},
                            {"sequences", t.sequences},
                            {"tokens_per_second", t.rate()},
                            {"bound", t.memory_bound ? "memory" : "compute"},
                            {"achieved_per_second", t.achieved()},
                            {"limit_per_second", t.limit()},
                            {"share", t.limit() > 0 ? nlohmann::ordered_json(t.share()) : nlohmann::ordered_json()},
                            {"seconds", std::move(seconds)}});
    if (t.drafts) out["tests"].back()["speculation"] = {{"drafts", t.verified}, {"accepted", t.right}};
  }
  print_out("{}\n", out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

Status check_options(const BenchOptions& o) {
  if (o.prompt == 0 && o.generate == 0) return request_error("-p 0 -n 0 leaves nothing to measure");
  if (o.gpu < 0 || (o.gpu > 0 && o.device != Device::kCuda))
    return request_error("--gpu {}: GPUs are counted from 0, and --device cuda uses one", o.gpu);
  return {};
}

Status bench(const BenchOptions& o) {
  QUIRE_CHECKED(check_options(o));
  const int threads = o.threads == 0 ? available_cpus() : o.threads;
  QUIRE_CHECKED(o.card_costs.apply(o.device, o.gpu));
  QUIRE_TRY(const auto model, o.source.load(o.device));
  Bench bench(o, model, o.device, o.kv_cache.type);
  QUIRE_CHECKED(bench.prepare());
  if (o.format == "md") {
    print_out("{}: {}, {} threads, median of {}\n\n", escaped(o.source.name()), human_bytes(model->file.mapped_bytes()),
              threads, o.repetitions);
    (void)flush_output();
  }
  QUIRE_TRY(const std::vector<Test> tests, bench.run());
  if (o.format == "md") {
    print_table(tests);
  } else {
    print_json(o.source.name(), threads, tests);
  }
  return {};
}

}  // namespace

Action add_bench(Flags& flags) {
  auto o = std::make_shared<BenchOptions>();
  o->source.add(flags);
  flags.add("-p,--prompt", &o->prompt, between(0, 1 << 20), "Tokens of the measured prompt; 0: do not measure one");
  flags.add("-n,--generate", &o->generate, between(0, 1 << 16), "Tokens to generate for each sequence; 0: none");
  flags.add("-r,--repetitions", &o->repetitions, between(1, 1000), "Repetitions, after one that is not counted");
  flags.add("--batch", &o->batch, between(1, kMaxBatch),
            "Sequences that generate at once, in an engine for so many; several numbers, several tests");
  flags.add("--batch-tokens", &o->batch_tokens, "Rows of a step: the largest piece of a prompt");
  flags.add("!--no-repack", &o->repack, "Generate from the weights as the file has them");
  flags.add("-t,--threads", &o->threads, "Threads (default: all CPUs)").default_text("");
  flags.add("--device", chosen(&o->device, kDevices), "cpu, cuda, or reference: plain loops");
  flags.add("--gpu", &o->gpu, "With --device cuda: which GPU, as `quire devices` counts them");
  o->kv_cache.add(flags);
  o->activations.add(flags);
  o->card_costs.add(flags);
  o->speculative.method = Speculative::kOff;
  o->speculative.add(flags);
  flags.add("--text FILE", &o->text,
            "Take prompts of generations from this file: drafts of random tokens say nothing of real texts");
  flags.add("-o,--output", chosen_text(&o->format, {{"md"}, {"json"}}), "md: a table; json");
  return [o] { return bench(*o); };
}

}  // namespace quire::cli
