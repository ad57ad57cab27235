// What the writer writes, the reader reads: every value type, tensors, alignment, split models, and the
// worked example.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include "gguf/reader.h"
#include "gguf/writer.h"
#include "support/bytes.h"

namespace quire::gguf {
namespace {

namespace fs = std::filesystem;
using test::from_hex;
using testing::ElementsAre;
using testing::HasSubstr;

class RoundTrip : public testing::Test {
 protected:
  RoundTrip() {
    std::string pattern = (fs::temp_directory_path() / "quire-gguf-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~RoundTrip() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ / name; }
  size_t files() const { return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), {})); }

  fs::path folder_;
};

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& v) {
  return std::as_bytes(std::span(v));
}

template <class T>
std::vector<T> copy_of(const TensorInfo& t) {
  std::vector<T> out(static_cast<size_t>(t.bytes) / sizeof(T));
  std::memcpy(out.data(), t.data, static_cast<size_t>(t.bytes));
  return out;
}

Status write_empty_model(Writer& w, const std::string& path) {
  QUIRE_CHECKED(w.open(path));
  return w.finish();
}

const int64_t kDims23[] = {2, 3};
const int64_t kDims32[] = {32};

TEST_F(RoundTrip, EveryValueType) {
  Writer w;
  w.add("u8", uint8_t{255});
  w.add("i8", int8_t{-128});
  w.add("u16", uint16_t{65535});
  w.add("i16", int16_t{-32768});
  w.add("u32", uint32_t{4294967295});
  w.add("i32", std::numeric_limits<int32_t>::min());
  w.add("u64", std::numeric_limits<uint64_t>::max());
  w.add("i64", std::numeric_limits<int64_t>::min());
  w.add("f32", 0.1f);
  w.add("f64", 1e-6);
  w.add("bool", true);
  w.add_string("string", std::string_view("a\0b\xff", 4));
  w.add_string("empty", "");
  const std::string_view texts[] = {"", "one", "zwei"};
  w.add_strings("strings", texts);
  const int8_t i8s[] = {-1, 2};
  w.add_array<int8_t>("i8s", i8s);
  const uint64_t u64s[] = {1, 1ull << 63};
  w.add_array<uint64_t>("u64s", u64s);
  const double f64s[] = {0.5, -2};
  w.add_array<double>("f64s", f64s);
  w.add_array<float>("none", {});
  w.add_bools("bools", {true, false, true});
  ASSERT_TRUE(write_empty_model(w, path("m.gguf")).ok());

  auto opened = File::open(path("m.gguf"));
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const File f = std::move(*opened);  // moving keeps everything valid
  EXPECT_EQ(f.get_u32("u8").value(), 255u);
  EXPECT_EQ(f.get_i32("i8").value(), -128);
  EXPECT_EQ(f.get_u32("u16").value(), 65535u);
  EXPECT_EQ(f.get_i64("i16").value(), -32768);
  EXPECT_EQ(f.get_u32("u32").value(), 4294967295u);
  EXPECT_EQ(f.get_i32("i32").value(), std::numeric_limits<int32_t>::min());
  EXPECT_EQ(f.get_u64("u64").value(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(f.get_i64("i64").value(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(f.get_f32("f32").value(), 0.1f);
  EXPECT_EQ(f.get_f32("f64").value(), 1e-6f);
  EXPECT_EQ(f.get_bool("bool").value(), true);
  EXPECT_EQ(f.get_string("string").value(), std::string_view("a\0b\xff", 4));
  EXPECT_EQ(f.get_string("empty").value(), "");
  EXPECT_THAT(f.get_strings("strings").value(), ElementsAre("", "one", "zwei"));
  EXPECT_THAT(f.get_i32_array("i8s").value(), ElementsAre(-1, 2));
  EXPECT_THAT(f.get_f32_array("f64s").value(), ElementsAre(0.5f, -2.0f));
  EXPECT_THAT(f.get_f32_array("none").value(), ElementsAre());
  EXPECT_THAT(f.get_bool_array("bools").value(), ElementsAre(true, false, true));
  EXPECT_EQ(f.find("u64s")->as_int(1), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(f.entries().size(), 19u);
  EXPECT_EQ(f.entries()[2].key, "u16");
  EXPECT_EQ(f.find("strings")->type_name(), "array of string");

  // Copying every value gives the same bytes.
  Writer copy;
  for (const auto& e : f.entries()) copy.add_value(e.key, e.value);
  ASSERT_TRUE(write_empty_model(copy, path("copy.gguf")).ok());
  const auto again = File::open(path("copy.gguf"));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->mapped_bytes(), f.mapped_bytes());
  EXPECT_EQ(std::memcmp(again->find("u8")->payload, f.find("u8")->payload, 300), 0);
}

TEST_F(RoundTrip, DefaultsAndPerLayerValues) {
  Writer w;
  const uint32_t heads[] = {8, 0, 8};
  w.add_array<uint32_t>("heads", heads);
  w.add("scalar", uint32_t{4});
  w.add("eps", 1e-5f);
  ASSERT_TRUE(write_empty_model(w, path("m.gguf")).ok());
  auto f = File::open(path("m.gguf"));
  ASSERT_TRUE(f.ok());
  EXPECT_EQ(f->get_u32_or("absent", 7).value(), 7u);
  EXPECT_EQ(f->get_u32_or("scalar", 7).value(), 4u);
  EXPECT_FALSE(f->get_u32_or("eps", 7).ok()) << "a present key of the wrong type is an error, not the default";
  EXPECT_THAT(f->get_u32_per_layer("heads", 3).value(), ElementsAre(8, 0, 8));
  EXPECT_THAT(f->get_u32_per_layer("scalar", 3).value(), ElementsAre(4, 4, 4));
  EXPECT_THAT(f->get_f32_per_layer("eps", 2).value(), ElementsAre(1e-5f, 1e-5f));
  EXPECT_FALSE(f->get_u32_per_layer("heads", 4).ok());
}

TEST_F(RoundTrip, TensorsAtSeveralAlignments) {
  for (const uint32_t alignment : {8u, 32u, 4096u}) {
    const std::string name = path("a.gguf");
    Writer w(alignment);
    const int64_t cube[] = {3, 2, 2}, none[] = {5, 0};
    ASSERT_TRUE(w.add_tensor("cube", DType::kF16, cube).ok());
    ASSERT_TRUE(w.add_tensor("none", DType::kF32, none).ok());
    ASSERT_TRUE(w.add_tensor("matrix", DType::kF32, kDims23).ok());
    const std::vector<uint16_t> halves = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    const std::vector<float> floats = {1, 2, 3, 4, 5, 6};
    ASSERT_TRUE(w.open(name).ok());
    ASSERT_TRUE(w.write_tensor(bytes_of(halves)).ok());
    ASSERT_TRUE(w.write_tensor({}).ok());
    ASSERT_TRUE(w.write_tensor(bytes_of(floats)).ok());
    ASSERT_TRUE(w.finish().ok());
    EXPECT_EQ(fs::file_size(name), w.file_bytes());
    EXPECT_EQ(fs::file_size(name) % alignment, 0u);

    auto f = File::open(name);
    ASSERT_TRUE(f.ok()) << f.error().message;
    EXPECT_EQ(f->shards()[0].alignment, alignment);
    EXPECT_EQ(f->tensor_bytes(), 24 + 24);
    EXPECT_EQ(copy_of<uint16_t>(*f->find_tensor("cube")), halves);
    EXPECT_EQ(copy_of<float>(*f->find_tensor("matrix")), floats);
    EXPECT_EQ(f->find_tensor("none")->elems(), 0);
    EXPECT_THAT(f->find_tensor("cube")->dims, ElementsAre(3, 2, 2, 1));
    EXPECT_EQ(f->find_tensor("cube")->rows(), 4);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(f->find_tensor("matrix")->data) % alignment % 4096, 0u);
    EXPECT_EQ(f->find_tensor("absent"), nullptr);
    EXPECT_THAT(f->get_tensor("absent").error().message, HasSubstr("tensor 'absent' is missing"));
    f->prefetch();
  }
}

// The complete example of the format description.
std::vector<std::byte> worked_example() {
  return from_hex(
      "47475546030000000200000000000000 03000000000000001400000000000000 67656e6572616c2e6172636869746563"
      "74757265080000000500000000000000 6c6c616d61110000000000000067656e 6572616c2e616c69676e6d656e740400"
      "0000200000000500000000000000782e 61727209000000050000000300000000 00000001000000feffffff0300000001"
      "00000000000000610200000002000000 00000000030000000000000000000000 00000000000000000100000000000000"
      "62010000002000000000000000080000 00200000000000000000000000000000 0000803f000000400000404000008040"
      "0000a0400000c0400000000000000000 0038000102030405060708090a0b0c0d 0e0f101112131415161718191a1b1c1d"
      "1e1f0000000000000000000000000000 00000000000000000000000000000000");
}

TEST(WorkedExample, IsReadAsVersion3And2AndWithoutTheLastPadding) {
  for (const uint8_t version : {3, 2}) {
    for (const size_t cut : {0u, 30u}) {
      auto bytes = worked_example();
      ASSERT_EQ(bytes.size(), 320u);
      bytes[4] = std::byte{version};
      bytes.erase(bytes.end() - static_cast<std::ptrdiff_t>(cut), bytes.end());
      const auto f = File::parse(bytes);
      ASSERT_TRUE(f.ok()) << f.error().message;
      EXPECT_EQ(f->shards()[0].version, version);
      EXPECT_EQ(f->shards()[0].data_begin, 224u);
      EXPECT_EQ(f->get_string("general.architecture").value(), "llama");
      EXPECT_THAT(f->get_i32_array("x.arr").value(), ElementsAre(1, -2, 3));
      ASSERT_EQ(f->tensors().size(), 2u);
      EXPECT_THAT(copy_of<float>(*f->find_tensor("a")), ElementsAre(1, 2, 3, 4, 5, 6));
      const TensorInfo& b = *f->find_tensor("b");
      EXPECT_EQ(b.dtype, DType::kQ8_0);
      EXPECT_EQ(b.bytes, 34);
      EXPECT_EQ(b.data, bytes.data() + 256);
    }
  }
}

TEST_F(RoundTrip, TheWriterReproducesTheWorkedExample) {
  const auto want = worked_example();
  const auto f = File::parse(want);
  ASSERT_TRUE(f.ok());
  Writer w;
  for (const auto& e : f->entries()) w.add_value(e.key, e.value);
  for (const TensorInfo& t : f->tensors())
    ASSERT_TRUE(w.add_tensor(t.name, t.dtype, std::span(t.dims).first(static_cast<size_t>(t.n_dims))).ok());
  ASSERT_TRUE(w.open(path("m.gguf")).ok());
  for (const TensorInfo& t : f->tensors()) ASSERT_TRUE(w.write_tensor({t.data, static_cast<size_t>(t.bytes)}).ok());
  ASSERT_TRUE(w.finish().ok());
  std::ifstream in(path("m.gguf"), std::ios::binary);
  const std::string got((std::istreambuf_iterator<char>(in)), {});
  ASSERT_EQ(got.size(), want.size());
  EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size()), 0);
}

// ---- Split models ----

struct ShardSpec {
  uint16_t no, count;
  int32_t total;
  std::vector<std::string> tensors;  // f32 [2, 3], filled with the shard's number
};

void write_shard(const std::string& file, const ShardSpec& s) {
  Writer w;
  w.add("split.no", s.no);
  w.add("split.count", s.count);
  w.add("split.tensors.count", s.total);
  if (s.no == 0) w.add_string("general.architecture", "llama");
  for (const std::string& t : s.tensors) ASSERT_TRUE(w.add_tensor(t, DType::kF32, kDims23).ok());
  ASSERT_TRUE(w.open(file).ok());
  const std::vector<float> payload(6, s.no);
  for (size_t i = 0; i < s.tensors.size(); ++i) ASSERT_TRUE(w.write_tensor(bytes_of(payload)).ok());
  ASSERT_TRUE(w.finish().ok());
}

TEST_F(RoundTrip, SplitModel) {
  write_shard(path("m-00001-of-00003.gguf"), {0, 3, 3, {}});
  write_shard(path("m-00002-of-00003.gguf"), {1, 3, 3, {"a", "b"}});
  write_shard(path("m-00003-of-00003.gguf"), {2, 3, 3, {"c"}});
  auto f = File::open(path("m-00001-of-00003.gguf"));
  ASSERT_TRUE(f.ok()) << f.error().message;
  EXPECT_EQ(f->shards().size(), 3u);
  EXPECT_EQ(f->get_string("general.architecture").value(), "llama");
  ASSERT_EQ(f->tensors().size(), 3u);
  EXPECT_EQ(f->find_tensor("b")->shard, 1);
  EXPECT_EQ(copy_of<float>(*f->find_tensor("c")), std::vector<float>(6, 2.0f));
}

TEST_F(RoundTrip, BadSplitModels) {
  const std::string first = path("m-00001-of-00002.gguf"), second = path("m-00002-of-00002.gguf");
  auto error_of = [](const std::string& file) {
    const auto f = File::open(file);
    return f.ok() ? std::string("opened") : f.error().message;
  };
  write_shard(first, {0, 2, 2, {"a"}});
  EXPECT_THAT(error_of(first), HasSubstr("shard 2 of 2: cannot open " + second + ": No such file"));
  write_shard(second, {1, 2, 2, {"b"}});
  EXPECT_EQ(error_of(first), "opened");
  EXPECT_THAT(error_of(second), HasSubstr("this is shard 2 of 2; open the first one, " + first));
  write_shard(second, {1, 2, 2, {"a"}});
  EXPECT_THAT(error_of(first), HasSubstr("tensor 1 ('a') occurs twice"));
  write_shard(second, {1, 2, 2, {"b", "c"}});
  EXPECT_THAT(error_of(first), HasSubstr("the shards hold 3 tensors, but split.tensors.count is 2"));
  write_shard(second, {0, 2, 2, {"b"}});
  EXPECT_THAT(error_of(first), HasSubstr("its split.no is 0, but 1 is expected"));
  write_shard(second, {1, 3, 2, {"b"}});
  EXPECT_THAT(error_of(first), HasSubstr("its split.count is 3, but the first shard says 2"));
  write_shard(path("m.gguf"), {0, 2, 2, {"a"}});
  EXPECT_THAT(error_of(path("m.gguf")), HasSubstr("its name should end in -00001-of-00002.gguf"));
  write_shard(path("n.gguf"), {2, 2, 2, {"a"}});
  EXPECT_THAT(error_of(path("n.gguf")), HasSubstr("split.no is 2, but split.count is 2"));
}

TEST_F(RoundTrip, MergedFileWithCountZeroIsOneFile) {
  write_shard(path("m.gguf"), {0, 0, 1, {"a"}});
  EXPECT_TRUE(File::open(path("m.gguf")).ok());
}

// ---- The writer's own failures ----

TEST_F(RoundTrip, NothingAppearsUnderTheFinalNameUntilItIsFinished) {
  {
    Writer w;
    ASSERT_TRUE(w.add_tensor("a", DType::kF32, kDims23).ok());
    ASSERT_TRUE(w.open(path("m.gguf")).ok());
    EXPECT_FALSE(fs::exists(path("m.gguf")));
    EXPECT_EQ(files(), 1u);
  }
  EXPECT_EQ(files(), 0u) << "the temporary file is removed";
}

TEST_F(RoundTrip, AFullDiskIsAClearErrorAndLeavesNothing) {
  std::ofstream(path("m.gguf")) << "the old file";
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{100, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  Writer w;
  ASSERT_TRUE(w.add_tensor("b", DType::kF32, kDims32).ok());
  Status status = w.open(path("m.gguf"));
  if (status.ok()) status = w.write_tensor(bytes_of(std::vector<float>(32)));
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, old_handler);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().fault, Fault::kRequest);
  EXPECT_THAT(status.error().message, HasSubstr("cannot write " + path("m.gguf")));
  EXPECT_THAT(status.error().message, HasSubstr("File too large"));
  EXPECT_EQ(files(), 1u) << "only the old file is left";
  EXPECT_EQ(fs::file_size(path("m.gguf")), 12u);
}

