// A model folder opened without a file: the same metadata, tensors and fingerprint as the file that `quire convert`
// writes of it, and the same messages about bad folders.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "convert/open.h"
#include "convert/support.h"
#include "support/golden.h"

namespace quire::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

void expect_same_tensors(const gguf::File& want, const gguf::File& got) {
  ASSERT_EQ(want.tensors().size(), got.tensors().size());
  for (size_t i = 0; i < want.tensors().size(); ++i) {
    const gguf::TensorInfo &a = want.tensors()[i], &b = got.tensors()[i];
    SCOPED_TRACE(std::string(a.name));
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(dtype_name(a.dtype), dtype_name(b.dtype));
    EXPECT_EQ(gguf::shape_text(a), gguf::shape_text(b));
    ASSERT_EQ(a.bytes, b.bytes);
    EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes)), 0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data) % 8, 0U);
  }
}

void expect_same(const gguf::File& want, const gguf::File& got) {
  expect_same_tensors(want, got);
  ASSERT_EQ(want.entries().size(), got.entries().size());
  for (size_t i = 0; i < want.entries().size(); ++i) {
    EXPECT_EQ(want.entries()[i].key, got.entries()[i].key);
    EXPECT_EQ(want.entries()[i].value.type_name(), got.entries()[i].value.type_name());
    const gguf::Value &a = want.entries()[i].value, &b = got.entries()[i].value;
    ASSERT_EQ(a.count, b.count);
    EXPECT_EQ(a.strings, b.strings);
    if (a.type == gguf::ValueType::kString) continue;
    EXPECT_EQ(std::memcmp(a.payload, b.payload, static_cast<size_t>(a.count * gguf::value_type_bytes(a.type))), 0);
  }
}

gguf::File open(const std::string& path, const convert::OpenOptions& options = {.threads = 2}) {
  Result<gguf::File> f = convert::open_model(path, options);
  QUIRE_CHECK(f.ok(), "{}", f.error().message);
  return std::move(f).value();
}

class TinyFolder : public testing::TestWithParam<TinyModel> {};
INSTANTIATE_TEST_SUITE_P(Models, TinyFolder, testing::ValuesIn(tiny_models()),
                         [](const auto& m) { return m.param.name.substr(std::strlen("tiny-")); });

TEST_P(TinyFolder, HasWhatItsFileWouldHave) {
  const HfFolder folder(GetParam());
  const gguf::File file = converted(folder);
  expect_same(file, open(folder.path()));
  EXPECT_FALSE(file.assembled());
  const ModelPtr of_file = load_or_die(folder.path("m.gguf")), of_folder = load_or_die(folder.path());
  EXPECT_EQ(of_file->identity(), of_folder->identity());
  EXPECT_TRUE(of_folder->file.assembled());
  EXPECT_EQ(of_file->file.tensor_bytes(), of_folder->file.tensor_bytes());
}

TEST_P(TinyFolder, SaysWhatItsGoldenSays) {
  const HfFolder folder(GetParam());
  check_greedy(load_or_die(folder.path()), load_golden(GetParam().golden_path()));
}

class DemoFolder : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, DemoFolder, testing::Values("demo-dense", "demo-moe"));

TEST_P(DemoFolder, HasWhatItsFileWouldHave) {
  const std::string name = GetParam(), shared = QUIRE_SOURCE_DIR "/../shared/models/", folder = shared + "hf/" + name;
  if (!fs::exists(folder)) GTEST_SKIP() << folder << " is not present";
  const HfFolder out;
  ASSERT_TRUE(convert::convert({.folder = folder, .output = out.path("m.gguf"), .threads = 2}).ok());
  const gguf::File file = open(out.path("m.gguf")), whole = open(folder);
  expect_same(file, whole);
  EXPECT_LT(whole.made_bytes(), whole.tensor_bytes());
  EXPECT_EQ(load_or_die(folder)->identity(), load_or_die(out.path("m.gguf"))->identity());
}

