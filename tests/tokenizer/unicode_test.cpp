#include "tokenizer/unicode.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>

#include "tokenizer/byte_alphabet.h"

namespace quire {
namespace {

using unicode::Utf8;

std::string to_utf8(std::u32string_view text) {
  std::string out;
  for (const char32_t c : text) unicode::append_utf8(c, out);
  return out;
}
std::u32string to_utf32(std::string_view s) {
  std::u32string out;
  unicode::append_code_points(s, out);
  return out;
}

TEST(Unicode, EveryCodePointSurvives) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    std::string s;
    unicode::append_utf8(c, s);
    const auto d = unicode::decode(s);
    if (c >= 0xD800 && c <= 0xDFFF) {
      ASSERT_EQ(d.status, Utf8::kInvalid) << uint32_t{c};
      continue;
    }
    ASSERT_EQ(d.status, Utf8::kValid) << uint32_t{c};
    ASSERT_EQ(d.code_point, c);
    ASSERT_EQ(d.length, s.size());
    ASSERT_EQ(unicode::utf8_length(c), s.size());
    for (std::size_t n = 1; n < s.size(); ++n) {
      ASSERT_EQ(unicode::decode(std::string_view(s).substr(0, n)).status, Utf8::kTruncated) << uint32_t{c};
    }
  }
}

TEST(Unicode, InvalidBytes) {
  struct Case {
    std::string bytes;
    std::string by_prefix;  // replace_invalid: one U+FFFD for each prefix of a character
    std::size_t by_byte;    // append_code_points: one code point per invalid byte
  };
  const std::string r = "\xEF\xBF\xBD";
  const Case cases[] = {
      {"a\x80z", "a" + r + "z", 3},
      {"\xC0\x80", r + r, 2},                  // overlong
      {"\xE0\x80\x80", r + r + r, 3},          // overlong
      {"\xED\xA0\x80", r + r + r, 3},          // surrogate
      {"\xF4\x90\x80\x80", r + r + r + r, 4},  // above U+10FFFF
      {"\xF5\xFF", r + r, 2},
      {"\xE4\xBD", r, 2},
      {"\xE4\xBDx", r + "x", 3},
      {"\xF0\x9F\xA6", r, 3},
      {"\xF0\x9F\xF0\x9F\xA6\x99", r + "🦙", 3},
      {std::string("\0\xE4", 2), std::string("\0", 1) + r, 2},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(unicode::replace_invalid(c.bytes), c.by_prefix);
    EXPECT_EQ(to_utf32(c.bytes).size(), c.by_byte);
    EXPECT_FALSE(unicode::is_valid_utf8(c.bytes));
    EXPECT_TRUE(unicode::is_valid_utf8(c.by_prefix));
  }
}

std::string nfc_by_utf8proc(const std::string& s) {
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> out(
      utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(s.c_str())), std::free);
  return reinterpret_cast<const char*>(out.get());
}

TEST(Unicode, NfcOfEverySingleCodePoint) {
  for (char32_t c = 1; c < 0x110000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::u32string text(1, c);
    unicode::nfc(text);
    ASSERT_EQ(to_utf8(text), nfc_by_utf8proc(to_utf8(std::u32string(1, c)))) << std::hex << uint32_t{c};
  }
}

// Short texts of code points that decompose, combine or reorder, against utf8proc's whole-text function.
TEST(Unicode, NfcOfRandomTexts) {
  constexpr uint32_t kSeed = 77;
  std::mt19937 random(kSeed);
  std::u32string active;
  for (char32_t c = 1; c < 0x30000; ++c) {
    if ((unicode::ClassTable::get()[c] & unicode::kNfcActive) != 0) active.push_back(c);
  }
  ASSERT_GT(active.size(), 1500u);
  const std::u32string common = U"aeAoKs\u00E9\u00C5\u1E9B\u1112\u1161\u11AB\uAC00\uAC01\u0915\u09C7\u0B92\u3046 ";
  for (int n = 0; n < 200000; ++n) {
    std::u32string text(random() % 9, U' ');
    for (char32_t& c : text)
      c = random() % 2 != 0 ? active[random() % active.size()] : common[random() % common.size()];
    const std::string want = nfc_by_utf8proc(to_utf8(text));
    std::u32string got = text;
    unicode::nfc(got);
    ASSERT_EQ(to_utf8(got), want) << "text " << n << " seed " << kSeed;
    unicode::nfc(got);
    ASSERT_EQ(to_utf8(got), want) << "not idempotent: text " << n << " seed " << kSeed;
  }
}

