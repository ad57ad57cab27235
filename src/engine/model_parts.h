// What a model file makes, or why it does not run: one judgement for `run`, `serve` and `inspect`.
#pragma once

#include <memory>
#include <optional>

#include "gguf/reader.h"
#include "model/model.h"
#include "tokenizer/tokenizer.h"

namespace quire {

struct ModelParts {
  std::unique_ptr<const Model> model;  // points into the file
  std::optional<Tokenizer> tokenizer;  // absent when the file holds none
};

// Checks every tensor and builds the tokenizer. Errors: what the file lacks, or has and Quire does not compute.
Result<ModelParts> load_parts(const gguf::File& file);

}  // namespace quire