TEST(Folder, IsNamedByAFileInIt) {
  const HfFolder folder(model("tiny-qwen3"));
  const gguf::File whole = open(folder.path());
  for (const char* file : {"config.json", "model.safetensors", ""})
    expect_same(whole, open(folder.path() + "/" + file));
  fs::create_directory(folder.path("My-Model.5-4B"));
  EXPECT_EQ(convert::file_name_of(folder.path("My-Model.5-4B") + "/"), "My-Model.5-4B");
  EXPECT_EQ(convert::file_name_of("a/My-Model.5-4B/config.json"), "My-Model.5-4B");
  EXPECT_EQ(convert::file_name_of("a/My-Model.5-4B.gguf"), "My-Model.5-4B");
}

// What lies in the folder as it is wanted is not copied: of the hybrid model only what is put in order by head, of
// any only norms and stacked experts.
TEST(Folder, IsUsedWhereItIsMapped) {
  const HfFolder folder(model("tiny-qwen3"));
  const gguf::File f = open(folder.path());
  int64_t vectors = 0;
  for (const gguf::TensorInfo& t : f.tensors())
    if (t.n_dims == 1) vectors += (t.bytes + 63) / 64 * 64;
  EXPECT_EQ(f.made_bytes(), vectors);
}

TEST(Folder, WithoutMatricesHasItsVectors) {
  const HfFolder folder(model("tiny-qwen3moe"));
  const gguf::File all = open(folder.path()), some = open(folder.path(), {.matrices = false, .threads = 1});
  int zeros = 0;
  for (const gguf::TensorInfo& t : all.tensors()) {
    const gguf::TensorInfo* const s = some.find_tensor(t.name);
    ASSERT_NE(s, nullptr);
    const bool same = std::memcmp(t.data, s->data, static_cast<size_t>(t.bytes)) == 0;
    EXPECT_TRUE(same || t.n_dims > 1) << t.name;
    zeros += same ? 0 : 1;
  }
  EXPECT_GT(zeros, 0);
}

// Tensors that begin where no number may be read from are made too.
TEST(Folder, MayHaveTensorsAtOddPlaces) {
  const TinyModel m = model("tiny-qwen3");
  const HfFolder aligned(m), folder(m);
  const gguf::File even = open(aligned.path());
  std::vector<SafeTensor> tensors = safe_tensors(m);
  tensors.insert(tensors.begin(), {"a.rotary_emb.inv_freq", "U8", {3}, "abc"});
  folder.write("model.safetensors", safetensors_file(tensors));
  const gguf::File odd = open(folder.path());
  expect_same_tensors(even, odd);
  EXPECT_GT(odd.made_bytes(), even.made_bytes());
}

TEST(Folder, HasTheMessagesOfConversions) {
  const TinyModel m = model("tiny-qwen3");
  const auto refused = [](const HfFolder& folder) {
    const Result<gguf::File> f = convert::open_model(folder.path());
    const Result<convert::ConvertSummary> s =
        convert::convert({.folder = folder.path(), .output = folder.path("m.gguf")});
    EXPECT_FALSE(f.ok());
    EXPECT_FALSE(s.ok());
    EXPECT_EQ(f.error().message, s.error().message);
    EXPECT_EQ(f.error().fault, s.error().fault);
    return f.error().message;
  };
  for (const char* file : {"config.json", "tokenizer.json", "model.safetensors"}) {
    const HfFolder folder(m);
    folder.remove(file);
    EXPECT_THAT(refused(folder), HasSubstr(file));
  }
  {
    const HfFolder folder(m);
    std::vector<SafeTensor> tensors = safe_tensors(m);
    tensors.pop_back();
    folder.write("model.safetensors", safetensors_file(tensors));
    EXPECT_THAT(refused(folder), HasSubstr("is missing"));
  }
  {
    const HfFolder folder(m);
    std::vector<SafeTensor> tensors = safe_tensors(m);
    for (SafeTensor& t : tensors)
      if (t.name.ends_with("input_layernorm.weight")) t.bytes[0] = t.bytes[1] = '\xff';
    folder.write("model.safetensors", safetensors_file(tensors));
    EXPECT_THAT(refused(folder), HasSubstr("NaN or infinity"));
  }
  {
    const HfFolder folder(m);
    folder.write("config.json", R"({"architectures": ["BertModel"]})");
    EXPECT_THAT(refused(folder), HasSubstr("BertModel"));
  }
  const Result<gguf::File> nowhere = convert::open_model("/nowhere/config.json");
  EXPECT_THAT(nowhere.error().message, HasSubstr("/nowhere: no such folder"));
}

}  // namespace
}  // namespace quire::test
