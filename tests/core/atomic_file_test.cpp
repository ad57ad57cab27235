#include "core/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace quire {
namespace {

namespace fs = std::filesystem;

class AtomicFileTest : public testing::Test {
 protected:
  AtomicFileTest() {
    std::string pattern = (fs::temp_directory_path() / "quire-atomic-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~AtomicFileTest() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ / name; }
  static std::string read(const std::string& path) {
    std::ostringstream out;
    out << std::ifstream(path, std::ios::binary).rdbuf();
    return out.str();
  }
  fs::path folder_;
};

TEST_F(AtomicFileTest, AppearsWhenItIsComplete) {
  ASSERT_TRUE(write_file(path("a"), "old").ok());
  AtomicFile f = std::move(AtomicFile::create(path("a"), 6)).value();
  ASSERT_TRUE(f.write("new").ok());
  EXPECT_EQ(read(path("a")), "old");
  AtomicFile moved = std::move(f);
  ASSERT_TRUE(moved.write("est").ok());
  ASSERT_TRUE(moved.commit().ok());
  EXPECT_EQ(read(path("a")), "newest");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(AtomicFileTest, ForgottenWithoutCommit) {
  {
    AtomicFile f = std::move(AtomicFile::create(path("a"))).value();
    ASSERT_TRUE(f.write("half").ok());
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(AtomicFileTest, WhatCannotBeCreated) {
  const Status no_folder = write_file(path("none/a"), "x");
  ASSERT_FALSE(no_folder.ok());
  EXPECT_EQ(no_folder.error().fault, Fault::kRequest);
  EXPECT_EQ(no_folder.error().message, "cannot create " + path("none/a") + ": No such file or directory");
  const Status folder = write_file(folder_, "x");
  ASSERT_FALSE(folder.ok());
  EXPECT_EQ(folder.error().message, "cannot write " + folder_.string() + ": Is a directory");
}

TEST_F(AtomicFileTest, AFullDisk) {
  const Status full = write_file("/dev/full", "x");
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().fault, Fault::kRequest);
  EXPECT_EQ(full.error().message,
            "cannot write /dev/full (0 bytes written): No space left on device; free space and try again");
  EXPECT_TRUE(fs::is_character_file("/dev/full")) << "a device is never replaced";
  const auto huge = AtomicFile::create(path("a"), uint64_t{1} << 62);
  ASSERT_FALSE(huge.ok());
  EXPECT_EQ(huge.error().fault, Fault::kRequest);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(AtomicFileTest, WhatAKilledProcessLeftCanBeRemoved) {
  ASSERT_TRUE(write_file(path("a"), "whole").ok());
  const AtomicFile unfinished = std::move(AtomicFile::create(path("a"))).value();  // somebody writes it
  const std::string kept[] = {"a.partial-12-0-copy", "a.partial-x", "b.partial-12-0", "a.partial"};
  for (const std::string& name : kept) ASSERT_TRUE(write_file(path(name), "x").ok());
  fs::create_directory(path("a.partial-3-3"));
  fs::create_symlink(path("a"), path("a.partial-4-4"));
  for (const char* name : {"a.partial-12-0", "a.partial-1-7"}) ASSERT_TRUE(write_file(path(name), "x").ok());
  EXPECT_EQ(remove_abandoned_files(path("a")), 2);
  EXPECT_FALSE(fs::exists(path("a.partial-12-0")));
  EXPECT_FALSE(fs::exists(path("a.partial-1-7")));
  for (const std::string& name : kept) EXPECT_TRUE(fs::exists(path(name))) << name;
  EXPECT_TRUE(fs::is_directory(path("a.partial-3-3")));
  EXPECT_TRUE(fs::is_symlink(path("a.partial-4-4")));
  EXPECT_EQ(read(path("a")), "whole");
  EXPECT_TRUE(fs::exists(path(fmt::format("a.partial-{}-0", getpid())))) << "which is being written";
  EXPECT_EQ(remove_abandoned_files(path("no/such/folder")), 0);
}

Status check_output_file(const std::string& path) {
  QUIRE_TRY([[maybe_unused]] const PlannedOutput planned, PlannedOutput::create(path));
  return {};
}

TEST_F(AtomicFileTest, ChecksBeforeTheWork) {
  EXPECT_TRUE(check_output_file(path("new")).ok());
  ASSERT_TRUE(write_file(path("old"), "kept").ok());
  EXPECT_TRUE(check_output_file(path("old")).ok());
  EXPECT_EQ(read(path("old")), "kept");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "nothing new";
  EXPECT_TRUE(check_output_file("/dev/null").ok());
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_TRUE(check_output_file(path("pipe")).ok()) << "without waiting for a reader";
  EXPECT_EQ(check_output_file("").error().message, "cannot write a file without a name");
  EXPECT_EQ(check_output_file(path("none/a")).error().message,
            "cannot create " + path("none/a") + ": No such file or directory");
  EXPECT_EQ(check_output_file(folder_).error().message, "cannot write " + folder_.string() + ": Is a directory");
  EXPECT_EQ(check_output_file("/proc/none").error().message, "cannot create /proc/none: No such file or directory");
}

std::vector<std::string> removed;

TEST_F(AtomicFileTest, AProgramThatEndsRemovesWhatIsUnfinished) {
  AtomicFile a = std::move(AtomicFile::create(path("a"))).value();
  AtomicFile moved = std::move(a);
  AtomicFile b = std::move(AtomicFile::create(path("b\n"))).value();
  { const AtomicFile forgotten = std::move(AtomicFile::create(path("c"))).value(); }
  ASSERT_TRUE(write_file(path("done"), "x").ok());
  ASSERT_TRUE(moved.write("half").ok());
  remove_unfinished_files([](const char* name) { removed.emplace_back(name); });
  EXPECT_EQ(removed, (std::vector<std::string>{path("a"), path("b") + "\\n"}));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "only what is done";
  EXPECT_FALSE(b.commit().ok());
}

std::vector<std::string> named_at_the_end() {
  removed.clear();
  remove_unfinished_files([](const char* name) { removed.emplace_back(name); });
  return removed;
}

// From the check on, whatever the moment: while nothing is there, while it is written, and not when it is done.
TEST_F(AtomicFileTest, AProgramThatEndsNamesWhatItWasGoingToWrite) {
  {
    const PlannedOutput planned = std::move(PlannedOutput::create(path("a"))).value();
    EXPECT_TRUE(fs::is_empty(folder_));
    EXPECT_EQ(named_at_the_end(), std::vector{path("a")});
  }
  PlannedOutput planned = std::move(PlannedOutput::create(path("a"))).value();
  const PlannedOutput other = std::move(PlannedOutput::create(path("b"))).value();
  AtomicFile file = std::move(AtomicFile::create(path("a"))).value();
  ASSERT_TRUE(file.write("x").ok());
  ASSERT_TRUE(file.commit().ok());
  EXPECT_EQ(named_at_the_end(), std::vector{path("b")}) << "a is there";
}

TEST_F(AtomicFileTest, AFileThatIsBegunIsNamedOnce) {
  const PlannedOutput planned = std::move(PlannedOutput::create(path("a"))).value();
  const AtomicFile file = std::move(AtomicFile::create(path("a"))).value();
  EXPECT_EQ(named_at_the_end(), std::vector{path("a")});
  EXPECT_TRUE(fs::is_empty(folder_));
}

// What commit() has renamed is not named, though it is still in the list.
TEST_F(AtomicFileTest, AFileThatHasItsNameIsNotCalledMissing) {
  const AtomicFile file = std::move(AtomicFile::create(path("a"))).value();
  for (const auto& entry : fs::directory_iterator(folder_)) fs::rename(entry.path(), path("a"));
  EXPECT_EQ(named_at_the_end(), std::vector<std::string>{});
  EXPECT_TRUE(fs::exists(path("a")));
}

}  // namespace
}  // namespace quire
