// `quire localai` without its command line: a model as a backend of LocalAI, over gRPC (backend.proto).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "server/serve.h"

namespace quire::localai {

// A flag of `quire serve` by its name without dashes, with its value as one types it.
struct NamedOption {
  std::string name, value;
};

// What LoadModel asks for. `defaults` hold where none of `given` says otherwise, under whatever name.
struct AskedOptions {
  std::vector<NamedOption> defaults, given;
  std::string folder;  // the model's: files that `given` names are in it or below, and relative to it
};
// Errors name the option: one that does not exist or is not LocalAI's to say, and values out of range.
using ReadOptions = std::function<Result<server::ServeOptions>(const AskedOptions& asked)>;

struct BackendOptions {
  std::string address;     // HOST:PORT; port 0: any free one
  std::string token_file;  // what calls must show as "authorization: Bearer TOKEN"; empty: nothing
  ReadOptions read_options;
};

// Runs until SIGTERM or SIGINT, or until the process that started it is gone. The port is open from the beginning;
// LoadModel loads. Errors: what keeps it from starting.
Status run_backend(const BackendOptions& options);

}  // namespace quire::localai
