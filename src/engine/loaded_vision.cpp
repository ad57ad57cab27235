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

Result<image::ImageSpec> spec_of(const VisionConfig& c, const PictureOptions& options) {
  const auto wide = [](const std::array<float, 3>& a) { return std::array<double, 3>{a[0], a[1], a[2]}; };
  QUIRE_TRY(image::ImageSpec spec, image::image_spec_of_mmproj({.projector_type = vision_row(c.family).projector,
                                                                .image_size = c.fixed_size() ? c.side() * c.patch : 0,
                                                                .patch_size = c.patch,
                                                                .spatial_merge_size = c.merge,
                                                                .image_min_pixels = c.image_min_pixels,
                                                                .image_max_pixels = c.image_max_pixels,
                                                                .image_mean = wide(c.image_mean),
                                                                .image_std = wide(c.image_std),
                                                                .pan_and_scan = c.pan_and_scan}));
  spec.layout = image::PatchLayout::kMergedBlocks;  // as all towers take them: VisionBatch
  if (spec.size_rule == image::SizeRule::kPixelRange) {
    const int64_t token = spec.patch * spec.patch * spec.merge * spec.merge;
    spec.max_pixels = std::max(std::min(spec.max_pixels, options.max_pixels), token);
    spec.min_pixels = std::min(spec.min_pixels, spec.max_pixels);
  }
  if (spec.size_rule == image::SizeRule::kPatchBudget) {
    const int64_t side = spec.patch * spec.merge;
    spec.max_tokens = std::clamp<int64_t>(options.max_pixels / (side * side), 1, spec.max_tokens);
    spec.max_pixels = spec.max_tokens * side * side;
    if (spec.max_tokens * spec.merge > c.positions)
      return file_error("pictures of {} tokens have up to {} patches in a row, but the tower has positions for {}",
                        spec.max_tokens, spec.max_tokens * spec.merge, c.positions);
  }
  if (options.pan_and_scan && spec.size_rule != image::SizeRule::kFixed)
    return request_error("--pan-and-scan: is for pictures of one size (Gemma 3), and the projector {} takes any",
                         vision_row(c.family).projector);
  spec.pan_and_scan.on = spec.pan_and_scan.on || options.pan_and_scan;
  return spec;
}

// The tokens and texts that stand for pictures.
Status find_tokens(const Tokenizer* tokenizer, LoadedVision& v) {
  const auto find = [&](std::string_view text) {
    return tokenizer != nullptr ? tokenizer->find_token(text) : std::nullopt;
  };
  const auto missing = [](std::string_view text) {
    return file_error("the model's tokenizer has no {}, which stands for pictures", text);
  };
  if (v.tower->config().family == VisionFamily::kQwen3) {
    constexpr std::string_view kPad = "<|image_pad|>";
    const std::optional<TokenId> token = find(kPad);
    if (!token) return missing(kPad);
    v.token = *token;
    v.marker = v.written = kPad;
    return {};
  }
  if (v.tower->config().family == VisionFamily::kGemma4) {
    // The row is the padding token's, whose embeddings of each layer transformers takes for rows of pictures.
    constexpr std::string_view kStart = "<|image>", kRow = "<pad>", kEnd = "<image|>";
    for (const std::string_view text : {kStart, kRow, kEnd})
      if (!find(text)) return missing(text);
    v.token = *find(kRow);
    v.marker = "<|image|>";
    v.written = fmt::format("{}{}{}", kStart, kRow, kEnd);
    return {};
  }
  // Gemma 3. Its processor puts line breaks around pictures before it makes tokens of a text, which join with others
  // beside them. GGUF files end before the token that stands for a row: any other does, because nothing reads it.
  constexpr std::string_view kStart = "<start_of_image>", kRow = "<image_soft_token>", kEnd = "<end_of_image>";
  for (const std::string_view text : {kStart, kEnd})
    if (!find(text)) return missing(text);
  constexpr std::string_view kInstead = "<pad>";
  const std::string_view row = find(kRow) ? kRow : kInstead;
  const std::optional<TokenId> token = find(row);
  if (!token) return missing(kRow);
  v.token = *token;
  v.marker = kStart;
  v.written = fmt::format("\n\n{}{}{}\n\n", kStart, row, kEnd);
  return {};
}

// Where tokens of a picture attend to each other in both directions, all of them are computed in one step. Those of
// Gemma 3 do so however far they are apart, which is what kernels compute where a window has room for a picture.
Status check_both_ways(const LoadedVision& v, const ModelConfig& text) {
  const VisionConfig& c = v.tower->config();
  if (!v.both_ways) return {};
  if (text.has_state())
    return file_error("clip.projector_type: pictures of {} are not supported in front of recurrent layers",
                      vision_row(c.family).projector);
  if (!c.fixed_size()) return {};
  const int64_t tokens = (v.spec.width / v.spec.patch / v.spec.merge) * (v.spec.height / v.spec.patch / v.spec.merge);
  if (text.has_windows() && text.attention.window < tokens)
    return file_error("pictures have {} tokens, which is more than the model's window of {}", tokens,
                      text.attention.window);
  return {};
}

}  // namespace

Result<std::unique_ptr<const LoadedVision>> load_vision(gguf::File file, const ModelConfig& text,
                                                        const Tokenizer* tokenizer, const PictureOptions& options) {
  auto v = std::make_unique<LoadedVision>(std::move(file));
  QUIRE_TRY(v->tower, VisionTower::load(v->file));
  const VisionConfig& c = v->tower->config();
  if (std::ssize(c.deepstack) > text.layers)
    return file_error("clip.vision.is_deepstack_layers: {} blocks go to layers of the text model, which has {}",
                      c.deepstack.size(), text.layers);
  if (c.out_width != text.d_model)
    return file_error("clip.vision.projection_dim: rows of {} elements, but the model's have {}", c.out_width,
                      text.d_model);
  QUIRE_TRY(v->spec, spec_of(c, options));
  v->identity = add_tensors(kFnvStart, v->file);
  QUIRE_CHECKED(find_tokens(tokenizer, *v));
  // Files of others do not say it of Gemma 4: those published with embeddings of each layer read pictures as texts.
  v->both_ways = c.both_ways.value_or(text.per_layer.width == 0);
  // What is cached of a prompt depends on it, and no tensor says it.
  if (c.family == VisionFamily::kGemma4) v->identity = fnv1a_number(v->identity, v->both_ways ? 1 : 0);
  QUIRE_CHECKED(check_both_ways(*v, text));
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
