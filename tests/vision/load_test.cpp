// mmproj files: the same bits as from a folder, and what is said of files that are not as they should be.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "convert/produce.h"
#include "convert/vision_folder.h"
#include "support/gguf_edit.h"
#include "vision/tower_support.h"

namespace quire {
namespace {

using test::cpu_machine;
using test::GgufEdit;
using test::OpenTower;
using test::run_tower;
using test::TinyTower;
using test::TowerFolder;
using test::TowerInput;
using testing::AllOf;
using testing::HasSubstr;

// Writes the tower of a folder as `quire convert` does.
void write_mmproj(const std::string& folder, const std::string& path, const convert::PlanOptions& options = {}) {
  auto read = convert::VisionFolder::read(folder, options);
  ASSERT_TRUE(read.ok()) << read.error().message;
  ASSERT_TRUE(read->has_value());
  const convert::VisionFolder& vision = **read;
  gguf::Writer w;
  vision.write_metadata("Tiny", w);
  for (const convert::OutTensor& t : vision.plan.tensors) ASSERT_TRUE(w.add_tensor(t.name, t.dtype, t.dims).ok());
  ASSERT_TRUE(w.open(path).ok());
  convert::Producer producer(1);
  std::set<std::string> not_finite;
  for (const convert::OutTensor& t : vision.plan.tensors) {
    const auto bytes = producer.run(t, not_finite);
    ASSERT_TRUE(bytes.ok()) << bytes.error().message;
    ASSERT_TRUE(w.write_tensor(*bytes).ok());
  }
  ASSERT_TRUE(w.finish().ok());
}

// A tower's mmproj file, and the same with changes.
class MmprojFile {
 public:
  explicit MmprojFile(std::string_view name, const convert::PlanOptions& options = {})
      : folder_(test::tiny_tower(name)) {
    write_mmproj(folder_.folder.path(), path(), options);
  }
  std::string path() const { return folder_.folder.path("mmproj-tiny.gguf"); }
  const TowerFolder& folder() const { return folder_; }
  OpenTower open() const { return OpenTower(gguf::File::open(path())); }
  // What is said of the file with changes; empty: nothing.
  std::string error_of(const GgufEdit& edit) const {
    const std::string edited = folder_.folder.path("edited.gguf");
    test::edit_gguf(path(), edited, edit);
    return OpenTower(gguf::File::open(edited)).error;
  }
  std::string error_with(const std::string& key, const std::function<void(gguf::Writer&)>& add) const {
    return error_of({.drop = {key}, .metadata = add});
  }
  std::string error_with(const std::string& key, uint32_t value) const {
    return error_with(key, [&](gguf::Writer& w) { w.add(key, value); });
  }

 private:
  TowerFolder folder_;
};

TEST(Mmproj, HasTheBitsOfTheFolder) {
  for (const TinyTower& t : test::tiny_towers()) {
    const MmprojFile file(t.name);
    const OpenTower from_file = file.open(), from_folder(convert::open_vision(file.folder().folder.path()));
    ASSERT_EQ(from_file.error, "");
    EXPECT_EQ(run_tower(*from_file, TowerInput(t), cpu_machine()),
              run_tower(*from_folder, TowerInput(t), cpu_machine()))
        << t.name;
  }
}

// The same weights in other types: what bf16 holds, f32 does, and f16 nearly does.
TEST(Mmproj, MayHaveOtherTypes) {
  for (const DType type : {DType::kF32, DType::kF16})
    for (const TinyTower& t : test::tiny_towers()) {
      const MmprojFile file(t.name, {.type = type});
      const OpenTower open = file.open();
      ASSERT_EQ(open.error, "") << dtype_name(type);
      const std::vector<float> got = run_tower(*open, TowerInput(t), test::reference_machine()).rows;
      const auto want = t.golden().at("rows").get<std::vector<float>>();
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], type == DType::kF32 ? 2e-4 : 2e-2) << i;
    }
}

