#include "lab/snapshot/take.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "command/text_input.h"
#include "core/cpu.h"
#include "core/progress.h"
#include "lab/compare.h"
#include "lab/perplexity.h"
#include "lab/snapshot/child.h"
#include "lab/snapshot/gates.h"
#include "lab/snapshot/hardware.h"

namespace quire::cli::snapshot {
namespace {

using Parts = std::vector<Stages::Stage>;

// Seconds are what a part takes of a demo model on two quiet CPUs; those of speeds are known once these are warm.
const Stages::Stage kParts[] = {{"machine", 1}, {"conformance", 25}, {"bits", 2},     {"company", 1}, {"quality", 5},
                                {"speed", 40},  {"buckets", 5},      {"serving", 10}, {"peers", 10}};
constexpr double kQuickShare = 0.2;
constexpr double kSpeedSeconds = 40, kQuickSpeedSeconds = 3;
constexpr int kLeastRounds = 6, kMostRounds = 12;
constexpr int64_t kTextWindow = 512, kMostWindows = 20, kQuickWindows = 3;

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[40];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

class Taking {
 public:
  Taking(const TakeOptions& o, Device device, KvCacheType kv, SpeedOptions speed)
      : o_(o),
        device_(device),
        kv_(kv),
        speed_(std::move(speed)),
        stages_(plan(o), device == Device::kCuda ? o.model.gpu : -1) {}

  Result<Snapshot> run();

 private:
  using ModelPtr = std::shared_ptr<const LoadedModel>;
  static Parts plan(const TakeOptions& o) {
    Parts parts;
    for (Stages::Stage s : kParts) {
      if (std::find(o.skip.begin(), o.skip.end(), s.name) != o.skip.end()) continue;
      if (s.name == "peers") s.seconds *= static_cast<double>(o.peers.size());
      if (o.quick) s.seconds *= kQuickShare;
      parts.push_back(std::move(s));
    }
    return parts;
  }
  bool skipped(const char* part) const { return std::find(o_.skip.begin(), o_.skip.end(), part) != o_.skip.end(); }
  // Whether the part is done: it is not left out, and there is a model. If not, a gate says why.
  bool begin(const char* part, const char* what, bool needs_model = true);
  void add(std::string name, std::string what, GateResult result, std::string detail) {
    s_.gates.push_back({std::move(name), std::move(what), result, std::move(detail)});
  }

  void machine();
  void speed();
  Status read_speeds(SpeedTests& tests);
  void buckets();
  Status ask_profile();
  void quality();
  Status score(const ModelPtr& model);
  Status compare();
  void serving();
  void peers();
  SweepOptions sweep_options() const;

