// Lines that a thread writes: nobody waits for it, whatever becomes of the file, the disk or the reader.
#include "core/line_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

namespace quire {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return std::move(text).str();
}

class LineWriterTest : public testing::Test {
 protected:
  LineWriterTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "quire-test-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~LineWriterTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ / name; }
  std::string fifo() const {
    EXPECT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
    return path("pipe");
  }
  LineWriter::Options options() {
    return {.name = "the log",
            .last = std::chrono::minutes(1),
            .tell =
                [this](std::string_view message) {
                  const std::lock_guard lock(mutex_);
                  told_.emplace_back(message);
                },
            .count_dropped = [this](int64_t lines) { dropped_ += lines; },
            .gap = [](int64_t lines) { return "missing " + std::to_string(lines); }};
  }
  std::unique_ptr<LineWriter> open(const std::string& file, LineWriter::Options o) {
    return std::move(LineWriter::open(file, std::move(o))).value();
  }
  // Whether so many sentences were told within a minute.
  bool told_by_now(size_t number) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (told().size() < number && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(milliseconds(1));
    return told().size() >= number;
  }
  std::vector<std::string> told() {
    const std::lock_guard lock(mutex_);
    return told_;
  }

  std::filesystem::path folder_;
  std::mutex mutex_;
  std::vector<std::string> told_;
  std::atomic<int64_t> dropped_{0};
};

TEST_F(LineWriterTest, AppendsAllLinesInOrder) {
  std::ofstream(path("log")) << "first\n";
  std::string want = "first\n";
  {
    const auto writer = open(path("log"), options());
    for (int i = 0; i < 2000; ++i) {
      writer->write("line " + std::to_string(i));
      want += "line " + std::to_string(i) + "\n";
    }
    EXPECT_TRUE(writer->drain(milliseconds(60000)));
    EXPECT_EQ(text_of(path("log")), want);
    writer->write("last");
  }
  EXPECT_EQ(text_of(path("log")), want + "last\n");
  EXPECT_EQ(dropped_, 0);
  EXPECT_TRUE(told().empty());
}

// A pipe takes so much; what its writer keeps is bounded too.
TEST_F(LineWriterTest, APipeThatNobodyReadsDropsLinesAndHoldsNobody) {
  const std::string name = fifo();
  const int reader = ::open(name.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  const int other = ::open(name.c_str(), O_WRONLY | O_NONBLOCK);  // somebody else fills it
  const std::string page(4096, '-');
  size_t filled = 0;
  for (ssize_t n; (n = ::write(other, page.data(), page.size())) > 0;) filled += static_cast<size_t>(n);
  ::close(other);
  constexpr int64_t kLines = 20000;
  LineWriter::Options o = options();
  o.max_bytes = 10000;
  auto writer = open(name, std::move(o));
  for (int64_t i = 0; i < kLines; ++i) writer->write("a line of no great length " + std::to_string(i));
  EXPECT_GT(dropped_, 0);
  EXPECT_THAT(told(), ElementsAre("the log: lines come faster than it takes them; lines are dropped and counted until "
                                  "it can be written again"));
  // Somebody reads again.
  std::string text;
  int64_t written = 0, missing = 0;
  const auto read_some = [&] {
    char buffer[4096];
    for (ssize_t n; (n = ::read(reader, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(n));
  };
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!writer->drain(milliseconds(1)) && std::chrono::steady_clock::now() < end) read_some();
  ASSERT_TRUE(told_by_now(2));
  writer.reset();
  read_some();
  ::close(reader);
  std::istringstream lines(text.substr(filled));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("missing ")) {
      missing += std::stoll(line.substr(8));
      continue;
    }
    EXPECT_EQ(line, "a line of no great length " + std::to_string(written + missing))
        << "it stands where they are missing";
    ++written;
  }
  EXPECT_EQ(written + missing, kLines);
  EXPECT_EQ(missing, dropped_);
  EXPECT_EQ(told().back(), "the log: written again; " + std::to_string(missing) + " lines were dropped");
}

