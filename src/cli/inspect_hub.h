// quire inspect of a model that is not here: on a hub, or at a URL.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "command/hub_flags.h"
#include "hub/remote_gguf.h"

namespace quire::cli {

struct RemoteInspection {
  std::string model;  // hf:ORG/NAME[:QUANT|FILE], or a URL
  HubFlags flags;
  std::string device = "auto";
  int gpu = 0;
  int64_t context = 4096;
};

// Whether it is the name of a model on a hub or a URL.
bool is_remote(const std::string& model);

// What there is, whether it would run here, and how fast: tables on standard output, or members of `json` if that is
// not null. Returns the header of the GGUF file that was looked at; nothing where that is a folder of safetensors.
// Nothing is written to the cache.
Result<std::optional<hub::RemoteGguf>> inspect_remote(const RemoteInspection& o, nlohmann::ordered_json* json);

}  // namespace quire::cli