TEST(Mmproj, HasNamesAndShapesThatOthersRead) {
  const MmprojFile file("vision-qwen3vl");
  const gguf::File f = std::move(gguf::File::open(file.path())).value();
  EXPECT_EQ(f.get_string("general.architecture").value(), "clip");
  EXPECT_EQ(f.get_string("general.type").value(), "mmproj");
  EXPECT_EQ(f.get_string("clip.projector_type").value(), "qwen3vl_merger");
  EXPECT_EQ(f.get_u32("clip.vision.image_size").value(), 96u);
  EXPECT_EQ(f.get_bool_array("clip.vision.is_deepstack_layers").value(), (std::vector<bool>{true, true, false}));
  const auto shape = [&](const std::string& name) {
    const gguf::TensorInfo* t = f.find_tensor(name);
    return t == nullptr ? "none" : fmt::format("{} {}", dtype_name(t->dtype), gguf::shape_text(*t));
  };
  EXPECT_EQ(shape("v.patch_embd.weight"), "f32 [16, 16, 3, 144]");
  EXPECT_EQ(shape("v.patch_embd.weight.1"), "f32 [16, 16, 3, 144]");
  EXPECT_EQ(shape("v.position_embd.weight"), "f32 [144, 36]");
  EXPECT_EQ(shape("v.blk.2.attn_qkv.weight"), "bf16 [144, 432]");
  EXPECT_EQ(shape("v.post_ln.bias"), "f32 [144]");
  EXPECT_EQ(shape("mm.2.weight"), "bf16 [576, 48]");
  EXPECT_EQ(shape("v.deepstack.1.fc1.weight"), "bf16 [576, 576]");
  EXPECT_EQ(shape("v.deepstack.2.fc1.weight"), "none");
  EXPECT_TRUE(has_vision_tower(f));
}

TEST(Mmproj, PutsEachFrameOfTheConvolutionInATensorOfItsOwn) {
  const MmprojFile file("vision-qwen35");
  const gguf::File f = std::move(gguf::File::open(file.path())).value();
  for (const test::HfTensor& t : file.folder().tiny.hf_tensors()) {
    if (!t.name.ends_with("patch_embed.proj.weight")) continue;
    for (int frame = 0; frame < 2; ++frame) {
      const auto* const got = reinterpret_cast<const float*>(
          f.find_tensor(frame == 0 ? "v.patch_embd.weight" : "v.patch_embd.weight.1")->data);
      for (size_t i = 0; i < t.values.size() / 2; ++i) {
        const size_t output_and_colour = i / 256, pixel = i % 256;
        ASSERT_EQ(got[i], to_float(t.values[(output_and_colour * 2 + static_cast<size_t>(frame)) * 256 + pixel])) << i;
      }
    }
  }
}

