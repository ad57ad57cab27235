// Options that several commands share: each group is declared once, with its flags and help.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace quire::cli {

// --kv-cache-dtype: what keys and values are kept in.
struct KvCacheOption {
  std::string type = "auto";

  void add(CLI::App& app);
  Result<KvCacheType> parsed() const;
};

// --gpu-memory-utilization, --kv-cache-dtype, --arithmetic, --depth, --no-graphs: what else is up to an engine.
struct ComputeOptions {
  KvCacheOption kv_cache;
  double gpu_memory = 0.9;
  std::string arithmetic = "auto";
  int depth = 0;
  bool graphs = true;

  void add(CLI::App& app);
  Status apply(EngineOptions& to) const;
};

// -m, --device, --threads, --kernel: which model runs where.
struct ModelOptions {
  std::string model;
  std::string device = "cpu";
  int threads = 0;
  std::vector<std::string> kernels;

  // `names`: how the model is given.
  void add(CLI::App& app, const char* names = "-m,--model");
  void add_compute(CLI::App& app);  // all but -m, for commands that take their models another way
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
  // What the command line leaves open is as the file's authors recommend (general.sampling.*), if they do.
  Status take_defaults(const gguf::File& file);
  Result<SamplingParams> parsed() const;

 private:
  struct Recommended {
    const char* key;
    const CLI::Option* option;
    float* to;
  };
  std::vector<Recommended> recommended_;
  const CLI::Option* top_k_ = nullptr;
};

// All bytes of a file, or of standard input for "-". At most 1 GiB.
Result<std::string> read_text(const std::string& path);

// "1,2,3" to token ids.
Result<std::vector<TokenId>> parse_tokens(std::string_view text);
// Token ids as `quire tokenize` prints them: its table, or its JSON; also numbers between spaces, commas or line breaks.
Result<std::vector<TokenId>> parse_token_list(std::string_view text);

}  // namespace quire::cli
