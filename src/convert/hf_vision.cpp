#include "convert/hf_vision.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "convert/hf_keys.h"
#include "gguf/metadata.h"
#include "image/spec.h"

namespace quire::convert {
namespace {

using nlohmann::json;

constexpr int64_t kMaxBlocks = 512, kMaxWidth = 1 << 20, kMaxHeads = 1024, kMaxPatch = 256, kMaxMerge = 16;
constexpr int64_t kMaxTokens = 4096;  // of a picture of Gemma 4's

int64_t root_of(int64_t square) {
  const auto root = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(square))));
  return root * root == square ? root : 0;
}

std::optional<VisionFamily> family_of(std::string_view type) {
  if (type.starts_with("qwen3_vl") || type.starts_with("qwen3_5")) return VisionFamily::kQwen3;
  return std::nullopt;
}

// Gemma 3's towers are of a class that other models have, too.
std::optional<VisionFamily> family_of(const json& root, const json& vision) {
  const auto type_of = [](const json& object) {
    const json* const type = find_member(object, "model_type");
    return type != nullptr && type->is_string() ? type->get<std::string>() : std::string();
  };
  if (type_of(root) == "gemma3" && type_of(vision) == "siglip_vision_model") return VisionFamily::kGemma3;
  if (type_of(root) == "gemma4" && type_of(vision) == "gemma4_vision") return VisionFamily::kGemma4;
  return family_of(type_of(vision));
}

Status check_activation(const HfKeys& k, const char* key) {
  QUIRE_TRY(const std::string name, text_of(k.find(key), key));
  if (name.empty() || name == "gelu_pytorch_tanh") return {};
  return file_error("{}: {} is not supported (gelu_pytorch_tanh is)", key, gguf::printable(name));
}

Status read_deepstack(const HfKeys& k, HfVision& v) {
  constexpr std::string_view kKey = "deepstack_visual_indexes";
  const json* const list = k.find(kKey);
  if (list == nullptr) return {};
  if (!list->is_array()) return file_error("{}: is not a list", kKey);
  for (const json& block : *list) {
    if (!block.is_number_integer()) return file_error("{}: {} is not a whole number", kKey, block.dump());
    const auto i = block.get<int64_t>();
    if (i < 0 || i >= v.blocks) return file_error("{}: there is no block {}", kKey, i);
    if (!v.deepstack.empty() && v.deepstack.back() >= i) return file_error("{}: blocks must ascend", kKey);
    v.deepstack.push_back(i);
  }
  return {};
}

Status read_qwen(const HfKeys& k, HfVision& v) {
  int64_t colours = 0, frames = 0;
  QUIRE_CHECKED(k.number("depth", 1, kMaxBlocks, v.blocks));
  QUIRE_CHECKED(k.number("num_heads", 1, kMaxHeads, v.heads));
  QUIRE_CHECKED(k.number_or("patch_size", 16, 1, kMaxPatch, v.patch));
  QUIRE_CHECKED(k.number_or("spatial_merge_size", 2, 1, kMaxMerge, v.merge));
  QUIRE_CHECKED(k.number_or("temporal_patch_size", 2, 2, 2, frames));
  QUIRE_CHECKED(k.number_or("in_channels", 3, 3, 3, colours));
  QUIRE_CHECKED(k.number_or("num_position_embeddings", 2304, 1, kMaxWidth, v.positions));
  QUIRE_CHECKED(k.number("out_hidden_size", 1, kMaxWidth, v.out));
  if (root_of(v.positions) == 0)
    return file_error("num_position_embeddings: {} positions are no square grid", v.positions);
  return read_deepstack(k, v);
}

Status read_gemma(const json& root, const HfKeys& k, HfVision& v) {
  int64_t colours = 0, image = 0, tokens = 0;
  QUIRE_CHECKED(k.number("num_hidden_layers", 1, kMaxBlocks, v.blocks));
  QUIRE_CHECKED(k.number("num_attention_heads", 1, kMaxHeads, v.heads));
  QUIRE_CHECKED(k.number("patch_size", 1, kMaxPatch, v.patch));
  QUIRE_CHECKED(k.number("image_size", 1, 1 << 16, image));
  QUIRE_CHECKED(k.number_or("num_channels", 3, 3, 3, colours));
  QUIRE_CHECKED(positive_or(k.find("layer_norm_eps"), "layer_norm_eps", 1e-6, v.eps));
  const HfKeys top(root);
  QUIRE_CHECKED(top.number_or("mm_tokens_per_image", 256, 1, kMaxWidth, tokens));
  const json* const text = top.find("text_config");
  if (text == nullptr) return file_error("text_config: missing");
  QUIRE_CHECKED(HfKeys(*text).number("hidden_size", 1, kMaxWidth, v.out).context("text_config"));
  const int64_t side = image / v.patch, tokens_side = root_of(tokens);
  v.positions = side * side;
  if (tokens_side == 0 || side % tokens_side != 0 || side == 0)
    return file_error("mm_tokens_per_image: {} x {} patches cannot be pooled to {} tokens", side, side, tokens);
  v.merge = side / tokens_side;
  return {};
}

