// Folders with a vision tower: the text model's file and, beside it, an mmproj file.
#include <gmock/gmock.h>

#include <filesystem>
#include <limits>

#include "convert/open.h"
#include "convert/support.h"
#include "convert/vision_folder.h"
#include "support/tiny_towers.h"
#include "vision/config.h"

namespace quire::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// A small text model with the tower of another one: as far as files go they need not fit.
class VisionFolders : public testing::Test {
 protected:
  static constexpr std::string_view kText = "tiny-qwen3";
  const TinyModel text_ = model(std::string(kText));
  const HfFolder folder_{text_};

  std::vector<SafeTensor> tensors_of(const TinyTower& tower) const {
    std::vector<SafeTensor> all = safe_tensors(text_);
    for (const HfTensor& t : tower.hf_tensors()) all.push_back(safe_tensor(t.name, "BF16", t.shape, t.values));
    return all;
  }
  void write(const TinyTower& tower, const std::function<void(json& config, std::vector<SafeTensor>&)>& change = {}) {
    json config = hf_config(text_);
    config.update(tower.config());
    std::vector<SafeTensor> tensors = tensors_of(tower);
    if (change) change(config, tensors);
    folder_.write_json("config.json", config);
    folder_.write("model.safetensors", safetensors_file(tensors));
  }
  std::string mmproj() const { return folder_.path("mmproj-m.gguf"); }
  std::string error() const {
    const auto r = convert::convert({.folder = folder_.path(), .output = folder_.path("m.gguf")});
    return r.ok() ? "" : r.error().message;
  }
  // Of the tower alone.
  std::string tower_error() const {
    const auto r = convert::open_vision(folder_.path());
    return r.ok() ? "" : r.error().message;
  }
};

TEST_F(VisionFolders, BecomeTwoFiles) {
  write(tiny_tower("vision-qwen3vl"));
  convert::ConvertSummary s;
  converted(folder_, &s);
  EXPECT_EQ(s.mmproj, mmproj());
  const gguf::File f = std::move(gguf::File::open(mmproj())).value();
  EXPECT_EQ(s.mmproj_tensors, std::ssize(f.tensors()));
  EXPECT_EQ(s.mmproj_bytes, f.mapped_bytes());
  EXPECT_EQ(f.get_string("general.name").value(), s.name);
  EXPECT_THAT(s.notes, ElementsAre(HasSubstr("vision and audio tensors are left out")));
  EXPECT_THAT(s.files, ElementsAre(folder_.path("m.gguf")));
}

TEST_F(VisionFolders, AreOneFileWhereThatIsWanted) {
  write(tiny_tower("vision-qwen35"));
  const auto s = convert::convert({.folder = folder_.path(), .output = folder_.path("m.gguf"), .mmproj = false});
  ASSERT_TRUE(s.ok()) << s.error().message;
  EXPECT_EQ(s->mmproj, "");
  EXPECT_FALSE(std::filesystem::exists(mmproj()));
}

// Towers that are not known, and configurations without one's tensors, leave the text model as it is.
TEST_F(VisionFolders, NeedNotHaveATowerThatIsKnown) {
  const TinyTower tower = tiny_tower("vision-qwen35");
  write(tower, [](json& c, auto&) { c["vision_config"]["model_type"] = "pixtral"; });
  EXPECT_EQ(error(), "");
  EXPECT_FALSE(std::filesystem::exists(mmproj()));
  write(tower, [&](json&, auto& tensors) {
    tensors = safe_tensors(text_);
    tensors.push_back(safe_tensor("model.visual.patch_embed.proj.weight", "F32", {1}, std::vector<float>{1}));
  });
  EXPECT_EQ(error(), "");
  EXPECT_FALSE(std::filesystem::exists(mmproj()));
  EXPECT_FALSE(convert::open_vision(folder_.path())->has_value());
}

// Names as transformers 5 saves Gemma's, and with the prefix that others have.
TEST_F(VisionFolders, MayHaveOtherPrefixes) {
  const TinyTower tower = tiny_tower("vision-gemma3");
  const auto renamed = [&](std::string_view from, std::string_view to) {
    write(tower, [&](json&, auto& tensors) {
      for (SafeTensor& t : tensors)
        if (t.name.starts_with(from)) t.name = std::string(to).append(t.name.substr(from.size()));
    });
    const auto opened = convert::open_vision(folder_.path());
    EXPECT_TRUE(opened.ok() && opened->has_value()) << to;
  };
  renamed("vision_tower.vision_model.", "vision_tower.");
  renamed("vision_tower.", "model.vision_tower.");
  renamed("multi_modal_projector.", "model.multi_modal_projector.");
}

