// Files of reference logits: what was written comes back to the bit, and damaged files are refused.
#include "eval/logits_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "support/bytes.h"
#include "support/golden.h"

namespace quire::test {
namespace {

namespace fs = std::filesystem;

class LogitsFile : public testing::Test {
 protected:
  LogitsFile() {
    std::string pattern = (fs::temp_directory_path() / "quire-logits-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~LogitsFile() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ / name; }

  // Two windows of three tokens, a vocabulary of five; logit i is i / 3.
  std::string good() const {
    const LogitsHeader h{
        .vocab = 5, .window = 3, .windows = 2, .tokens_hash = 11, .vocabulary_hash = 12, .model = "model.gguf"};
    LogitsWriter w = std::move(LogitsWriter::create(path("good"), h)).value();
    std::vector<float> all(20);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<float>(i) / 3.0f;
    EXPECT_TRUE(w.write(std::span(all).first(15)).ok());
    EXPECT_FALSE(fs::exists(path("good"))) << "not before it is complete";
    EXPECT_TRUE(w.write(std::span(all).subspan(15)).ok());
    EXPECT_TRUE(w.finish().ok());
    return read_whole_file(path("good"));
  }
  std::string refusal(const std::string& bytes) const {
    std::ofstream(path("bad"), std::ios::binary) << bytes;
    const Result<LogitsReader> r = LogitsReader::open(path("bad"));
    if (r.ok()) return "accepted";
    EXPECT_EQ(r.error().fault, Fault::kModelFile);
    EXPECT_TRUE(r.error().message.starts_with(path("bad"))) << r.error().message;
    return r.error().message;
  }

  fs::path folder_;
};

TEST_F(LogitsFile, ComesBackToTheBit) {
  EXPECT_EQ(good().size(), 52 + 10 + 2 * 2 * 5 * 4u);
  LogitsReader r = std::move(LogitsReader::open(path("good"))).value();
  EXPECT_EQ(r.header().vocab, 5);
  EXPECT_EQ(r.header().window, 3);
  EXPECT_EQ(r.header().windows, 2);
  EXPECT_EQ(r.header().tokens_hash, 11u);
  EXPECT_EQ(r.header().vocabulary_hash, 12u);
  EXPECT_EQ(r.header().model, "model.gguf");
  const std::span<const float> rows = r.read(1, 0, 2).value();
  ASSERT_EQ(rows.size(), 10u);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], static_cast<float>(10 + i) / 3.0f);
  EXPECT_EQ(r.read(0, 1, 1).value()[0], 5.0f / 3.0f);
}

TEST_F(LogitsFile, DamagedFilesAreRefused) {
  const std::string bytes = good();
  const auto with = [&](size_t at, auto value) {
    std::string changed = bytes;
    std::memcpy(changed.data() + at, &value, sizeof value);
    return changed;
  };
  const std::pair<std::string, std::string> cases[] = {
      {"", "no file of reference logits"},
      {bytes.substr(0, 51), "no file of reference logits"},
      {"GGUF" + bytes.substr(4), "no file of reference logits"},
      {with(8, uint32_t{2}), "its format has version 2"},
      {with(12, uint32_t{0}), "its header is damaged"},
      {with(12, uint32_t{0x80000000}), "its header is damaged"},
      {with(16, uint64_t{1}), "its header is damaged"},
      {with(16, uint64_t{1} << 40), "its header is damaged"},
      {with(24, uint64_t{0}), "its header is damaged"},
      {with(24, ~uint64_t{0}), "its header is damaged"},
      {with(24, uint64_t{1} << 62), "more than any file has"},
      {with(48, uint32_t{5000}), "its header is damaged"},
      {with(48, uint32_t{11}), "its header says 143: it is cut short or damaged"},
      {with(12, uint32_t{6}), "its header says 158"},
      {bytes.substr(0, bytes.size() - 1), "has 141 bytes, but its header says 142"},
      {bytes.substr(0, 52), "cut short or damaged"},
      {bytes + "x", "has 143 bytes, but its header says 142"}};
  for (const auto& [file, reason] : cases) EXPECT_NE(refusal(file).find(reason), std::string::npos) << reason;
  EXPECT_EQ(refusal(bytes), "accepted");
  const Result<LogitsReader> none = LogitsReader::open(path("none"));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().fault, Fault::kRequest);
  EXPECT_FALSE(LogitsReader::open(folder_).ok());
}

TEST_F(LogitsFile, CutShortWhileItIsRead) {
  const std::string bytes = good();
  LogitsReader r = std::move(LogitsReader::open(path("good"))).value();
  fs::resize_file(path("good"), bytes.size() - 8);
  EXPECT_TRUE(r.read(0, 0, 2).ok());
  const auto rows = r.read(1, 0, 2);
  ASSERT_FALSE(rows.ok());
  EXPECT_NE(rows.error().message.find("cut short"), std::string::npos) << rows.error().message;
}

TEST_F(LogitsFile, AnUnfinishedFileLeavesNothing) {
  {
    LogitsWriter w = std::move(LogitsWriter::create(path("half"), {.vocab = 5, .window = 3, .windows = 2})).value();
    EXPECT_FALSE(fs::is_empty(folder_));
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(LogitsFile, LongNamesAreCut) {
  const LogitsHeader h{.vocab = 1, .window = 2, .windows = 1, .model = std::string(10000, 'x')};
  LogitsWriter w = std::move(LogitsWriter::create(path("long"), h)).value();
  EXPECT_TRUE(w.write(std::vector<float>{1.0f}).ok());
  EXPECT_TRUE(w.finish().ok());
  EXPECT_EQ(LogitsReader::open(path("long")).value().header().model, std::string(4096, 'x'));
}

TEST_F(LogitsFile, ImpossibleSizes) {
  const LogitsHeader h{.vocab = INT32_MAX, .window = int64_t{1} << 24, .windows = int64_t{1} << 40};
  EXPECT_FALSE(h.file_bytes());
  EXPECT_FALSE(LogitsWriter::create(path("x"), h).ok());
  const LogitsHeader large{.vocab = 250000, .window = 1 << 20, .windows = 1 << 20};
  const auto full = LogitsWriter::create(path("x"), large);
  ASSERT_FALSE(full.ok());
  EXPECT_NE(full.error().message.find("but its file system has"), std::string::npos) << "no disk of today";
  EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace quire::test