// Frequencies are those of files, which do not name them.
Status check_gemma4_rope(const HfKeys& k) {
  const json* const rope = k.find("rope_parameters");
  if (rope == nullptr) return {};
  if (!rope->is_object()) return file_error("rope_parameters: is no object");
  double theta = 100;
  QUIRE_CHECKED(positive_or(find_member(*rope, "rope_theta"), "rope_theta", 100, theta).context("rope_parameters"));
  if (theta != 100) return file_error("rope_parameters: a rope_theta of {} is not supported (100 is)", theta);
  QUIRE_TRY(const std::string type, text_of(find_member(*rope, "rope_type"), "rope_type"));
  if (type.empty() || type == "default" || type == "axial") return {};
  return file_error("rope_parameters: rope_type: {} is not supported (axial is)", gguf::printable(type));
}

// Defaults are those of Gemma4VisionConfig.
Status read_gemma4(const json& root, const HfKeys& k, HfVision& v) {
  int64_t kv_heads = 0, head_dim = 0;
  bool biased = false;
  QUIRE_CHECKED(k.number_or("num_hidden_layers", 16, 1, kMaxBlocks, v.blocks));
  QUIRE_CHECKED(k.number_or("num_attention_heads", 12, 1, kMaxHeads, v.heads));
  QUIRE_CHECKED(k.number_or("num_key_value_heads", v.heads, v.heads, v.heads, kv_heads));
  QUIRE_CHECKED(k.number_or("head_dim", 64, 1, kMaxWidth, head_dim));
  QUIRE_CHECKED(k.number_or("patch_size", 16, 1, kMaxPatch, v.patch));
  QUIRE_CHECKED(k.number_or("pooling_kernel_size", 3, 1, kMaxMerge, v.merge));
  QUIRE_CHECKED(k.number_or("position_embedding_size", 10240, 1, kMaxWidth, v.positions));
  QUIRE_CHECKED(positive_or(k.find("rms_norm_eps"), "rms_norm_eps", 1e-6, v.eps));
  QUIRE_CHECKED(k.flag_or("attention_bias", false, biased));
  QUIRE_CHECKED(k.flag_or("use_clipped_linears", false, v.bounded));
  QUIRE_CHECKED(k.flag_or("standardize", false, v.scaled));
  if (biased) return file_error("attention_bias: true is not supported");
  if (head_dim * v.heads != v.width)
    return file_error("head_dim: {} heads of {} elements are not as wide as hidden_size, {}", v.heads, head_dim,
                      v.width);
  QUIRE_CHECKED(check_gemma4_rope(k));
  const json* const text = HfKeys(root).find("text_config");
  if (text == nullptr) return file_error("text_config: missing");
  QUIRE_CHECKED(HfKeys(*text).number("hidden_size", 1, kMaxWidth, v.out).context("text_config"));
  const json* const direction = find_member(*text, "use_bidirectional_attention");
  v.both_ways = direction != nullptr && *direction == json("vision");
  return {};
}

// A processor whose class is not named is its family's, and has what the models of the family have.
json with_usual(const json& processor, const HfVision& v) {
  if (find_member(processor, "image_processor_type") != nullptr) return processor;
  json usual = {{"image_mean", {0.5, 0.5, 0.5}}, {"image_std", {0.5, 0.5, 0.5}}};
  if (v.family == VisionFamily::kQwen3) {
    const int64_t token = v.patch * v.patch * v.merge * v.merge;
    usual["image_processor_type"] = "Qwen3VLImageProcessor";
    usual["patch_size"] = v.patch;
    usual["merge_size"] = v.merge;
    usual["size"] = {{"shortest_edge", 64 * token}, {"longest_edge", 16384 * token}};
  } else {
    usual["image_processor_type"] = "Gemma3ImageProcessor";
    usual["size"] = {{"height", v.side() * v.patch}, {"width", v.side() * v.patch}};
    usual["image_seq_length"] = (v.side() / v.merge) * (v.side() / v.merge);
  }
  usual.update(processor);
  return usual;
}

