#include "support/tiny_towers.h"

#include <algorithm>
#include <cmath>
#include <fstream>

namespace quire::test {
namespace {

using nlohmann::json;

// How a tensor's values are spread; 0: a standard deviation of 1.5 / sqrt(inputs).
struct Kind {
  std::string_view suffix;
  double centre, spread;
};
constexpr Kind kKinds[] = {
    {"soft_emb_norm.weight", 0, 0.25},  // applied as 1 + w
    {"k_norm.weight", 0.15, 0.05},      // nothing else scales the scores
    {"norm.weight", 1, 0.25},
    {"norm1.weight", 1, 0.25},
    {"norm2.weight", 1, 0.25},
    {".bias", 0, 0.2},
    {"pos_embed.weight", 0, 0.5},
    {"position_embedding.weight", 0, 0.5},
    {"position_embedding_table", 0, 0.5},
    {"std_bias", 0, 4},
    {"std_scale", 0.5, 0.25},
    {"put_min", -1.5, 0.5},
    {"put_max", 1.5, 0.5},
    {"", 0, 0},
};

HfTensor make_tensor(uint32_t seed, const std::string& name, const std::vector<int64_t>& shape) {
  const Kind& kind =
      *std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& k) { return name.ends_with(k.suffix); });
  int64_t inputs = 1;
  for (size_t i = 1; i < shape.size(); ++i) inputs *= shape[i];
  const double spread = kind.spread > 0 ? kind.spread : 1.5 * std::sqrt(3.0 / static_cast<double>(inputs));
  const int64_t outputs = shape.empty() ? 1 : shape.front();
  return {name, shape, golden_values(seed, name, outputs * inputs, kind.centre, spread)};
}

using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

void add_linear(Shapes& out, const std::string& stem, int64_t rows, int64_t cols) {
  out.push_back({stem + ".weight", {rows, cols}});
  out.push_back({stem + ".bias", {rows}});
}
void add_norm(Shapes& out, const std::string& stem, int64_t width) {
  out.push_back({stem + ".weight", {width}});
  out.push_back({stem + ".bias", {width}});
}

Shapes qwen_shapes(const TinyTower& t) {
  Shapes out;
  const std::string root = "model.visual.";
  const int64_t merged = t.merge * t.merge * t.width;
  out.push_back({root + "patch_embed.proj.weight", {t.width, 3, 2, t.patch, t.patch}});
  out.push_back({root + "patch_embed.proj.bias", {t.width}});
  out.push_back({root + "pos_embed.weight", {t.positions, t.width}});
  for (int64_t i = 0; i < t.blocks; ++i) {
    const std::string b = fmt::format("{}blocks.{}.", root, i);
    add_norm(out, b + "norm1", t.width);
    add_norm(out, b + "norm2", t.width);
    add_linear(out, b + "attn.qkv", 3 * t.width, t.width);
    add_linear(out, b + "attn.proj", t.width, t.width);
    add_linear(out, b + "mlp.linear_fc1", t.ffn, t.width);
    add_linear(out, b + "mlp.linear_fc2", t.width, t.ffn);
  }
  const auto merger = [&](const std::string& stem, int64_t normed) {
    add_norm(out, stem + "norm", normed);
    add_linear(out, stem + "linear_fc1", merged, merged);
    add_linear(out, stem + "linear_fc2", t.out, merged);
  };
  merger(root + "merger.", t.width);
  for (size_t i = 0; i < t.deepstack.size(); ++i) merger(fmt::format("{}deepstack_merger_list.{}.", root, i), merged);
  return out;
}

Shapes gemma_shapes(const TinyTower& t) {
  Shapes out;
  const std::string root = "vision_tower.vision_model.";
  out.push_back({root + "embeddings.patch_embedding.weight", {t.width, 3, t.patch, t.patch}});
  out.push_back({root + "embeddings.patch_embedding.bias", {t.width}});
  out.push_back({root + "embeddings.position_embedding.weight", {t.positions, t.width}});
  for (int64_t i = 0; i < t.blocks; ++i) {
    const std::string b = fmt::format("{}encoder.layers.{}.", root, i);
    add_norm(out, b + "layer_norm1", t.width);
    add_norm(out, b + "layer_norm2", t.width);
    for (const char* name : {"q_proj", "k_proj", "v_proj", "out_proj"})
      add_linear(out, b + "self_attn." + name, t.width, t.width);
    add_linear(out, b + "mlp.fc1", t.ffn, t.width);
    add_linear(out, b + "mlp.fc2", t.width, t.ffn);
  }
  add_norm(out, root + "post_layernorm", t.width);
  out.push_back({"multi_modal_projector.mm_input_projection_weight", {t.width, t.out}});
  out.push_back({"multi_modal_projector.mm_soft_emb_norm.weight", {t.width}});
  return out;
}

