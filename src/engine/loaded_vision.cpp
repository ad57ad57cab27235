#include "engine/loaded_vision.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "arch/vision.h"
#include "convert/open.h"
#include "core/hash.h"
#include "engine/tensor_samples.h"
#include "gguf/mmproj_name.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

Result<image::ImageSpec> spec_of(const VisionConfig& c, int64_t max_pixels) {
  const auto wide = [](const std::array<float, 3>& a) { return std::array<double, 3>{a[0], a[1], a[2]}; };
  QUIRE_TRY(image::ImageSpec spec, image::image_spec_of_mmproj({.projector_type = vision_row(c.family).projector,
                                                                .image_size = c.side() * c.patch,
                                                                .patch_size = c.patch,
                                                                .spatial_merge_size = c.merge,
                                                                .image_min_pixels = c.image_min_pixels,
                                                                .image_max_pixels = c.image_max_pixels,
                                                                .image_mean = wide(c.image_mean),
                                                                .image_std = wide(c.image_std)}));
  if (spec.size_rule == image::SizeRule::kPixelRange) {
    const int64_t token = spec.patch * spec.patch * spec.merge * spec.merge;
    spec.max_pixels = std::max(std::min(spec.max_pixels, max_pixels), token);
    spec.min_pixels = std::min(spec.min_pixels, spec.max_pixels);
  }
  return spec;
}

}  // namespace

Result<std::unique_ptr<const LoadedVision>> load_vision(gguf::File file, const ModelConfig& text,
                                                        const Tokenizer* tokenizer, int64_t max_pixels) {
  auto v = std::make_unique<LoadedVision>(std::move(file));
  QUIRE_TRY(v->tower, VisionTower::load(v->file));
  const VisionConfig& c = v->tower->config();
  if (c.family != VisionFamily::kQwen3)
    return file_error("clip.projector_type: {} is converted, and not computed yet", vision_row(c.family).projector);
  if (std::ssize(c.deepstack) > text.layers)
    return file_error("clip.vision.is_deepstack_layers: {} blocks go to layers of the text model, which has {}",
                      c.deepstack.size(), text.layers);
  if (c.out_width != text.d_model)
    return file_error("clip.vision.projection_dim: rows of {} elements, but the model's have {}", c.out_width,
                      text.d_model);
  QUIRE_TRY(v->spec, spec_of(c, max_pixels));
  v->identity = add_tensors(kFnvStart, v->file);
  constexpr std::string_view kPad = "<|image_pad|>";
  const std::optional<TokenId> token = tokenizer != nullptr ? tokenizer->find_token(kPad) : std::nullopt;
  if (!token) return file_error("the model's tokenizer has no {}, which stands for pictures", kPad);
  v->token = *token;
  return std::unique_ptr<const LoadedVision>(std::move(v));
}

std::string find_mmproj(const std::string& model) {
  std::error_code error;
  if (!fs::is_regular_file(model, error)) return {};
  const fs::path at(model);
  const fs::path folder = at.has_parent_path() ? at.parent_path() : fs::path(".");
  // A hub's snapshot is of one model, whose files may lie in folders by kind.
  const auto is_snapshot = [](const fs::path& f) { return f.parent_path().filename() == "snapshots"; };
  const bool is_below = is_snapshot(folder.parent_path());
  const fs::path& where = is_below ? folder.parent_path() : folder;
  std::vector<std::string> towers;
  for (fs::directory_iterator i(where, error), end; !error && i != end; i.increment(error)) {
    const std::string name = i->path().filename().string();
    if (name == "mmproj-" + at.filename().string()) return i->path().string();
    if (gguf::is_mmproj(name)) towers.push_back(i->path().string());
  }
  if (towers.size() == 1) return towers.front();
  const std::optional<size_t> best = is_below || is_snapshot(folder) ? gguf::best_mmproj(towers) : std::nullopt;
  return best ? towers[*best] : std::string();
}

Result<std::optional<gguf::File>> open_tower_of(const std::string& model, bool matrices) {
  const std::string beside = find_mmproj(model);
  if (beside.empty()) return convert::open_vision(model, {.matrices = matrices});
  QUIRE_TRY(gguf::File file, gguf::File::open(beside));
  return std::optional<gguf::File>(std::move(file));
}

}  // namespace quire
