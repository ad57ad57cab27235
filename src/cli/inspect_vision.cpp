#include "cli/inspect_vision.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "arch/vision.h"
#include "command/display.h"
#include "core/escape.h"
#include "core/output.h"
#include "engine/encoder_batch.h"
#include "engine/loaded_vision.h"

namespace quire::cli {
namespace {

constexpr std::pair<int64_t, int64_t> kSizes[] = {{512, 512}, {1024, 1024}, {1920, 1080}, {4096, 4096}};

Result<std::unique_ptr<const LoadedVision>> load(const std::string& path, const ModelParts& model) {
  QUIRE_TRY(std::optional<gguf::File> file, open_tower_of(path, false));
  if (!file) return std::unique_ptr<const LoadedVision>();
  return load_vision(std::move(*file), model.model->config(), model.tokenizer ? &*model.tokenizer : nullptr);
}

}  // namespace

void report_vision(const std::string& path, const ModelParts& model, nlohmann::ordered_json* out) {
  const auto loaded = load(path, model);
  if (loaded.ok() && *loaded == nullptr) return;
  if (!loaded.ok()) {
    if (out != nullptr)
      (*out)["vision"] = {{"problem", loaded.error().message}};
    else
      print_out("\nimages: cannot be taken: {}\n", escaped(loaded.error().message));
    return;
  }
  const LoadedVision& v = **loaded;
  const VisionConfig& c = v.tower->config();
  const uint64_t weights = v.file.mapped_bytes();
  const int64_t memory = EncoderMemory(c, encoder_room(v)).bytes();
  nlohmann::ordered_json sizes = nlohmann::ordered_json::array();
  std::string text;
  for (const auto& [width, height] : kSizes) {
    const Result<image::ImagePlan> plan = image::plan_image(v.spec, width, height);
    if (!plan.ok()) continue;
    // The pieces of pan and scan have the size that the whole has.
    const int64_t tokens = plan->tokens * std::ssize(image::views_of(v.spec, width, height));
    sizes.push_back({{"width", width}, {"height", height}, {"tokens", tokens}});
    text += fmt::format("{}{} x {}: {}", text.empty() ? "" : ", ", width, height, tokens);
  }
  if (out != nullptr) {
    (*out)["vision"] = {{"projector", vision_row(c.family).projector},
                        {"blocks", c.blocks},
                        {"width", c.width},
                        {"bytes", weights},
                        {"memory", memory},
                        {"tokens", std::move(sizes)}};
    return;
  }
  print_out("\nimages: {}, {} blocks of {}, {}, and {} for pictures; tokens of {}\n", vision_row(c.family).projector,
            c.blocks, c.width, human_bytes(weights), human_bytes(static_cast<uint64_t>(memory)), text);
}

}  // namespace quire::cli
