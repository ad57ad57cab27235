#include "tokenizer/pretokenizer.h"

#include <gtest/gtest.h>

#define PCRE2_CODE_UNIT_WIDTH 32
#include <pcre2.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tokenizer/unicode.h"

namespace quire {
namespace {

std::u32string to_utf32(std::string_view s) {
  std::u32string out;
  unicode::append_code_points(s, out);
  return out;
}

std::vector<std::string> words(Splitter splitter, std::string_view s) {
  const std::u32string text = to_utf32(s);
  std::vector<std::string> out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = word_end(splitter, text, i);
    std::string word;
    for (; i < end; ++i) unicode::append_utf8(text[i], word);
    out.push_back(word);
  }
  return out;
}

// --- The same words as the regular expressions, by PCRE2 ---

// White_Space spelled out: PCRE2's own \s has U+180E too.
constexpr std::string_view kSpaceSet =
    R"(\x{09}-\x{0D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

struct Pattern {
  Splitter splitter;
  const char* name;
  std::string regex;  // {S} stands for the white-space set
};

const Pattern kPatterns[] = {
    {Splitter::kGpt2, "gpt-2",
     R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^{S}\p{L}\p{N}]+|[{S}]+(?![^{S}])|[{S}]+)"},
    {Splitter::kGpt2Digits, "smollm",
     R"(\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^{S}\p{L}\p{N}]+|[{S}]+(?=\p{N})|[{S}]+(?![^{S}])|[{S}]+)"},
    {Splitter::kLlama3, "llama-bpe",
     R"('[sS\x{17F}]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
     R"( ?[^{S}\p{L}\p{N}]+[\r\n]*|[{S}]*[\r\n]+|[{S}]+(?![^{S}])|[{S}]+)"},
    {Splitter::kQwen2, "qwen2",
     R"('[sS\x{17F}]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
     R"( ?[^{S}\p{L}\p{N}]+[\r\n]*|[{S}]*[\r\n]+|[{S}]+(?![^{S}])|[{S}]+)"},
    {Splitter::kQwen35, "qwen35",
     R"('[sS\x{17F}]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
     R"( ?[^{S}\p{L}\p{M}\p{N}]+[\r\n]*|[{S}]*[\r\n]+|[{S}]+(?![^{S}])|[{S}]+)"},
    {Splitter::kGpt4o, "gpt-4o",
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
     R"((?:'[sS\x{17F}]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|)"
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
     R"((?:'[sS\x{17F}]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|\p{N}{1,3}|)"
     R"( ?[^{S}\p{L}\p{N}]+[\r\n/]*|[{S}]*[\r\n]+|[{S}]+(?![^{S}])|[{S}]+)"},
    {Splitter::kTekken, "tekken",
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|)"
     R"( ?[^{S}\p{L}\p{N}]+[\r\n/]*|[{S}]*[\r\n]+|[{S}]+(?![^{S}])|[{S}]+)"},
};

class Regex {
 public:
  explicit Regex(std::string source) {
    for (std::size_t at; (at = source.find("{S}")) != std::string::npos;) source.replace(at, 3, kSpaceSet);
    const std::u32string pattern(source.begin(), source.end());
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF, &error, &offset,
                              nullptr));
    QUIRE_CHECK(code_ != nullptr, "pattern error {} at {}", error, offset);
    match_.reset(pcre2_match_data_create(1, nullptr));
  }
  // End of the match that begins at `begin`; 0 if none begins there.
  std::size_t match_end(std::u32string_view text, std::size_t begin) const {
    const int n = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), begin,
                              PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK, match_.get(), nullptr);
    return n > 0 ? pcre2_get_ovector_pointer(match_.get())[1] : 0;
  }

 private:
  struct Free {
    void operator()(pcre2_code* p) const { pcre2_code_free(p); }
    void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  };
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_data, Free> match_;
};