TEST_F(VisionFolders, SayWhatPreprocessingNeeds) {
  write(tiny_tower("vision-qwen3vl"));
  folder_.write_json("preprocessor_config.json", {{"image_mean", {0.25, 0.5, 0.75}},
                                                  {"image_std", {0.5, 0.5, 1.0}},
                                                  {"size", {{"shortest_edge", 65536}, {"longest_edge", 16777216}}}});
  converted(folder_);
  {
    const gguf::File f = std::move(gguf::File::open(mmproj())).value();
    EXPECT_EQ(f.get_f32_array("clip.vision.image_mean").value(), (std::vector<float>{0.25f, 0.5f, 0.75f}));
    EXPECT_EQ(f.get_u32("clip.vision.image_min_pixels").value(), 65536u);
    EXPECT_EQ(f.get_u32("clip.vision.image_max_pixels").value(), 16777216u);
  }
  // Under another file's key, where the first is not there.
  folder_.remove("preprocessor_config.json");
  folder_.write_json("processor_config.json", {{"image_processor", {{"image_mean", {1.0, 1.0, 1.0}}}}});
  converted(folder_);
  const gguf::File f = std::move(gguf::File::open(mmproj())).value();
  EXPECT_EQ(f.get_f32_array("clip.vision.image_mean").value(), (std::vector<float>{1, 1, 1}));
  EXPECT_FALSE(f.has("clip.vision.image_min_pixels"));
}

TEST_F(VisionFolders, OfGemma4MayHaveOtherPrefixes) {
  const TinyTower tower = tiny_tower("vision-gemma4e");
  write(tower, [&](json&, auto& tensors) {
    for (SafeTensor& t : tensors)
      if (t.name.starts_with("model.vision_tower.") || t.name.starts_with("model.embed_vision."))
        t.name.erase(0, std::string_view("model.").size());
  });
  const auto opened = convert::open_vision(folder_.path());
  EXPECT_TRUE(opened.ok() && opened->has_value());
}

// Sound is not converted, and its tensors are none of the tower's.
TEST_F(VisionFolders, OfGemma4LeaveSoundOut) {
  write(tiny_tower("vision-gemma4"), [](json&, auto& tensors) {
    for (const char* name : {"model.audio_tower.layers.0.norm.weight", "model.embed_audio.embedding_projection.weight"})
      tensors.push_back(safe_tensor(name, "F32", {1}, std::vector<float>{1}));
  });
  const auto opened = convert::open_vision(folder_.path());
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  ASSERT_TRUE(opened->has_value());
  for (const gguf::TensorInfo& t : (*opened)->tensors()) EXPECT_FALSE(t.name.starts_with("a.")) << t.name;
}

TEST_F(VisionFolders, OfGemma4AreRefusedForWhatIsNotComputed) {
  const TinyTower tower = tiny_tower("vision-gemma4");
  const auto error_with = [&](const char* key, const json& value) {
    write(tower, [&](json& c, auto&) { c["vision_config"][key] = value; });
    return tower_error();
  };
  EXPECT_EQ(error_with("use_clipped_linears", false), "");
  EXPECT_THAT(error_with("hidden_activation", "silu"), HasSubstr("hidden_activation: 'silu' is not supported"));
  EXPECT_THAT(error_with("num_key_value_heads", 1), HasSubstr("num_key_value_heads"));
  EXPECT_THAT(error_with("head_dim", 64), HasSubstr("are not as wide as hidden_size"));
  EXPECT_THAT(error_with("attention_bias", true), HasSubstr("attention_bias: true is not supported"));
  EXPECT_THAT(error_with("rope_parameters", {{"rope_theta", 1e4}}), HasSubstr("a rope_theta of 10000"));
  EXPECT_THAT(error_with("rope_parameters", {{"rope_type", "yarn"}}), HasSubstr("rope_type: 'yarn'"));
  EXPECT_THAT(error_with("standardize", false), HasSubstr("std_bias' of the vision tower would not be computed"));
  EXPECT_THAT(error_with("use_clipped_linears", true), HasSubstr("q_proj.input_min"));
  EXPECT_THAT(error_with("position_embedding_size", 191), HasSubstr("position_embedding_table"));
  write(tower);
  const auto error_of = [&](const char* key, const json& value) {
    json processor = tower.processor();
    processor[key] = value;
    folder_.write_json("preprocessor_config.json", processor);
    return tower_error();
  };
  EXPECT_EQ(error_of("do_resize", true), "");
  EXPECT_THAT(error_of("pooling_kernel_size", 2), HasSubstr("pooling_kernel_size: 2, but the tower has 3"));
  EXPECT_THAT(error_of("patch_size", 14), HasSubstr("patch_size: 14, but the tower has 16"));
  EXPECT_THAT(error_of("resample", 2), HasSubstr("resample: only 3"));
  EXPECT_THAT(error_of("rescale_factor", 0.5), HasSubstr("rescale_factor: 0.5"));
  EXPECT_THAT(error_of("max_soft_tokens", 5000), HasSubstr("max_soft_tokens: 5000 is more than 4096"));
  EXPECT_THAT(error_of("image_processor_type", "Qwen2VLImageProcessor"), HasSubstr("is not that of Gemma 4"));
}