TEST_F(LineWriterTest, ItsEndDoesNotWaitForAReader) {
  const std::string name = fifo();
  const int reader = ::open(name.c_str(), O_RDONLY | O_NONBLOCK);
  LineWriter::Options o = options();
  o.last = milliseconds(50);
  auto writer = open(name, std::move(o));
  const std::string line(1000, 'x');
  for (int i = 0; i < 1000; ++i) writer->write(line);
  EXPECT_FALSE(writer->drain(milliseconds(1)));
  const auto start = std::chrono::steady_clock::now();
  writer.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
  ::close(reader);
}

TEST_F(LineWriterTest, AReaderThatLeavesIsToldOnceAndMayComeBack) {
  const std::string name = fifo();
  int reader = ::open(name.c_str(), O_RDONLY | O_NONBLOCK);
  const auto writer = open(name, options());
  ::close(reader);
  for (int i = 0; i < 3; ++i) {
    writer->write("nobody reads this");
    EXPECT_TRUE(writer->drain(milliseconds(60000)));
  }
  EXPECT_EQ(dropped_, 3);
  EXPECT_THAT(told(), ElementsAre("the log: Broken pipe; lines are dropped and counted until it can be written again"));
  reader = ::open(name.c_str(), O_RDONLY | O_NONBLOCK);
  writer->write("somebody does");
  EXPECT_TRUE(writer->drain(milliseconds(60000)));
  char buffer[100];
  const ssize_t n = ::read(reader, buffer, sizeof buffer);
  EXPECT_EQ(std::string(buffer, static_cast<size_t>(std::max<ssize_t>(n, 0))), "somebody does\n");
  ASSERT_TRUE(told_by_now(2));
  EXPECT_EQ(told().back(), "the log: written again; 3 lines were dropped");
  ::close(reader);
}

TEST_F(LineWriterTest, AFullDiskIsToldOnce) {
  const auto writer = open("/dev/full", options());
  for (int i = 0; i < 3; ++i) {
    writer->write("x");
    EXPECT_TRUE(writer->drain(milliseconds(60000)));
  }
  EXPECT_EQ(dropped_, 3);
  EXPECT_THAT(told(), ElementsAre(HasSubstr("No space left on device")));
}

TEST_F(LineWriterTest, OpensItsFileAnewByName) {
  const auto writer = open(path("log"), options());
  writer->write("old");
  ASSERT_TRUE(writer->drain(milliseconds(60000)));
  std::filesystem::rename(path("log"), path("log.1"));
  writer->write("still old");
  ASSERT_TRUE(writer->drain(milliseconds(60000)));
  writer->reopen();
  writer->write("new");
  ASSERT_TRUE(writer->drain(milliseconds(60000)));
  EXPECT_EQ(text_of(path("log.1")), "old\nstill old\n");
  EXPECT_EQ(text_of(path("log")), "new\n");
}

TEST_F(LineWriterTest, KeepsItsFileWhereTheNameCannotBeOpened) {
  std::filesystem::create_directory(path("logs"));
  const auto writer = open(path("logs/log"), options());
  std::filesystem::rename(path("logs"), path("moved"));
  writer->reopen();
  writer->write("kept");
  ASSERT_TRUE(writer->drain(milliseconds(60000)));
  EXPECT_EQ(text_of(path("moved/log")), "kept\n");
  EXPECT_THAT(told(), ElementsAre(HasSubstr("the log: it stays with the file that is open: " + path("logs/log"))));
}

TEST_F(LineWriterTest, SaysWhatCannotBeOpened) {
  const auto refused = [](const std::string& name) { return LineWriter::open(name, {}).error().message; };
  EXPECT_EQ(refused(path("none/log")),
            path("none/log") + ": cannot be written (No such file or directory; folders are not created)");
  EXPECT_EQ(refused(path("")), path("") + ": cannot be written (Is a directory)");
  EXPECT_THAT(refused(fifo()), HasSubstr("it is a FIFO that nobody reads: start its reader first"));
}

}  // namespace
}  // namespace quire
