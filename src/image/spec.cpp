#include "image/spec.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

namespace quire::image {

namespace {

using nlohmann::json;

constexpr int64_t kMaxCrops = 64, kMaxSide = 1 << 16, kMaxPixels = int64_t{1} << 40;

// What the classes of processors do where a file says nothing.
struct Family {
  std::string_view processor;  // its class in transformers
  ImageSpec spec;
};

ImageSpec qwen2_defaults() {
  ImageSpec s;
  s.patch = 14;
  s.frames = 2;
  s.min_pixels = 56 * 56;
  s.max_pixels = 28 * 28 * 1280;
  // The mean and the deviation of CLIP.
  s.mean = {0.48145466, 0.4578275, 0.40821073};
  s.deviation = {0.26862954, 0.26130258, 0.27577711};
  return s;
}

ImageSpec gemma3_defaults() {
  ImageSpec s;
  s.size_rule = SizeRule::kFixed;
  s.layout = PatchLayout::kRowsOfPlanes;
  s.resample = Resample::kBilinear;
  s.patch = 0;
  s.width = s.height = 224;
  s.max_tokens = 256;
  s.mean = s.deviation = {0.5, 0.5, 0.5};
  return s;
}

ImageSpec gemma4_defaults() {
  ImageSpec s;
  s.size_rule = SizeRule::kPatchBudget;
  s.layout = PatchLayout::kRowsOfPixels;
  s.merge = 3;
  s.max_tokens = 280;
  return s;
}

std::span<const Family> families() {
  static const Family all[] = {
      {"Qwen2VLImageProcessor", qwen2_defaults()}, {"Qwen2_5_VLImageProcessor", qwen2_defaults()},
      {"Qwen3VLImageProcessor", qwen2_defaults()}, {"Gemma3ImageProcessor", gemma3_defaults()},
      {"Gemma4ImageProcessor", gemma4_defaults()},
  };
  return all;
}

Result<ImageSpec> defaults_of(std::string_view processor) {
  // Of two implementations of one class, the files of some models name the second.
  constexpr std::string_view kFast = "Fast";
  std::string_view name = processor;
  if (name.ends_with(kFast)) name.remove_suffix(kFast.size());
  for (const Family& f : families())
    if (f.processor == name) return f.spec;
  return file_error("image_processor_type: '{}' is no processor that is known here", processor.substr(0, 80));
}

// The member, or null if it is absent or null.
const json* find(const json& object, const char* key) {
  const auto at = object.find(key);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

// `out` stays as it is where the key is absent.
Status read_number(const json& object, const char* key, int64_t hi, int64_t& out) {
  const json* v = find(object, key);
  if (v == nullptr) return {};
  if (!v->is_number_integer()) return file_error("{}: is not a whole number", key);
  const int64_t n = v->get<int64_t>();  // an unsigned number above 2^63 comes out negative
  if (n < 1 || n > hi) return file_error("{}: {} is not between 1 and {}", key, n, hi);
  out = n;
  return {};
}

Result<bool> read_flag(const json& object, const char* key, bool absent) {
  const json* v = find(object, key);
  if (v == nullptr) return absent;
  if (!v->is_boolean()) return file_error("{}: is not true or false", key);
  return v->get<bool>();
}

Status read_real(const json& v, const char* key, double& out) {
  if (!v.is_number()) return file_error("{}: is not a number", key);
  out = v.get<double>();
  if (!std::isfinite(static_cast<float>(out))) return file_error("{}: is not a number of float32", key);
  return {};
}

// A number for each channel, or one for all.
Status read_channels(const json& object, const char* key, std::array<double, 3>& out) {
  const json* v = find(object, key);
  if (v == nullptr) return {};
  if (v->is_array() && v->size() != out.size()) return file_error("{}: has not one number for each channel", key);
  for (size_t c = 0; c < out.size(); ++c) QUIRE_CHECKED(read_real(v->is_array() ? (*v)[c] : *v, key, out[c]));
  return {};
}

Status refuse_unknown_steps(const json& c) {
  for (const char* step : {"do_center_crop", "do_pad"}) {
    QUIRE_TRY(const bool wanted, read_flag(c, step, false));
    if (wanted) return file_error("{}: true is not supported", step);
  }
  QUIRE_TRY(const bool resizes, read_flag(c, "do_resize", true));
  if (!resizes) return file_error("do_resize: false is not supported");
  return {};
}

Status read_values(const json& c, ImageSpec& s) {
  QUIRE_TRY(const bool rescales, read_flag(c, "do_rescale", true));
  const json* factor = find(c, "rescale_factor");
  if (!rescales)
    s.scale = 1;
  else if (factor != nullptr)
    QUIRE_CHECKED(read_real(*factor, "rescale_factor", s.scale));
  const bool as_default = s.size_rule != SizeRule::kPatchBudget;
  QUIRE_TRY(const bool normalises, read_flag(c, "do_normalize", as_default));
  if (!normalises) {
    s.mean = {0, 0, 0};
    s.deviation = {1, 1, 1};
    return {};
  }
  QUIRE_CHECKED(read_channels(c, "image_mean", s.mean));
  return read_channels(c, "image_std", s.deviation);
}

Status read_resample(const json& c, Resample& out) {
  int64_t number = out == Resample::kBilinear ? 2 : 3;
  QUIRE_CHECKED(read_number(c, "resample", 5, number));
  if (number != 2 && number != 3) return file_error("resample: {} is neither 2 (bilinear) nor 3 (bicubic)", number);
  out = number == 2 ? Resample::kBilinear : Resample::kBicubic;
  return {};
}

Status read_pixel_range(const json& c, ImageSpec& s) {
  if (const json* size = find(c, "size"); size != nullptr && size->is_object()) {
    QUIRE_CHECKED(read_number(*size, "shortest_edge", kMaxPixels, s.min_pixels));
    QUIRE_CHECKED(read_number(*size, "longest_edge", kMaxPixels, s.max_pixels));
  }
  QUIRE_CHECKED(read_number(c, "min_pixels", kMaxPixels, s.min_pixels));
  QUIRE_CHECKED(read_number(c, "max_pixels", kMaxPixels, s.max_pixels));
  QUIRE_CHECKED(read_number(c, "patch_size", kMaxSide, s.patch));
  QUIRE_CHECKED(read_number(c, "merge_size", kMaxSide, s.merge));
  return read_number(c, "temporal_patch_size", 16, s.frames);
}

// merge: so that a picture becomes max_tokens tokens.
Status set_merge(ImageSpec& s) {
  const int64_t patches = (s.width / s.patch) * (s.height / s.patch);
  s.merge = std::llround(std::sqrt(static_cast<double>(patches) / static_cast<double>(s.max_tokens)));
  const bool fits = s.merge > 0 && s.width % (s.patch * s.merge) == 0 && s.height % (s.patch * s.merge) == 0;
  if (!fits || s.merge * s.merge * s.max_tokens != patches)
    return file_error("{} x {} pixels in patches of {} do not become {} tokens", s.width, s.height, s.patch,
                      s.max_tokens);
  return {};
}

// Names and what holds where one is null are Gemma3Processor's.
Status read_pan_and_scan(const json& c, PanAndScan& p) {
  QUIRE_TRY(p.on, read_flag(c, "do_pan_and_scan", false));
  QUIRE_CHECKED(read_number(c, "pan_and_scan_min_crop_size", kMaxSide, p.min_crop));
  QUIRE_CHECKED(read_number(c, "pan_and_scan_max_num_crops", kMaxCrops, p.max_crops));
  constexpr char kRatio[] = "pan_and_scan_min_ratio_to_activate";
  const json* ratio = find(c, kRatio);
  if (ratio == nullptr) return {};
  double value = 0;
  QUIRE_CHECKED(read_real(*ratio, kRatio, value));
  p.min_ratio = static_cast<float>(value);
  return {};
}

Status read_fixed_size(const json& c, int64_t tower_patch, ImageSpec& s) {
  if (const json* size = find(c, "size"); size != nullptr) {
    if (!size->is_object() || !find(*size, "height") || !find(*size, "width"))
      return file_error("size: has not height and width");
    QUIRE_CHECKED(read_number(*size, "height", kMaxSide, s.height));
    QUIRE_CHECKED(read_number(*size, "width", kMaxSide, s.width));
  }
  QUIRE_CHECKED(read_number(c, "image_seq_length", kMaxSide, s.max_tokens));
  QUIRE_CHECKED(read_pan_and_scan(c, s.pan_and_scan));
  s.patch = tower_patch;
  if (s.patch <= 0) return file_error("the tower's patch_size: missing");
  return set_merge(s);
}

Status read_patch_budget(const json& c, ImageSpec& s) {
  QUIRE_CHECKED(read_number(c, "patch_size", kMaxSide, s.patch));
  QUIRE_CHECKED(read_number(c, "pooling_kernel_size", kMaxSide, s.merge));
  return read_number(c, "max_soft_tokens", kMaxSide, s.max_tokens);
}

// Numbers that fit alone, but not together.
Status check_spec(const ImageSpec& s, int64_t tower_patch) {
  if (tower_patch > 0 && s.patch != tower_patch)
    return file_error("patch_size: {}, but the tower has {}", s.patch, tower_patch);
  if (s.patch < 1 || s.patch > 256 || s.merge < 1 || s.merge > 64)
    return file_error("patches of {} pixels, {} x {} to a token, are not supported", s.patch, s.merge, s.merge);
  if (s.size_rule == SizeRule::kPixelRange && s.min_pixels > s.max_pixels)
    return file_error("at least {} pixels and at most {} are none", s.min_pixels, s.max_pixels);
  for (const double d : s.deviation)
    if (static_cast<float>(d) == 0) return file_error("image_std: is 0");
  return {};
}

}  // namespace

std::vector<float> colour_table(const ImageSpec& spec) {
  std::vector<float> table;
  for (size_t c = 0; c < spec.mean.size(); ++c)
    for (int v = 0; v < 256; ++v) {
      const float scaled = static_cast<float>(v * spec.scale);
      table.push_back((scaled - static_cast<float>(spec.mean[c])) / static_cast<float>(spec.deviation[c]));
    }
  return table;
}

Result<ImageSpec> read_image_spec(const json& config, int64_t tower_patch) {
  if (!config.is_object()) return file_error("is not an object");
  const json* inner = find(config, "image_processor");
  if (inner != nullptr && !inner->is_object()) return file_error("image_processor: is not an object");
  const json& c = inner != nullptr ? *inner : config;
  const json* type = find(c, "image_processor_type");
  if (type == nullptr || !type->is_string()) return file_error("image_processor_type: missing");
  QUIRE_TRY(ImageSpec s, defaults_of(type->get_ref<const std::string&>()));
  QUIRE_CHECKED(refuse_unknown_steps(c));
  QUIRE_TRY(const bool scans, read_flag(c, "do_pan_and_scan", false));
  if (scans && s.size_rule != SizeRule::kFixed)
    return file_error("do_pan_and_scan: true is not supported with this processor");
  QUIRE_CHECKED(read_resample(c, s.resample));
  QUIRE_CHECKED(read_values(c, s));
  if (s.size_rule == SizeRule::kPixelRange) QUIRE_CHECKED(read_pixel_range(c, s));
  if (s.size_rule == SizeRule::kFixed) QUIRE_CHECKED(read_fixed_size(c, tower_patch, s));
  if (s.size_rule == SizeRule::kPatchBudget) QUIRE_CHECKED(read_patch_budget(c, s));
  QUIRE_CHECKED(check_spec(s, tower_patch));
  return s;
}

Result<ImageSpec> image_spec_of_mmproj(const MmprojNumbers& file) {
  const auto given = [](int64_t n, int64_t absent) { return n > 0 ? n : absent; };
  const std::string_view type = file.projector_type;
  ImageSpec s;
  if (type == "qwen2vl_merger" || type == "qwen2.5vl_merger" || type == "qwen3vl_merger") {
    s = qwen2_defaults();
    s.patch = given(file.patch_size, type == "qwen3vl_merger" ? 16 : 14);
    s.merge = given(file.spatial_merge_size, 2);
    // What the models' own configurations say: 4 to 16,384 tokens, or 64 to 16,384.
    const int64_t token = s.patch * s.patch * s.merge * s.merge;
    s.min_pixels = given(file.image_min_pixels, token * (type == "qwen3vl_merger" ? 64 : 4));
    s.max_pixels = given(file.image_max_pixels, token * 16384);
  } else if (type == "gemma3") {
    s = gemma3_defaults();
    s.patch = given(file.patch_size, 14);
    s.width = s.height = given(file.image_size, 896);
    if (const int64_t merge = file.spatial_merge_size; merge > 0) {
      const int64_t side = s.width / s.patch;
      if (side < merge || side % merge != 0)
        return file_error("{} x {} patches cannot be pooled {} x {}", side, side, merge, merge);
      s.max_tokens = (side / merge) * (side / merge);
    }
    s.pan_and_scan = file.pan_and_scan;
    QUIRE_CHECKED(set_merge(s));
  } else if (type == "gemma4v") {
    s = gemma4_defaults();
    s.patch = given(file.patch_size, 16);
    s.merge = given(file.spatial_merge_size, 3);
    const int64_t token = s.patch * s.patch * s.merge * s.merge;
    s.max_tokens = std::max<int64_t>(1, given(file.image_max_pixels, s.max_tokens * token) / token);
  } else {
    return file_error("clip.projector_type: '{}' is no projector that is known here", type.substr(0, 80));
  }
  s.mean = file.image_mean;
  s.deviation = file.image_std;
  QUIRE_CHECKED(check_spec(s, file.patch_size));
  return s;
}

}  // namespace quire::image
