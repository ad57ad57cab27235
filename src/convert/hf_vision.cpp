#include "convert/hf_vision.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "convert/hf_keys.h"
#include "gguf/metadata.h"

namespace quire::convert {
namespace {

using nlohmann::json;

constexpr int64_t kMaxBlocks = 512, kMaxWidth = 1 << 20, kMaxHeads = 1024, kMaxPatch = 256, kMaxMerge = 16;

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
  return family_of(type_of(vision));
}

Status check_activation(const HfKeys& k) {
  QUIRE_TRY(const std::string name, text_of(k.find("hidden_act"), "hidden_act"));
  if (name.empty() || name == "gelu_pytorch_tanh") return {};
  return file_error("hidden_act: {} is not supported (gelu_pytorch_tanh is)", gguf::printable(name));
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

Status read_colours(const json& processor, std::string_view key, std::array<double, 3>& out) {
  const json* const list = find_member(processor, key);
  if (list == nullptr) return {};
  if (!list->is_array() || list->size() != out.size()) return file_error("{}: is no list of three numbers", key);
  for (size_t i = 0; i < out.size(); ++i) {
    if (!(*list)[i].is_number()) return file_error("{}: is no list of three numbers", key);
    out[i] = (*list)[i].get<double>();
  }
  return {};
}

// Of a family whose images have any size. `size` names counts of pixels here, whatever its members are called.
Status read_pixels(const json& processor, HfVision& v) {
  const HfKeys k(processor);
  QUIRE_CHECKED(k.number_or("min_pixels", 0, 1, INT32_MAX, v.min_pixels));
  QUIRE_CHECKED(k.number_or("max_pixels", 0, 1, INT32_MAX, v.max_pixels));
  const json* const size = k.find("size");
  if (size == nullptr || !size->is_object()) return {};
  const HfKeys s(*size);
  QUIRE_CHECKED(s.number_or("shortest_edge", v.min_pixels, 1, INT32_MAX, v.min_pixels).context("size"));
  return s.number_or("longest_edge", v.max_pixels, 1, INT32_MAX, v.max_pixels).context("size");
}

Status read_images(const json& processor, HfVision& v) {
  QUIRE_CHECKED(read_colours(processor, "image_mean", v.mean));
  QUIRE_CHECKED(read_colours(processor, "image_std", v.deviation));
  for (const double x : v.deviation)
    if (!(x > 0)) return file_error("image_std: {} is not positive", x);
  return v.family == VisionFamily::kQwen3 ? read_pixels(processor, v) : Status();
}

Result<HfVision> read_tower(const json& root, const json& vision, VisionFamily family) {
  const HfKeys k(vision);
  HfVision v;
  v.family = family;
  QUIRE_CHECKED(k.number("hidden_size", 8, kMaxWidth, v.width));
  QUIRE_CHECKED(k.number("intermediate_size", 1, kMaxWidth, v.ffn));
  QUIRE_CHECKED(check_activation(k));
  QUIRE_CHECKED(family == VisionFamily::kQwen3 ? read_qwen(k, v) : read_gemma(root, k, v));
  return v;
}

}  // namespace

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
  u32("image_size", v.side() * v.patch);
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
  } else if (constexpr int64_t kAssumed = 4; v.merge != kAssumed) {
    u32("projector.scale_factor", v.merge);
  }
  if (v.deepstack.empty()) return;
  std::vector<bool> layers(static_cast<size_t>(v.blocks));
  for (const int64_t block : v.deepstack) layers[static_cast<size_t>(block)] = true;
  w.add_bools("clip.vision.is_deepstack_layers", layers);
}

}  // namespace quire::convert
