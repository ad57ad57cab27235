// Holding a model against the saved predictions of another.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "command/options.h"
#include "command/windows.h"
#include "engine/loaded_model.h"
#include "lab/compare_report.h"

namespace quire::cli {

struct CompareOptions {
  std::vector<std::string> models;
  std::string judged;  // -m: stands behind `models`
  ModelOptions compute{.device = Device::kCpu};
  KvCacheOption kv_cache;
  ActivationsOption activations;
  std::string text, svg, save_logits, logits;
  WindowOptions cut{.window = 0};  // 0: not given
  const Flag* window = nullptr;
  int64_t top = 10;
  bool json = false, generated = false;

  bool saving_only() const { return logits.empty() && models.size() == 1; }
  Status check() const;
};

// The model, whose name is in `o.models`, against the file `o.logits` over the text `o.text`. The model has a
// tokenizer.
Result<Comparison> compare_with_saved(const CompareOptions& o, const std::shared_ptr<const LoadedModel>& model);

}  // namespace quire::cli
