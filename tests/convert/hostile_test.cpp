// A catalogue of bad files: each is refused with its own message. Nothing here may crash, hang or allocate
// what it only claims to need; tests/fuzz/fuzz_safetensors.cpp looks for more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "convert/json.h"
#include "convert/safetensors.h"
#include "support/hf_folder.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string one(std::string_view fields) {
  return fmt::format(R"({{"a":{{{}}}}})", fields);
}
std::string entry(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return one(fmt::format(R"("dtype":{},"shape":{},"data_offsets":{})", dtype, shape, offsets));
}
std::string repeat(std::string_view part, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += part;
  return out;
}

struct Bad {
  std::string name, file, reason;
};

std::vector<Bad> bad_files() {
  const auto file = [](std::string header, size_t data = 4) {
    return safetensors_file(header, std::string(data, 'x'));
  };
  const std::string good = R"("dtype":"U8","shape":[4],"data_offsets":[0,4])";
  const auto two = [&](std::string_view second) { return fmt::format(R"({{"a":{{{}}},"b":{{{}}}}})", good, second); };
  std::string truncated = file(one(good));
  truncated.resize(truncated.size() - 1);
  std::string huge(16, '\xff');
  std::string claims = file(one(good));
  claims[0] = static_cast<char>(claims[0] + 40);
  return {
      {"empty", "", "0 bytes are too few"},
      {"short", std::string(9, '\0'), "9 bytes are too few"},
      {"huge header", huge, "claims 18446744073709551615 bytes (limit 100000000)"},
      {"header beyond the end", claims, "but 57 follow"},
      {"empty header", safetensors_file("", "xxxx"), "no JSON object"},
      {"spaces first", file(" " + one(good)), "no JSON object"},
      {"array", file("[1]"), "no JSON object"},
      {"open object", file("{"), "syntax error at byte 2"},
      {"text behind", file(one(good) + "x"), "syntax error"},
      {"two documents", file(one(good) + "{}"), "syntax error"},
      {"broken UTF-8", file("{\"\xff\":1}"), "syntax error"},
      {"control character", file("{\"a\nb\":1}"), "syntax error"},
      {"NUL in a name", file(R"({"a\u0000b":{)" + good + "}}"), "cannot be a tensor's name"},
      {"empty name", file(R"({"":{)" + good + "}}"), "cannot be a tensor's name"},
      {"long name", file(fmt::format(R"({{"{}":{{{}}}}})", repeat("n", 1025), good)), "1 to 1024 bytes"},
      {"deep nesting", file(R"({"a":)" + repeat("[", 100'000)), "described by no object"},
      {"deep objects", file(repeat(R"({"a":)", 100'000)), "unknown field 'a'"},
      {"tensor is a number", file(R"({"a":5})"), "described by no object"},
      {"tensor is null", file(R"({"a":null})"), "described by no object"},
      {"metadata is a list", file(R"({"__metadata__":[]})"), "__metadata__ is no object"},
      {"metadata holds a number", file(R"({"__metadata__":{"a":1}})"), "something else than text"},
      {"metadata holds an object", file(R"({"__metadata__":{"a":{}}})"), "something else than text"},
      {"metadata key twice", file(R"({"__metadata__":{"k":"v","k":"w"}})"), "the key 'k' twice"},
      {"metadata twice", file(R"({"__metadata__":{},"__metadata__":{}})"), "__metadata__ occurs twice"},
      {"unknown field", file(one(good + R"(,"strides":[1])")), "unknown field 'strides'"},
      {"field twice", file(one(good + R"(,"shape":[4])")), "has a field twice"},
      {"no dtype", file(one(R"("shape":[4],"data_offsets":[0,4])")), "lacks its dtype"},
      {"no offsets", file(one(R"("dtype":"U8","shape":[4])")), "lacks its dtype, shape or data_offsets"},
      {"unknown type", file(entry(R"("F4")", "[4]", "[0,4]")), "unknown type 'F4'"},
      {"type is a number", file(entry("3", "[4]", "[0,4]")), "its dtype is not a text"},
      {"shape is a number", file(entry(R"("U8")", "4", "[0,4]")), "its shape is not a list"},
      {"shape of texts", file(entry(R"("U8")", R"(["4"])", "[0,4]")), "its shape is not a list"},
      {"shape nests", file(entry(R"("U8")", "[[4]]", "[0,4]")), "its shape is not a list"},
      {"negative dimension", file(entry(R"("U8")", "[-4]", "[0,4]")), "negative number -4"},
      {"fractional dimension", file(entry(R"("U8")", "[4.0]", "[0,4]")), "its shape is not a list"},
      {"dimension of 2^63", file(entry(R"("U8")", "[9223372036854775808]", "[0,4]")), "impossible dimension"},
      {"dimension above 2^64", file(entry(R"("U8")", "[99999999999999999999]", "[0,4]")), "its shape is not a list"},
      {"too many dimensions", file(entry(R"("U8")", "[1,1,1,1,1,1,1,1,1]", "[0,1]")), "more than 8 dimensions"},
      {"product overflows", file(entry(R"("F32")", "[4294967296,4294967296]", "[0,4]")), "impossibly large"},
      {"product overflows to fit", file(entry(R"("U8")", "[4294967296,4294967296,0,3]", "[0,4]")), "impossibly large"},
      {"too few bytes", file(entry(R"("F32")", "[2]", "[0,4]")), "needs 8 bytes, but its data_offsets span 4"},
      {"too many bytes", file(entry(R"("U8")", "[3]", "[0,4]")), "needs 3 bytes"},
      {"one offset", file(entry(R"("U8")", "[4]", "[0]")), "lacks an end"},
      {"three offsets", file(entry(R"("U8")", "[4]", "[0,4,8]")), "more than two data_offsets"},
      {"offsets backwards", file(entry(R"("U8")", "[4]", "[4,0]")), "lies at bytes 4 to 0"},
      {"beyond the end", file(entry(R"("U8")", "[8]", "[0,8]")), "lies at bytes 0 to 8 of 4"},
      {"truncated data", truncated, "lies at bytes 0 to 4 of 3"},
      {"name twice", file(fmt::format(R"({{"a":{{{0}}},"a":{{{0}}}}})", good)), "'a' occurs twice"},
      {"overlap", file(two(R"("dtype":"U8","shape":[2],"data_offsets":[2,4])")), "inside the tensor before it"},
      {"hole", file(two(R"("dtype":"U8","shape":[2],"data_offsets":[6,8])"), 8), "2 bytes behind the tensor before it"},
      {"hole at the begin", file(entry(R"("U8")", "[2]", "[2,4]")), "2 bytes behind"},
      {"bytes left over", file(one(good), 5), "end after 4 bytes of data, but there are 5"},
      {"no tensors but data", file("{}"), "end after 0 bytes"},
  };
}

TEST(HostileSafetensors, EachIsRefusedWithItsReason) {
  const std::vector<Bad> bad = bad_files();
  EXPECT_GE(bad.size(), 30u);
  for (const Bad& b : bad) {
    SCOPED_TRACE(b.name);
    const auto r = convert::parse_safetensors(bytes_of(b.file));
    ASSERT_FALSE(r.ok());
    EXPECT_EQ(r.error().fault, Fault::kModelFile);
    EXPECT_THAT(r.error().message, HasSubstr(b.reason));
    EXPECT_EQ(r.error().message.find('\n'), std::string::npos);
    EXPECT_LT(r.error().message.size(), 300u);
  }
}

TEST(HostileSafetensors, WhatIsAllowedIsRead) {
  const std::vector<std::pair<std::string, size_t>> files = {
      {"{}", 0},
      {R"({"__metadata__":{"format":"pt"}}     )", 0},
      {entry(R"("F64")", "[]", "[0,8]"), 8},
      {entry(R"("BF16")", "[0,4611686018427387903]", "[0,0]"), 0},
      {R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]},"e":{"dtype":"I64","shape":[0],"data_offsets":[2,2]},)"
       R"("a":{"dtype":"BOOL","shape":[2,1],"data_offsets":[0,2]}})",
       4},
  };
  for (const auto& [header, data] : files) {
    const std::string file = safetensors_file(header, std::string(data, 'x'));
    const auto r = convert::parse_safetensors(bytes_of(file));
    EXPECT_TRUE(r.ok()) << header << ": " << r.error().message;
  }
}

TEST(HostileIndex, EachIsRefusedWithItsReason) {
  const auto map = [](std::string_view file) { return fmt::format(R"({{"weight_map":{{"a":{}}}}})", file); };
  const std::vector<Bad> bad = {
      {"no map", "{}", "has no object weight_map"},
      {"list", R"({"weight_map":[]})", "has no object weight_map"},
      {"empty", R"({"weight_map":{}})", "lists no tensor"},
      {"number", map("1"), "names no file for tensor 'a'"},
      {"parent", map(R"("../x.safetensors")"), "not the plain name"},
      {"absolute", map(R"("/etc/x.safetensors")"), "not the plain name"},
      {"folder", map(R"("sub/x.safetensors")"), "not the plain name"},
      {"backslash", map(R"("..\\x.safetensors")"), "not the plain name"},
      {"hidden", map(R"(".x.safetensors")"), "not the plain name"},
      {"NUL", map(R"("x\u0000.safetensors")"), "not the plain name"},
      {"other kind", map(R"("x.bin")"), "not the plain name"},
      {"empty name", map(R"("")"), "not the plain name"},
      {"key twice", R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})", "key 'a' occurs twice"},
      {"deep", repeat("[", 1'000'000), "nested more than 64 levels deep"},
      {"deep objects", repeat(R"({"a":)", 1'000'000), "nested more than 64 levels deep"},
      {"no JSON", "weight_map", "not valid JSON"},
  };
  for (const Bad& b : bad) {
    SCOPED_TRACE(b.name);
    const auto r = convert::parse_shard_index(b.file);
    ASSERT_FALSE(r.ok());
    EXPECT_THAT(r.error().message, HasSubstr(b.reason));
  }
}

TEST(HostileFolder, ShardsThatDoNotFitTheirIndex) {
  const std::string a = safetensors_file({safe_tensor("a", "U8", {2}, std::vector<uint8_t>{1, 2})});
  const std::string b = safetensors_file({safe_tensor("b", "U8", {1}, std::vector<uint8_t>{3})});
  const auto refused = [](const HfFolder& folder) {
    const auto r = convert::FolderWeights::open(folder.path());
    return r.ok() ? std::string("accepted") : r.error().message;
  };
  const HfFolder folder;
  EXPECT_THAT(refused(folder), HasSubstr("has neither model.safetensors nor model.safetensors.index.json"));
  const auto index = [&](nlohmann::json map) {
    folder.write_json("model.safetensors.index.json", {{"weight_map", map}});
  };
  index({{"a", "1.safetensors"}, {"b", "2.safetensors"}});
  folder.write("1.safetensors", a);
  EXPECT_THAT(refused(folder), HasSubstr("2.safetensors: no such file"));
  folder.write("2.safetensors", b);
  EXPECT_EQ(refused(folder), "accepted");
  index({{"a", "1.safetensors"}, {"b", "2.safetensors"}, {"c", "2.safetensors"}});
  EXPECT_THAT(refused(folder), HasSubstr("tensor 'c' should be in 2.safetensors, but is not there"));
  index({{"a", "2.safetensors"}, {"b", "1.safetensors"}});
  EXPECT_THAT(refused(folder), HasSubstr("tensor 'a' should be in 2.safetensors"));
  index({{"a", "1.safetensors"}, {"b", "2.safetensors"}});
  folder.write("2.safetensors", a);
  EXPECT_THAT(refused(folder), HasSubstr("tensor 'a' is in another file already"));
  folder.write("2.safetensors", "");
  EXPECT_THAT(refused(folder), HasSubstr("is empty"));
  folder.remove("2.safetensors");
  std::filesystem::create_directory(folder.path("2.safetensors"));
  EXPECT_THAT(refused(folder), HasSubstr("is not a regular file"));
}

}  // namespace
}  // namespace quire::test
