// A small random model with a vision tower, and pictures for it.
#pragma once

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <string>

#include "convert/open.h"
#include "engine/loaded_vision.h"
#include "server/protocol/base64.h"
#include "support/gguf_edit.h"
#include "support/golden.h"
#include "support/tiny_models.h"
#include "support/tiny_towers.h"

namespace quire::test {

// Takes pictures among a user's parts, and texts alone from everybody else.
inline constexpr char kPictureTemplate[] =
    "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.role == 'user' and m.content is not string -%}"
    "{%- for part in m.content -%}{%- if part.type == 'image' -%}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- else -%}{{ part.text }}{%- endif -%}{%- endfor -%}"
    "{%- else -%}{{ m.content | trim }}{%- endif -%}{{ '<|im_end|>\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}";

// As Gemma's is: a user's parts, cut of white space.
inline constexpr char kGemmaTemplate[] =
    "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.content is string -%}{{ m.content | trim }}{%- else -%}"
    "{%- for part in m.content -%}{%- if part.type == 'image' -%}{{ '<start_of_image>' }}"
    "{%- else -%}{{ part.text | trim }}{%- endif -%}{%- endfor -%}{%- endif -%}{{ '<|im_end|>\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}";

// A small model with a tower, whose vocabulary has these control tokens. `processor`: its preprocessor_config.json.
struct PictureModel {
  const char *text, *tower;
  std::array<const char*, 3> tokens;
};
inline ModelPtr picture_model(const PictureModel& of, const std::string& chat_template, int64_t max_pixels,
                              const nlohmann::json& processor = {}) {
  const std::vector<TinyModel> all = tiny_models();
  TinyModel tiny = *std::ranges::find(all, of.text, &TinyModel::name);
  tiny.hidden = tiny_tower(of.tower).out;
  const TinyModelFile plain(tiny);
  const gguf::File file = std::move(gguf::File::open(plain.path())).value();
  const auto tokens = file.get_strings("tokenizer.ggml.tokens").value();
  std::vector<int32_t> types = file.get_i32_array("tokenizer.ggml.token_type").value();
  std::vector<std::string> texts(tokens.begin(), tokens.end());
  size_t at = texts.size() - 3;  // in front of its own control tokens
  for (const char* const text : of.tokens) {
    texts[--at] = text;
    types[at] = 3;
  }
  const HfFolder folder;
  const std::string path = folder.path("pictures.gguf");
  edit_gguf(plain.path(), path,
            {.drop = {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.chat_template"},
             .metadata = [&](gguf::Writer& w) {
               const std::vector<std::string_view> views(texts.begin(), texts.end());
               w.add_strings("tokenizer.ggml.tokens", views);
               w.add_array("tokenizer.ggml.token_type", std::span<const int32_t>(types));
               w.add_string("tokenizer.chat_template", chat_template);
             }});
  const ModelPtr model = load_or_die(path);
  const HfFolder tower;
  write_tower_folder(tiny_tower(of.tower), tower);
  if (!processor.empty()) tower.write_json("preprocessor_config.json", processor);
  auto opened = convert::open_vision(tower.path());
  QUIRE_CHECK(opened.ok() && opened->has_value(), "the tower's folder");
  auto vision =
      load_vision(std::move(**opened), model->model->config(), &*model->tokenizer, {.max_pixels = max_pixels});
  QUIRE_CHECK(vision.ok(), "{}", vision.ok() ? "" : vision.error().message);
  std::const_pointer_cast<LoadedModel>(model)->vision = std::move(vision).value();
  return model;
}

// A token for 32 x 32 pixels. `max_pixels`: of a picture that the tower takes.
inline ModelPtr picture_model(const std::string& chat_template = kPictureTemplate, int64_t max_pixels = 1 << 20) {
  return picture_model({"tiny-qwen35", "vision-qwen35", {"<|vision_start|>", "<|image_pad|>", "<|vision_end|>"}},
                       chat_template, max_pixels);
}
// Gemma's: 16 tokens for any picture, each of them `row`.
inline ModelPtr gemma_picture_model(const char* row = "<image_soft_token>",
                                    const std::string& chat_template = kGemmaTemplate,
                                    const nlohmann::json& processor = {}) {
  return picture_model({"tiny-gemma3", "vision-gemma3", {"<start_of_image>", row, "<end_of_image>"}}, chat_template,
                       1 << 20, processor);
}

// Gemma 4's: a token for 48 x 48 pixels, 64 at most.
inline ModelPtr gemma4_picture_model() {
  std::string chat_template = kGemmaTemplate;
  const std::string_view marker = "<start_of_image>";
  chat_template.replace(chat_template.find(marker), marker.size(), "<|image|>");
  return picture_model({"tiny-gemma4e", "vision-gemma4e", {"<|image>", "<pad>", "<image|>"}}, chat_template, 1 << 20);
}

// A file of tests/fuzz/corpus/image.
inline std::string picture_file(const std::string& name) {
  std::ifstream in(QUIRE_SOURCE_DIR "/tests/fuzz/corpus/image/" + name, std::ios::binary);
  QUIRE_CHECK(in.good(), "{}", name);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline std::string picture_base64(const std::string& name) {
  const std::string file = picture_file(name);
  return server::base64(std::as_bytes(std::span(file)));
}
inline std::string picture_url(const std::string& name) {
  return "data:image/png;base64," + picture_base64(name);
}

}  // namespace quire::test