// As llama.cpp's converter lays it out.
TEST(Mmproj, HasGemma4sNamesAndShapes) {
  const MmprojFile file("vision-gemma4e");
  const gguf::File f = std::move(gguf::File::open(file.path())).value();
  EXPECT_EQ(f.get_string("clip.projector_type").value(), "gemma4v");
  EXPECT_EQ(f.get_u32("clip.vision.image_size").value(), 224u);
  EXPECT_FALSE(f.has("clip.vision.projector.scale_factor"));
  EXPECT_EQ(f.get_u32("clip.vision.image_max_pixels").value(), 64u * 48 * 48);
  EXPECT_EQ(f.get_bool("quire.vision.both_ways").value(), false);
  EXPECT_EQ(f.get_f32_array("clip.vision.image_mean").value(), (std::vector<float>{0, 0, 0}));
  const auto shape = [&](const std::string& name) {
    const gguf::TensorInfo* t = f.find_tensor(name);
    return t == nullptr ? "none" : fmt::format("{} {}", dtype_name(t->dtype), gguf::shape_text(*t));
  };
  EXPECT_EQ(shape("v.patch_embd.weight"), "f32 [16, 16, 3, 128]");
  EXPECT_EQ(shape("v.patch_embd.bias"), "none");
  EXPECT_EQ(shape("v.position_embd.weight"), "f32 [128, 192, 2]");
  EXPECT_EQ(shape("v.blk.1.attn_q.weight"), "bf16 [128, 128]");
  EXPECT_EQ(shape("v.blk.1.attn_out.input_min"), "f32 [1]");
  EXPECT_EQ(shape("v.blk.1.ffn_gate.output_max"), "f32 [1]");
  EXPECT_EQ(shape("v.blk.0.attn_k_norm.weight"), "f32 [64]");
  EXPECT_EQ(shape("v.blk.0.attn_post_norm.weight"), "f32 [128]");
  EXPECT_EQ(shape("v.blk.0.ffn_post_norm.weight"), "f32 [128]");
  EXPECT_EQ(shape("v.std_bias"), "none");
  EXPECT_EQ(shape("mm.input_projection.weight"), "bf16 [128, 96]");
  const MmprojFile scaled("vision-gemma4");
  const gguf::File g = std::move(gguf::File::open(scaled.path())).value();
  EXPECT_NE(g.find_tensor("v.std_bias"), nullptr);
  EXPECT_NE(g.find_tensor("v.std_scale"), nullptr);
  EXPECT_EQ(g.find_tensor("v.blk.0.attn_q.input_min"), nullptr);
  EXPECT_EQ(g.get_bool("quire.vision.both_ways").value(), true);
}

TEST(Mmproj, TurnsGemma4sPixelsIntoPlanes) {
  const MmprojFile file("vision-gemma4");
  const gguf::File f = std::move(gguf::File::open(file.path())).value();
  const auto* const got = reinterpret_cast<const float*>(f.find_tensor("v.patch_embd.weight")->data);
  for (const test::HfTensor& t : file.folder().tiny.hf_tensors()) {
    if (!t.name.ends_with("input_proj.weight")) continue;
    for (size_t i = 0; i < t.values.size(); ++i) {
      const size_t output = i / 768, colour = i / 256 % 3, pixel = i % 256;
      ASSERT_EQ(got[i], to_float(t.values[output * 768 + pixel * 3 + colour])) << i;
    }
  }
}

TEST(Mmproj, OfGemma4MayHaveBoundsOnBothSidesOrNone) {
  const MmprojFile file("vision-gemma4e");
  const auto without = [](std::initializer_list<const char*> ends) {
    GgufEdit edit;
    for (const char* end : ends) edit.drop.insert(std::string("v.blk.1.attn_q.") + end);
    return edit;
  };
  EXPECT_EQ(file.error_of(without({"input_min", "input_max", "output_min", "output_max"})), "");
  EXPECT_THAT(file.error_of(without({"input_min", "input_max"})), HasSubstr("v.blk.1.attn_q.weight: has bounds"));
  GgufEdit turned = without({"input_min"});
  const float high = 1e3f;
  const auto* const bytes = reinterpret_cast<const std::byte*>(&high);
  turned.tensors.push_back({"v.blk.1.attn_q.input_min", DType::kF32, {1}, {bytes, bytes + sizeof high}});
  EXPECT_THAT(file.error_of(turned), HasSubstr("v.blk.1.attn_q.input_min: 1000 is not below"));
  EXPECT_THAT(file.error_with("clip.use_silu", [](gguf::Writer& w) { w.add("clip.use_silu", true); }),
              HasSubstr("clip.use_silu"));
  EXPECT_EQ(file.error_of({.drop = {"clip.use_gelu", "quire.vision.both_ways"}}), "");
}

