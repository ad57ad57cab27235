// Models by their names on a hub: which hub, whose cache, whose token.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "hub/pull.h"

namespace quire::cli {

inline constexpr char kDefaultHub[] = "https://huggingface.co";

struct HubFlags {
  std::string revision = "main", hub = kDefaultHub, cache, token_file, ca_file;
  bool offline = false;
  int connections = 8;

  void add(CLI::App& app);
  void add_cache(CLI::App& app);  // --hub-cache alone
  // The folder of the cache.
  Result<std::string> cache_folder() const;
  // Reads the token and the authorities' certificates.
  Result<hub::HubOptions> parsed() const;
};

// Memory of the device that the command line names with --device and --gpu, which weights may take.
Result<hub::Place> place_of(const std::string& device, int gpu);

// Replaces models that a parsed command names on a hub ("hf:ORG/NAME") by paths, fetching what is not in the cache.
// For commands that have HubFlags.
Status fetch_named_models(const HubFlags& flags, CLI::App& command);

}  // namespace quire::cli