// What an mmproj file has no key for must be what its readers take for granted.
Status check_kept(const image::ImageSpec& s, const HfVision& v) {
  const bool any_size = v.family == VisionFamily::kQwen3;
  if (s.size_rule != (any_size ? image::SizeRule::kPixelRange : image::SizeRule::kFixed))
    return file_error("image_processor_type: is not the tower's, whose pictures have {}",
                      any_size ? "any size" : "one size");
  if (s.resample != (any_size ? image::Resample::kBicubic : image::Resample::kBilinear))
    return file_error("resample: another filter than {} is not supported for this tower",
                      any_size ? "3 (bicubic)" : "2 (bilinear)");
  if (s.scale != 1.0 / 255) return file_error("rescale_factor: {} is not supported (1 / 255 is)", s.scale);
  if (s.merge != v.merge)
    return file_error("a token is {} x {} patches here, and {} x {} in config.json", s.merge, s.merge, v.merge,
                      v.merge);
  if (any_size && s.frames != vision_row(v.family).frames)
    return file_error("temporal_patch_size: {} is not supported (2 is)", s.frames);
  if (const int64_t side = v.side() * v.patch; !any_size && (s.width != side || s.height != side))
    return file_error("size: {} x {}, but the tower has positions for {} x {}", s.width, s.height, side, side);
  return {};
}

// Where it does not, readers of files take the models' own limits.
bool says_sizes(const json& processor) {
  constexpr std::string_view kKeys[] = {"image_processor_type", "size", "min_pixels", "max_pixels"};
  return std::ranges::any_of(kKeys, [&](std::string_view key) { return find_member(processor, key) != nullptr; });
}

// Of Gemma 4: files say how many tokens a picture has at most, as its pixels; everything else must be as usual.
Status read_budget(json processor, HfVision& v) {
  v.mean = {0, 0, 0};
  v.deviation = {1, 1, 1};
  if (processor.empty()) return {};
  if (find_member(processor, "image_processor_type") == nullptr)
    processor["image_processor_type"] = "Gemma4ImageProcessor";
  QUIRE_TRY(const image::ImageSpec spec, image::read_image_spec(processor, v.patch));
  if (spec.size_rule != image::SizeRule::kPatchBudget)
    return file_error("image_processor_type: {} is not that of Gemma 4", processor["image_processor_type"].dump());
  if (spec.merge != v.merge) return file_error("pooling_kernel_size: {}, but the tower has {}", spec.merge, v.merge);
  const image::ImageSpec usual;
  if (spec.resample != usual.resample) return file_error("resample: only 3 (bicubic) is supported");
  if (spec.scale != usual.scale) return file_error("rescale_factor: {} is not supported (1 / 255 is)", spec.scale);
  v.mean = spec.mean;
  v.deviation = spec.deviation;
  constexpr int64_t kUsual = 280;
  const int64_t side = v.patch * v.merge;
  if (spec.max_tokens > kMaxTokens)
    return file_error("max_soft_tokens: {} is more than {}", spec.max_tokens, kMaxTokens);
  if (spec.max_tokens != kUsual) v.max_pixels = spec.max_tokens * side * side;
  return {};
}

Status read_images(const json& processor, HfVision& v) {
  if (v.family == VisionFamily::kGemma4) return read_budget(processor, v);
  if (processor.empty()) return {};
  QUIRE_TRY(const image::ImageSpec s, image::read_image_spec(with_usual(processor, v), v.patch));
  for (const double x : s.deviation)
    if (!(x > 0)) return file_error("image_std: {} is not positive", x);
  QUIRE_CHECKED(check_kept(s, v));
  v.mean = s.mean;
  v.deviation = s.deviation;
  constexpr int64_t kMost = INT32_MAX;  // that readers take
  if (s.min_pixels > kMost) return file_error("size: pictures of {} pixels at least are not supported", s.min_pixels);
  if (says_sizes(processor)) {
    v.min_pixels = s.min_pixels;
    v.max_pixels = std::min(s.max_pixels, kMost);
  }
  v.pan_and_scan = s.pan_and_scan;
  return {};
}

Result<HfVision> read_tower(const json& root, const json& vision, VisionFamily family) {
  const HfKeys k(vision);
  HfVision v;
  v.family = family;
  if (family == VisionFamily::kGemma4) {
    QUIRE_CHECKED(k.number_or("hidden_size", 768, 8, kMaxWidth, v.width));
    QUIRE_CHECKED(k.number_or("intermediate_size", 3072, 1, kMaxWidth, v.ffn));
    QUIRE_CHECKED(check_activation(k, "hidden_activation"));
    QUIRE_CHECKED(read_gemma4(root, k, v));
    return v;
  }
  QUIRE_CHECKED(k.number("hidden_size", 8, kMaxWidth, v.width));
  QUIRE_CHECKED(k.number("intermediate_size", 1, kMaxWidth, v.ffn));
  QUIRE_CHECKED(check_activation(k, "hidden_act"));
  QUIRE_CHECKED(family == VisionFamily::kQwen3 ? read_qwen(k, v) : read_gemma(root, k, v));
  return v;
}

