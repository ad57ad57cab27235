// Importance files: what is written is read back, bad files are refused with their own message, files add up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <numeric>

#include "gguf/writer.h"
#include "quant/importance.h"

namespace quire::quant {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

class ImportanceFile : public testing::Test {
 protected:
  ImportanceFile() {
    std::string pattern = (fs::temp_directory_path() / "quire-importance-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~ImportanceFile() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ / name; }

  fs::path folder_;
};

struct TensorSpec {
  std::string name;
  std::vector<int64_t> dims;
  std::vector<float> values;
  DType dtype = DType::kF32;
};

// A good file of two tensors, and what may be changed about it.
struct Spec {
  std::vector<TensorSpec> tensors = {{"blk.0.ffn_up.weight.in_sum2", {3, 1}, {8, 0, 2}},
                                     {"blk.0.ffn_up.weight.counts", {1, 1}, {4}},
                                     {"blk.0.up_exps.weight.in_sum2", {2, 3}, {1, 2, 0, 0, 9, 3}},
                                     {"blk.0.up_exps.weight.counts", {1, 3}, {1, 0, 3}}};
  std::function<void(gguf::Writer&)> metadata = [](gguf::Writer& w) {
    w.add_string("general.type", "imatrix");
    const std::string_view names[] = {"wiki.txt"};
    w.add_strings("imatrix.datasets", names);
    w.add("imatrix.chunk_count", uint32_t{7});
    w.add("imatrix.chunk_size", uint32_t{512});
  };

  void write(const std::string& path) const {
    gguf::Writer w;
    metadata(w);
    for (const TensorSpec& t : tensors) ASSERT_TRUE(w.add_tensor(t.name, t.dtype, t.dims).ok());
    ASSERT_TRUE(w.open(path).ok());
    for (const TensorSpec& t : tensors) {
      std::vector<float> values = t.values;
      values.resize(static_cast<size_t>(dtype_bytes(
                        t.dtype, std::accumulate(t.dims.begin(), t.dims.end(), int64_t{1}, std::multiplies<>()))) /
                    4);
      ASSERT_TRUE(w.write_tensor(std::as_bytes(std::span(values))).ok());
    }
    ASSERT_TRUE(w.finish().ok());
  }
};

TEST_F(ImportanceFile, GivesMeanSquares) {
  Spec().write(path("good"));
  const auto f = Importance::open(path("good"));
  ASSERT_TRUE(f.ok()) << f.error().message;
  EXPECT_THAT(f->find("blk.0.ffn_up.weight", 0, 3), ElementsAre(2.0f, 0.0f, 0.5f));
  EXPECT_THAT(f->find("blk.0.up_exps.weight", 0, 2), ElementsAre(1.0f, 2.0f));
  EXPECT_THAT(f->find("blk.0.up_exps.weight", 2, 2), ElementsAre(3.0f, 1.0f));
  EXPECT_TRUE(f->find("blk.0.up_exps.weight", 1, 2).empty()) << "no token reached it";
  EXPECT_TRUE(f->find("blk.0.up_exps.weight", 3, 2).empty());
  EXPECT_TRUE(f->find("blk.0.up_exps.weight", -1, 2).empty());
  EXPECT_TRUE(f->find("blk.0.up_exps.weight", 0, 3).empty());
  EXPECT_TRUE(f->find("blk.0.down_exps.weight", 0, 2).empty());
  EXPECT_THAT(f->origin().datasets, ElementsAre("wiki.txt"));
  EXPECT_EQ(f->origin().chunk_count, 7u);
  EXPECT_EQ(f->origin().chunk_size, 512u);
  EXPECT_EQ(f->entries().size(), 2u);
}

TEST_F(ImportanceFile, SaysWhichTensorDoesNotFit) {
  Spec().write(path("good"));
  const auto f = Importance::open(path("good"));
  ASSERT_TRUE(f.ok());
  EXPECT_TRUE(f->check("blk.0.ffn_up.weight", 3, 1).ok());
  EXPECT_TRUE(f->check("blk.9.ffn_up.weight", 5, 6).ok()) << "nothing known, nothing wrong";
  const Status columns = f->check("blk.0.ffn_up.weight", 4, 1), matrices = f->check("blk.0.up_exps.weight", 2, 4);
  ASSERT_FALSE(columns.ok() || matrices.ok());
  EXPECT_THAT(columns.error().message,
              HasSubstr("the importance of 'blk.0.ffn_up.weight' is for 3 columns, but the tensor has 4 columns"));
  EXPECT_THAT(matrices.error().message,
              HasSubstr("is for 3 matrices of 2 columns, but the tensor has 4 matrices of 2 columns"));
}

TEST_F(ImportanceFile, MetadataMayBeMissing) {
  Spec s;
  s.metadata = [](gguf::Writer& w) { w.add_string("general.type", "imatrix"); };
  s.write(path("bare"));
  const auto f = Importance::open(path("bare"));
  ASSERT_TRUE(f.ok()) << f.error().message;
  EXPECT_TRUE(f->origin().datasets.empty());
  EXPECT_EQ(f->origin().chunk_count, 0u);
}

struct BadFile {
  const char* what;
  std::function<void(Spec&)> change;
  const char* error;
};

std::function<void(Spec&)> entry(const std::function<void(gguf::Writer&)>& add) {
  return [add](Spec& s) {
    s.metadata = [add](gguf::Writer& w) {
      w.add_string("general.type", "imatrix");
      add(w);
    };
  };
}

std::vector<BadFile> bad_files() {
  return {
      {"a model", [](Spec& s) { s.metadata = [](gguf::Writer& w) { w.add_string("general.type", "model"); }; },
       "not an importance file (general.type is not \"imatrix\")"},
      {"no type", [](Spec& s) { s.metadata = [](gguf::Writer&) {}; }, "not an importance file"},
      {"a number as type", [](Spec& s) { s.metadata = [](gguf::Writer& w) { w.add("general.type", uint32_t{1}); }; },
       "not an importance file"},
      {"types",
       [](Spec& s) {
         s.metadata = [](gguf::Writer& w) {
           const std::string_view names[] = {"imatrix"};
           w.add_strings("general.type", names);
         };
       },
       "not an importance file"},
      {"datasets of a number", entry([](gguf::Writer& w) { w.add("imatrix.datasets", 1.0f); }), "imatrix.datasets"},
      {"a dataset that is no array", entry([](gguf::Writer& w) { w.add_string("imatrix.datasets", "a"); }),
       "imatrix.datasets"},
      {"a fraction of a window", entry([](gguf::Writer& w) { w.add("imatrix.chunk_count", 1.5f); }),
       "imatrix.chunk_count"},
      {"negative windows", entry([](gguf::Writer& w) { w.add("imatrix.chunk_size", int32_t{-1}); }),
       "imatrix.chunk_size"},
      {"nothing", [](Spec& s) { s.tensors.clear(); }, "an importance file without tensors"},
      {"sums without counts", [](Spec& s) { s.tensors.erase(s.tensors.begin() + 1); },
       "tensor 'blk.0.ffn_up.weight.in_sum2': there is no 'blk.0.ffn_up.weight.counts' beside it"},
      {"counts without sums", [](Spec& s) { s.tensors.erase(s.tensors.begin()); },
       "tensor 'blk.0.ffn_up.weight.counts': there is no 'blk.0.ffn_up.weight.in_sum2' beside it"},
      {"another tensor", [](Spec& s) { s.tensors[0].name = "blk.0.ffn_up.weight"; },
       "tensor 'blk.0.ffn_up.weight': importances end in .in_sum2 or .counts"},
      {"no name",
       [](Spec& s) {
         s.tensors = {{".in_sum2", {1}, {1}}, {".counts", {1}, {1}}};
       },
       "tensor '.in_sum2': the name of a weight is missing"},
      {"half sums",
       [](Spec& s) {
         s.tensors[0] = {"blk.0.ffn_up.weight.in_sum2", {4, 1}, {}, DType::kF16};
       },
       "tensor 'blk.0.ffn_up.weight.in_sum2': its type is f16"},
      {"bf16 counts",
       [](Spec& s) {
         s.tensors[3] = {"blk.0.up_exps.weight.counts", {1, 4}, {}, DType::kBF16};
       },
       "tensor 'blk.0.up_exps.weight.counts': its type is bf16"},
      {"three dimensions",
       [](Spec& s) {
         s.tensors[2].dims = {1, 3, 2};
       },
       "tensor 'blk.0.up_exps.weight.in_sum2': shape [1, 3, 2] should be [1, 3]"},
      {"no columns",
       [](Spec& s) {
         s.tensors[0] = {"blk.0.ffn_up.weight.in_sum2", {0, 1}, {}};
       },
       "tensor 'blk.0.ffn_up.weight.in_sum2': shape [0, 1]"},
      {"no matrices",
       [](Spec& s) {
         s.tensors[0] = {"blk.0.ffn_up.weight.in_sum2", {3, 0}, {}};
         s.tensors[1] = {"blk.0.ffn_up.weight.counts", {1, 0}, {}};
       },
       "tensor 'blk.0.ffn_up.weight.in_sum2': shape [3, 0]"},
      {"too few counts",
       [](Spec& s) {
         s.tensors[3] = {"blk.0.up_exps.weight.counts", {1, 2}, {1, 0}};
       },
       "tensor 'blk.0.up_exps.weight.counts': shape [1, 2] should be [1, 3]"},
      {"counts the other way round",
       [](Spec& s) {
         s.tensors[3] = {"blk.0.up_exps.weight.counts", {3}, {1, 0, 3}};
       },
       "tensor 'blk.0.up_exps.weight.counts': shape [3] should be [1, 3]"},
      {"a NaN", [](Spec& s) { s.tensors[0].values[1] = kNan; }, "element 1 is nan"},
      {"an infinity", [](Spec& s) { s.tensors[0].values[2] = kInf; }, "element 2 is inf"},
      {"a negative square", [](Spec& s) { s.tensors[0].values[0] = -8; }, "element 0 is -8"},
      {"a negative count", [](Spec& s) { s.tensors[1].values[0] = -4; },
       "tensor 'blk.0.ffn_up.weight.counts': element 0 is -4"},
      {"an infinite count", [](Spec& s) { s.tensors[3].values[2] = kInf; }, "element 2 is inf"},
      {"a count that is NaN", [](Spec& s) { s.tensors[3].values[1] = kNan; }, "element 1 is nan"},
      {"half a token", [](Spec& s) { s.tensors[3].values[0] = 0.5f; },
       "element 0 is 0.5, which is no number of tokens"},
      {"sums of no tokens", [](Spec& s) { s.tensors[2].values[2] = 1; },
       "matrix 1 has sums, but by its count no token reached it"},
  };
}

TEST_F(ImportanceFile, BadFilesAreRefused) {
  for (const BadFile& bad : bad_files()) {
    SCOPED_TRACE(bad.what);
    Spec s;
    bad.change(s);
    s.write(path("bad"));
    const auto f = Importance::open(path("bad"));
    ASSERT_FALSE(f.ok());
    EXPECT_EQ(f.error().fault, Fault::kModelFile);
    EXPECT_THAT(f.error().message, HasSubstr(bad.error));
    EXPECT_THAT(f.error().message, HasSubstr(path("bad")));
  }
}

TEST_F(ImportanceFile, ATensorTwiceIsRefused) {
  Spec s;
  s.tensors[2].name = "blk.1.ffn_up.weight.in_sum2";
  s.write(path("twice"));
  std::string bytes;
  {
    std::ifstream in(path("twice"), std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  bytes[bytes.find("blk.1.") + 4] = '0';
  std::ofstream(path("twice"), std::ios::binary) << bytes;
  const auto f = Importance::open(path("twice"));
  ASSERT_FALSE(f.ok());
  EXPECT_THAT(f.error().message, HasSubstr("blk.0.ffn_up.weight.in_sum2"));
}

TEST_F(ImportanceFile, MissingOrCutFilesAreRefused) {
  EXPECT_FALSE(Importance::open(path("none")).ok());
  Spec().write(path("cut"));
  const auto size = fs::file_size(path("cut")) - 20;  // without the padding behind the last counts
  for (uintmax_t keep = 0; keep < size; keep += 13) {
    Spec().write(path("cut"));
    fs::resize_file(path("cut"), keep);
    EXPECT_FALSE(Importance::open(path("cut")).ok()) << keep;
  }
}

TEST_F(ImportanceFile, TotalsRoundTripAndAddUp) {
  ImportanceTotals t;
  const double up[] = {8, 0, 2}, one[] = {4}, exps[] = {1, 2, 0, 0, 9, 3}, three[] = {1, 0, 3};
  ASSERT_TRUE(t.add("blk.0.ffn_up.weight", 3, up, one).ok());
  ASSERT_TRUE(t.add("blk.0.up_exps.weight", 2, exps, three).ok());
  ASSERT_TRUE(t.add_text("wiki.txt", 7, 512).ok());
  ASSERT_TRUE(t.write(path("a")).ok());
  const auto a = Importance::open(path("a"));
  ASSERT_TRUE(a.ok()) << a.error().message;
  EXPECT_THAT(a->find("blk.0.up_exps.weight", 2, 2), ElementsAre(3.0f, 1.0f));
  EXPECT_EQ(a->origin().chunk_count, 7u);

  ASSERT_TRUE(t.add(*a).ok());
  ASSERT_TRUE(t.write(path("b")).ok());
  const auto b = Importance::open(path("b"));
  ASSERT_TRUE(b.ok()) << b.error().message;
  EXPECT_THAT(b->entries()[0].sum2, ElementsAre(16, 0, 4));
  EXPECT_THAT(b->entries()[1].counts, ElementsAre(2, 0, 6));
  EXPECT_THAT(b->find("blk.0.ffn_up.weight", 0, 3), ElementsAre(2.0f, 0.0f, 0.5f));
  EXPECT_EQ(b->origin().chunk_count, 14u);
  EXPECT_EQ(b->origin().chunk_size, 512u);
  EXPECT_THAT(b->origin().datasets, ElementsAre("wiki.txt"));

  const double four[] = {1, 1, 1, 1};
  const Status other = t.add("blk.0.ffn_up.weight", 4, four, one);
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(other.error().message, HasSubstr("cannot add 4 columns to 3 columns"));
  EXPECT_FALSE(t.add_text("more", UINT32_MAX, 512).ok());
}

TEST_F(ImportanceFile, WhatCannotBeReadIsNotWritten) {
  for (const double bad : {double{kNan}, double{kInf}, 1e39}) {
    ImportanceTotals t;
    const double sums[] = {1, bad}, counts[] = {1};
    ASSERT_TRUE(t.add("w", 2, sums, counts).ok());
    const Status s = t.write(path("bad"));
    ASSERT_FALSE(s.ok()) << bad;
    EXPECT_THAT(s.error().message, HasSubstr("w: the squares of input 1 of matrix 0 sum to"));
    EXPECT_FALSE(fs::exists(path("bad")));
  }
}

}  // namespace
}  // namespace quire::quant