  const TakeOptions& o_;
  const Device device_;
  const KvCacheType kv_;
  const SpeedOptions speed_;
  Stages stages_;
  ModelPtr model_;
  std::vector<Bucket> measured_buckets_;
  Snapshot s_;
};

bool Taking::begin(const char* part, const char* what, bool needs_model) {
  if (skipped(part)) {
    add(part, what, GateResult::kSkipped, fmt::format("--skip {}", part));
    return false;
  }
  if (needs_model && !model_) {
    add(part, what, GateResult::kSkipped, "no model was given");
    return false;
  }
  stages_.begin(part);
  return true;
}

void Taking::machine() {
  s_.hardware = look_at_machine();
  if (skipped("machine")) return;
  stages_.begin("machine");
  measure_machine(s_.hardware, s_.threads);
}

Status Taking::read_speeds(SpeedTests& tests) {
  const double budget = o_.quick ? kQuickSpeedSeconds : kSpeedSeconds;
  const int rounds =
      o_.rounds > 0
          ? o_.rounds
          : static_cast<int>(std::clamp(budget / tests.seconds(), static_cast<double>(o_.quick ? 5 : kLeastRounds),
                                        static_cast<double>(kMostRounds)));
  stages_.expect("speed", rounds * tests.seconds());
  stages_.begin("speed");
  std::vector<std::vector<Figure>> figures;
  for (const SpeedTests::Task& t : tests.tasks()) figures.push_back(t.figures);
  // Tests take turns, so that a slow minute of the machine falls on all of them.
  Progress progress("speed", int64_t{1} * rounds * std::ssize(figures));
  for (int round = 0; round < rounds; ++round)
    for (size_t t = 0; t < figures.size(); ++t) {
      QUIRE_TRY(const std::vector<Reading> readings, tests.read(t));
      for (size_t i = 0; i < readings.size(); ++i) figures[t][i].readings.push_back(readings[i]);
      progress.add(1);
    }
  for (auto& of_task : figures)
    for (Figure& f : of_task) s_.figures.push_back(std::move(f));
  measured_buckets_ = tests.buckets();
  return {};
}

void Taking::speed() {
  const char* const what = "every speed could be measured";
  if (!begin("speed", what)) return;
  Result<std::unique_ptr<SpeedTests>> tests = SpeedTests::create(model_, speed_);
  Status status;
  if (!tests.ok()) {
    status = tests.take_error();
  } else {
    s_.fingerprint = (*tests)->fingerprint();
    status = read_speeds(**tests);
  }
  add("speed", what, status.ok() ? GateResult::kPassed : GateResult::kFailed,
      status.ok() ? fmt::format("{} figures, {} readings of each", s_.figures.size(),
                                s_.figures.empty() ? 0 : s_.figures.front().readings.size())
                  : status.error().message);
}

// On a CPU the speeds' own; a GPU's are recorded in another process, because recording slows everything down.
void Taking::buckets() {
  const char* const what = "what the time goes to is known";
  if (!begin("buckets", what)) return;
  s_.buckets = std::move(measured_buckets_);
  Status status;
  if (device_ == Device::kCuda) status = ask_profile();
  if (!status.ok()) s_.buckets_missing = status.error().message;
  if (s_.buckets.empty() && s_.buckets_missing.empty()) s_.buckets_missing = "no speed was measured";
  add("buckets", what, s_.buckets.empty() ? GateResult::kSkipped : GateResult::kPassed,
      s_.buckets.empty() ? s_.buckets_missing : fmt::format("{} operators", s_.buckets.size()));
}

Status Taking::ask_profile() {
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe").string(), "profile", "--json",
                                      "--npl", o_.quick ? "8" : "32"};
  for (std::string& a : o_.arguments()) command.push_back(std::move(a));
  QUIRE_TRY(const std::unique_ptr<Child> child, Child::start(command));
  std::string text;
  while (const std::optional<std::string> line = child->read_line()) text += *line + "\n";
  if (const int code = child->wait(); code != 0) return request_error("quire profile ended with code {}", code);
  try {
    const nlohmann::json j = nlohmann::json::parse(text);
    for (const char* const phase : {"prompts", "decode"}) {
      const nlohmann::json& p = j.at(phase);
      const auto steps = p.at("steps").get<double>();
      for (const auto& [op, row] : p.at("operators").items())
        s_.buckets.push_back({.phase = phase,
                              .op = op,
                              .calls = row.value("launches", int64_t{0}),
                              .seconds = row.value("seconds", 0.0),
                              .bytes = static_cast<int64_t>(row.value("bytes_per_step", 0.0) * steps),
                              .flops = static_cast<int64_t>(row.value("flops_per_step", 0.0) * steps)});
    }
  } catch (const nlohmann::json::exception& e) {
    return request_error("quire profile printed something else: {}", e.what());
  }
  return {};
}

Status Taking::score(const ModelPtr& model) {
  QUIRE_TRY(const std::string text, read_text(o_.text));
  const std::vector<TokenId> tokens = model->tokenizer->encode(text, {.add_special = false, .parse_special = false});
  WindowOptions cut{.window = std::min(kTextWindow, model->model->config().context_length),
                    .windows = o_.quick ? kQuickWindows : kMostWindows};
  QUIRE_TRY(cut.windows, cut.count(o_.text, std::ssize(tokens)));
  QUIRE_TRY(const std::unique_ptr<Scorer> scorer, Scorer::create(model, {.device = device_,
                                                                         .gpu = o_.model.gpu,
                                                                         .threads = o_.model.threads,
                                                                         .window = cut.window,
                                                                         .kernels = speed_.engine.kernels,
                                                                         .kv_cache = kv_}));
  QUIRE_TRY(const TextScore score, score_text(*scorer, tokens, cut, o_.source.name(), o_.text));
  s_.quality.text = std::filesystem::path(o_.text).filename().string();
  s_.quality.window = cut.window;
  s_.quality.windows = cut.windows;
  s_.quality.perplexity = score.perplexity();
  add("perplexity", "the model predicts the text with finite probabilities", GateResult::kPassed,
      fmt::format("{:.6f} over {} windows of {} tokens", score.perplexity(), cut.windows, cut.window));
  return {};
}

Status Taking::compare() {
  CompareOptions c;
  c.models = {o_.source.name()};
  c.compute = o_.model;
  c.kv_cache = o_.kv_cache;
  c.text = o_.text;
  c.logits = o_.reference;
  QUIRE_TRY(const Comparison found, compare_with_saved(c, model_));
  Quality& q = s_.quality;
  q.reference = found.reference;
  q.kl_mean = found.summary.mean;
  q.kl_p99 = found.summary.p99;
  q.top1_agreement = found.summary.top1_agreement;
  q.reference_perplexity = found.summary.perplexity_reference;
  const bool passes = o_.most_kl <= 0 || found.summary.mean <= o_.most_kl;
  add("divergence",
      o_.most_kl > 0 ? fmt::format("mean KL from the reference is at most {}", o_.most_kl)
                     : "the model can be held against the reference",
      passes ? GateResult::kPassed : GateResult::kFailed,
      fmt::format("mean KL {:.4g}, 99th percentile {:.4g}, same likeliest token {:.2f}%", found.summary.mean,
                  found.summary.p99, 100 * found.summary.top1_agreement));
  return {};
}

void Taking::quality() {
  const char* const what = "the model predicts a text as it should";
  if (o_.text.empty()) return add("quality", what, GateResult::kSkipped, "no --text was given");
  if (!begin("quality", what)) return;
  if (!model_->tokenizer) return add("quality", what, GateResult::kSkipped, "the model has no tokenizer");
  if (const Status scored = score(model_); !scored.ok())
    add("perplexity", what, GateResult::kFailed, scored.error().message);
  if (o_.reference.empty())
    return add("divergence", "the model is close to a reference", GateResult::kSkipped, "no --reference was given");
  if (const Status compared = compare(); !compared.ok())
    add("divergence", "the model is close to a reference", GateResult::kFailed, compared.error().message);
}

SweepOptions Taking::sweep_options() const {
  SweepOptions o;
  if (device_ == Device::kCuda) o.clients = {1, 8, 32};
  if (o_.quick) {
    o.clients = {1, 4};
    o.requests = 4;
    o.output_tokens = 8;
  }
  if (model_) {
    const int64_t context = model_->model->config().context_length;
    o.prompt_tokens = std::min(o.prompt_tokens, std::max<int64_t>(1, context / 8));  // a word may be several tokens
    o.output_tokens = std::min(o.output_tokens, std::max<int64_t>(1, context / 8));
  }
  return o;
}

void Taking::serving() {
  const char* const what = "requests over HTTP are answered";
  if (!begin("serving", what)) return;
  if (!model_->tokenizer) return add("serving", what, GateResult::kSkipped, "the model has no tokenizer");
  const Result<std::unique_ptr<LocalServer>> server = LocalServer::start(model_, o_.source.name(), speed_.engine);
  if (!server.ok()) return add("serving", what, GateResult::kFailed, server.error().message);
  Sweep found = sweep("quire", (*server)->url(), sweep_options());
  s_.gates.push_back(std::move(found.answered));
  s_.gates.push_back(std::move(found.same_texts));
  for (ServedLoad& l : found.loads) s_.loads.push_back(std::move(l));
}

void Taking::peers() {
  const char* const what = "other servers answer the same requests";
  if (o_.peers.empty()) return add("peers", what, GateResult::kSkipped, "no --peer was given");
  if (!begin("peers", what, false)) return;
  for (const Peer& p : o_.peers) {
    Sweep found = sweep(p.name, p.url, sweep_options());
    s_.gates.push_back(std::move(found.answered));  // that texts are the same at every load is nobody else's promise
    for (ServedLoad& l : found.loads) s_.loads.push_back(std::move(l));
  }
}

Result<Snapshot> Taking::run() {
  s_.program = "quire " QUIRE_VERSION;
  s_.time = now_text();
  s_.model = o_.has_model() ? std::filesystem::path(o_.source.name()).filename().string() : "";
  s_.device = name_of(kDevices, device_);
  s_.threads = o_.model.threads > 0 ? o_.model.threads : available_cpus();
  s_.quick = o_.quick;
  machine();
  if (o_.has_model()) {
    QUIRE_TRY(model_, o_.source.load(device_));
  }
  if (begin("conformance", "every kernel of this machine computes what the reference computes", false)) {
    ConformanceRun run = check_conformance(device_, o_.model.gpu, o_.model.threads, o_.quick);
    s_.gates.push_back(std::move(run.gate));
    s_.conformance = std::move(run.counts);
  }
  if (begin("bits", "the logits have the recorded bits"))
    for (Gate& g : check_bits(model_, device_, o_.model.gpu, numerics_table())) s_.gates.push_back(std::move(g));
  if (begin("company", "a request has the same tokens alone and beside others"))
    s_.gates.push_back(check_company(model_, speed_.engine));
  quality();
  speed();
  buckets();
  serving();
  peers();
  s_.memory = stages_.take_memory();
  s_.seconds = stages_.seconds();
  return std::move(s_);
}

}  // namespace