// Bounds that were never set.
TEST_F(VisionFolders, OfGemma4MayHaveInfiniteBounds) {
  write(tiny_tower("vision-gemma4e"), [](json&, auto& tensors) {
    for (SafeTensor& t : tensors)
      if (t.name.ends_with("layers.0.mlp.up_proj.input_max"))
        t = safe_tensor(t.name, "F32", {}, std::vector<float>{std::numeric_limits<float>::infinity()});
  });
  const auto opened = convert::open_vision(folder_.path());
  ASSERT_TRUE(opened.ok() && opened->has_value());
  EXPECT_EQ(*reinterpret_cast<const float*>((*opened)->find_tensor("v.blk.0.ffn_up.input_max")->data),
            std::numeric_limits<float>::max());
}

// llama.cpp refuses a tower with more levels than the text model's file names.
TEST_F(VisionFolders, SayInTheTextModelHowManyBlocksGoThere) {
  write(tiny_tower("vision-qwen3vl"));
  converted(folder_);
  EXPECT_EQ(std::move(gguf::File::open(folder_.path("m.gguf"))).value().get_u32("qwen3.n_deepstack_layers").value(),
            2u);
  write(tiny_tower("vision-qwen35"));
  converted(folder_);
  EXPECT_FALSE(std::move(gguf::File::open(folder_.path("m.gguf"))).value().has("qwen3.n_deepstack_layers"));
}

// preprocessor_config.json of Gemma 3 as it is published, with sizes of the small tower.
json gemma_processor(const TinyTower& t) {
  const int64_t side = t.side() * t.patch;
  return {{"do_convert_rgb", nullptr},
          {"do_normalize", true},
          {"do_pan_and_scan", nullptr},
          {"do_rescale", true},
          {"do_resize", true},
          {"image_mean", {0.5, 0.5, 0.5}},
          {"image_processor_type", "Gemma3ImageProcessor"},
          {"image_seq_length", t.positions / t.merge / t.merge},
          {"image_std", {0.5, 0.5, 0.5}},
          {"pan_and_scan_max_num_crops", nullptr},
          {"pan_and_scan_min_crop_size", nullptr},
          {"pan_and_scan_min_ratio_to_activate", nullptr},
          {"processor_class", "Gemma3Processor"},
          {"resample", 2},
          {"rescale_factor", 0.00392156862745098},
          {"size", {{"height", side}, {"width", side}}}};
}

TEST_F(VisionFolders, OfGemmaSayWhetherPicturesAreSeenInPieces) {
  const TinyTower tower = tiny_tower("vision-gemma3");
  write(tower);
  json processor = gemma_processor(tower);
  const auto written = [&] {
    folder_.write_json("preprocessor_config.json", processor);
    converted(folder_);
    return std::move(read_vision_config(std::move(gguf::File::open(mmproj())).value())).value().pan_and_scan;
  };
  EXPECT_EQ(written(), image::PanAndScan{});
  processor["do_pan_and_scan"] = true;
  EXPECT_EQ(written(), image::PanAndScan{.on = true});
  processor["pan_and_scan_min_crop_size"] = 300;
  processor["pan_and_scan_max_num_crops"] = 5;
  processor["pan_and_scan_min_ratio_to_activate"] = 1.7;
  EXPECT_EQ(written(), (image::PanAndScan{.on = true, .min_crop = 300, .max_crops = 5, .min_ratio = 1.7f}));
}

// A number of the whole processor, where that has all in one file.
TEST_F(VisionFolders, OfGemmaHaveTheirTokensInEitherFile) {
  const TinyTower tower = tiny_tower("vision-gemma3");
  write(tower);
  json processor = gemma_processor(tower);
  const json tokens = processor["image_seq_length"];
  processor.erase("image_seq_length");
  folder_.write_json("processor_config.json", {{"image_processor", processor}, {"image_seq_length", tokens}});
  EXPECT_EQ(error(), "");
  folder_.write_json("processor_config.json", {{"image_processor", processor}});
  EXPECT_THAT(error(), HasSubstr("do not become 256 tokens"));
}

