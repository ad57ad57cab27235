// A Hugging Face model folder, read and planned: what `quire convert` writes, and what a model is opened from without a
// file.
#pragma once

#include <string>

#include "convert/hf_config.h"
#include "convert/hf_tokenizer.h"
#include "convert/plan.h"
#include "convert/safetensors.h"
#include "gguf/writer.h"

namespace quire::convert {

struct ModelFolder {
  // Everything of the folder but the weights themselves is read and checked. Errors begin with the path of the file, or
  // the folder, at fault.
  static Result<ModelFolder> read(const std::string& folder, const PlanOptions& options);

  void write_metadata(const std::string& name, gguf::Writer& w) const;

  HfConfig config;
  FolderWeights weights;
  Plan plan;  // points into the mappings of the weights
  HfTokenizer tokenizer;
  nlohmann::json generation_config;
};

}  // namespace quire::convert
