// ModelOptions as options of `quire serve`.
#pragma once

#include <backend.pb.h>

#include "localai/localai.h"

namespace quire::localai {

// What the message's own fields say are defaults; `Options` ("name:value") and `EngineArgs` (a JSON object whose
// values are texts, numbers and booleans) are given. Errors: what no option can be, and fields that ask for what this
// program has not.
Result<AskedOptions> read_load_options(const backend::ModelOptions& asked);

}  // namespace quire::localai
