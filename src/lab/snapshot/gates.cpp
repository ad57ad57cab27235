#include "lab/snapshot/gates.h"

#include <algorithm>
#include <map>
#include <random>

#include "core/progress.h"
#include "engine/cuda_device.h"
#include "eval/logit_hash.h"
#include "ops/conformance/gpu.h"
#include "ops/registry.h"

namespace quire::cli {

extern const std::string_view kNumericsHashes;  // cmake/embed.cmake makes it of tests/data/numerics/hashes.txt

namespace snapshot {
namespace {

constexpr int64_t kCompanyTokens = 24;
constexpr int32_t kCompanyRequests = 6;

// LoadedModel::identity() of the models in models/.
constexpr std::pair<uint64_t, std::string_view> kDemoModels[] = {
    {0x47cae7111ffc0e39, "demo-dense-nvfp4"},
    {0x187a37979b72a62c, "demo-moe-nvfp4"},
};

Gate failed(Gate gate, std::string why) {
  gate.result = GateResult::kFailed;
  gate.detail = std::move(why);
  return gate;
}

Gate judged(Gate gate, bool passed, std::string detail) {
  gate.result = passed ? GateResult::kPassed : GateResult::kFailed;
  gate.detail = std::move(detail);
  return gate;
}

// Lines "machine arithmetic kv model hash", by all but the hash.
std::map<std::string, std::string, std::less<>> rows_of(std::string_view table) {
  std::map<std::string, std::string, std::less<>> rows;
  while (!table.empty()) {
    const size_t end = std::min(table.find('\n'), table.size());
    const std::string_view line = table.substr(0, end);
    table.remove_prefix(std::min(end + 1, table.size()));
    if (const size_t blank = line.rfind(' '); !line.starts_with('#') && blank != line.npos)
      rows.emplace(line.substr(0, blank), line.substr(blank + 1));
  }
  return rows;
}

// The tokens of each request; `together`: submitted before the first step.
Result<std::vector<std::vector<TokenId>>> generate(Engine& engine, std::span<const std::vector<TokenId>> prompts,
                                                   bool together) {
  std::vector<std::vector<TokenId>> tokens(prompts.size());
  std::optional<Error> error;
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request r;
    r.prompt = prompts[i];
    r.max_tokens = kCompanyTokens;
    r.ignore_eos = true;
    QUIRE_TRY([[maybe_unused]] const RequestId id, engine.submit(std::move(r), [&, i](const TokenEvent& e) {
      if (e.token() >= 0) tokens[i].push_back(e.token());
      if (e.error() != nullptr) error = *e.error();
    }));
    while (!together && engine.busy()) engine.step();
  }
  while (engine.busy()) engine.step();
  engine.drain_events();
  if (error) return *error;
  return tokens;
}

}  // namespace

ConformanceRun check_conformance(Device device, int gpu, int threads, bool quick) {
  ConformanceRun run{
      .gate = {.name = "conformance", .what = "every kernel of this machine computes what the reference computes"}};
  conformance::Options o;
  o.threads = threads;
  o.one_case = quick;
  std::unique_ptr<conformance::Gpu> there;
  if (device == Device::kCuda) {
    Result<std::unique_ptr<conformance::Gpu>> opened = conformance::Gpu::create(gpu);
    if (!opened.ok()) return run.gate = failed(run.gate, opened.error().message), run;
    there = std::move(opened).value();
    o.gpu = there.get();
  }
  int passed = 0, failures = 0, skipped = 0;
  std::string first;
  Progress progress("checking operators", static_cast<int64_t>(operators().size()));
  for (const OperatorInfo& op : operators()) {
    const conformance::Suite suite = conformance::run_suite(op, o);
    for (const conformance::Suite::Count& c : suite.counts()) {
      run.counts.push_back({std::string(op.name), c.kernel, c.passed, c.failed, c.skipped});
      skipped += c.skipped.empty() ? 0 : 1;
    }
    if (first.empty() && !suite.failures().empty()) first = suite.failures().front();
    passed += suite.passed();
    failures += suite.failed();
    progress.add(1);
  }
  std::string detail =
      fmt::format("{} of {} checks passed; {} kernels are not for this machine", passed, passed + failures, skipped);
  if (!first.empty()) detail += "; the first failure: " + first;
  run.gate = judged(run.gate, failures == 0 && passed > 0, std::move(detail));
  return run;
}

std::string_view demo_model_name(uint64_t identity) {
  for (const auto& [known, name] : kDemoModels)
    if (known == identity) return name;
  return {};
}

std::string_view numerics_table() {
  return kNumericsHashes;
}

std::vector<Gate> check_bits(const std::shared_ptr<const LoadedModel>& model, Device device, int gpu,
                             std::string_view table) {
  const Gate none{.name = "bits", .what = "the logits have the recorded bits"};
  const std::string_view name = demo_model_name(model->identity());
  const auto one = [](Gate gate, GateResult result, std::string detail) {
    gate.result = result;
    gate.detail = std::move(detail);
    return std::vector{gate};
  };
  if (name.empty())
    return one(none, GateResult::kSkipped, "there are recorded bits of the two demo models only, and this is neither");
  Machine machine{.device = device};
  if (device == Device::kCuda) {
    const Result<Machine> there = open_gpu(gpu);
    if (!there.ok()) return one(none, GateResult::kFailed, there.error().message);
    machine = *there;
  }
  const auto rows = rows_of(table);
  std::vector<Gate> gates;
  for (const auto& [kv_name, kv] : {std::pair{"bf16", KvCacheType::kBf16}, {"fp8", KvCacheType::kFp8}})
    for (const auto& [arithmetic_name, arithmetic] :
         {std::pair{"latency", Arithmetic::kLatency}, {"throughput", Arithmetic::kThroughput}}) {
      if (device == Device::kCuda && arithmetic != Arithmetic::kThroughput) continue;
      Gate gate = none;
      gate.name = fmt::format("bits, {}, {}", arithmetic_name, kv_name);
      const auto row = rows.find(fmt::format("{} {} {} {}", numerics_machine(machine), arithmetic_name, kv_name, name));
      const Result<uint64_t> hash =
          logit_hash(model, {.device = device, .gpu = gpu, .arithmetic = arithmetic, .kv_cache = kv});
      if (!hash.ok()) {
        gate = failed(gate, hash.error().message);
      } else if (row == rows.end()) {
        gate.detail = fmt::format("{:016x}; nothing is recorded for {}", *hash, numerics_machine(machine));
      } else {
        const std::string found = fmt::format("{:016x}", *hash);
        const bool same = found == row->second;
        gate = judged(gate, same, same ? found : fmt::format("{}, and {} is recorded", found, row->second));
      }
      gates.push_back(std::move(gate));
    }
  return gates;
}

Gate check_company(const std::shared_ptr<const LoadedModel>& model, EngineOptions options) {
  Gate gate{.name = "company", .what = "a request has the same tokens alone and beside others"};
  const ModelConfig& c = model->model->config();
  std::mt19937 random(7);
  std::uniform_int_distribution<TokenId> any(0, static_cast<TokenId>(c.vocab - 1));
  std::vector<std::vector<TokenId>> prompts(kCompanyRequests);
  size_t length = 5;
  for (auto& p : prompts) {
    while (p.size() < length) p.push_back(any(random));
    length += 9;
  }
  options.max_sequences = kCompanyRequests;
  options.context = std::min<int64_t>(c.context_length, 128);
  options.kv_tokens = kCompanyRequests * (options.context + kBlockTokens);
  options.max_batch_tokens = 64;  // several steps for the prompts of all
  const auto engine = Engine::create(model, options);
  if (!engine.ok()) return failed(gate, engine.error().message);
  const auto alone = generate(**engine, prompts, false);
  if (!alone.ok()) return failed(gate, alone.error().message);
  const auto together = generate(**engine, prompts, true);
  if (!together.ok()) return failed(gate, together.error().message);
  int same = 0;
  for (size_t i = 0; i < prompts.size(); ++i) same += (*alone)[i] == (*together)[i] ? 1 : 0;
  return judged(gate, same == kCompanyRequests, fmt::format("{} of {} requests", same, kCompanyRequests));
}

}  // namespace snapshot
}  // namespace quire::cli
