// The catalogue of bad files: each is refused, with its own message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <set>

#include "gguf/reader.h"
#include "support/bytes.h"

namespace quire::gguf {
namespace {

using test::Bytes;
using testing::HasSubstr;

constexpr uint32_t kU8 = 0, kU16 = 2, kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9, kU64 = 10,
                   kF64 = 12;
constexpr uint32_t kTypeF32 = 0, kTypeQ8_0 = 8, kTypeQ4_K = 12;

Bytes header(uint64_t tensors, uint64_t entries, uint32_t version = 3) {
  return Bytes().raw("GGUF").u32(version).u64(tensors).u64(entries);
}

struct TensorSpec {
  std::string name = "t";
  std::vector<uint64_t> dims = {4};
  uint32_t type = kTypeF32;
  uint64_t offset = 0;
};

Bytes& put_tensor(Bytes& b, const TensorSpec& t) {
  b.string(t.name).u32(static_cast<uint32_t>(t.dims.size()));
  for (const uint64_t d : t.dims) b.u64(d);
  return b.u32(t.type).u64(t.offset);
}

// A file of these tensors and `data` bytes of payload, in order of declaration.
Bytes tensors(const std::vector<TensorSpec>& specs, size_t data = 64) {
  Bytes b = header(specs.size(), 0);
  for (const TensorSpec& t : specs) put_tensor(b, t);
  return b.pad(32).zeros(data);
}

// A file of one metadata entry called "k".
Bytes entry(uint32_t type, const std::function<void(Bytes&)>& value) {
  Bytes b = header(0, 1).string("k").u32(type);
  value(b);
  return b;
}
Bytes array(uint32_t type, uint64_t count, size_t payload) {
  return entry(kArray, [&](Bytes& b) { b.u32(type).u64(count).zeros(payload); });
}
Bytes alignment(uint32_t type, uint64_t value) {
  Bytes b = header(0, 1).string("general.alignment").u32(type);
  return type == kU32 ? b.u32(static_cast<uint32_t>(value)) : b.u64(value);
}
Bytes with(Bytes b, const std::function<void(Bytes&)>& change) {
  change(b);
  return b;
}
Bytes cut(Bytes b, size_t size) {
  b.data.resize(size);
  return b;
}
Bytes split(uint32_t no, uint32_t count) {
  return header(0, 2).string("split.no").u32(kU32).u32(no).string("split.count").u32(kU32).u32(count);
}

constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();

struct BadFile {
  const char* what;
  Bytes bytes;
  const char* error;  // part of the message, different for every file
};

std::vector<BadFile> header_cases() {
  const Bytes good = header(0, 0);
  return {
      {"no bytes", Bytes(), "the magic number at byte 0 needs 4 bytes, but the file ends after 0"},
      {"half a magic number", Bytes().raw("GG"), "the magic number at byte 0 needs 4 bytes, but the file ends after 2"},
      {"another format", Bytes().raw("PK\x03\x04").zeros(60), "not a GGUF file (it starts with 'PK\\x03\\x04')"},
      {"the old format", Bytes().raw("ggjt").zeros(60), "it starts with 'ggjt'"},
      {"only a magic number", cut(good, 4), "the version at byte 4 needs 4 bytes"},
      {"version 0", header(0, 0, 0), "GGUF version 0 is unknown"},
      {"version 1", header(0, 0, 1), "GGUF version 1 is obsolete"},
      {"version 4", header(0, 0, 4), "GGUF version 4 is unknown; versions 2 and 3 are read"},
      {"big-endian", header(0, 0, 0x03000000), "a big-endian GGUF file"},
      {"no tensor count", cut(good, 8), "the tensor count at byte 8 needs 8 bytes"},
      {"no metadata count", cut(good, 16), "the metadata count at byte 16 needs 8 bytes"},
      {"half a metadata count", cut(good, 20),
       "the metadata count at byte 16 needs 8 bytes, but the file ends after 4"},
      {"negative metadata count", header(0, kHuge), "the header claims 18446744073709551615 metadata entries"},
      {"one entry too many", header(0, 3).zeros(41), "the header claims 3 metadata entries, more than fit"},
      {"negative tensor count", header(1ull << 63, 0), "the header claims 9223372036854775808 tensors"},
      {"one tensor too many", header(3, 0).zeros(74), "the header claims 3 tensors, more than fit"},
  };
}

std::vector<BadFile> metadata_cases() {
  return {
      {"empty key", header(0, 1).string("").u32(kU32).u32(1), "metadata entry 0: the key is empty"},
      {"key of 64 KiB", header(0, 1).string(std::string(65536, 'a')).u32(kU8).u8(1),
       "metadata entry 0: the key is 65536 bytes long (limit 65535)"},
      {"key past the end", header(0, 1).u64(100).zeros(20), "the key at byte 32 needs 100 bytes"},
      {"key length 2^64-1", header(0, 1).u64(kHuge).zeros(20),
       "the key at byte 24 claims to be 18446744073709551615 bytes"},
      {"no room for the type", header(0, 1).string("abcdef"), "the value type at byte 38 needs 4 bytes"},
      {"value type 13", entry(13, [](Bytes& b) { b.u64(0); }), "'k': the value type is 13, which does not exist"},
      {"value type 2^32-1", entry(0xffffffff, [](Bytes& b) { b.u64(0); }), "the value type is 4294967295"},
      {"short u32", entry(kU32, [](Bytes& b) { b.u8(1); }), "'k': the value at byte 37 needs 4 bytes"},
      {"short f64", entry(kF64, [](Bytes& b) { b.u32(1); }), "'k': the value at byte 37 needs 8 bytes"},
      {"string length past the end", entry(kString, [](Bytes& b) { b.u64(9).raw("short"); }),
       "'k': the string at byte 45 needs 9 bytes, but the file ends after 5"},
      {"string length 2^40", entry(kString, [](Bytes& b) { b.u64(1ull << 40); }),
       "'k': the string at byte 37 claims to be 1099511627776 bytes long"},
      {"no string length", entry(kString, [](Bytes& b) { b.u32(0); }), "'k': the string at byte 37 needs 8 bytes"},
      {"array of arrays", array(kArray, 1, 64), "an array of arrays"},
      {"element type 99", array(99, 1, 64), "the element type is 99, which does not exist"},
      {"no array length", entry(kArray, [](Bytes& b) { b.u32(kU8).u32(0); }),
       "the array length at byte 41 needs 8 bytes"},
      {"array length 2^61", array(kU64, 1ull << 61, 64), "the array claims 2305843009213693952 elements"},
      {"array past the end", array(kU16, 10, 19),
       "'k': the value at byte 49 needs 20 bytes, but the file ends after 19"},
      {"2^30 numbers", array(kF64, 1ull << 30, 64), "'k': the value at byte 49 needs 8589934592 bytes"},
      {"2^30 strings", array(kString, 1ull << 30, 64),
       "an array of 1073741824 strings cannot fit into the 64 bytes left"},
      {"last string past the end", entry(kArray, [](Bytes& b) { b.u32(kString).u64(2).string("a").u64(2).raw("b"); }),
       "'k': element 1: the string at byte 66 needs 2 bytes"},
      {"key twice", header(0, 2).string("dup").u32(kU8).u8(1).string("dup").u32(kU8).u8(1),
       "metadata key 1 ('dup') occurs twice"},
      {"second entry missing", header(0, 2).string("k").u32(kString).string(std::string(20, 'x')),
       "metadata entry 1: the key at byte 65 needs 8 bytes"},
      {"control characters in the key", header(0, 1).string("\x1b[2J").u32(77), "'\\x1b[2J': the value type is 77"},
  };
}

std::vector<BadFile> alignment_cases() {
  return {
      {"alignment 0", alignment(kU32, 0), "general.alignment is 0, but"},
      {"alignment 4", alignment(kU32, 4), "general.alignment is 4, but must be a power of two from 8"},
      {"alignment 48", alignment(kU32, 48), "general.alignment is 48, but"},
      {"alignment 2 MiB", alignment(kU32, 1 << 21), "general.alignment is 2097152, but"},
      {"alignment as u64", alignment(kU64, 32), "general.alignment is u64, but must be u32"},
      {"alignment as an array", header(0, 1).string("general.alignment").u32(kArray).u32(kU32).u64(1).u32(32),
       "general.alignment is array of u32, but must be u32"},
  };
}

std::vector<BadFile> tensor_cases() {
  const auto one = [](TensorSpec t, size_t data = 64) { return tensors({std::move(t)}, data); };
  auto named = [&](const char* name, std::vector<uint64_t> dims, uint32_t type, uint64_t offset = 0) {
    return one({name, std::move(dims), type, offset});
  };
  return {
      {"empty name", named("", {4}, kTypeF32), "tensor 0: its name is empty"},
      {"name of 256 bytes", one({std::string(256, 'n')}), "tensor 0: its name is 256 bytes long (limit 255)"},
      {"name with NUL", one({std::string("a\0b", 3)}), "tensor 0: its name 'a\\x00b' contains a NUL byte"},
      {"name past the end", header(1, 0).u64(30).zeros(29), "tensor 0: the name at byte 32 needs 30 bytes"},
      {"name twice", tensors({{"same"}, {"same", {4}, kTypeF32, 32}}), "tensor 1 ('same') occurs twice"},
      {"5 dimensions", named("five", {1, 1, 1, 1, 1}, kTypeF32), "'five': it has 5 dimensions (limit 4)"},
      {"2^32-1 dimensions", header(1, 0).string("many").u32(0xffffffff).zeros(40),
       "'many': it has 4294967295 dimensions"},
      {"a dimension missing", header(1, 0).string("t").u32(4).zeros(20), "'t': a dimension at byte 53 needs 8 bytes"},
      {"negative dimension", named("neg", {4, 1ull << 63}, kTypeF32), "'neg': dimension 1 is 9223372036854775808"},
      {"2^64 elements", named("big", {1ull << 32, 1ull << 32}, kTypeF32),
       "'big': its dimensions [4294967296, 4294967296] multiply"},
      {"overflow hidden by a zero", named("hid", {0, 1ull << 40, 1ull << 40}, kTypeF32),
       "'hid': its dimensions [0, 1099511627776"},
      {"2^64 bytes", named("wide", {1ull << 62}, kTypeF32),
       "'wide': its dimensions [4611686018427387904] need more than 2^63 bytes"},
      {"row of 2^64 bytes that does not exist", named("norow", {1ull << 62, 0}, kTypeF32),
       "'norow': its dimensions [4611686018427387904, 0] need"},
      {"retired type 4", named("r4", {32}, 4), "'r4': element type 4 (q4_2) is retired; convert"},
      {"retired type 31", named("r31", {32}, 31), "'r31': element type 31 (q4_0_4_4) is retired"},
      {"retired type 38", named("r38", {32}, 38), "'r38': element type 38 (iq4_nl_8_8) is retired"},
      {"unknown type 43", named("u43", {32}, 43), "'u43': element type 43 is unknown: another program's own"},
      {"type 2^32-2", named("umax", {32}, 0xfffffffe), "'umax': element type 4294967294 is"},
      {"part of a block", named("part", {33}, kTypeQ8_0),
       "'part': its rows have 33 elements, not a multiple of the q8_0 block size 32"},
      {"part of a row", named("row", {128, 2}, kTypeQ4_K),
       "'row': its rows have 128 elements, not a multiple of the q4_k block size 256"},
      {"no type", header(1, 0).string("notype").u32(1).u64(4), "'notype': the element type at byte 50 needs 4 bytes"},
      {"no offset", header(1, 0).string("nooff").u32(1).u64(4).u32(0),
       "'nooff': the data offset at byte 53 needs 8 bytes"},
      {"unaligned offset", named("una", {4}, kTypeF32, 16),
       "'una': its data offset 16 is not a multiple of the alignment 32"},
      {"offset past the end", named("past", {4}, kTypeF32, 96), "'past': its 16 bytes at data offset 96 reach past"},
      {"offset 2^64-32", named("wrap", {16}, kTypeF32, kHuge - 31),
       "'wrap': its 64 bytes at data offset 18446744073709551584"},
      {"payload cut by one byte", one({"cut", {16}}, 63),
       "'cut': its 64 bytes at data offset 0 reach past the end of the file (63 bytes"},
      {"no data section", cut(tensors({{"nodata"}}), 63),
       "the data section should begin at byte 64, but the file ends at 63"},
      {"overlap", tensors({{"x", {16}}, {"y", {4}, kTypeF32, 32}}), "tensors 'x' and 'y' overlap"},
      {"the same place twice", tensors({{"p"}, {"q"}}), "overlap; the file is damaged"},
      {"second tensor missing", header(2, 0).string(std::string(60, 'n')).u32(1).u64(4).u32(0).u64(0),
       "tensor 1: the name at byte 116"},
  };
}

std::vector<BadFile> split_cases() {
  return {
      {"one shard alone", split(0, 3), "it is shard 1 of 3 of a split model; all shards are needed"},
      {"shard number too large", split(7, 3), "split.no is 7, but split.count is 3"},
      {"2^16 shards", split(0, 65536), "split.count is 65536 (limit 65535)"},
      {"count of the wrong type", header(0, 1).string("split.count").u32(kF32).f32(2),
       "metadata key 'split.count' is f32, but an integer is needed"},
      {"count without a number", header(0, 1).string("split.count").u32(kU32).u32(2),
       "metadata key 'split.no' is missing"},
  };
}

std::vector<BadFile> all_cases() {
  std::vector<BadFile> out;
  for (auto part : {header_cases(), metadata_cases(), alignment_cases(), tensor_cases(), split_cases()})
    out.insert(out.end(), part.begin(), part.end());
  return out;
}

TEST(Hostile, EveryBadFileIsRefusedWithItsOwnMessage) {
  std::set<std::string> messages, expectations;
  const auto cases = all_cases();
  for (const BadFile& c : cases) {
    // Exactly as large as the file, so that a sanitizer sees any read past the end.
    const std::vector<std::byte> bytes(c.bytes.data.begin(), c.bytes.data.end());
    const auto f = File::parse(bytes);
    ASSERT_FALSE(f.ok()) << c.what;
    EXPECT_EQ(f.error().fault, Fault::kModelFile) << c.what;
    EXPECT_THAT(f.error().message, HasSubstr(c.error)) << c.what;
    EXPECT_TRUE(messages.insert(f.error().message).second)
        << c.what << ": same message as another file: " << f.error().message;
    EXPECT_TRUE(expectations.insert(c.error).second) << c.what;
    for (const char ch : f.error().message) EXPECT_TRUE(ch >= ' ' && ch < 0x7f) << c.what << ": not printable";
    EXPECT_LT(f.error().message.size(), 300u) << c.what;
  }
  EXPECT_GE(cases.size(), 70u);
}

// The builders themselves make good files: what is refused above is the damage.
TEST(Hostile, TheUndamagedFilesAreAccepted) {
  auto ok = [](const Bytes& b) {
    const auto f = File::parse(b.data);
    return f.ok() ? std::string("ok") : f.error().message;
  };
  EXPECT_EQ(ok(header(0, 0)), "ok");
  EXPECT_EQ(ok(header(0, 0, 2)), "ok");
  EXPECT_EQ(ok(header(0, 3).zeros(0).string("a").u32(kU8).u8(1).string("b").u32(kU8).u8(1).string("c").u32(kU8).u8(1)),
            "ok");
  EXPECT_EQ(ok(entry(kU32, [](Bytes& b) { b.u32(1); })), "ok");
  EXPECT_EQ(ok(entry(kString, [](Bytes& b) { b.string("text"); })), "ok");
  EXPECT_EQ(ok(array(kU16, 10, 20)), "ok");
  EXPECT_EQ(ok(array(kString, 8, 64)), "ok");
  EXPECT_EQ(ok(array(kF32, 0, 0)), "ok");
  EXPECT_EQ(ok(alignment(kU32, 64)), "ok");
  EXPECT_EQ(ok(tensors({{"a"}, {"b", {4}, kTypeF32, 32}})), "ok");
  EXPECT_EQ(ok(tensors({{"b", {4}, kTypeF32, 32}, {"a"}})), "ok") << "any order of offsets";
  EXPECT_EQ(ok(tensors({{"scalar", {}}}, 4)), "ok") << "no padding after the last tensor";
  EXPECT_EQ(ok(tensors({{"none", {0, 5}}}, 0)), "ok") << "no bytes, at the very end";
  EXPECT_EQ(ok(tensors({{std::string(255, 'n')}})), "ok");
  EXPECT_EQ(ok(split(0, 1)), "ok");
}

// Cut anywhere, a file is refused or (behind the last payload) accepted, and never read past its end.
TEST(Hostile, EveryTruncationIsHandled) {
  const Bytes whole = with(header(1, 3), [](Bytes& b) {
    b.string("s").u32(kString).string("value").string("a").u32(kArray).u32(kString).u64(2).string("x").string("y");
    b.string("n").u32(kArray).u32(kI32).u64(3).zeros(12);
    put_tensor(b, {"t", {8, 2}}).pad(32).zeros(64);
  });
  ASSERT_TRUE(File::parse(whole.data).ok());
  for (size_t n = 0; n < whole.data.size(); ++n) {
    const std::vector<std::byte> part(whole.data.begin(), whole.data.begin() + static_cast<ptrdiff_t>(n));
    EXPECT_FALSE(File::parse(part).ok()) << n << " bytes";
  }
}

// Each byte set to a few nasty values in turn: any outcome but a crash.
TEST(Hostile, EveryByteDamaged) {
  const Bytes whole = with(header(2, 2), [](Bytes& b) {
    b.string("general.alignment").u32(kU32).u32(32).string("a").u32(kArray).u32(kString).u64(1).string("x");
    put_tensor(b, {"t", {8, 2}});
    put_tensor(b, {"u", {32}, kTypeQ8_0, 64}).pad(32).zeros(128);
  });
  ASSERT_TRUE(File::parse(whole.data).ok());
  int refused = 0;
  for (size_t i = 0; i < whole.data.size(); ++i)
    for (const int value : {0, 1, 0x7f, 0x80, 0xff}) {
      std::vector<std::byte> bytes = whole.data;
      bytes[i] = static_cast<std::byte>(value);
      refused += !File::parse(bytes).ok();
    }
  EXPECT_GT(refused, 300);
}

TEST(Hostile, ManyEntriesAndTensorsTakeNoQuadraticTime) {
  constexpr int kCount = 100000;
  Bytes b = header(kCount, kCount);
  for (int i = 0; i < kCount; ++i) b.string(fmt::format("key.{:07}", i)).u32(kU8).u8(1);
  for (int i = 0; i < kCount; ++i) put_tensor(b, {fmt::format("tensor.{:07}", kCount - i), {0}});
  b.pad(32);
  const auto start = std::chrono::steady_clock::now();
  const auto f = File::parse(b.data);
  ASSERT_TRUE(f.ok()) << f.error().message;
  for (const TensorInfo& t : f->tensors()) ASSERT_EQ(f->find_tensor(t.name), &t);
  // Comparing every pair would be 10^10 string comparisons; this takes well under a second even under a
  // sanitizer.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(Hostile, OpeningWhatIsNoFile) {
  namespace fs = std::filesystem;
  std::string pattern = (fs::temp_directory_path() / "quire-hostile-XXXXXX").string();
  const fs::path folder = mkdtemp(pattern.data());
  auto error_of = [](const fs::path& p) {
    const auto f = File::open(p);
    return f.ok() ? std::string("opened") : f.error().message;
  };
  const fs::path empty = folder / "empty.gguf", fifo = folder / "fifo.gguf", text = folder / "text.gguf";
  std::ofstream(empty).close();
  std::ofstream(text) << "once upon a time there was a model";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(error_of(folder / "absent.gguf"), HasSubstr("absent.gguf: No such file or directory"));
  EXPECT_THAT(error_of(folder), HasSubstr("is not a regular file"));
  EXPECT_THAT(error_of(fifo), HasSubstr("fifo.gguf is not a regular file"));
  EXPECT_THAT(error_of(empty), HasSubstr("empty.gguf is empty"));
  EXPECT_THAT(error_of(text), HasSubstr("text.gguf: not a GGUF file (it starts with 'once')"));
  fs::remove_all(folder);
}

// ---- Getters of a file whose values are not what a model expects ----

TEST(Hostile, GettersSayWhatIsWrong) {
  Bytes b = header(0, 9);
  b.string("text").u32(kString).string("abc");
  b.string("negative").u32(kI32).u32(static_cast<uint32_t>(-3));
  b.string("large").u32(kU64).u64(1ull << 63);
  b.string("float").u32(kF32).f32(1.5f);
  b.string("nan").u32(kF32).f32(std::numeric_limits<float>::quiet_NaN());
  b.string("double").u32(kF64).put(1e300);
  b.string("bool").u32(kBool).u8(1);
  b.string("list").u32(kArray).u32(kI32).u64(2).u32(1).u32(static_cast<uint32_t>(-1));
  b.string("texts").u32(kArray).u32(kString).u64(1).string("x");
  const auto f = File::parse(b.data);
  ASSERT_TRUE(f.ok()) << f.error().message;
  auto message = [](auto result) { return result.ok() ? std::string("accepted") : result.error().message; };
  const std::vector<std::pair<std::string, std::string>> got_and_want = {
      {message(f->get_u32("absent")), "metadata key 'absent' is missing"},
      {message(f->get_strings("gone")), "metadata key 'gone' is missing"},
      {message(f->get_u32("text")), "metadata key 'text' is string, but an integer is needed"},
      {message(f->get_u32("negative")), "metadata key 'negative' is -3, outside the range 0 to 4294967295"},
      {message(f->get_u64("negative")), "metadata key 'negative' is -3, outside the range 0 to 18446744073709551615"},
      {message(f->get_i64("large")), "'large' is 9223372036854775808, outside the range -9223372036854775808 to"},
      {message(f->get_i32("large")), "'large' is 9223372036854775808, outside the range -2147483648 to 2147483647"},
      {message(f->get_u32("float")), "metadata key 'float' is f32, but an integer is needed"},
      {message(f->get_u32("bool")), "metadata key 'bool' is bool, but an integer is needed"},
      {message(f->get_f32("negative")), "metadata key 'negative' is i32, but a floating-point number is needed"},
      {message(f->get_f32("nan")), "metadata key 'nan' is nan, but a finite 32-bit number is needed"},
      {message(f->get_f32("double")), "metadata key 'double' is 1e+300, but a finite"},
      {message(f->get_bool("large")), "metadata key 'large' is u64, but a bool is needed"},
      {message(f->get_string("list")), "metadata key 'list' is array of i32, but a string is needed"},
      {message(f->get_u32("list")), "metadata key 'list' is array of i32, but an integer is needed"},
      {message(f->get_u32_array("list")), "metadata key 'list' is -1, outside the range"},
      {message(f->get_i32_array("negative")), "metadata key 'negative' is i32, but an array is needed"},
      {message(f->get_f32_array("list")), "'list' is array of i32, but a floating-point number (or an array of them)"},
      {message(f->get_bool_array("texts")), "'texts' is array of string, but a bool (or an array of them) is needed"},
      {message(f->get_strings("text")), "metadata key 'text' is string, but an array of strings is needed"},
      {message(f->get_i32_per_layer("list", 3)), "metadata key 'list' has 2 values, but the model has 3 layers"},
      {message(f->get_u32_or("text", 1)), "'text' is string, but an integer"},
  };
  for (const auto& [got, want] : got_and_want) EXPECT_THAT(got, HasSubstr(want));
}

}  // namespace
}  // namespace quire::gguf
