// quire explain: which kernels a model's steps run, why these, and the least time that they can take.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "command/card_costs.h"
#include "command/options.h"
#include "convert/open.h"
#include "core/escape.h"
#include "core/output.h"
#include "engine/activations.h"
#include "engine/card_plan.h"
#include "engine/cuda_device.h"
#include "engine/dry_step.h"
#include "engine/gpu_placement.h"
#include "lab/commands.h"
#include "lab/explain_report.h"
#include "model/model.h"
#include "ops/cuda/card_costs.h"
#include "ops/probe/probe.h"
#include "ops/registry.h"

namespace quire::cli {
namespace {

struct ExplainOptions {
  ModelOptions model{.device = Device::kCpu};
  KvCacheOption kv_cache;
  ArithmeticOption arithmetic;
  ActivationsOption activations;
  CardCostsOption card_costs;
  std::vector<int32_t> rows = {1, 8};
  int64_t context = 1024, prompt = 512;
  std::string card;
  double bandwidth = 0, peak = 0;  // GB/s, TFLOP/s; 0: measured where that is possible
  double memory = 0;               // GiB; 0: nothing is planned
  bool costs = false, json = false;

  Status check() const;
};

Status ExplainOptions::check() const {
  if (!card.empty() && !costs && model.device != Device::kCuda)
    return request_error("--card {}: --device {} does not use one; add --device cuda", card,
                         name_of(kDevices, *model.device));
  if (!costs && model.model.empty()) return request_error("give a MODEL, or --costs");
  return {};
}

bool has_gpu_kernels() {
  for (const OperatorInfo& op : operators())
    for (const KernelInfo& k : op.kernels)
      if (is_for(Device::kCuda, k.needs)) return true;
  return false;
}

// Whose kernels are asked about. A card that is named need not be there.
Result<Machine> machine_of(const ExplainOptions& o, Device device) {
  if (device != Device::kCuda) return Machine{.device = device};
  if (o.card.empty()) return open_gpu(o.model.gpu);
  if (!has_gpu_kernels())
    return request_error("--card {}: this program is compiled without CUDA and has no kernels for a GPU", o.card);
  return parse_card(o.card);
}

// Given, or measured: on a CPU in half a second, on a GPU that is there its bandwidth alone.
Result<MachineLimits> limits_of(const ExplainOptions& o, const Machine& m) {
  MachineLimits limits{.bandwidth = o.bandwidth * 1e9, .flops = o.peak * 1e12};
  if (m.device != Device::kCuda) {
    ThreadPool pool(o.model.threads > 0 ? o.model.threads : available_cpus());
    if (limits.bandwidth == 0) limits.bandwidth = measure_read_bandwidth(pool);
    if (limits.flops == 0) limits.flops = measure_bf16_peak(pool);
  } else if (limits.bandwidth == 0 && o.card.empty()) {
    QUIRE_TRY(const std::vector<GpuInfo> gpus, list_gpus());
    limits.bandwidth = gpus.at(static_cast<size_t>(o.model.gpu)).copy_bandwidth;
  }
  return limits;
}

// What a server without further options would make of so much memory.
struct PlannedServer : CardPlan {
  static Result<PlannedServer> of(const ExplainOptions& o, Device device, const gguf::File& file,
                                  const ModelConfig& model, KvCacheType kv) {
    const auto bytes = static_cast<int64_t>(o.memory * (1 << 30));
    QUIRE_TRY(CardPlan plan, plan_for_card({.device = device, .kv_cache = kv}, model,
                                           static_cast<int64_t>(file.tensor_bytes()), bytes));
    return PlannedServer{std::move(plan)};
  }

  std::string text() const {
    const auto gib = [](int64_t n) { return static_cast<double>(n) / (1 << 30); };
    return fmt::format(
        "a server: {}; a cache of {} tokens in {:.1f} GiB, states in {:.1f}, saved ones in {:.1f}, steps in {:.1f}\n",
        plan.text(), shares.kv_tokens, gib(shares.kv), gib(shares.states), gib(shares.saved_states), gib(shares.steps));
  }
  nlohmann::ordered_json json() const {
    return {{"sequences", plan.max_sequences},
            {"context", plan.context},
            {"batch_tokens", plan.max_batch_tokens},
            {"kv_tokens", shares.kv_tokens},
            {"bytes",
             {{"kv", shares.kv},
              {"states", shares.states},
              {"saved_states", shares.saved_states},
              {"steps", shares.steps}}}};
  }
};

Status print_costs(const ExplainOptions& o) {
  QUIRE_TRY(const Machine m, parse_card(o.card.empty() ? "sm_90:132" : o.card));
  QUIRE_CHECKED(o.card_costs.apply(m));
  const cuda::CardCosts& costs = cuda::card_costs(m.gpu);
  nlohmann::ordered_json json;
  if (!o.json) print_out("costs of {}, {}\n", describe(m), costs.origin);
  for (const cuda::NamedCost& c : cuda::named_costs(costs.product)) {
    if (o.json)
      json[std::string(c.name)] = {{"value", c.value}, {"unit", c.unit}};
    else
      print_out("{:<26}{:>12}  {}\n", c.name, c.value, c.unit);
  }
  if (o.json) print_out("{}\n", json.dump(2));
  return {};
}

class Explanation {
 public:
  Explanation(const ExplainOptions& o, const Decoder& decoder, const Machine& machine, MachineLimits limits,
              KernelChoice choice, KvCacheType kv, Arithmetic arithmetic, PromptActivations activations)
      : o_(o),
        decoder_(decoder),
        machine_(machine),
        limits_(limits),
        choice_(std::move(choice)),
        kv_(kv),
        arithmetic_(arithmetic),
        activations_(activations) {}

