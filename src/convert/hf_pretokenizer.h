// How tokenizer.json of byte-level BPE splits text into words.
#pragma once

#include <string>

#include "convert/json.h"
#include "core/result.h"

namespace quire::convert {

// The name in GGUF (tokenizer.ggml.pre) of the splitting pattern, NFC before it, and ignore_merges of `model`. Errors:
// what has no name there, which would make other words.
Result<std::string> find_pre(const nlohmann::json& tokenizer, const nlohmann::json& model);

}  // namespace quire::convert
