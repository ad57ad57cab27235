// Conversion against files that something else made: the demo models' by the reference converter, the small
// models' by tests/support. Every tensor bit by bit, and every key.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>

#include "convert/convert.h"
#include "gguf/reader.h"
#include "support/golden.h"
#include "support/hf_folder.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;

gguf::File open(const std::string& path) {
  Result<gguf::File> f = gguf::File::open(path);
  QUIRE_CHECK(f.ok(), "{}", f.error().message);
  return std::move(f).value();
}

convert::ConvertSummary convert_or_die(const convert::ConvertOptions& o) {
  Result<convert::ConvertSummary> s = convert::convert(o);
  QUIRE_CHECK(s.ok(), "{}", s.error().message);
  return std::move(s).value();
}

void expect_same_tensors(const gguf::File& want, const gguf::File& got) {
  EXPECT_EQ(want.tensors().size(), got.tensors().size());
  for (const gguf::TensorInfo& a : want.tensors()) {
    SCOPED_TRACE(std::string(a.name));
    const gguf::TensorInfo* b = got.find_tensor(a.name);
    ASSERT_NE(b, nullptr);
    EXPECT_EQ(dtype_name(a.dtype), dtype_name(b->dtype));
    EXPECT_EQ(a.dims, b->dims);
    ASSERT_EQ(a.bytes, b->bytes);
    EXPECT_EQ(std::memcmp(a.data, b->data, static_cast<size_t>(a.bytes)), 0);
  }
}

std::string encoded(const gguf::Value& v) {
  std::string bytes = v.type_name();
  if (v.type == gguf::ValueType::kString)
    for (const std::string_view s : v.strings) bytes += fmt::format(" {}:{}", s.size(), s);
  else
    bytes.append(reinterpret_cast<const char*>(v.payload),
                 static_cast<size_t>(v.count * gguf::value_type_bytes(v.type)));
  return bytes;
}

// Keys that only one of them has, or with another value or type.
std::vector<std::string> different_keys(const gguf::File& a, const gguf::File& b) {
  std::map<std::string, std::string> left, right;
  for (const auto& [key, value] : a.entries()) left[std::string(key)] = encoded(value);
  for (const auto& [key, value] : b.entries()) right[std::string(key)] = encoded(value);
  std::vector<std::string> keys;
  for (const auto& [key, value] : left)
    if (!right.contains(key) || right[key] != value) keys.push_back(key);
  for (const auto& [key, value] : right)
    if (!left.contains(key)) keys.push_back(key);
  return keys;
}

class DemoConversion : public testing::TestWithParam<const char*> {};

TEST_P(DemoConversion, EqualsTheReference) {
  const std::string name = GetParam(), shared = QUIRE_SOURCE_DIR "/../shared/models/";
  const std::string folder = shared + "hf/" + name, reference = shared + "gguf/" + name + "-bf16.gguf";
  if (!fs::exists(folder) || !fs::exists(reference)) GTEST_SKIP() << folder << " is not present";
  const HfFolder out;
  const auto s = convert_or_die({.folder = folder, .output = out.path("m.gguf"), .threads = 2});
  EXPECT_THAT(s.notes, ElementsAre(testing::HasSubstr("the block for multi-token prediction takes")));
  const gguf::File want = open(reference), got = open(out.path("m.gguf"));
  expect_same_tensors(want, got);
  EXPECT_THAT(different_keys(want, got), IsEmpty());
}
INSTANTIATE_TEST_SUITE_P(Models, DemoConversion, testing::Values("demo-dense", "demo-moe"));

class TinyConversion : public testing::TestWithParam<TinyModel> {};
INSTANTIATE_TEST_SUITE_P(Models, TinyConversion, testing::ValuesIn(tiny_models()),
                         [](const auto& m) { return m.param.name.substr(std::strlen("tiny-")); });

TEST_P(TinyConversion, EqualsTheFileOfTheTests) {
  const TinyModelFile reference(GetParam());
  const HfFolder folder(GetParam());
  const auto s =
      convert_or_die({.folder = folder.path(), .output = folder.path("m.gguf"), .name = GetParam().name, .threads = 2});
  EXPECT_THAT(s.notes, IsEmpty());
  const gguf::File want = open(reference.path()), got = open(folder.path("m.gguf"));
  expect_same_tensors(want, got);
  std::vector<std::string> expected = {"general.quantization_version", "general.size_label"};
  if (want.has("tokenizer.chat_template")) expected.push_back("tokenizer.chat_template");  // the folder has none
  EXPECT_THAT(different_keys(want, got), testing::UnorderedElementsAreArray(expected));
}

// What the model says is what the reference file's model says.
TEST(Conversion, GeneratesTheSame) {
  const TinyModel m = tiny_models()[5];
  ASSERT_EQ(m.name, "tiny-qwen3moe");
  const TinyModelFile reference(m);
  const HfFolder folder(m);
  convert_or_die({.folder = folder.path(), .output = folder.path("m.gguf")});
  const Golden golden = load_golden(m.golden_path());
  check_greedy(load_or_die(folder.path("m.gguf")), golden);
}