Shapes gemma4_shapes(const TinyTower& t) {
  Shapes out;
  const std::string root = "model.vision_tower.";
  const int64_t head = t.width / t.heads;
  out.push_back({root + "patch_embedder.input_proj.weight", {t.width, 3 * t.patch * t.patch}});
  out.push_back({root + "patch_embedder.position_embedding_table", {2, t.positions, t.width}});
  for (int64_t i = 0; i < t.blocks; ++i) {
    const std::string b = fmt::format("{}encoder.layers.{}.", root, i);
    for (const char* name :
         {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"})
      out.push_back({b + name + ".weight", {t.width}});
    for (const char* name : {"q_norm", "k_norm"}) out.push_back({b + "self_attn." + name + ".weight", {head}});
    const auto linear = [&](const std::string& name, int64_t rows, int64_t cols) {
      out.push_back({b + name + ".linear.weight", {rows, cols}});
      for (const char* bound : {".input_min", ".input_max", ".output_min", ".output_max"})
        if (t.bounds) out.push_back({b + name + bound, {}});
    };
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"})
      linear(std::string("self_attn.") + name, t.width, t.width);
    for (const char* name : {"gate_proj", "up_proj"}) linear(std::string("mlp.") + name, t.ffn, t.width);
    linear("mlp.down_proj", t.width, t.ffn);
  }
  for (const char* name : {"std_bias", "std_scale"})
    if (t.standardize) out.push_back({root + name, {t.width}});
  out.push_back({"model.embed_vision.embedding_projection.weight", {t.out, t.width}});
  return out;
}

json gemma4_config(const TinyTower& t) {
  return {{"model_type", "gemma4"},
          {"text_config",
           {{"hidden_size", t.out}, {"use_bidirectional_attention", t.standardize ? json("vision") : json(nullptr)}}},
          {"vision_config",
           {{"model_type", t.model_type},
            {"hidden_size", t.width},
            {"intermediate_size", t.ffn},
            {"num_hidden_layers", t.blocks},
            {"num_attention_heads", t.heads},
            {"num_key_value_heads", t.heads},
            {"head_dim", t.width / t.heads},
            {"patch_size", t.patch},
            {"pooling_kernel_size", t.merge},
            {"position_embedding_size", t.positions},
            {"hidden_activation", "gelu_pytorch_tanh"},
            {"rope_parameters", {{"rope_type", "axial"}, {"rope_theta", 100.0}}},
            {"standardize", t.standardize},
            {"use_clipped_linears", t.bounds}}}};
}

}  // namespace

int64_t TinyTower::side() const {
  return std::lround(std::sqrt(static_cast<double>(positions)));
}

int64_t TinyTower::patch_count() const {
  int64_t n = 0;
  for (const ImageGrid& g : grids) n += g.patches();
  return n;
}

std::vector<HfTensor> TinyTower::hf_tensors() const {
  std::vector<HfTensor> tensors;
  for (const auto& [tensor, shape] : gemma()    ? gemma_shapes(*this)
                                     : gemma4() ? gemma4_shapes(*this)
                                                : qwen_shapes(*this))
    tensors.push_back(make_tensor(seed, tensor, shape));
  std::sort(tensors.begin(), tensors.end(), [](const HfTensor& a, const HfTensor& b) { return a.name < b.name; });
  return tensors;
}

json TinyTower::processor() const {
  if (!gemma4()) return json::object();
  return {{"image_processor_type", "Gemma4ImageProcessor"},
          {"patch_size", patch},
          {"pooling_kernel_size", merge},
          {"max_soft_tokens", max_tokens},
          {"do_normalize", false},
          {"image_mean", {0.0, 0.0, 0.0}},
          {"image_std", {1.0, 1.0, 1.0}}};
}

json TinyTower::config() const {
  if (gemma4()) return gemma4_config(*this);
  if (gemma())
    return {{"model_type", "gemma3"},
            {"mm_tokens_per_image", positions / (merge * merge)},
            {"text_config", {{"hidden_size", out}}},
            {"vision_config",
             {{"model_type", model_type},
              {"hidden_size", width},
              {"intermediate_size", ffn},
              {"num_hidden_layers", blocks},
              {"num_attention_heads", heads},
              {"patch_size", patch},
              {"image_size", side() * patch},
              {"vision_use_head", false}}}};
  return {{"model_type", "qwen3_vl"},
          {"vision_config",
           {{"model_type", model_type},
            {"depth", blocks},
            {"hidden_size", width},
            {"intermediate_size", ffn},
            {"num_heads", heads},
            {"patch_size", patch},
            {"spatial_merge_size", merge},
            {"temporal_patch_size", 2},
            {"in_channels", 3},
            {"hidden_act", "gelu_pytorch_tanh"},
            {"num_position_embeddings", positions},
            {"deepstack_visual_indexes", deepstack},
            {"out_hidden_size", out}}}};
}

std::vector<float> TinyTower::patches() const {
  std::vector<float> all;
  for (const bf16 x : golden_values(seed, "patches", patch_count() * patch_width(), 0, 1)) all.push_back(to_float(x));
  return all;
}

std::vector<uint8_t> TinyTower::patch_bytes() const {
  std::vector<uint8_t> all;
  for (const bf16 x : golden_values(seed, "pixels", patch_count() * 3 * patch * patch, 0, 1))
    all.push_back(static_cast<uint8_t>((static_cast<double>(to_float(x)) + 1.0) * 127.5 + 0.5));
  return all;
}

json TinyTower::golden() const {
  const std::string path = fmt::format("{}/tests/data/golden/{}.json", QUIRE_SOURCE_DIR, name);
  std::ifstream in(path);
  QUIRE_CHECK(in.good(), "{}", path);
  return json::parse(in);
}

std::vector<TinyTower> tiny_towers() {
  return {{.name = "vision-qwen3vl",
           .seed = 1,
           .model_type = "qwen3_vl",
           .width = 144,
           .blocks = 3,
           .heads = 2,
           .ffn = 176,
           .patch = 16,
           .merge = 2,
           .positions = 36,
           .out = 48,
           .deepstack = {0, 1},
           .grids = {{1, 4, 6}, {1, 8, 2}, {1, 2, 2}, {2, 4, 4}}},
          {.name = "vision-qwen35",
           .seed = 2,
           .model_type = "qwen3_5_vision",
           .width = 128,
           .blocks = 2,
           .heads = 2,
           .ffn = 160,
           .patch = 16,
           .merge = 2,
           .positions = 25,
           .out = 64,
           .grids = {{1, 6, 6}, {1, 2, 4}, {1, 2, 12}}},
          {.name = "vision-gemma3",
           .seed = 3,
           .family = VisionFamily::kGemma3,
           .model_type = "siglip_vision_model",
           .width = 144,
           .blocks = 2,
           .heads = 2,
           .ffn = 176,
           .patch = 14,
           .merge = 2,
           .positions = 64,
           .out = 48,
           .grids = {{1, 8, 8}, {1, 8, 8}}},
          {.name = "vision-gemma4",
           .seed = 4,
           .family = VisionFamily::kGemma4,
           .model_type = "gemma4_vision",
           .width = 144,
           .blocks = 2,
           .heads = 2,
           .ffn = 176,
           .patch = 16,
           .merge = 3,
           .positions = 192,
           .out = 96,
           .max_tokens = 64,
           .standardize = true,
           .grids = {{1, 6, 9}, {1, 9, 3}, {1, 18, 21}, {1, 3, 3}}},
          {.name = "vision-gemma4e",
           .seed = 5,
           .family = VisionFamily::kGemma4,
           .model_type = "gemma4_vision",
           .width = 128,
           .blocks = 2,
           .heads = 2,
           .ffn = 160,
           .patch = 16,
           .merge = 3,
           .positions = 192,
           .out = 96,
           .max_tokens = 64,
           .bounds = true,
           .grids = {{1, 3, 6}, {1, 12, 6}, {1, 6, 12}}}};
}

TinyTower tiny_tower(std::string_view name) {
  for (TinyTower& t : tiny_towers())
    if (t.name == name) return t;
  fatal(__FILE__, __LINE__, name);
}

void write_tower_folder(const TinyTower& tower, const HfFolder& folder, DType type) {
  folder.write_json("config.json", tower.config());
  if (!tower.processor().empty()) folder.write_json("preprocessor_config.json", tower.processor());
  std::vector<SafeTensor> tensors;
  for (const HfTensor& t : tower.hf_tensors()) {
    std::vector<float> floats;
    std::vector<half> halves;
    for (const bf16 x : t.values) {
      floats.push_back(to_float(x));
      halves.push_back(to_half(floats.back()));
    }
    tensors.push_back(type == DType::kF32   ? safe_tensor(t.name, "F32", t.shape, floats)
                      : type == DType::kF16 ? safe_tensor(t.name, "F16", t.shape, halves)
                                            : safe_tensor(t.name, "BF16", t.shape, t.values));
  }
  folder.write("model.safetensors", safetensors_file(tensors));
}

}  // namespace quire::test