// Older writers call the first product "down" and the second one "up".
TEST(Mmproj, TakesFeedForwardsTheOtherWayRound) {
  const MmprojFile file("vision-gemma3");
  GgufEdit swapped;
  const auto opened = std::move(gguf::File::open(file.path())).value();
  for (int block = 0; block < 2; ++block)
    for (const char* suffix : {"weight", "bias"})
      for (const auto& [from, to] : {std::pair{"up", "down"}, std::pair{"down", "up"}}) {
        const std::string old_name = fmt::format("v.blk.{}.ffn_{}.{}", block, from, suffix);
        const gguf::TensorInfo* t = opened.find_tensor(old_name);
        swapped.drop.insert(old_name);
        swapped.tensors.push_back({fmt::format("v.blk.{}.ffn_{}.{}", block, to, suffix), t->dtype,
                                   std::vector<int64_t>(t->dims.begin(), t->dims.begin() + t->n_dims),
                                   std::vector<std::byte>(t->data, t->data + t->bytes)});
      }
  const std::string edited = file.folder().folder.path("swapped.gguf");
  test::edit_gguf(file.path(), edited, swapped);
  const OpenTower straight = file.open(), open(gguf::File::open(edited));
  ASSERT_EQ(open.error, "");
  const TowerInput in(file.folder().tiny);
  EXPECT_EQ(run_tower(*open, in, cpu_machine()), run_tower(*straight, in, cpu_machine()));
}

TEST(Mmproj, IsRefusedWithoutAnyOfItsTensors) {
  for (const TinyTower& t : test::tiny_towers()) {
    const MmprojFile file(t.name);
    const auto opened = std::move(gguf::File::open(file.path())).value();
    for (const gguf::TensorInfo& tensor : opened.tensors()) {
      const std::string name(tensor.name);
      EXPECT_THAT(file.error_of({.drop = {name}}), HasSubstr(name));
    }
  }
}

TEST(Mmproj, IsRefusedWithAnyTensorOfAnotherShape) {
  for (const TinyTower& t : test::tiny_towers()) {
    const MmprojFile file(t.name);
    const auto opened = std::move(gguf::File::open(file.path())).value();
    for (const gguf::TensorInfo& tensor : opened.tensors()) {
      const std::string name(tensor.name);
      std::vector<int64_t> dims(tensor.dims.begin(), tensor.dims.begin() + tensor.n_dims);
      --dims.back();
      EXPECT_THAT(file.error_of({.reshape = {{name, dims}}}), HasSubstr(name));
    }
  }
}

TEST(Mmproj, IsRefusedWithoutItsKeys) {
  const MmprojFile file("vision-gemma3");
  for (const char* key :
       {"general.architecture", "clip.has_vision_encoder", "clip.projector_type", "clip.use_gelu",
        "clip.vision.embedding_length", "clip.vision.block_count", "clip.vision.patch_size",
        "clip.vision.attention.head_count", "clip.vision.feed_forward_length", "clip.vision.projection_dim"})
    EXPECT_NE(file.error_of({.drop = {key}}), "") << key;
  EXPECT_THAT(file.error_of({.drop = {"clip.vision.block_count"}}), HasSubstr("clip.vision.block_count"));
}

