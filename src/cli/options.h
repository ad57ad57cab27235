// Options that several commands share: each group is declared once, with its flags and help.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace quire::cli {

// -m, --device, --threads, --kernel: which model runs where.
struct ModelOptions {
  std::string model;
  std::string device = "cpu";
  int threads = 0;
  std::vector<std::string> kernels;

  void add(CLI::App& app);
  void add_compute(CLI::App& app);  // all but -m, for commands that take their models another way
  Result<Device> parsed_device() const;
  // "op=name" pairs; an unknown operator or kernel is an error that lists what there is.
  Result<KernelChoice> parsed_kernels() const;
};

// --temperature, --top-k, ...: how tokens are chosen.
struct SamplingOptions {
  SamplingParams params;
  std::vector<std::string> bias;  // "token=value"

  void add(CLI::App& app);
  Result<SamplingParams> parsed() const;
};

// All bytes of a file, or of standard input for "-". At most 1 GiB.
Result<std::string> read_text(const std::string& path);

// "1,2,3" to token ids.
Result<std::vector<TokenId>> parse_tokens(std::string_view text);

}  // namespace quire::cli
