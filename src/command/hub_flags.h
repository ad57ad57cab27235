// Models by their names on a hub: which hub, whose cache, whose token.
#pragma once

#include <optional>
#include <string>

#include "command/flags.h"
#include "hub/pull.h"

namespace quire::cli {

inline constexpr char kDefaultHub[] = "https://huggingface.co";

struct HubFlags {
  std::string revision = "main", hub = kDefaultHub, cache, token_file, ca_file;
  bool offline = false;
  int connections = 8;

  void add(Flags& flags);
  void add_cache(Flags& flags);  // --hub-cache alone
  // The folder of the cache.
  Result<std::string> cache_folder() const;
  // Reads the token and the authorities' certificates.
  Result<hub::HubOptions> parsed() const;
};

// Memory, which weights may take, of the device that the command line names with --device and --gpu; auto: a GPU if
// there is one, else this machine.
Result<hub::Place> place_of(const std::string& device, int gpu);

// A model of a hub that a command line's word stands for.
struct NamedModel {
  hub::ModelName name;
  bool cached = false;  // by a short name of what is in the cache: no hub is asked
};

// "hf:ORG/NAME[:QUANT|FILE]", or the same without "hf:" where there is no such file, which is said on standard error;
// or a short name of a model in the cache. Nothing: the word is a path. Errors: a name that cannot be one, and a short
// one that several models have.
Result<std::optional<NamedModel>> named_model(const HubFlags& flags, const std::string& word);

// The flags that name models to run.
inline constexpr const char* kModelFlags[] = {"--model", "models"};

// Replaces models that a parsed command names on a hub (named_model()) by paths, fetching what is not in the cache.
// For commands that have HubFlags.
Status fetch_named_models(const HubFlags& flags, Flags& command);

}  // namespace quire::cli