TEST(Mmproj, IsRefusedWhereKeysContradict) {
  const MmprojFile qwen("vision-qwen3vl"), gemma("vision-gemma3");
  EXPECT_THAT(qwen.error_with("clip.vision.image_size", 112),
              AllOf(HasSubstr("clip.vision.image_size"), HasSubstr("positions of 6 x 6")));
  EXPECT_THAT(qwen.error_with("clip.vision.attention.head_count", 7), HasSubstr("attention.head_count"));
  EXPECT_THAT(qwen.error_with("clip.vision.attention.head_count", 36), HasSubstr("multiple of 8"));
  EXPECT_THAT(qwen.error_with("clip.vision.block_count", 4), HasSubstr("is_deepstack_layers"));
  EXPECT_THAT(qwen.error_with("clip.vision.projection_dim", 64), HasSubstr("mm.2.weight"));
  EXPECT_THAT(qwen.error_with("clip.vision.spatial_merge_size", 3), HasSubstr("mm.0.weight"));
  EXPECT_THAT(gemma.error_with("clip.vision.projector.scale_factor", 3), HasSubstr("cannot be pooled"));
  EXPECT_THAT(qwen.error_with("clip.vision.is_deepstack_layers",
                              [](gguf::Writer& w) {
                                w.add_bools("clip.vision.is_deepstack_layers", {true, false, false});
                              }),
              HasSubstr("v.deepstack.1"));
  EXPECT_THAT(
      qwen.error_with("clip.projector_type", [](gguf::Writer& w) { w.add_string("clip.projector_type", "ldp"); }),
      AllOf(HasSubstr("'ldp'"), HasSubstr("qwen3vl_merger, gemma3, gemma4v")));
  EXPECT_THAT(qwen.error_with("clip.use_gelu", [](gguf::Writer& w) { w.add("clip.use_gelu", false); }),
              HasSubstr("clip.use_gelu"));
  EXPECT_THAT(qwen.error_of({.add = {{"v.pre_ln.weight", {144}}}}), HasSubstr("v.pre_ln.weight"));
  EXPECT_THAT(qwen.error_with("clip.vision.image_std",
                              [](gguf::Writer& w) {
                                const float values[] = {0.5f, 0.0f, 0.5f};
                                w.add_array("clip.vision.image_std", std::span<const float>(values));
                              }),
              HasSubstr("image_std"));
}

// Whatever a byte of the metadata and of the list of tensors becomes, there is a tower or a message.
TEST(Mmproj, AnyByteOfTheHeader) {
  for (const char* name : {"vision-qwen3vl", "vision-qwen35", "vision-gemma3", "vision-gemma4e"}) {
    const MmprojFile original(name);
    std::vector<std::byte> bytes(std::filesystem::file_size(original.path()));
    std::ifstream(original.path(), std::ios::binary).read(reinterpret_cast<char*>(bytes.data()), std::ssize(bytes));
    const size_t header = gguf::File::open(original.path()).value().shards()[0].data_begin;
    uint64_t random = 0x9e3779b97f4a7c15u;
    int loaded = 0, refused = 0;
    for (int i = 0; i < 1500; ++i) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      std::byte& at = bytes[(random >> 33) % header];
      const std::byte before = std::exchange(at, static_cast<std::byte>(random >> 25));
      if (const auto file = gguf::File::parse(bytes); file.ok()) {
        const auto tower = VisionTower::load(*file);
        (tower.ok() ? loaded : refused)++;
        EXPECT_TRUE(tower.ok() || !tower.error().message.empty());
      }
      at = before;
    }
    EXPECT_GT(loaded, 50) << name;
    EXPECT_GT(refused, 50) << name;
  }
}

TEST(Mmproj, TextModelsAreNone) {
  test::TinyModel text;
  for (const test::TinyModel& m : test::tiny_models())
    if (m.name == "tiny-qwen35") text = m;
  const test::TinyModelFile file(text);
  const OpenTower open(gguf::File::open(file.path()));
  EXPECT_THAT(open.error, HasSubstr("no vision tower"));
  EXPECT_FALSE(has_vision_tower(std::move(gguf::File::open(file.path())).value()));
}

TEST(Batch, RefusesGridsThatNoTowerTakes) {
  VisionConfig c;
  c.merge = 2;
  c.positions = 36;
  const auto error_of = [&](std::vector<ImageGrid> grids) {
    const auto batch = VisionBatch::make(c, grids);
    return batch.ok() ? std::string() : batch.error().message;
  };
  EXPECT_EQ(error_of({{1, 2, 4}, {3, 6, 2}}), "");
  EXPECT_THAT(error_of({{1, 2, 4}, {1, 3, 2}}), HasSubstr("image 1: an image of 3 x 2 patches"));
  EXPECT_THAT(error_of({{0, 2, 2}}), HasSubstr("0 x 2 x 2"));
  EXPECT_THAT(error_of({{1, -2, 2}}), HasSubstr("patches"));
  EXPECT_THAT(error_of({{1, int64_t{1} << 40, int64_t{1} << 40}}), HasSubstr("at most"));
  EXPECT_THAT(error_of({{1, 1024, 1024}, {1, 2, 2}}), HasSubstr("in one batch"));
  c.family = VisionFamily::kGemma3;
  EXPECT_EQ(error_of({{1, 6, 6}}), "");
  EXPECT_THAT(error_of({{1, 6, 4}}), HasSubstr("1 x 6 x 6"));
}

