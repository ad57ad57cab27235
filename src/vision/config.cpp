#include "vision/config.h"

#include <cmath>

#include "parts/keys.h"

namespace quire {
namespace {

using gguf::printable;

constexpr int64_t kMaxMerge = 16, kMaxPatch = 256;
// Of Gemma 4, whose files do not say it. Source: Gemma4VisionConfig of transformers.
constexpr float kGemma4Theta = 100.0f;

// Rows of a square that has as many fields, or 0.
int64_t side_of(int64_t fields) {
  const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(fields))));
  return side * side == fields ? side : 0;
}

Result<const VisionFamilyRow*> read_family(const gguf::File& file) {
  QUIRE_TRY(const std::string_view architecture, file.get_string("general.architecture"));
  if (architecture != "clip")
    return file_error("general.architecture: {} is no vision tower, which is called clip", printable(architecture));
  QUIRE_TRY(const bool has_tower, file.get_bool_or("clip.has_vision_encoder", false));
  if (!has_tower) return file_error("clip.has_vision_encoder: the file has no vision tower");
  const bool own = file.has("clip.vision.projector_type");
  const std::string_view key = own ? "clip.vision.projector_type" : "clip.projector_type";
  QUIRE_TRY(const std::string_view projector, file.get_string(key));
  const VisionFamilyRow* const row = find_vision_family(projector);
  if (row == nullptr)
    return file_error("{}: {} is not supported ({} are)", key, printable(projector), vision_projectors());
  return row;
}

// All feed-forwards have GELU. Files of Gemma 4 need not say so.
Status check_activation(const gguf::File& file, VisionFamily family) {
  QUIRE_TRY(const bool gelu, file.get_bool_or("clip.use_gelu", family == VisionFamily::kGemma4));
  QUIRE_TRY(const bool silu, file.get_bool_or("clip.use_silu", false));
  if (silu) return file_error("clip.use_silu: another activation than GELU is not supported");
  if (!gelu) return file_error("clip.use_gelu: must be true; another activation than GELU is not supported");
  return {};
}

Status read_sizes(const ModelKeys& k, VisionConfig& c) {
  QUIRE_CHECKED(k.number("embedding_length", 8, kMaxWidth, c.width));
  QUIRE_CHECKED(k.number("block_count", 1, kMaxBlocks, c.blocks));
  QUIRE_CHECKED(k.number("attention.head_count", 1, kMaxHeads, c.heads));
  QUIRE_CHECKED(k.number("feed_forward_length", 1, kMaxWidth, c.ffn));
  QUIRE_CHECKED(k.number("patch_size", 1, kMaxPatch, c.patch));
  QUIRE_CHECKED(k.number("projection_dim", 1, kMaxWidth, c.out_width));
  QUIRE_CHECKED(k.positive("attention.layer_norm_epsilon", c.eps));
  if (c.family == VisionFamily::kQwen3)
    QUIRE_CHECKED(k.number_or("spatial_merge_size", 2, 1, kMaxMerge, c.merge));
  else
    QUIRE_CHECKED(k.number_or("projector.scale_factor", c.fixed_size() ? 4 : 3, 1, kMaxMerge, c.merge));
  if (c.width % c.heads != 0 || c.head_dim() % 8 != 0)
    return file_error("{}: {} heads of a width of {} are not heads of a multiple of 8 elements",
                      k.full("attention.head_count"), c.heads, c.width);
  if (c.head_dim() > kMaxHeadDim)
    return file_error("{}: heads of {} elements are not supported", k.full("attention.head_count"), c.head_dim());
  return {};
}

// The table's size is that of its tensor. Of a square grid the size of images must agree with it.
Status read_positions(const ModelKeys& k, VisionConfig& c) {
  const std::string name = vision_stem(VisionRole::kPositions) + ".weight";
  QUIRE_TRY(const gguf::TensorInfo* table, k.file().get_tensor(name));
  c.positions = table->dims[1];
  if (c.family == VisionFamily::kGemma4) {  // a table for each axis
    if (c.positions <= kMaxWidth) return {};
    return file_error("tensor {}: {} positions are more than {}", name, c.positions, kMaxWidth);
  }
  const int64_t side = side_of(c.positions);
  if (side == 0) return file_error("tensor {}: {} positions are no square grid", name, c.positions);
  int64_t image = 0;
  QUIRE_CHECKED(k.number_or("image_size", side * c.patch, 1, kMaxWidth, image));
  if (image / c.patch != side)
    return file_error("{}: images of {} pixels have {} patches of {} a side, and tensor {} has positions of {} x {}",
                      k.full("image_size"), image, image / c.patch, c.patch, name, side, side);
  if (c.fixed_size() && side % c.merge != 0)
    return file_error("{}: {} x {} patches cannot be pooled {} x {}", k.full("image_size"), side, side, c.merge,
                      c.merge);
  return {};
}