TEST_F(VisionFolders, AreRefusedForPreprocessingThatFilesCannotSay) {
  const auto refusal = [&](const char* tower, const json& change) {
    const TinyTower t = tiny_tower(tower);
    write(t);
    json processor = t.gemma() ? gemma_processor(t)
                               : json{{"image_processor_type", "Qwen2VLImageProcessorFast"},
                                      {"patch_size", t.patch},
                                      {"merge_size", t.merge},
                                      {"temporal_patch_size", 2}};
    processor.update(change);
    folder_.write_json("preprocessor_config.json", processor);
    return error();
  };
  EXPECT_EQ(refusal("vision-qwen3vl", json::object()), "");
  EXPECT_THAT(refusal("vision-qwen3vl", {{"resample", 2}}), HasSubstr("another filter than 3 (bicubic)"));
  EXPECT_THAT(refusal("vision-qwen3vl", {{"rescale_factor", 0.5}}), HasSubstr("rescale_factor: 0.5"));
  EXPECT_THAT(refusal("vision-qwen3vl", {{"merge_size", 1}}), HasSubstr("a token is 1 x 1 patches here"));
  EXPECT_THAT(refusal("vision-qwen3vl", {{"temporal_patch_size", 1}}), HasSubstr("temporal_patch_size: 1"));
  EXPECT_THAT(refusal("vision-qwen3vl", {{"do_pan_and_scan", true}}), HasSubstr("do_pan_and_scan"));
  EXPECT_THAT(refusal("vision-qwen3vl", {{"image_processor_type", "CLIPImageProcessor"}}), HasSubstr("CLIP"));
  EXPECT_THAT(refusal("vision-gemma3", {{"do_resize", false}}), HasSubstr("do_resize: false"));
  EXPECT_THAT(refusal("vision-gemma3", {{"do_center_crop", true}}), HasSubstr("do_center_crop: true"));
  EXPECT_THAT(refusal("vision-gemma3", {{"resample", 3}}), HasSubstr("another filter than 2 (bilinear)"));
}

TEST_F(VisionFolders, AreRefusedForWhatIsMissingOrTooMuch) {
  const TinyTower tower = tiny_tower("vision-qwen3vl");
  for (const HfTensor& missing : tower.hf_tensors()) {
    write(tower, [&](json&, auto& tensors) {
      std::erase_if(tensors, [&](const SafeTensor& t) { return t.name == missing.name; });
    });
    EXPECT_THAT(error(), HasSubstr(missing.name));
  }
  write(tower, [](json&, auto& tensors) {
    tensors.push_back(safe_tensor("model.visual.blocks.0.attn.q_norm.weight", "F32", {1}, std::vector<float>{1}));
  });
  EXPECT_THAT(error(), AllOf(HasSubstr("'model.visual.blocks.0.attn.q_norm.weight' of the vision tower would not"),
                             HasSubstr("--no-mmproj converts the text model alone")));
  EXPECT_FALSE(std::filesystem::exists(folder_.path("m.gguf")));
}

TEST_F(VisionFolders, AreRefusedForWhatIsNotComputed) {
  const TinyTower tower = tiny_tower("vision-qwen3vl");
  const auto error_with = [&](const char* key, const json& value) {
    write(tower, [&](json& c, auto&) { c["vision_config"][key] = value; });
    return error();
  };
  EXPECT_THAT(error_with("hidden_act", "quick_gelu"), HasSubstr("hidden_act: 'quick_gelu' is not supported"));
  EXPECT_THAT(error_with("in_channels", 4), HasSubstr("vision_config: in_channels"));
  EXPECT_THAT(error_with("temporal_patch_size", 1), HasSubstr("temporal_patch_size"));
  EXPECT_THAT(error_with("num_position_embeddings", 35), HasSubstr("no square grid"));
  EXPECT_THAT(error_with("deepstack_visual_indexes", {1, 0}), HasSubstr("ascend"));
  EXPECT_THAT(error_with("deepstack_visual_indexes", {3}), HasSubstr("there is no block 3"));
  EXPECT_THAT(error_with("depth", 4), HasSubstr("blocks.3"));
  EXPECT_THAT(error_with("out_hidden_size", 47), HasSubstr("linear_fc2"));
}

}  // namespace
}  // namespace quire::test