TEST(Conversion, SplitsAndMergesAgain) {
  const TinyModel m = tiny_models()[7];
  const HfFolder folder(m);
  convert_or_die({.folder = folder.path(), .output = folder.path("one.gguf")});
  const auto s =
      convert_or_die({.folder = folder.path(), .output = folder.path("many.gguf"), .split_max_bytes = 200'000});
  ASSERT_GT(s.files.size(), 3u);
  EXPECT_EQ(s.files[0], folder.path(fmt::format("many-00001-of-{:05}.gguf", s.files.size())));
  EXPECT_FALSE(fs::exists(folder.path("many.gguf")));
  const gguf::File one = open(folder.path("one.gguf")), many = open(s.files[0]);
  expect_same_tensors(one, many);
  EXPECT_THAT(different_keys(one, many), ElementsAre("split.count", "split.no", "split.tensors.count"));
  EXPECT_EQ(many.mapped_bytes(), s.file_bytes);
}

// A prediction block made of the tensors of layer 1: it must come out as that layer does, and load.
TEST(Conversion, KeepsTheMtpBlock) {
  const TinyModel m = tiny_models()[6];
  ASSERT_EQ(m.name, "tiny-qwen35");
  ASSERT_TRUE(m.full_attention(1));
  const HfFolder folder(m);
  std::vector<SafeTensor> tensors = safe_tensors(m);
  const std::string layer = "model.layers.1.";
  for (size_t i = 0, n = tensors.size(); i < n; ++i)
    if (tensors[i].name.starts_with(layer)) {
      tensors.push_back(tensors[i]);
      tensors.back().name = "mtp.layers.0." + tensors[i].name.substr(layer.size());
    }
  const auto add = [&](const char* name, std::vector<int64_t> shape, float value) {
    const int64_t n = shape[0] * (shape.size() > 1 ? shape[1] : 1);
    tensors.push_back(safe_tensor(name, "BF16", shape, std::vector<bf16>(static_cast<size_t>(n), to_bf16(value))));
  };
  add("mtp.fc.weight", {m.hidden, 2 * m.hidden}, 0.25F);
  add("mtp.pre_fc_norm_embedding.weight", {m.hidden}, 0.5F);
  add("mtp.pre_fc_norm_hidden.weight", {m.hidden}, -0.5F);
  add("mtp.norm.weight", {m.hidden}, 2);
  folder.write("model.safetensors", safetensors_file(tensors));
  nlohmann::json config = hf_config(m);
  config["mtp_num_hidden_layers"] = 1;
  folder.write_json("config.json", config);
  const auto s = convert_or_die({.folder = folder.path(), .output = folder.path("m.gguf")});
  EXPECT_THAT(s.notes, ElementsAre(testing::HasSubstr("the block for multi-token prediction takes 0.")));
  const gguf::File f = open(folder.path("m.gguf"));
  EXPECT_EQ(f.get_u32("qwen35.block_count").value(), 5u);
  EXPECT_EQ(f.get_u32("qwen35.nextn_predict_layers").value(), 1u);
  int compared = 0;
  for (const gguf::TensorInfo& t : f.tensors()) {
    if (!t.name.starts_with("blk.1.")) continue;
    const gguf::TensorInfo* copy = f.find_tensor("blk.4." + std::string(t.name.substr(6)));
    ASSERT_NE(copy, nullptr) << t.name;
    EXPECT_EQ(std::memcmp(t.data, copy->data, static_cast<size_t>(t.bytes)), 0) << t.name;
    ++compared;
  }
  EXPECT_EQ(compared, 11);
  const auto first = [&](const char* name) {
    float x = 0;
    std::memcpy(&x, f.find_tensor(name)->data, sizeof x);
    return x;
  };
  EXPECT_EQ(first("blk.4.nextn.enorm.weight"), 1.5F);
  EXPECT_EQ(first("blk.4.nextn.hnorm.weight"), 0.5F);
  EXPECT_EQ(first("blk.4.nextn.shared_head_norm.weight"), 3.0F);
  EXPECT_NE(load_or_die(folder.path("m.gguf")), nullptr);
}

TEST(Conversion, StopsWithoutOutput) {
  const HfFolder folder(tiny_models()[4]), out;
  int asked = 0;
  const auto s =
      convert::convert({.folder = folder.path(), .output = out.path("m.gguf"), .split_max_bytes = 100'000, .stop = [&] {
                          return ++asked == 9;
                        }});
  ASSERT_FALSE(s.ok());
  EXPECT_EQ(s.error().message, folder.path() + ": interrupted; nothing was written");
  EXPECT_TRUE(fs::is_empty(out.path()));
}

TEST(Conversion, ReadsShardsByTheirIndex) {
  const TinyModel m = tiny_models()[4];
  const HfFolder folder(m);
  convert_or_die({.folder = folder.path(), .output = folder.path("one.gguf")});
  folder.remove("model.safetensors");
  const std::vector<SafeTensor> all = safe_tensors(m);
  nlohmann::json map;
  const auto put = [&](const std::string& file, size_t begin, size_t end) {
    const std::vector<SafeTensor> part(all.begin() + static_cast<int64_t>(begin),
                                       all.begin() + static_cast<int64_t>(end));
    folder.write(file, safetensors_file(part));
    for (const SafeTensor& t : part) map[t.name] = file;
  };
  put("model-00001-of-00002.safetensors", 0, 7);
  put("model-00002-of-00002.safetensors", 7, all.size());
  folder.write_json("model.safetensors.index.json", {{"weight_map", map}});
  convert_or_die({.folder = folder.path(), .output = folder.path("two.gguf")});
  expect_same_tensors(open(folder.path("one.gguf")), open(folder.path("two.gguf")));
}

}  // namespace
}  // namespace quire::test
