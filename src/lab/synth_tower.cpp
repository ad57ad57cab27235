#include "lab/synth_tower.h"

#include <fmt/format.h>

#include <algorithm>

#include "arch/vision.h"
#include "gguf/writer.h"
#include "lab/synth_values.h"

namespace quire::cli {
namespace {

using enum VisionRole;

struct Tower {
  int64_t width, blocks, heads, ffn, patch, merge, side;  // side: of the grid of learned positions, or the longest one
  VisionFamily family = VisionFamily::kQwen3;
  bool gemma() const { return family == VisionFamily::kGemma3; }
  bool gemma4() const { return family == VisionFamily::kGemma4; }
};
// Source: config.json of Qwen3.5-4B, and of Qwen3.5-27B and 35B-A3B, Qwen3-VL-8B and 30B-A3B; of Gemma 3 4B, and of
// Gemma 4 E4B.
Tower tower_of(const SynthShape& s) {
  Tower t{1152, 27, 16, 4304, 16, 2, 48};
  if (s.d_model <= 2560 && s.experts == 0) t = {1024, 24, 16, 4096, 16, 2, 48};
  if (s.gemma()) t = {1152, 27, 16, 4304, 14, 4, 64, VisionFamily::kGemma3};
  if (s.gemma4()) t = {768, 16, 12, 3072, 16, 3, 10240, VisionFamily::kGemma4};
  t.blocks = std::min<int64_t>(t.blocks, s.layers);
  return t;
}

// Blocks that the tower has.
std::vector<int64_t> deepstack_of(const Tower& t, const SynthShape& s) {
  std::vector<int64_t> blocks;
  for (const int64_t b : s.deepstack)
    if (b < t.blocks) blocks.push_back(b);
  return blocks;
}

// Products have bounds, and there are no biases.
std::vector<SynthTensor> gemma4_tensors(const Tower& t, const SynthShape& s) {
  std::vector<SynthTensor> all;
  const auto norm = [&](VisionRole role, int64_t block, int64_t width) {
    all.push_back({vision_stem(role, block) + ".weight", {width}, SynthValues::kOnes});
  };
  const auto bounded = [&](VisionRole role, int64_t block, int64_t rows, int64_t cols) {
    const std::string stem = vision_stem(role, block);
    all.push_back({stem + ".weight", {cols, rows}, SynthValues::kMatrix});
    for (const char* end : {".input", ".output"}) {
      all.push_back({stem + end + "_min", {1}, SynthValues::kLow});
      all.push_back({stem + end + "_max", {1}, SynthValues::kHigh});
    }
  };
  all.push_back({vision_stem(kPatch) + ".weight", {t.patch, t.patch, 3, t.width}, SynthValues::kMatrix});
  all.push_back({vision_stem(kPositions) + ".weight", {t.width, t.side, 2}, SynthValues::kMatrix});
  for (int64_t i = 0; i < t.blocks; ++i) {
    for (const VisionRole role : {kNorm1, kAttnOutNorm, kNorm2, kFfnOutNorm}) norm(role, i, t.width);
    for (const VisionRole role : {kQueryNorm, kKeyNorm}) norm(role, i, t.width / t.heads);
    for (const VisionRole role : {kQuery, kKey, kValue, kAttnOut}) bounded(role, i, t.width, t.width);
    for (const VisionRole role : {kGate, kUp}) bounded(role, i, t.ffn, t.width);
    bounded(kDown, i, t.width, t.ffn);
  }
  all.push_back({vision_stem(kProjection) + ".weight", {t.width, s.d_model}, SynthValues::kMatrix});
  return all;
}

std::vector<SynthTensor> tensors_of(const Tower& t, const SynthShape& s) {
  if (t.gemma4()) return gemma4_tensors(t, s);
  std::vector<SynthTensor> all;
  const auto add = [&](const std::string& stem, std::vector<int64_t> dims) {
    all.push_back({stem + ".weight", std::move(dims), SynthValues::kMatrix});
  };
  const auto bias = [&](const std::string& stem, int64_t rows) {
    all.push_back({stem + ".bias", {rows}, SynthValues::kBias});
  };
  const auto linear = [&](VisionRole role, int64_t block, int64_t rows, int64_t cols) {
    add(vision_stem(role, block), {cols, rows});
    bias(vision_stem(role, block), rows);
  };
  const auto wide_norm = [&](VisionRole role, int64_t block, int64_t width) {
    all.push_back({vision_stem(role, block) + ".weight", {width}, SynthValues::kOnes});
    bias(vision_stem(role, block), width);
  };
  const auto norm = [&](VisionRole role, int64_t block) { wide_norm(role, block, t.width); };
  for (int64_t frame = 0; frame < vision_row(t.family).frames; ++frame)
    all.push_back({vision_stem(kPatch) + (frame == 0 ? ".weight" : ".weight.1"),
                   {t.patch, t.patch, 3, t.width},
                   SynthValues::kMatrix});
  bias(vision_stem(kPatch), t.width);
  add(vision_stem(kPositions), {t.width, t.side * t.side});
  for (int64_t i = 0; i < t.blocks; ++i) {
    norm(kNorm1, i);
    if (vision_row(t.family).fused_qkv)
      linear(kQkv, i, 3 * t.width, t.width);
    else
      for (const VisionRole role : {kQuery, kKey, kValue}) linear(role, i, t.width, t.width);
    linear(kAttnOut, i, t.width, t.width);
    norm(kNorm2, i);
    linear(kUp, i, t.ffn, t.width);
    linear(kDown, i, t.width, t.ffn);
  }
  norm(kPostNorm, 0);
  if (t.gemma()) {
    all.push_back({vision_stem(kProjectionNorm) + ".weight", {t.width}, SynthValues::kOnes});
    add(vision_stem(kProjection), {s.d_model, t.width});
    return all;
  }
  const int64_t merged = t.merge * t.merge * t.width;
  linear(kMergeUp, 0, merged, merged);
  linear(kMergeDown, 0, s.d_model, merged);
  for (const int64_t block : deepstack_of(t, s)) {
    wide_norm(kStackNorm, block, merged);
    linear(kStackUp, block, merged, merged);
    linear(kStackDown, block, s.d_model, merged);
  }
  return all;
}

void add_metadata(const Tower& t, const SynthShape& s, gguf::Writer& w) {
  const auto u32 = [&](std::string_view key, int64_t x) {
    w.add(fmt::format("clip.vision.{}", key), static_cast<uint32_t>(x));
  };
  const float half[] = {0.5f, 0.5f, 0.5f}, zero[] = {0, 0, 0}, one[] = {1, 1, 1};
  w.add_string("general.architecture", "clip");
  w.add_string("general.type", "mmproj");
  w.add_string("general.name", fmt::format("synthetic tower of {}: random weights", s.name));
  w.add("clip.has_vision_encoder", true);
  w.add_string("clip.projector_type", vision_row(t.family).projector);
  w.add("clip.use_gelu", true);
  u32("image_size", t.gemma4() ? 224 : t.side * t.patch);
  u32("patch_size", t.patch);
  u32("embedding_length", t.width);
  u32("feed_forward_length", t.ffn);
  u32("block_count", t.blocks);
  u32("projection_dim", s.d_model);
  u32("attention.head_count", t.heads);
  if (!t.gemma() && !t.gemma4()) u32("spatial_merge_size", t.merge);
  w.add("clip.vision.attention.layer_norm_epsilon", 1e-6f);
  w.add_array<float>("clip.vision.image_mean", t.gemma4() ? zero : half);
  w.add_array<float>("clip.vision.image_std", t.gemma4() ? one : half);
  const std::vector<int64_t> deepstack = deepstack_of(t, s);
  if (deepstack.empty()) return;
  std::vector<bool> is_deepstack(static_cast<size_t>(t.blocks));
  for (const int64_t block : deepstack) is_deepstack[static_cast<size_t>(block)] = true;
  w.add_bools("clip.vision.is_deepstack_layers", is_deepstack);
}

}  // namespace

Result<uint64_t> write_synth_tower(const SynthShape& s, uint64_t seed, const std::string& path) {
  const Tower t = tower_of(s);
  const std::vector<SynthTensor> tensors = tensors_of(t, s);
  gguf::Writer w;
  add_metadata(t, s, w);
  const auto is_matrix = [](const SynthTensor& tensor) { return tensor.values == SynthValues::kMatrix; };
  const auto type_of = [&](const SynthTensor& tensor) { return is_matrix(tensor) ? DType::kBF16 : DType::kF32; };
  for (const SynthTensor& tensor : tensors) QUIRE_CHECKED(w.add_tensor(tensor.name, type_of(tensor), tensor.dims));
  QUIRE_CHECKED(w.open(path));
  SynthValueSource source(seed);
  std::vector<std::byte> bytes;
  for (const SynthTensor& tensor : tensors) {
    int64_t elems = 1;
    for (const int64_t d : tensor.dims) elems *= d;
    const SynthPayload payload =
        is_matrix(tensor)
            ? source.matrix(DType::kBF16, tensor.dims.size() > 2 ? elems / t.width : tensor.dims[0], elems)
            : source.vector(tensor.values, elems);
    bytes.resize(payload.bytes);
    payload.copy_to(bytes.data());
    QUIRE_CHECKED(w.write_tensor(bytes));
  }
  QUIRE_CHECKED(w.finish());
  return w.file_bytes();
}

}  // namespace quire::cli
