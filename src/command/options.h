// Options that several commands share: each group is declared once, with its flags and help.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "command/card_costs.h"
#include "command/flags.h"
#include "command/speculative_flags.h"
#include "engine/loaded_vision.h"
#include "engine/options.h"
#include "engine/rope_override.h"
#include "engine/sampling_defaults.h"

namespace quire::cli {

// How a command takes its model: by position or as -m, which `prepared_arguments` puts first.
inline constexpr char kModelNames[] = "-m,--model,MODEL FILE";
inline constexpr char kModelHelp[] = "GGUF file (of a split model, the first one) or Hugging Face folder";

inline constexpr Named<Device> kDevices[] = {
    {"cpu", Device::kCpu}, {"cuda", Device::kCuda}, {"reference", Device::kReference}};
inline constexpr Named<KvCacheType> kKvCacheTypes[] = {
    {"auto", KvCacheType::kAuto}, {"bf16", KvCacheType::kBf16, "bfloat16"}, {"fp8", KvCacheType::kFp8, "fp8_e4m3"}};

// Where to compute, as commands for models take it; auto: a GPU if there is one that this program can use.
inline constexpr Named<std::optional<Device>> kPlaces[] = {
    {"auto", std::nullopt}, {"cpu", Device::kCpu}, {"cuda", Device::kCuda}, {"reference", Device::kReference}};

// --kv-cache-dtype: what keys and values are kept in.
struct KvCacheOption {
  KvCacheType type = KvCacheType::kAuto;

  void add(Flags& flags);
};

// --arithmetic: auto, latency or throughput.
struct ArithmeticOption {
  Arithmetic arithmetic = Arithmetic::kAuto;

  void add(Flags& flags);
};

// --activations: auto, bf16 or fp8.
struct ActivationsOption {
  PromptActivations activations = PromptActivations::kAuto;

  void add(Flags& flags);
};

// --pipeline-parallel-size, --tensor-split: a model's layers on several devices.
struct LayerSplitOption {
  int stages = 1;
  std::string split;

  void add(Flags& flags);
  Status apply(EngineOptions& to) const;
};

// --pipeline-parallel-size, --gpu-memory-utilization, --kv-cache-dtype, --arithmetic, --activations, --depth,
// --no-graphs, --card-costs and those of speculation: what else is up to an engine.
struct ComputeOptions {
  KvCacheOption kv_cache;
  CardCostsOption card_costs;
  double gpu_memory = 0.9;
  ArithmeticOption arithmetic;
  ActivationsOption activations;
  LayerSplitOption layers;
  int depth = 0;
  bool graphs = true;
  SpeculativeFlags speculative;

  void add(Flags& flags);
  // After device and GPU are set.
  Status apply(EngineOptions& to) const;
};

// Where to compute.
struct Place {
  Device device = Device::kCpu;
  KernelChoice kernels;
  std::string why_no_gpu;  // with auto, where it is the CPU: why; else empty
  bool or_cpu = false;     // EngineOptions::or_cpu
};

// MODEL or -m, --device, --gpu, --threads, --kernel: which model runs where.
struct ModelOptions {
  std::string model;
  std::optional<Device> device;  // none: auto
  int gpu = 0;
  int threads = 0;
  std::vector<std::string> kernels;

  void add(Flags& flags);
  void add_compute(Flags& flags);  // all but the model, for commands that take their models another way
  // What was asked for; with auto the GPU of --gpu where this program can use it and where it has the kernels of
  // --kernel, else the CPU. Errors: --gpu with another device, auto where the GPU that --gpu names cannot be used, an
  // unknown operator or kernel, and a kernel that cannot run there.
  Result<Place> place() const;
  // Sets device, GPU, threads and kernels; with auto also that the CPU is good enough where the model does not fit.
  Status apply(EngineOptions& to) const;
  void apply(const Place& place, EngineOptions& to) const;

 private:
  // "op=name" pairs.
  Result<KernelChoice> parsed_kernels() const;
};

// A line on standard error for every forced kernel: how many of its operator's calls it ran.
void report_forced(std::span<const ForcedCount> counts);

// --temperature, --top-k, ...: how tokens are chosen.
struct SamplingOptions {
  SamplingParams params;
  std::vector<std::string> bias;  // "token=value"

  void add(Flags& flags);
  // Those that a request to a server may have; what is not given is left to it.
  void add_of_requests(Flags& flags);
  // What the command line leaves open is as the model's makers recommend, if they do.
  void take_defaults(const SamplingDefaults& recommended);
  // Whether the command line says this one, by its name in requests: "top_k".
  bool given(std::string_view name) const;
  std::set<std::string> all_given() const;
  Result<SamplingParams> parsed() const;

 private:
  void add_numbers(Flags& flags, const char* unless_given, bool with_defaults);
  std::vector<std::pair<std::string_view, const Flag*>> numbers_;  // by the names in requests
};

// --rope-scaling and its factors: positions in place of what the model's file says.
struct RopeFlags {
  RopeOverride rope;

  void add(Flags& flags);
  // What was given, checked.
  Result<RopeOverride> parsed() const;
};

// --mmproj and what else is about pictures.
struct VisionFlags {
  std::string mmproj;
  bool vision = true;
  PictureOptions pictures;

  void add(Flags& flags);
};

}  // namespace quire::cli