// Long runs of marks are put in order another way than short ones.
TEST(Unicode, NfcOfLongRunsOfMarks) {
  constexpr uint32_t kSeed = 78;
  std::mt19937 random(kSeed);
  std::u32string marks;
  for (char32_t c = 0x300; c < 0x30000; ++c)
    if (utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class != 0) marks.push_back(c);
  ASSERT_GT(marks.size(), 800u);
  for (int n = 0; n < 300; ++n) {
    std::u32string text = U"a";
    for (std::size_t i = random() % 200; i > 0; --i) text.push_back(marks[random() % marks.size()]);
    text += U"e\u0301";
    std::u32string got = text;
    unicode::nfc(got);
    ASSERT_EQ(to_utf8(got), nfc_by_utf8proc(to_utf8(text))) << "text " << n << " seed " << kSeed;
  }
}

// What the general categories of Unicode 16.0 count, by UnicodeData.txt and by the tokenizers library
// (0.23.3). A library with newer tables fails here: then the version is another one, and docs/tokenizer.md
// must say which.
TEST(Unicode, ClassesAreThoseOfVersion16) {
  int letters = 0, numbers = 0, marks = 0, spaces = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    const uint8_t bits = unicode::ClassTable::get()[c];
    letters += (bits & unicode::kLetter) != 0;
    numbers += (bits & unicode::kNumber) != 0;
    marks += (bits & unicode::kMark) != 0;
    spaces += (bits & unicode::kSpace) != 0;
  }
  EXPECT_EQ(letters, 141028);
  EXPECT_EQ(numbers, 1911);
  EXPECT_EQ(marks, 2501);
  EXPECT_EQ(spaces, 25);
  EXPECT_EQ(unicode::ClassTable::get()[U'\U00010D4A'], unicode::kLetter);  // Garay, Unicode 16
  EXPECT_EQ(unicode::ClassTable::get()[U'\U00010D40'], unicode::kNumber);
  EXPECT_EQ(unicode::ClassTable::get()[U'\u0897'], unicode::kMark);
  std::ifstream docs(QUIRE_SOURCE_DIR "/docs/tokenizer.md");
  const std::string text((std::istreambuf_iterator<char>(docs)), {});
  EXPECT_NE(text.find("Unicode 16.0"), std::string::npos);
}

TEST(ByteAlphabet, IsTheGpt2Map) {
  const auto& a = ByteAlphabet::get();
  EXPECT_EQ(a.letter(' '), "Ġ");
  EXPECT_EQ(a.letter('\n'), "Ċ");
  EXPECT_EQ(a.letter('\r'), "č");
  EXPECT_EQ(a.letter('\t'), "ĉ");
  EXPECT_EQ(a.letter('!'), "!");
  EXPECT_EQ(a.letter(0x7F), "ġ");
  EXPECT_EQ(a.letter(0xA0), "ł");
  EXPECT_EQ(a.letter(0xAD), "Ń");
  EXPECT_EQ(a.letter(0xFF), "ÿ");
  std::string all;
  for (int b = 0; b < 256; ++b) all.push_back(static_cast<char>(b));
  EXPECT_EQ(a.decode(a.encode(all)), all);
  EXPECT_FALSE(a.decode("a b"));
  EXPECT_FALSE(a.decode("ń"));  // U+0144, the first code point past the alphabet
  EXPECT_FALSE(a.decode("\xC3"));
  EXPECT_FALSE(a.decode("中"));
}

}  // namespace
}  // namespace quire