Status read_deepstack(const ModelKeys& k, VisionConfig& c) {
  constexpr std::string_view kKey = "is_deepstack_layers";
  if (!k.has(kKey)) return {};
  QUIRE_TRY(const std::vector<bool> layers, k.file().get_bool_array(k.full(kKey)));
  if (std::ssize(layers) != c.blocks)
    return file_error("{}: {} values for {} blocks", k.full(kKey), layers.size(), c.blocks);
  for (int64_t i = 0; i < c.blocks; ++i)
    if (layers[static_cast<size_t>(i)]) c.deepstack.push_back(i);
  if (!c.deepstack.empty() && c.family != VisionFamily::kQwen3)
    return k.unsupported(kKey, "outputs of blocks of this projector are");
  return {};
}

Status read_colours(const ModelKeys& k, std::string_view key, bool divides, std::array<float, 3>& out) {
  if (!k.has(key)) return {};
  QUIRE_TRY(const std::vector<float> values, k.file().get_f32_array(k.full(key)));
  if (values.size() != out.size())
    return file_error("{}: {} values, but there are three colours", k.full(key), values.size());
  for (size_t i = 0; i < out.size(); ++i) {
    if (divides && !(values[i] > 0.0f)) return file_error("{}: {} is not positive", k.full(key), values[i]);
    out[i] = values[i];
  }
  return {};
}

// Keys of Quire's own: `quire convert` writes them where a folder says that pictures are seen in pieces, too.
Status read_pan_and_scan(const gguf::File& file, image::PanAndScan& p) {
  const ModelKeys k(file, "quire.pan_and_scan");
  QUIRE_TRY(p.on, file.get_bool_or("quire.pan_and_scan", false));
  QUIRE_CHECKED(k.number_or("min_crop_size", p.min_crop, 1, 1 << 16, p.min_crop));
  QUIRE_CHECKED(k.number_or("max_num_crops", p.max_crops, 1, 64, p.max_crops));
  return k.real("min_ratio_to_activate", p.min_ratio);
}

Status read_images(const ModelKeys& k, VisionConfig& c) {
  QUIRE_CHECKED(read_colours(k, "image_mean", false, c.image_mean));
  QUIRE_CHECKED(read_colours(k, "image_std", true, c.image_std));
  QUIRE_CHECKED(k.number_or("image_min_pixels", 0, 0, INT32_MAX, c.image_min_pixels));
  QUIRE_CHECKED(k.number_or("image_max_pixels", 0, 0, INT32_MAX, c.image_max_pixels));
  if (c.fixed_size()) QUIRE_CHECKED(read_pan_and_scan(k.file(), c.pan_and_scan));
  if (c.image_max_pixels > 0 && c.image_min_pixels > c.image_max_pixels)
    return file_error("{}: {} pixels at least, and {} at most", k.full("image_min_pixels"), c.image_min_pixels,
                      c.image_max_pixels);
  return {};
}

// What is different in Gemma 4's.
Status read_gemma4(const gguf::File& file, VisionConfig& c) {
  if (c.family != VisionFamily::kGemma4) return {};
  c.rope_theta = kGemma4Theta;
  c.image_mean = {0, 0, 0};
  c.image_std = {1, 1, 1};
  c.both_ways.reset();
  if (!file.has("quire.vision.both_ways")) return {};
  QUIRE_TRY(c.both_ways, file.get_bool("quire.vision.both_ways"));
  return {};
}

}  // namespace

int64_t VisionConfig::side() const {
  return side_of(positions);
}

bool has_vision_tower(const gguf::File& file) {
  const Result<std::string_view> architecture = file.get_string_or("general.architecture", "");
  const Result<bool> tower = file.get_bool_or("clip.has_vision_encoder", false);
  return architecture.ok() && *architecture == "clip" && tower.ok() && *tower;
}

Result<VisionConfig> read_vision_config(const gguf::File& file) {
  QUIRE_TRY(const VisionFamilyRow* row, read_family(file));
  QUIRE_CHECKED(check_activation(file, row->family));
  const ModelKeys k(file, "clip.vision");
  VisionConfig c;
  c.family = row->family;
  c.frames = row->frames;
  c.both_ways = row->family == VisionFamily::kGemma3;
  QUIRE_CHECKED(read_gemma4(file, c));
  QUIRE_CHECKED(read_sizes(k, c));
  QUIRE_CHECKED(read_positions(k, c));
  QUIRE_CHECKED(read_deepstack(k, c));
  QUIRE_CHECKED(read_images(k, c));
  return c;
}

}  // namespace quire
