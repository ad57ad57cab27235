#include "support/image_model.h"

#include <algorithm>
#include <deque>
#include <map>

namespace quire::test {
namespace {

struct Kind {
  std::string_view name, text, tower;
  std::string_view wrapper = {};  // the class of the whole, whose folders have the text model's config in their own
};
const Kind& row(ImageKind kind) {
  static constexpr Kind kKinds[] = {
      {"hybrid", "tiny-qwen35", "vision-qwen35"},
      {"deepstack", "tiny-qwen3vl", "vision-qwen3vl"},
      {"both_ways", "tiny-gemma3", "vision-gemma3", "Gemma3ForConditionalGeneration"},
      {"windows", "tiny-gemma4", "vision-gemma4", "Gemma4ForConditionalGeneration"},
      {"per_layer", "tiny-gemma4e", "vision-gemma4e", "Gemma4ForConditionalGeneration"},
  };
  return kKinds[static_cast<size_t>(kind)];
}
bool gemma4(ImageKind kind) {
  return kind == ImageKind::kWindows || kind == ImageKind::kPerLayer;
}

const TinyTower& tower(ImageKind kind = ImageKind::kHybrid) {
  static std::map<ImageKind, TinyTower> towers;
  const auto at = towers.find(kind);
  return at != towers.end() ? at->second : towers.emplace(kind, tiny_tower(row(kind).tower)).first->second;
}

TinyModel text_model(Device device, ImageKind kind) {
  const std::string name(row(kind).text);
  for (TinyModel m : tiny_models()) {
    if (m.name != name) continue;
    if (kind == ImageKind::kBothWays) m.hidden = tower(kind).out;
    if (device != Device::kCuda) return m;
    m.head_dim = 64;
    if (m.hybrid()) m.state = 128, m.n_rot = 16;
    if (m.gemma4()) m.global_head_dim = 2 * m.head_dim;
    return m;
  }
  fatal(__FILE__, __LINE__, "there is no " + name);
}

// Gemma's folders have the text model's config and tensors within a wrapper.
nlohmann::json wrapped(nlohmann::json text, std::string_view wrapper) {
  text.erase("architectures");
  const bool tied = text["tie_word_embeddings"];
  return {{"architectures", {wrapper}}, {"tie_word_embeddings", tied}, {"text_config", std::move(text)}};
}

// The tokens that stand for pictures, from kImagePad downwards.
std::vector<const char*> image_tokens(ImageKind kind) {
  if (gemma4(kind)) return {"<pad>", "<|image>", "<image|>", "<|image|>"};
  if (kind == ImageKind::kBothWays) return {"<image_soft_token>", "<start_of_image>", "<end_of_image>"};
  return {"<|image_pad|>"};
}

}  // namespace

std::string image_kind_name(ImageKind kind) {
  return std::string(row(kind).name);
}

void write_image_model(const HfFolder& folder, Device device, ImageKind kind) {
  const TinyModel text = text_model(device, kind);
  const bool is_wrapped = !row(kind).wrapper.empty();
  nlohmann::json config = is_wrapped ? wrapped(hf_config(text), row(kind).wrapper) : hf_config(text);
  config.merge_patch(tower(kind).config());
  std::vector<SafeTensor> tensors = safe_tensors(text);
  for (SafeTensor& t : tensors)
    if (is_wrapped) t.name.insert(0, "language_model.");
  for (const HfTensor& t : tower(kind).hf_tensors()) tensors.push_back(safe_tensor(t.name, "BF16", t.shape, t.values));
  nlohmann::json tokenizer = hf_tokenizer(text);
  const auto add_token = [&](TokenId id, const char* content) {
    tokenizer["added_tokens"].push_back({{"id", id}, {"content", content}, {"special", true}});
  };
  TokenId next = kImagePad;
  for (const char* token : image_tokens(kind)) add_token(next--, token);
  folder.write_json("config.json", config);
  if (!tower(kind).processor().empty()) folder.write_json("preprocessor_config.json", tower(kind).processor());
  folder.write_json("tokenizer.json", tokenizer);
  folder.write_json("tokenizer_config.json", {{"eos_token", "<|im_end|>"}, {"pad_token", "<|endoftext|>"}});
  folder.write("model.safetensors", safetensors_file(tensors));
}

const ModelPtr& image_model(Device device, ImageKind kind) {
  static std::map<std::pair<bool, ImageKind>, ModelPtr> models;
  ModelPtr& model = models[{device == Device::kCuda, kind}];
  if (model != nullptr) return model;
  static std::deque<HfFolder> folders;  // as long as the models
  write_image_model(folders.emplace_back(), device, kind);
  return model = load_or_die(folders.back().path());
}

ModelPtr image_model_of(int64_t max_image_pixels) {
  const HfFolder folder;
  write_image_model(folder);
  Result<ModelPtr> model = load_model(folder.path(), {.pictures = {.max_pixels = max_image_pixels}});
  QUIRE_CHECK(model.ok(), "{}", model.error().message);
  return std::move(model).value();  // its mappings stay when the folder is gone
}

std::shared_ptr<const image::Patches> image_patches(size_t number, int seed, ImageKind kind) {
  const TinyTower& t = tower(kind);
  number %= t.grids.size();
  const ImageGrid& grid = t.grids[number];
  int64_t first = 0;
  for (size_t i = 0; i < number; ++i) first += t.grids[i].patches();
  auto p = std::make_shared<image::Patches>();
  p->length = 3 * t.patch * t.patch;
  p->plan = {.rows = grid.rows, .columns = grid.columns, .tokens = grid.patches() / (t.merge * t.merge)};
  const std::vector<uint8_t> all = t.patch_bytes();
  p->memory = std::make_unique<uint8_t[]>(static_cast<size_t>(grid.patches() * p->length));
  for (int64_t i = 0; i < grid.patches() * p->length; ++i) {
    const int byte = all[static_cast<size_t>(first * p->length + i)];
    p->memory[static_cast<size_t>(i)] = static_cast<uint8_t>((seed % 2 == 0 ? byte : 255 - byte) / (1 + seed / 2));
  }
  return p;
}

PromptImage prompt_image(size_t number, int64_t position, int seed, ImageKind kind) {
  PromptImage image;
  image.position = position;
  image.patches = image_patches(number, seed, kind);
  image.rows = static_cast<int32_t>(image.patches->plan.rows / tower(kind).merge);
  image.columns = static_cast<int32_t>(image.patches->plan.columns / tower(kind).merge);
  image.digest[0] = static_cast<std::byte>(number % tower(kind).grids.size());
  image.digest[1] = static_cast<std::byte>(seed);
  return image;
}

PromptImage made_up_image(int64_t rows, int64_t columns, int64_t position, int seed) {
  const TinyTower& t = tower();
  auto p = std::make_shared<image::Patches>();
  p->length = 3 * t.patch * t.patch;
  p->plan = {.rows = rows, .columns = columns, .tokens = rows * columns / (t.merge * t.merge)};
  p->memory = std::make_unique<uint8_t[]>(static_cast<size_t>(rows * columns * p->length));
  for (int64_t i = 0; i < rows * columns * p->length; ++i)
    p->memory[static_cast<size_t>(i)] = static_cast<uint8_t>((i * 7 + seed * 31) % 23 * 11);
  PromptImage image;
  image.position = position;
  image.rows = static_cast<int32_t>(rows / t.merge);
  image.columns = static_cast<int32_t>(columns / t.merge);
  for (size_t i = 0; i < 4; ++i) image.digest[i] = static_cast<std::byte>(seed >> (8 * i));
  image.digest[4] = static_cast<std::byte>(rows);
  image.digest[5] = std::byte{1};
  image.patches = std::move(p);
  return image;
}

}  // namespace quire::test