// Whether PCRE2's Unicode tables put a code point in the classes that ours do. They are of different
// versions.
class ClassOracle {
 public:
  bool agrees(char32_t c) const {
    const std::u32string_view text(&c, 1);
    const uint8_t bits = unicode::ClassTable::get()[c];
    return (letter_.match_end(text, 0) > 0) == ((bits & unicode::kLetter) != 0) &&
           (number_.match_end(text, 0) > 0) == ((bits & unicode::kNumber) != 0) &&
           (mark_.match_end(text, 0) > 0) == ((bits & unicode::kMark) != 0) &&
           (upper_.match_end(text, 0) > 0) == ((bits & unicode::kUpper) != 0) &&
           (lower_.match_end(text, 0) > 0) == ((bits & unicode::kLower) != 0) &&
           (space_.match_end(text, 0) > 0) == ((bits & unicode::kSpace) != 0);
  }
  bool assigned(char32_t c) const { return unassigned_.match_end(std::u32string_view(&c, 1), 0) == 0; }

 private:
  Regex upper_{R"([\p{Lu}\p{Lt}])"}, lower_{R"(\p{Ll})"};
  Regex letter_{R"(\p{L})"}, number_{R"(\p{N})"}, mark_{R"(\p{M})"}, space_{"[{S}]"}, unassigned_{R"(\p{Cn})"};
};

bool is_surrogate(char32_t c) {
  return c >= 0xD800 && c <= 0xDFFF;
}

TEST(Pretokenizer, ClassesAgreeWithPcreOnAssignedCodePoints) {
  const ClassOracle oracle;
  int newer = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (is_surrogate(c) || oracle.agrees(c)) continue;
    EXPECT_FALSE(oracle.assigned(c)) << std::hex << uint32_t{c};
    ++newer;  // assigned by our newer tables only, or the other way round
  }
  EXPECT_LT(newer, 20000);
}

class Texts {
 public:
  explicit Texts(uint32_t seed) : random_(seed) {}

  std::u32string next() {
    std::u32string text(random_() % 24, U' ');
    for (char32_t& c : text) c = code_point();
    return text;
  }

 private:
  // Mostly the code points at which the patterns change their mind.
  char32_t code_point() {
    static const std::u32string nasty =
        U"''''sSdDmMtTlLrReEvVaZé09½²٣Ⅷ \t\r\n\r\n\v\f\u0085\u00A0\u180E\u2028\u3000\u0301\u0323\u20DD\u0903"
        U"\u200D\uFE0F\u4E2D\u4E2DǅÀàªʰ//🦙!._-\"ſK’\uFEFF\uFFFD\U000E0100\U0010FFFF\0";
    if (random_() % 8 != 0) return nasty[random_() % nasty.size()];
    for (;;) {
      const char32_t c = random_() % (random_() % 2 != 0 ? 0x3000 : 0x110000);
      if (!is_surrogate(c) && oracle_.agrees(c)) return c;
    }
  }
  std::mt19937 random_;
  ClassOracle oracle_;
};

TEST(Pretokenizer, SameWordsAsTheRegularExpressions) {
  constexpr uint32_t kSeed = 20260815;
  constexpr int kTexts = 200000;
  Texts texts(kSeed);
  std::vector<Regex> regexes;
  for (const Pattern& p : kPatterns) regexes.emplace_back(p.regex);
  for (int n = 0; n < kTexts; ++n) {
    const std::u32string text = texts.next();
    for (std::size_t k = 0; k < std::size(kPatterns); ++k) {
      for (std::size_t i = 0; i < text.size();) {
        const std::size_t want = regexes[k].match_end(text, i);
        const std::size_t got = word_end(kPatterns[k].splitter, text, i);
        std::string shown;
        if (got != want) {
          for (const char32_t c : text) shown += fmt::format("{:x} ", uint32_t{c});
        }
        ASSERT_EQ(got, want) << kPatterns[k].name << " at " << i << " of " << shown << " seed " << kSeed << " text "
                             << n;
        i = got;
      }
    }
  }
}

// --- By hand ---

