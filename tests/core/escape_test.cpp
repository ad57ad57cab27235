#include "core/escape.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace quire {
namespace {

TEST(Escaped, WhatIsHarmlessStays) {
  EXPECT_EQ(escaped(""), "");
  EXPECT_EQ(escaped("plain text, \\n, 'quoted'"), "plain text, \\n, 'quoted'");
  EXPECT_EQ(escaped("Zürich 東京 🙂"), "Zürich 東京 🙂");
}

TEST(Escaped, OneLineWithoutControl) {
  EXPECT_EQ(escaped("a\nb\tc\rd"), "a\\nb\\tc\\u000dd");
  EXPECT_EQ(escaped("\x1b[2J\x7f"), "\\u001b[2J\\u007f");
  EXPECT_EQ(escaped(std::string_view("a\0b", 3)), "a\\u0000b");
  EXPECT_EQ(escaped("\u0085\u009b31m"), "\\u0085\\u009b31m") << "C1: a terminal may take them for escapes";
  EXPECT_EQ(escaped("\u202Egpj.exe\u2066\u2028"), "\\u202egpj.exe\\u2066\\u2028") << "writing backwards";
  EXPECT_EQ(escaped("\U000E0041"), "\\U000e0041") << "a tag that nobody sees";
  EXPECT_EQ(escaped("a\xff\xc3"), "a\uFFFD\uFFFD");
  EXPECT_EQ(escaped(escaped("\x1b\n")), escaped("\x1b\n")) << "twice is once";
}

TEST(Escaped, BoundedWithBothEnds) {
  const std::string text = std::string(5000, 'x') + ": No such file or directory";
  const std::string shown = escaped(text, 100);
  EXPECT_LE(shown.size(), 105u);
  EXPECT_TRUE(shown.starts_with("xxxx")) << shown;
  EXPECT_TRUE(shown.ends_with("file or directory")) << shown;
  EXPECT_NE(shown.find(" ... "), std::string::npos);
  EXPECT_EQ(escaped(text, 0), text) << "0: no bound";
  EXPECT_LE(escaped(std::string(100000, '\x1b')).size(), kMaxShownLine + 5) << "also where escapes are longer";
  EXPECT_EQ(escaped(std::string(100, 'y'), 100).size(), 100u) << "what fits is not cut";
}

// Neither an escape nor a character is cut.
TEST(Escaped, CutsBetweenCharacters) {
  for (const char* const c : {"ä", "東", "🙂", "\n", "\x1b", "\xff", "\xe6\x9d"}) {
    std::string text;
    for (int i = 0; i < 300; ++i) text += c;
    for (size_t bound = 1; bound < 60; ++bound) {
      std::string shown = escaped(text, bound);
      EXPECT_LE(shown.size(), bound + 5);
      shown.erase(shown.find(" ... "), 5);
      const std::string one = escaped(c);
      std::string want;
      while (want.size() < shown.size()) want += one;
      EXPECT_EQ(shown, want) << bound;
    }
  }
}

}  // namespace
}  // namespace quire