std::span<const std::string_view> part_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> all;
    for (const Stages::Stage& s : kParts) all.push_back(s.name);
    return all;
  }();
  return names;
}

Status check_parts(std::span<const std::string> names) {
  for (const std::string& name : names)
    if (std::find(part_names().begin(), part_names().end(), name) == part_names().end())
      return request_error("--skip {}: the parts are {}", name, fmt::join(part_names(), ", "));
  return {};
}

Result<SpeedOptions> TakeOptions::speed() const {
  SpeedOptions s{.quick = quick};
  QUIRE_CHECKED(model.apply(s.engine));
  s.engine.kv_cache = kv_cache.type;
  return s;
}

std::vector<std::string> TakeOptions::arguments() const {
  std::vector<std::string> all;
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) all.insert(all.end(), {name, value});
  };
  add("-m", source.file);
  add("--synth", source.preset);
  if (!source.preset.empty()) {
    add("--type", source.synth.type);
    add("--ffn-type", source.synth.ffn_type);
    add("--head-type", source.synth.head_type);
    if (source.synth.layers) add("--layers", std::to_string(*source.synth.layers));
    if (source.synth.vocab) add("--vocab", std::to_string(*source.synth.vocab));
    if (source.synth.mtp) all.emplace_back("--mtp");
  }
  add("--device", name_of(kPlaces, model.device));
  if (model.gpu > 0) add("--gpu", std::to_string(model.gpu));
  if (model.threads > 0) add("--threads", std::to_string(model.threads));
  for (const std::string& k : model.kernels) add("--kernel", k);
  add("--kv-cache-dtype", name_of(kKvCacheTypes, kv_cache.type));
  return all;
}

Result<Snapshot> take_snapshot(const TakeOptions& o) {
  QUIRE_CHECKED(check_parts(o.skip));
  if (!o.reference.empty() && o.text.empty())
    return request_error("--reference {}: give the text that it was saved for as --text", o.reference);
  if (o.most_kl != 0 && (!(o.most_kl > 0) || o.reference.empty()))
    return request_error("--max-kl {}: must be above 0, and needs a --reference", o.most_kl);
  QUIRE_TRY(SpeedOptions speed, o.speed());
  const Device device = speed.engine.device;
  const KvCacheType kv = speed.engine.kv_cache;
  return Taking(o, device, kv, std::move(speed)).run();
}

}  // namespace quire::cli::snapshot
