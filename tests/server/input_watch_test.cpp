// A server that ends with its standard input: with whoever started it.
#include "server/input_watch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "server/client.h"
#include "server/serve_program.h"

namespace quire::test {
namespace {

using server::InputWatch;

TEST(InputWatch, WaitsForTheEnd) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  std::atomic<int> calls{0};
  const auto watch = InputWatch::create(ends[0], [&] { ++calls; }).value();
  ASSERT_EQ(write(ends[1], "x\n", 2), 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(watch->ended());
  close(ends[1]);
  EXPECT_TRUE(eventually([&] { return calls == 1; }));
  EXPECT_TRUE(watch->ended());
  close(ends[0]);
}

TEST(InputWatch, GoesBeforeTheEnd) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  EXPECT_TRUE(InputWatch::create(ends[0], [] { ADD_FAILURE(); }).ok());
  for (const int fd : ends) close(fd);
}

// The program with a pipe as its standard input.
class ExitWithStdin : public ServeProgram {
 protected:
  void launch_with_pipe(const std::string& options) {
    ASSERT_EQ(pipe2(pipe_, O_CLOEXEC), 0);
    const std::string command = "exec " QUIRE_PROGRAM " serve -m " + demo_model_path() + " --port 0 -c 2048 " +
                                options + " --exit-with-stdin >" + path("out") + " 2>" + path("err");
    write("err", "");
    pid_ = fork();
    if (pid_ == 0) {
      dup2(pipe_[0], STDIN_FILENO);
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
    close(pipe_[0]);
    wait_until_it_serves(nullptr);
  }
  int pipe_[2] = {-1, -1};
};

TEST_F(ExitWithStdin, DrainsAsOnSigterm) {
  launch_with_pipe("--no-access-log");
  Client c(port_);
  c.send(post("/v1/completions", Json{{"prompt", "a"}, {"max_tokens", 300}, {"ignore_eos", true}}));
  ASSERT_TRUE(eventually([&] { return runs_one(); }));
  close(pipe_[1]);
  EXPECT_EQ(c.receive().json()["usage"]["completion_tokens"], 300) << "what was accepted is finished";
  EXPECT_EQ(wait(), 0);
  EXPECT_NE(read_whole_file(path("err")).find("finishing what was accepted"), std::string::npos);
}

TEST_F(ExitWithStdin, EndsAtOnceWhereThereIsNone) {
  launch("--no-access-log --exit-with-stdin");  // which gets /dev/null
  EXPECT_EQ(wait(), 0);
}

TEST_F(ExitWithStdin, StillEndsBySignals) {
  launch_with_pipe("--no-access-log");
  kill(pid_, SIGTERM);
  EXPECT_EQ(wait(), 0);
  close(pipe_[1]);
}

TEST_F(ExitWithStdin, StandardInputIsOtherwiseNothing) {
  start("--no-access-log");  // with /dev/null as standard input
  EXPECT_EQ(ask(port_, get("/health")).status, 200);
  kill(pid_, SIGTERM);
  EXPECT_EQ(wait(), 0);
}

}  // namespace
}  // namespace quire::test