  Status print(const PlannedServer* server) {
    if (o_.json)
      json_ = {{"version", QUIRE_VERSION},       {"model", o_.model.model}, {"machine", describe(machine_)},
               {"bandwidth", limits_.bandwidth}, {"peak", limits_.flops},   {"steps", nlohmann::ordered_json::array()}};
    else
      print_out("{} on {}{}{}\n", escaped(o_.model.model), describe(machine_),
                limits_.bandwidth > 0 ? fmt::format(", {:.1f} GB/s", limits_.bandwidth * 1e-9) : "",
                limits_.flops > 0 ? fmt::format(", {:.2f} TFLOP/s", limits_.flops * 1e-12) : "");
    if (server != nullptr) {
      if (o_.json)
        json_["server"] = server->json();
      else
        print_out("{}", server->text());
    }
    for (const int32_t n : o_.rows)
      QUIRE_CHECKED(step(fmt::format("{} sequences that generate a token each, at position {}", n, o_.context - 1),
                         {.sequences = n, .context = o_.context}));
    if (o_.prompt > 0) QUIRE_CHECKED(step(fmt::format("a prompt of {} tokens", o_.prompt), {.prompt_rows = o_.prompt}));
    if (o_.json) print_out("{}\n", json_.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return {};
  }

 private:
  // Nothing is printed of a step that no kernel takes: the error says which call it is.
  Status step(const std::string& title, DryStep step) {
    step.kv_cache = kv_;
    step.choice = &choice_;
    step.latency = machine_.device == Device::kCpu && step.sequences > 0 && for_latency(arithmetic_, step.sequences);
    step.prompts = token_rounding(activations_);
    ExplainedStep seen;
    dry_step(decoder_, machine_, step, seen);
    if (seen.refusal()) return *seen.refusal();
    if (!o_.json) {
      print_out("\n{}\n{}", title, explained_table(seen, limits_));
      return {};
    }
    nlohmann::ordered_json one = {{"sequences", step.sequences},
                                  {"context", step.sequences > 0 ? step.context : 0},
                                  {"prompt", step.prompt_rows}};
    one.update(explained_json(seen, limits_));
    json_["steps"].push_back(std::move(one));
    return {};
  }

  const ExplainOptions& o_;
  const Decoder& decoder_;
  Machine machine_;
  MachineLimits limits_;
  KernelChoice choice_;
  KvCacheType kv_;
  Arithmetic arithmetic_;
  PromptActivations activations_;
  nlohmann::ordered_json json_;
};

Status explain(const ExplainOptions& o) {
  QUIRE_CHECKED(o.check());
  if (o.costs) return print_costs(o);
  QUIRE_TRY(const Place place, o.model.place());
  const Device device = place.device;
  KernelChoice choice = place.kernels;
  const KvCacheType kv = o.kv_cache.type;
  const Arithmetic arithmetic = o.arithmetic.arithmetic;
  QUIRE_TRY(const Machine machine, machine_of(o, device));
  QUIRE_CHECKED(o.card_costs.apply(machine));
  QUIRE_CHECKED(check_forced(choice, machine));
  QUIRE_TRY(const gguf::File file, convert::open_model(o.model.model, {.matrices = false}));
  QUIRE_TRY(const std::unique_ptr<const Model> model, Model::load(file));
  const Decoder decoder = device == Device::kCuda ? placed_in_thought(model->decoder()) : model->decoder();
  QUIRE_TRY(const MachineLimits limits, limits_of(o, machine));
  std::optional<PlannedServer> server;
  if (o.memory > 0) {
    QUIRE_TRY(server, PlannedServer::of(o, device, file, model->config(), kv));
  }
  QUIRE_TRY(const PromptActivations activations, choose_activations(file, o.activations.activations, machine));
  return Explanation(o, decoder, machine, limits, std::move(choice), kv, arithmetic, activations)
      .print(server ? &*server : nullptr);
}

}  // namespace

Action add_explain(Flags& flags) {
  auto o = std::make_shared<ExplainOptions>();
  flags.add(kModelNames, &o->model.model, kModelHelp);
  o->model.add_compute(flags);
  o->kv_cache.add(flags);
  o->arithmetic.add(flags);
  o->activations.add(flags);
  o->card_costs.add(flags);
  flags.add("--rows", &o->rows, between(1, 4096),
            "Steps of so many sequences that generate a token each, separated by commas");
  flags.add("--context", &o->context, between(1, 1 << 24), "Tokens of each of these sequences after the step");
  flags.add("--prompt", &o->prompt, between(0, 1 << 20), "And a step of a prompt of so many tokens; 0: none");
  flags.add("--card sm_XX:SMS", &o->card, "With --device cuda: a card that need not be there, as sm_90:132");
  flags.add("--memory", &o->memory, between(0, 1 << 20, "GiB"),
            "GiB of the card or machine: and what a server without options would make of them");
  flags.add("--bandwidth", &o->bandwidth, at_least(0),
            "GB/s of the memory; 0: measured, where the machine is this one");
  flags.add("--peak", &o->peak, at_least(0), "TFLOP/s of bf16; 0: measured on a CPU, not known of a GPU");
  flags.add("--costs", &o->costs, "Print what decides between a GPU's kernels, by name and unit, and stop");
  flags.add("--json", &o->json, "Print one JSON object");
  flags.footer(
      "Nothing is computed, and weights are not read: a file of any size takes little memory and time. The floor is "
      "the\n"
      "time in which the machine moves the bytes, or computes the operations, whichever is longer; bytes are those "
      "that\n"
      "the operators' contracts name. Indented calls are parts of the one above them, which is what the total counts.\n"
      "Steps are those of an engine for as many sequences at most; a server for more takes --arithmetic throughput.");
  return [o] { return explain(*o); };
}

}  // namespace quire::cli
