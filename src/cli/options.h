// Options that several commands share: each group is declared once, with its flags and help.
#pragma once

#include <CLI/CLI.hpp>
#include <set>
#include <string>
#include <vector>

#include "cli/card_costs.h"
#include "cli/speculative_flags.h"
#include "engine/engine.h"
#include "engine/sampling_defaults.h"

namespace quire::cli {

// How a command takes its model: by position or as -m, which `prepared_arguments` puts first.
inline constexpr char kModelNames[] = "-m,--model,MODEL";
inline constexpr char kModelHelp[] = "GGUF file (of a split model, the first one) or Hugging Face folder";

// --kv-cache-dtype: what keys and values are kept in.
struct KvCacheOption {
  std::string type = "auto";

  void add(CLI::App& app);
  Result<KvCacheType> parsed() const;
};

// --arithmetic: auto, latency or throughput.
struct ArithmeticOption {
  std::string name = "auto";

  void add(CLI::App& app);
  Result<Arithmetic> parsed() const;
};

// --gpu-memory-utilization, --kv-cache-dtype, --arithmetic, --depth, --no-graphs, --card-costs and those of
// speculation: what else is up to an engine.
struct ComputeOptions {
  KvCacheOption kv_cache;
  CardCostsOption card_costs;
  double gpu_memory = 0.9;
  ArithmeticOption arithmetic;
  int depth = 0;
  bool graphs = true;
  SpeculativeFlags speculative;

  void add(CLI::App& app);
  // After device and GPU are set.
  Status apply(EngineOptions& to) const;
};

// MODEL or -m, --device, --gpu, --threads, --kernel: which model runs where.
struct ModelOptions {
  std::string model;
  std::string device = "cpu";
  int gpu = 0;
  int threads = 0;
  std::vector<std::string> kernels;

  void add(CLI::App& app);
  void add_compute(CLI::App& app);  // all but the model, for commands that take their models another way
  // With --gpu only where the device is one.
  Result<Device> parsed_device() const;
  // "op=name" pairs; an unknown operator or kernel, or one that this CPU cannot run, is an error.
  Result<KernelChoice> parsed_kernels() const;
};

// A line on standard error for every forced kernel: how many of its operator's calls it ran.
void report_forced(std::span<const ForcedCount> counts);

// --temperature, --top-k, ...: how tokens are chosen.
struct SamplingOptions {
  SamplingParams params;
  std::vector<std::string> bias;  // "token=value"

  void add(CLI::App& app);
  // Those that a request to a server may have; what is not given is left to it.
  void add_of_requests(CLI::App& app);
  // What the command line leaves open is as the model's makers recommend, if they do.
  void take_defaults(const SamplingDefaults& recommended);
  // Whether the command line says this one, by its name in requests: "top_k".
  bool given(std::string_view name) const;
  std::set<std::string> all_given() const;
  Result<SamplingParams> parsed() const;

 private:
  void add_numbers(CLI::App& app, const char* unless_given, bool with_defaults);
  std::vector<std::pair<std::string, const CLI::Option*>> options_;  // by the names in requests
};

// --rope-scaling and its factors: positions in place of what the model's file says.
struct RopeFlags {
  std::string scaling;
  float factor = 0, attn_factor = 0, ext_factor = 0, beta_fast = 0, beta_slow = 0;
  int64_t original_context = 0;

  void add(CLI::App& app);
  // What was given, checked.
  Result<RopeOverride> parsed() const;

 private:
  const CLI::Option *scaling_ = nullptr, *factor_ = nullptr, *attn_factor_ = nullptr, *ext_factor_ = nullptr,
                    *beta_fast_ = nullptr, *beta_slow_ = nullptr, *original_context_ = nullptr;
};

inline constexpr int64_t kMaxTextBytes = int64_t{1} << 30;

// All bytes of a file, or of standard input for "-". A device that has no end is refused unread, and so is more than
// `most` bytes, `why` saying what that is too much for.
Result<std::string> read_text(const std::string& path, int64_t most = kMaxTextBytes,
                              std::string_view why = "that is too long for a text");

// "1,2,3" to token ids.
Result<std::vector<TokenId>> parse_tokens(std::string_view text);
// Token ids as `quire tokenize` prints them: its table, or its JSON; also numbers between spaces, commas or line
// breaks.
Result<std::vector<TokenId>> parse_token_list(std::string_view text);

}  // namespace quire::cli