// Other readers have no such keys, and see pictures as a whole.
void write_pan_and_scan(const image::PanAndScan& p, gguf::Writer& w) {
  if (!p.on) return;
  w.add("quire.pan_and_scan", true);
  w.add("quire.pan_and_scan.min_crop_size", static_cast<uint32_t>(p.min_crop));
  w.add("quire.pan_and_scan.max_num_crops", static_cast<uint32_t>(p.max_crops));
  w.add("quire.pan_and_scan.min_ratio_to_activate", p.min_ratio);
}

}  // namespace

int64_t deepstack_levels(const json& root) {
  const json* const vision = find_member(root, "vision_config");
  if (vision == nullptr || !vision->is_object()) return 0;
  const json* const list = find_member(*vision, "deepstack_visual_indexes");
  return list != nullptr && list->is_array() ? static_cast<int64_t>(list->size()) : 0;
}

int64_t HfVision::side() const {
  return root_of(positions);
}

Result<std::optional<HfVision>> read_hf_vision(const json& root, const json& processor) {
  const json* const vision = find_member(root, "vision_config");
  if (vision == nullptr || !vision->is_object()) return std::optional<HfVision>();
  const std::optional<VisionFamily> family = family_of(root, *vision);
  if (!family) return std::optional<HfVision>();
  QUIRE_TRY(HfVision v, read_tower(root, *vision, *family).context("vision_config"));
  QUIRE_CHECKED(read_images(processor, v).context("preprocessor_config.json"));
  return std::optional(std::move(v));
}

void write_vision_metadata(const HfVision& v, const Plan& plan, const std::string& name, gguf::Writer& w) {
  const auto u32 = [&](std::string_view key, int64_t x) {
    w.add(fmt::format("clip.vision.{}", key), static_cast<uint32_t>(x));
  };
  const auto colours = [&](std::string_view key, const std::array<double, 3>& x) {
    const std::array<float, 3> values{static_cast<float>(x[0]), static_cast<float>(x[1]), static_cast<float>(x[2])};
    w.add_array(fmt::format("clip.vision.{}", key), std::span<const float>(values));
  };
  w.add_string("general.architecture", "clip");
  w.add_string("general.type", "mmproj");
  w.add_string("general.name", name);
  w.add("general.file_type", gguf::file_type_code(plan.mostly));
  w.add("general.quantization_version", uint32_t{2});
  w.add("clip.has_vision_encoder", true);
  w.add_string("clip.projector_type", vision_row(v.family).projector);
  w.add("clip.use_gelu", true);
  // Images of Gemma 4 have no such size, but others look for one.
  u32("image_size", v.family == VisionFamily::kGemma4 ? 224 : v.side() * v.patch);
  u32("patch_size", v.patch);
  u32("embedding_length", v.width);
  u32("feed_forward_length", v.ffn);
  u32("block_count", v.blocks);
  u32("projection_dim", v.out);
  u32("attention.head_count", v.heads);
  w.add("clip.vision.attention.layer_norm_epsilon", static_cast<float>(v.eps));
  colours("image_mean", v.mean);
  colours("image_std", v.deviation);
  if (v.family == VisionFamily::kQwen3) {
    u32("spatial_merge_size", v.merge);
    if (v.min_pixels > 0) u32("image_min_pixels", v.min_pixels);
    if (v.max_pixels > 0) u32("image_max_pixels", v.max_pixels);
  } else if (const int64_t assumed = v.family == VisionFamily::kGemma4 ? 3 : 4; v.merge != assumed) {
    u32("projector.scale_factor", v.merge);
  }
  if (v.family == VisionFamily::kGemma4) {
    if (v.max_pixels > 0) u32("image_max_pixels", v.max_pixels);
    w.add("quire.vision.both_ways", v.both_ways);
  }
  write_pan_and_scan(v.pan_and_scan, w);
  if (v.deepstack.empty()) return;
  std::vector<bool> layers(static_cast<size_t>(v.blocks));
  for (const int64_t block : v.deepstack) layers[static_cast<size_t>(block)] = true;
  w.add_bools("clip.vision.is_deepstack_layers", layers);
}

}  // namespace quire::convert
