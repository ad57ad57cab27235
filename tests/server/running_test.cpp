// The whole program while it runs: logs that nobody reads, that cannot be written, that are rotated; and signals that
// insist.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "server/serve_program.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

const Json kLongAnswers = {{"prompt", "Once"},   {"max_tokens", 400}, {"temperature", 0},
                           {"ignore_eos", true}, {"stream", true},    {"n", 16}};

class Running : public ServeProgram {
 protected:
  // The value of a metric, by its line up to the value.
  double metric(const std::string& series) const {
    const std::string text = ask(port_, get("/metrics")).body;
    const size_t at = text.find("\n" + series + " ");
    return at == std::string::npos ? -1.0 : std::stod(text.substr(at + series.size() + 2));
  }
};

// Standard error is a pipe of one page whose reader stops reading: more lines than it and the queue take.
TEST_F(Running, ServesAndEndsWhileNobodyReadsItsMessages) {
  ASSERT_EQ(mkfifo(path("err").c_str(), 0600), 0);
  const int reader = open(path("err").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  fcntl(reader, F_SETPIPE_SZ, 4096);
  std::string said;
  start("-c 512 --drain-timeout 0", [&] {
    char buffer[4096];
    for (ssize_t n; (n = read(reader, buffer, sizeof buffer)) > 0;) said.append(buffer, static_cast<size_t>(n));
    return said;
  });
  Client many(port_);
  const std::string id = "X-Request-Id: " + std::string(100, 'i') + "\r\n";
  for (int i = 0; i < 100; ++i) {
    many.send(get("/health", id));
    ASSERT_EQ(many.receive(60).status, 200) << i;
  }
  Client streamed(port_);
  streamed.send(post("/v1/completions", Json{{"prompt", "a"}, {"max_tokens", 4}, {"stream", true}}));
  EXPECT_THAT(streamed.receive(60).body, HasSubstr("[DONE]"));
  EXPECT_EQ(ask(port_, get("/health")).status, 200);
  kill(pid_, SIGTERM);
  EXPECT_EQ(wait(), 0);
  close(reader);
}

TEST_F(Running, GoesOnWhenTheReaderOfItsMessagesLeaves) {
  ASSERT_EQ(mkfifo(path("err").c_str(), 0600), 0);
  const int reader = open(path("err").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  std::string said;
  start("-c 512", [&] {
    char buffer[4096];
    for (ssize_t n; (n = read(reader, buffer, sizeof buffer)) > 0;) said.append(buffer, static_cast<size_t>(n));
    return said;
  });
  close(reader);
  EXPECT_EQ(ask(port_, get("/health")).status, 200);
  EXPECT_TRUE(eventually([&] { return metric("quire:log_lines_dropped_total{log=\"access\"}") > 0; }));
  kill(pid_, SIGTERM);
  EXPECT_EQ(wait(), 0);
}

TEST_F(Running, TellsOnceThatALogCannotBeWritten) {
  start("-c 512 --access-log /dev/full");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ask(port_, get("/health")).status, 200);
  EXPECT_TRUE(eventually([&] { return metric("quire:log_lines_dropped_total{log=\"access\"}") >= 3; }));
  kill(pid_, SIGTERM);
  EXPECT_EQ(wait(), 0);
  const std::string said = read_whole_file(path("err"));
  const std::string sentence = "--access-log /dev/full: No space left on device";
  EXPECT_THAT(said, HasSubstr(sentence));
  EXPECT_EQ(said.find(sentence), said.rfind(sentence));
}

TEST_F(Running, OpensItsLogsAnewOnSighup) {
  start("-c 512 --access-log " + path("access") + " --trace-steps " + path("steps"));
  const Json body = {{"prompt", "a"}, {"max_tokens", 1}};
  const auto has_lines = [&](const char* name) {
    EXPECT_EQ(ask(port_, post("/v1/completions", body)).status, 200);
    return std::filesystem::exists(path(name)) && std::filesystem::file_size(path(name)) > 0;
  };
  for (const char* name : {"access", "steps"}) {
    ASSERT_TRUE(eventually([&] { return has_lines(name); }));
    std::filesystem::rename(path(name), path(name) + ".1");
  }
  kill(pid_, SIGHUP);
  for (const char* name : {"access", "steps"}) EXPECT_TRUE(eventually([&] { return has_lines(name); })) << name;
  kill(pid_, SIGTERM);
  EXPECT_EQ(wait(), 0);
}

// As the end of its terminal does.
TEST_F(Running, ASighupEndsItWhereThereIsNothingToOpenAnew) {
  start("-c 512");
  kill(pid_, SIGHUP);
  EXPECT_EQ(wait(), -1);
}

TEST_F(Running, ASecondSignalEndsItWhileItDrains) {
  std::signal(SIGINT, SIG_DFL);  // a shell's background job ignores it, and so would what the job starts
  start("-c 512 --no-access-log --drain-timeout 3600");
  Client c(port_);
  c.send(post("/v1/completions", kLongAnswers));
  c.receive_until([](const std::string& r) { return r.find("data: ") != std::string::npos; }, 60);
  kill(pid_, SIGTERM);
  ASSERT_TRUE(eventually([&] { return ask(port_, get("/health")).status == 503; }));
  kill(pid_, SIGINT);
  EXPECT_EQ(wait(), 128 + SIGINT);
}

TEST_F(Running, SaysWhichLogCannotBeOpened) {
  const std::string serve = "serve -m " + demo_model_path() + " --port 0 ";
  expect_refused(serve + "--access-log " + path("none/log"),
                 "--access-log: " + path("none/log") + ": cannot be written (No such file or directory");
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  expect_refused(serve + "--access-log " + path("pipe"), "it is a FIFO that nobody reads");
  expect_refused(serve + "--trace-steps " + path("pipe"), "it is a FIFO that nobody reads");
}

}  // namespace
}  // namespace quire::test