TEST_F(RoundTrip, TheWriterRefusesWhatAReaderWould) {
  auto message = [](const Status& s) { return s.ok() ? std::string("accepted") : s.error().message; };
  Writer w;
  const int64_t odd[] = {33}, negative[] = {2, -1}, huge[] = {1ll << 40, 1ll << 40}, five[] = {1, 1, 1, 1, 1};
  EXPECT_THAT(message(w.add_tensor("", DType::kF32, kDims32)), HasSubstr("cannot be a tensor name"));
  EXPECT_THAT(message(w.add_tensor("a", DType::kQ8_0, odd)), HasSubstr("not a multiple of the q8_0 block size 32"));
  EXPECT_THAT(message(w.add_tensor("a", DType::kF32, negative)), HasSubstr("impossible dimension -1"));
  EXPECT_THAT(message(w.add_tensor("a", DType::kF32, huge)), HasSubstr("impossible dimension"));
  EXPECT_THAT(message(w.add_tensor("a", DType::kF32, five)), HasSubstr("has 5 dimensions"));
  ASSERT_TRUE(w.add_tensor("a", DType::kF32, kDims32).ok());
  ASSERT_TRUE(w.add_tensor("a", DType::kF32, kDims32).ok());
  EXPECT_THAT(message(w.open(path("m.gguf"))), HasSubstr("tensor 'a' is declared twice"));
  Writer keys;
  keys.add("k", 1.0f);
  keys.add("k", 2.0f);
  EXPECT_THAT(message(keys.open(path("m.gguf"))), HasSubstr("metadata key 'k' is added twice"));
  Writer nowhere;
  EXPECT_THAT(message(nowhere.open(path("no/such/folder/m.gguf"))), HasSubstr("cannot create"));
  EXPECT_EQ(files(), 0u);
}

}  // namespace
}  // namespace quire::gguf
