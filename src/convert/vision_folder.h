// The vision tower of a Hugging Face model folder, read and planned: what `quire convert` writes as an mmproj file, and
// what a tower is opened from without a file.
#pragma once

#include <optional>
#include <string>

#include "convert/hf_vision.h"
#include "convert/plan.h"
#include "convert/safetensors.h"

namespace quire::convert {

struct VisionFolder {
  // No value where the folder has no tower of a known family: no configuration of one, or no tensors of its first
  // block. Errors are
  // those of ModelFolder::read, for the tower's part; a tensor of the tower that nothing is made from is one.
  static Result<std::optional<VisionFolder>> read(const std::string& folder, const PlanOptions& options);

  void write_metadata(const std::string& name, gguf::Writer& w) const { write_vision_metadata(vision, plan, name, w); }

  HfVision vision;
  FolderWeights weights;
  Plan plan;  // points into the mappings of the weights
};

// "out/m.gguf" -> "out/mmproj-m.gguf": beside the model's file.
std::string mmproj_path(const std::string& model_file);

}  // namespace quire::convert