// A table for each axis; columns come first.
TEST(Batch, AddsThePositionsOfBothAxesForGemma4) {
  VisionConfig c;
  c.family = VisionFamily::kGemma4;
  c.width = 144;
  c.merge = 3;
  c.positions = 9;
  const ImageGrid grid{1, 3, 6}, wide{1, 3, 12};
  const VisionBatch batch = std::move(VisionBatch::make(c, std::span(&grid, 1))).value();
  const VisionArrays a = batch.arrays();
  EXPECT_EQ(a.tokens, 2);
  for (const auto& [patch, row, column] : {std::tuple{0, 0, 0}, {1, 0, 1}, {3, 1, 0}, {9, 0, 3}, {17, 2, 5}}) {
    EXPECT_EQ(a.positions.row<int32_t>(patch)[0], column);
    EXPECT_EQ(a.positions.row<int32_t>(patch)[1], row);
    EXPECT_EQ(a.mixed.row<int32_t>(patch)[0], column);
    EXPECT_EQ(a.mixed.row<int32_t>(patch)[1], 9 + row);
  }
  EXPECT_EQ(a.pool_weights.row<float>(1)[8], 12.0f / 9.0f);
  const auto refused = VisionBatch::make(c, std::span(&wide, 1));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("positions for 9 in a row"));
}

// By hand: an axis of four places over three learned ones.
TEST(Batch, InterpolatesBetweenCorners) {
  VisionConfig c;
  c.merge = 1;
  c.positions = 9;
  const ImageGrid grid{1, 1, 4};
  const VisionBatch batch = std::move(VisionBatch::make(c, std::span(&grid, 1))).value();
  const VisionArrays a = batch.arrays();
  const int32_t columns[4][2] = {{0, 1}, {0, 1}, {1, 2}, {2, 2}};
  const float second[4] = {0.0f, 2.0f / 3.0f, 4.0f / 3.0f - 1.0f, 0.0f};
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(a.mixed.row<int32_t>(i)[0], columns[i][0]);
    EXPECT_EQ(a.mixed.row<int32_t>(i)[1], columns[i][1]);
    EXPECT_EQ(a.mix_weights.row<float>(i)[0], 1.0f - second[i]);
    EXPECT_EQ(a.mix_weights.row<float>(i)[1], second[i]);
    EXPECT_EQ(a.mix_weights.row<float>(i)[2], 0.0f);
  }
}

// Blocks of 2 x 2 along rows, and each row by row.
TEST(Batch, OrdersPatchesByBlocks) {
  VisionConfig c;
  c.merge = 2;
  c.positions = 9;
  const ImageGrid grids[] = {{1, 2, 4}, {2, 2, 2}};
  const VisionBatch batch = std::move(VisionBatch::make(c, grids)).value();
  const VisionArrays a = batch.arrays();
  const std::vector<std::pair<int, int>> want = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}};
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(a.positions.row<int32_t>(static_cast<int64_t>(i))[0], want[i].first) << i;
    EXPECT_EQ(a.positions.row<int32_t>(static_cast<int64_t>(i))[1], want[i].second) << i;
  }
  ASSERT_EQ(a.spans.count, 3);
  EXPECT_EQ(a.spans.data[2].row, 12);
  EXPECT_EQ(a.spans.most_rows, 8);
  EXPECT_EQ(a.spans.pairs, 64 + 16 + 16);
  EXPECT_EQ(batch.first_token(1), 2);
  EXPECT_EQ(batch.first_patch(1), 8);
  EXPECT_EQ(batch.tokens(), 4);
}

}  // namespace
}  // namespace quire
