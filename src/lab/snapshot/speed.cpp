#include "lab/snapshot/speed.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "core/cpu.h"
#include "ops/probe/probe.h"

namespace quire::cli::snapshot {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kReadingSeconds = 0.25;  // passes are repeated until a reading takes about that
constexpr int kMostPasses = 5;
constexpr double kLeastShare = 0.04;  // of its phase: operators that take less are no figures

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<int32_t> widths_for(Device device, bool quick) {
  if (device == Device::kCuda) return quick ? std::vector{32} : std::vector{8, 32, 64, 128};
  return quick ? std::vector{8} : std::vector{2, 4, 8, 16};
}

// Of a phase of `seconds`, the buckets that are worth a figure.
bool is_figure(const Bucket& b, const std::vector<Bucket>& all) {
  double phase = 0;
  for (const Bucket& other : all)
    if (other.phase == b.phase) phase += other.seconds;
  return b.seconds >= kLeastShare * phase;
}

std::string figure_name(const Bucket& b) {
  return fmt::format("{} {}", b.phase, b.op);
}

}  // namespace

FixedLoops::FixedLoops(int threads) : pool_(threads), data_(size_t{4} << 20, 1) {}

Reading FixedLoops::run() {
  Reading best;
  std::atomic<uint64_t> kept{0};
  for (int i = 0; i < 3; ++i) {
    const auto start = Clock::now();
    constexpr int64_t kPiece = 1 << 16;
    pool_.parallel_for(static_cast<int64_t>(data_.size()), kPiece, [&](int64_t begin, int64_t end, int) {
      uint64_t sum = 0;
      for (int64_t k = begin; k < end; ++k) sum += data_[static_cast<size_t>(k)];
      kept.fetch_add(sum, std::memory_order_relaxed);
    });
    best.memory = std::max(best.memory, static_cast<double>(data_.size() * sizeof(uint64_t)) / seconds_since(start));
  }
  best.compute = measure_bf16_peak(pool_);
  QUIRE_CHECK(kept.load() == 3 * data_.size(), "the loop read something else");
  return best;
}

SpeedTests::SpeedTests(std::shared_ptr<const LoadedModel> model, SpeedOptions options)
    : model_(std::move(model)), options_(std::move(options)) {
  const int threads = options_.engine.threads > 0 ? options_.engine.threads : available_cpus();
  if (options_.engine.device != Device::kCuda) loops_ = std::make_unique<FixedLoops>(threads);
}

Result<std::unique_ptr<SpeedTests>> SpeedTests::create(std::shared_ptr<const LoadedModel> model, SpeedOptions options) {
  std::unique_ptr<SpeedTests> tests(new SpeedTests(std::move(model), std::move(options)));
  QUIRE_CHECKED(tests->make_batches());
  if (tests->options_.operators && tests->options_.engine.device != Device::kCuda)
    QUIRE_CHECKED(tests->make_operators());
  QUIRE_CHECKED(tests->warm_up());
  return tests;
}

// One engine for a sequence alone, as `quire run` has it, and one for the widths.
Status SpeedTests::make_batches() {
  const int64_t context = model_->model->config().context_length;
  const bool quick = options_.quick;
  const BatchShape one{.sequences = 1,
                       .prompt = std::min<int64_t>(quick ? 128 : 512, context / 2),
                       .generate = std::min<int64_t>(quick ? 16 : 64, context / 4)};
  std::vector<BatchShape> single{one}, wide;
  // A long prompt, where that takes no longer than all the others together.
  constexpr int64_t kLong = 2048;
  if (options_.engine.device == Device::kCuda && !quick && context >= 2 * kLong)
    single.push_back({.sequences = 1, .prompt = kLong, .generate = 16});
  for (const int32_t n : widths_for(options_.engine.device, quick))
    wide.push_back({.sequences = n,
                    .prompt = std::min<int64_t>(quick ? 16 : 64, context / 2),
                    .generate = std::min<int64_t>(quick ? 8 : 32, context / 4)});
  const auto add = [&](std::span<const BatchShape> shapes, bool alone) -> Status {
    QUIRE_TRY(std::unique_ptr<Engine> made, Engine::create(model_, options_for(shapes, options_.engine, 0)));
    const std::shared_ptr<Engine> engine = std::move(made);
    for (const BatchShape& s : shapes) {
      batches_.push_back({engine, s, alone});
      Task t{.name = alone ? "one sequence" : fmt::format("{} sequences", s.sequences)};
      if (alone && &s != &shapes.front()) t.name += ", a long prompt";
      t.figures.push_back({.name = alone ? fmt::format("pp{}", s.prompt) : fmt::format("npl{} prompts", s.sequences),
                           .unit = "tokens/s"});
      t.figures.push_back({.name = alone ? fmt::format("tg{}", s.generate) : fmt::format("npl{} decode", s.sequences),
                           .unit = "tokens/s"});
      tasks_.push_back(std::move(t));
    }
    if (alone) fingerprint_ = engine->fingerprint();
    if (!alone) capacity_ = engine->capacity();
    return {};
  };
  QUIRE_CHECKED(add(single, true));
  return add(wide, false);
}

