#include "command/options.h"

#include <algorithm>
#include <charconv>

#include "command/card_costs.h"
#include "core/output.h"
#include "engine/cuda_device.h"
#include "ops/registry.h"

namespace quire::cli {

namespace {

constexpr Named<Arithmetic> kArithmetics[] = {
    {"auto", Arithmetic::kAuto}, {"latency", Arithmetic::kLatency}, {"throughput", Arithmetic::kThroughput}};

constexpr Named<PromptActivations> kActivations[] = {{"auto", PromptActivations::kAuto},
                                                     {"bf16", PromptActivations::kBf16, "bfloat16"},
                                                     {"fp8", PromptActivations::kFp8, "fp8_e4m3"},
                                                     {"fp4", PromptActivations::kFp4}};

}  // namespace

void ModelOptions::add(Flags& flags) {
  flags.add(kModelNames, &model, kModelHelp).required();
  add_compute(flags);
}

void ModelOptions::add_compute(Flags& flags) {
  flags.add("--device", chosen(&device, kPlaces),
            "Where to compute: auto (a GPU if there is one that the model fits, else the CPU), cpu, cuda (an NVIDIA "
            "GPU), or reference (plain float32 loops, slow)");
  flags.add("--gpu", &gpu, "Which GPU, as `quire devices` counts them");
  flags.add("-t,--threads", &threads, "Threads; 0: all CPUs. The output does not depend on it");
  flags.add("--kernel OP=NAME", &kernels,
            "Force one operator to one kernel, to bisect a difference (repeatable). What it does not take "
            "runs as usual, and is counted at the end");
}

Result<Place> ModelOptions::place() const {
  if (gpu < 0) return request_error("--gpu {}: GPUs are counted from 0", gpu);
  if (device && *device != Device::kCuda && gpu > 0)
    return request_error("--gpu {}: --device {} does not use one; add --device cuda", gpu, name_of(kDevices, *device));
  Place p{.device = device.value_or(Device::kCpu)};
  QUIRE_TRY(p.kernels, parsed_kernels());
  if (!device) {
    const Result<Machine> there = open_gpu(gpu);
    if (!there.ok() && gpu > 0) return there.error();
    const Status forced = there.ok() ? check_forced(p.kernels, {.device = Device::kCuda}) : Status(there.error());
    if (forced.ok())
      p.device = Device::kCuda;
    else
      p.why_no_gpu = forced.error().message;
    p.or_cpu = forced.ok();
  }
  QUIRE_CHECKED(check_forced(p.kernels, {.device = p.device}));
  return p;
}

Status ModelOptions::apply(EngineOptions& to) const {
  QUIRE_TRY(const Place p, place());
  apply(p, to);
  return {};
}

void ModelOptions::apply(const Place& place, EngineOptions& to) const {
  to.device = place.device;
  to.kernels = place.kernels;
  to.or_cpu = place.or_cpu;
  to.gpu = gpu;
  to.threads = threads;
}

void KvCacheOption::add(Flags& flags) {
  flags.add("--kv-cache-dtype", chosen(&type, kKvCacheTypes),
            "What keys and values are kept in: auto (bf16), bf16, or fp8 (E4M3: half the memory, and on a GPU half "
            "the reading). The output depends on it");
}

void ArithmeticOption::add(Flags& flags) {
  flags.add("--arithmetic", chosen(&arithmetic, kArithmetics),
            "Kernels of generated tokens on a CPU: latency (integers), throughput, or auto: the first where there "
            "are two sequences at most. The output depends on it in the last bits");
}

void ActivationsOption::add(Flags& flags) {
  flags.add(
      "--activations", chosen(&activations, kActivations),
      "What a prompt's tokens are when weights of few bits are multiplied with them: bf16; fp8 (E4M3 with a scale for "
      "each 128 columns, beside FP8 weights on GPUs of compute capability 9.0: up to twice as fast); fp4 "
      "(experimental: E2M1 with a scale for each 16 or 32 columns, beside NVFP4 and MXFP4 weights on GPUs of compute "
      "capability 12.x); or auto: what the model was made for where the GPU can do it, else bf16. The output depends "
      "on it");
}

void LayerSplitOption::add(Flags& flags) {
  flags.add("--pipeline-parallel-size,--pp-size", &stages, between(1, kMostStages),
            "Devices that have the model's layers one behind the other, for a model that is too large for one GPU: as "
            "many GPUs from --gpu on. The output does not depend on it");
  flags.add("--tensor-split LIST", &split,
            "How much of the weights each of these devices has, as in 3,1 (default: as their free memory is)");
}

Status LayerSplitOption::apply(EngineOptions& to) const {
  to.pipeline_parallel = stages;
  const char *at = split.data(), *const end = at + split.size();
  while (at != end) {
    double part = 0;
    const auto [next, failed] = std::from_chars(at, end, part);
    if (failed != std::errc() || !(part > 0) || (next != end && *next != ',') || (next != end && next + 1 == end))
      return request_error("--tensor-split {}: must be numbers above 0, as in 3,1", split);
    to.tensor_split.push_back(part);
    at = next == end ? end : next + 1;
  }
  if (!split.empty() && std::ssize(to.tensor_split) != stages)
    return request_error("--tensor-split {}: {} numbers, and --pipeline-parallel-size is {}", split,
                         to.tensor_split.size(), stages);
  return {};
}

void ComputeOptions::add(Flags& flags) {
  layers.add(flags);
  flags.add("--gpu-memory-utilization", &gpu_memory,
            "Share of the GPU's memory that may be in use; what weights and scratch leave of it holds "
            "the KV cache");
  kv_cache.add(flags);
  arithmetic.add(flags);
  activations.add(flags);
  flags.add("--depth", &depth,
            "Steps under way at a time, 1 or 2, for each device that has layers; 0: 2 on a GPU and on several devices. "
            "The output does not depend on it");
  flags.add("!--no-graphs", &graphs, "Launch every kernel by itself on a GPU. The output is the same");
  speculative.add(flags);
  card_costs.add(flags);
}

Status ComputeOptions::apply(EngineOptions& to) const {
  QUIRE_CHECKED(card_costs.apply(to.device, to.gpu));
  QUIRE_CHECKED(layers.apply(to));
  to.kv_cache = kv_cache.type;
  to.gpu_memory_utilization = gpu_memory;
  to.depth = depth;
  to.graphs = graphs;
  QUIRE_TRY(to.speculative, speculative.parsed());
  to.arithmetic = arithmetic.arithmetic;
  to.activations = activations.activations;
  return {};
}

Result<KernelChoice> ModelOptions::parsed_kernels() const {
  KernelChoice choice;
  for (const std::string& k : kernels) {
    const size_t eq = k.find('=');
    if (eq == std::string::npos) return request_error("--kernel {}: write it as operator=kernel", k);
    const std::string op = k.substr(0, eq), name = k.substr(eq + 1);
    choice.forced.emplace_back(op, name);
  }
  return choice;
}

void report_forced(std::span<const ForcedCount> counts) {
  for (const ForcedCount& c : counts)
    tell_line(fmt::format("[{}={}: ran {} of {} calls]", c.op, c.kernel, c.ran, c.ran + c.replaced));
}

void SamplingOptions::add_numbers(Flags& flags, const char* unless_given, bool with_defaults) {
  std::string more = fmt::format(". This and the next ones: if not given, {}", unless_given);
  const auto keep = [&](std::string_view name, Flag& flag) {
    if (!with_defaults) flag.default_text("");
    numbers_.emplace_back(name, &flag);
  };
  each_sampling_field(params, [&](const SamplingField& field, auto& value) {
    Range range = field.high == kAnyCount ? at_least(field.low) : between(field.low, field.high);
    keep(field.name, flags.add(field.flags, &value, std::move(range), field.help + std::exchange(more, "")));
  });
  keep("seed", flags.add("-s,--seed", &params.seed, "Same seed, same text").any_bits());
}

void SamplingOptions::add(Flags& flags) {
  add_numbers(flags, "what the file recommends, or for a chat else what the makers of its family publish", true);
  flags.add("--logit-bias TOKEN=VALUE", &bias, "Added to a token's logit (repeatable)");
  flags.add("--logprobs", &params.logprobs, "Report log-probabilities of the token and of so many likeliest ones")
      .default_text("");
}

void SamplingOptions::add_of_requests(Flags& flags) {
  add_numbers(flags, "as the server chooses", false);
}

bool SamplingOptions::given(std::string_view name) const {
  return std::ranges::any_of(numbers_, [&](const auto& n) { return n.first == name && n.second->given(); });
}

std::set<std::string> SamplingOptions::all_given() const {
  std::set<std::string> names;
  for (const auto& [name, flag] : numbers_)
    if (flag->given()) names.emplace(name);
  return names;
}

void SamplingOptions::take_defaults(const SamplingDefaults& recommended) {
  recommended.each(params, [&](const SamplingField& field, auto value, auto& to) {
    if (!given(field.name)) to = value;
  });
}

void VisionFlags::add(Flags& flags) {
  flags.add("-mm,--mmproj FILE", &mmproj,
            "GGUF file with the model's vision tower, which makes it take pictures (default: the mmproj file beside "
            "the model, or what its folder has)");
  flags.add("!--no-mmproj", &vision, "Text only, whatever there is");
  flags.add("--image-max-pixels", &pictures.max_pixels, at_least(1),
            "Pixels of a picture: larger ones are made smaller before the model sees them. 1024 are a token with most "
            "models");
  flags.add("--pan-and-scan", &pictures.pan_and_scan,
            "With Gemma 3: pictures that are much wider than tall, or taller than wide, are shown to the model in up "
            "to four pieces besides, which cost as many tokens as a picture each (default: as the model's folder "
            "says)");
}

void RopeFlags::add(Flags& flags) {
  flags.add(
      "--rope-scaling none|linear|yarn", chosen_text(&rope.scaling, {{"none"}, {"linear"}, {"yarn"}}),
      "For contexts longer than those of the training: yarn or linear, with --rope-scale; none: not even what the "
      "file says (default: as the file says). Short prompts change too, and are answered a little worse: leave "
      "it out where the context suffices");
  flags.add("--rope-scale", &rope.factor, "How many times longer contexts become");
  flags.add("--yarn-orig-ctx", &rope.original_context,
            "Context that the model was trained for (default: as the file says)");
  flags.add("--yarn-attn-factor", &rope.attn_factor,
            "Multiplies what YaRN makes of the size of queries and keys (default: 1)");
  flags.add("--yarn-ext-factor", &rope.ext_factor,
            "How far high frequencies stay as they are: 1 wholly, 0 not at all (default: 1)");
  flags.add("--yarn-beta-fast", &rope.beta_fast,
            "Frequencies with more turns than this in the original context stay (default: 32)");
  flags.add("--yarn-beta-slow", &rope.beta_slow, "Those with fewer turns than this are scaled wholly (default: 1)");
}

Result<RopeOverride> RopeFlags::parsed() const {
  QUIRE_CHECKED(rope.check());
  return rope;
}

Result<SamplingParams> SamplingOptions::parsed() const {
  SamplingParams p = params;
  for (const std::string& b : bias) {
    int32_t token = 0;
    float value = 0.0f;
    const char* const end = b.data() + b.size();
    const auto [eq, token_error] = std::from_chars(b.data(), end, token);
    if (token_error != std::errc{} || eq == end || *eq != '=')
      return request_error("--logit-bias {}: write it as token=value", b);
    const auto [rest, value_error] = std::from_chars(eq + 1, end, value);
    if (value_error != std::errc{} || rest != end)
      return request_error("--logit-bias {}: the value is not a number", b);
    p.logit_bias[token] = value;
  }
  return p;
}

}  // namespace quire::cli