TEST(Pretokenizer, Words) {
  using W = std::vector<std::string>;
  struct Case {
    Splitter splitter;
    const char* text;
    W want;
  };
  const Case cases[] = {
      {Splitter::kGpt2, "", {}},
      {Splitter::kGpt2, "Hello world", {"Hello", " world"}},
      {Splitter::kGpt2, "don't DON'T", {"don", "'t", " DON", "'", "T"}},
      {Splitter::kGpt2, "a  b\n\nc ", {"a", " ", " b", "\n", "\n", "c", " "}},
      {Splitter::kGpt2, "12345 678", {"12345", " 678"}},
      {Splitter::kGpt2, "\tx", {"\t", "x"}},
      // What tokenizers' Digits and ByteLevel make of it.
      {Splitter::kGpt2Digits, "12345 678", {"1", "2", "3", "4", "5", " ", "6", "7", "8"}},
      {Splitter::kGpt2Digits, "a  7 b", {"a", "  ", "7", " b"}},
      {Splitter::kGpt2Digits, "x   9", {"x", "   ", "9"}},
      {Splitter::kGpt2Digits, "it's 3's", {"it", "'s", " ", "3", "'s"}},
      {Splitter::kGpt2Digits, "\n\n4\n5 ", {"\n\n", "4", "\n", "5", " "}},
      {Splitter::kGpt2Digits, "   1   a", {"   ", "1", "  ", " a"}},
      {Splitter::kGpt2Digits, "٣٤ ½ x!!1??", {"٣", "٤", " ", "½", " x", "!!", "1", "??"}},
      {Splitter::kLlama3, "12345 678", {"123", "45", " ", "678"}},
      {Splitter::kLlama3, "DON'T we'LL", {"DON", "'T", " we", "'LL"}},
      {Splitter::kLlama3, "it'\u017F it'\u017Ft", {"it", "'\u017F", " it", "'\u017F", "t"}},
      {Splitter::kGpt2, "it'\u017F", {"it", "'", "\u017F"}},
      {Splitter::kQwen2, "\u0915 \U0001E5D0\U0001E5F1", {"\u0915", " \U0001E5D0", "\U0001E5F1"}},  // Ol Onal
      {Splitter::kLlama3, "a  b\n\n  c\td", {"a", " ", " b", "\n\n", " ", " c", "\td"}},
      {Splitter::kLlama3, "hi!\r\n\r\n x", {"hi", "!\r\n\r\n", " x"}},
      {Splitter::kLlama3, " \n \n  ", {" \n \n", "  "}},
      {Splitter::kQwen2, "333", {"3", "3", "3"}},
      {Splitter::kQwen2, "' era", {"'", " era"}},
      {Splitter::kQwen2, "e\u0301a", {"e", "\u0301a"}},
      {Splitter::kQwen35, "e\u0301a", {"e\u0301a"}},
      {Splitter::kQwen35, "\u0301\u0301 \u0301", {"\u0301\u0301", " \u0301"}},
      {Splitter::kQwen35, "x=🦙🦙;\n", {"x", "=🦙🦙;\n"}},
      {Splitter::kQwen35, "    Hello", {"   ", " Hello"}},
      {Splitter::kGpt4o, "HelloWORLDThere don't 12345", {"Hello", "WORLDThere", " don't", " ", "123", "45"}},
      {Splitter::kGpt4o, "ABC/\n//x", {"ABC", "/\n//", "x"}},
      {Splitter::kGpt4o, "\u4E2DABC \u4E2D", {"\u4E2D", "ABC", " \u4E2D"}},
      {Splitter::kTekken, "HelloWorld don't 123", {"Hello", "World", " don", "'t", " ", "1", "2", "3"}},
  };
  for (const Case& c : cases) EXPECT_EQ(words(c.splitter, c.text), c.want) << c.text;
}

TEST(Pretokenizer, NamesAndFlags) {
  for (const char* name : {"gpt-2", "mpt", "llama-bpe", "llama3", "falcon3", "qwen2", "deepseek-r1-qwen", "qwen35",
                           "tekken", "gpt-4o", "smollm", "glm4", "chatglm-bpe", "dbrx"}) {
    ASSERT_TRUE(find_pretokenizer(name).ok()) << name;
    EXPECT_EQ(find_pretokenizer(name)->name, name);
  }
  EXPECT_TRUE(find_pretokenizer("llama-v3")->ignore_merges);
  EXPECT_TRUE(find_pretokenizer("llama-v3")->add_bos);
  EXPECT_TRUE(find_pretokenizer("qwen35")->nfc);
  EXPECT_FALSE(find_pretokenizer("gpt-2")->nfc);
  for (const char* name : {"", "default", "Qwen2", "qwen2 ", "llama-spm"}) {
    const auto unknown = find_pretokenizer(name);
    ASSERT_FALSE(unknown.ok()) << name;
    EXPECT_EQ(unknown.error().fault, Fault::kModelFile);
    EXPECT_NE(unknown.error().message.find("qwen35"), std::string::npos) << unknown.error().message;
  }
}

}  // namespace
}  // namespace quire