Status SpeedTests::make_operators() {
  const EngineOptions& e = options_.engine;
  const OperatorProfile::Shape shape =
      options_.quick ? OperatorProfile::Shape{.prompt = 64, .generated = 8} : OperatorProfile::Shape{};
  QUIRE_TRY(
      operators_,
      OperatorProfile::create(
          model_, {.device = e.device, .threads = e.threads, .kernels = e.kernels, .kv_cache = e.kv_cache}, shape));
  QUIRE_TRY([[maybe_unused]] const std::vector<Bucket> cold, operators_->run());
  QUIRE_TRY(const std::vector<Bucket> warm, operators_->run());
  Task t{.name = "operators"};
  for (const Bucket& b : warm)
    if (is_figure(b, warm)) t.figures.push_back({.name = figure_name(b), .unit = "s", .more_is_better = false});
  tasks_.push_back(std::move(t));
  return {};
}

Status SpeedTests::warm_up() {
  for (size_t i = 0; i < tasks_.size(); ++i) {
    QUIRE_TRY([[maybe_unused]] const std::vector<double> cold, pass(i));
    const auto start = Clock::now();
    QUIRE_TRY([[maybe_unused]] const std::vector<double> warm, pass(i));
    tasks_[i].seconds = seconds_since(start);
    tasks_[i].passes =
        static_cast<int>(std::clamp(kReadingSeconds / tasks_[i].seconds, 1.0, static_cast<double>(kMostPasses)));
  }
  return {};
}

double SpeedTests::seconds() const {
  double sum = 0;
  for (const Task& t : tasks_) sum += t.seconds * t.passes + (loops_ ? 0.06 : 0);
  return sum;
}

void SpeedTests::keep_best(const std::vector<Bucket>& buckets) {
  for (const Bucket& b : buckets) {
    const auto same = [&](const Bucket& x) { return x.phase == b.phase && x.op == b.op; };
    const auto at = std::find_if(buckets_.begin(), buckets_.end(), same);
    if (at == buckets_.end())
      buckets_.push_back(b);
    else
      at->seconds = std::min(at->seconds, b.seconds);
  }
}

Result<std::vector<double>> SpeedTests::pass_operators() {
  QUIRE_TRY(const std::vector<Bucket> buckets, operators_->run());
  keep_best(buckets);
  std::vector<double> values;
  for (const Figure& f : tasks_.back().figures)
    for (const Bucket& b : buckets)
      if (figure_name(b) == f.name) values.push_back(b.seconds);
  return values;
}

Result<std::vector<double>> SpeedTests::pass(size_t task) {
  if (task >= batches_.size()) return pass_operators();
  const Batch& b = batches_[task];
  BatchWorkload workload(*b.engine, seed_++);
  QUIRE_TRY(const BatchRun run, workload.run(b.shape));
  return std::vector<double>{run.prefill_rate(b.shape), run.decode_rate()};
}

Result<std::vector<Reading>> SpeedTests::read(size_t task) {
  const Task& t = tasks_.at(task);
  const Reading before = loops_ ? loops_->run() : Reading{};
  std::vector<Reading> best(t.figures.size());
  for (int i = 0; i < t.passes; ++i) {
    QUIRE_TRY(const std::vector<double> values, pass(task));
    for (size_t k = 0; k < best.size(); ++k) {
      double& kept = best[k].value;
      if (i == 0 || (t.figures[k].more_is_better ? values[k] > kept : values[k] < kept)) kept = values[k];
    }
  }
  const Reading after = loops_ ? loops_->run() : Reading{};
  for (Reading& r : best) {
    r.compute = (before.compute + after.compute) / 2;
    r.memory = (before.memory + after.memory) / 2;
  }
  return best;
}

}  // namespace quire::cli::snapshot
