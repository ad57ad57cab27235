// `quire serve` as a program of its own.
#pragma once

#include <gtest/gtest.h>

#include <csignal>
#include <functional>
#include <string>
#include <thread>

#include "server/client.h"
#include "server/demo_server.h"
#include "support/program.h"

namespace quire::test {

// The program itself, from start to signal.
class ServeProgram : public ProgramTest {
 protected:
  ~ServeProgram() override {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  // Starts it and waits until it says where it serves. `said_by_now` reads its standard error where path("err") is a
  // FIFO and no file.
  void start(const std::string& options, const std::function<std::string()>& said_by_now = nullptr) {
    if (!said_by_now) write("err", "");  // what is read there is not what an earlier one said, nor nothing at all
    launch(options);
    wait_until_it_serves(said_by_now);
  }
  // The same behind shell commands such as "ulimit -n 64; ".
  void launch_within(const std::string& commands, const std::string& options) {
    write("err", "");
    launch(options, commands);
    wait_until_it_serves(nullptr);
  }
  void wait_until_it_serves(const std::function<std::string()>& said_by_now) {
    for (int i = 0; i < 3000 && port_ == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      const std::string said = said_by_now ? said_by_now() : read_whole_file(path("err"));
      const size_t at = said.find("://127.0.0.1:");
      if (at != std::string::npos && said.find('\n', at) != std::string::npos)
        port_ = static_cast<uint16_t>(std::stoi(said.substr(at + 13)));
    }
    ASSERT_NE(port_, 0) << (said_by_now ? "" : read_whole_file(path("err")));
  }
  void launch(const std::string& options, const std::string& before = "") {
    const std::string command = before + "exec " QUIRE_PROGRAM " serve -m " + demo_model_path() + " --port 0 " +
                                options + " </dev/null >" + path("out") + " 2>" + path("err");
    pid_ = fork();
    if (pid_ == 0) {
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
  }
  // Whether a request is being computed.
  bool runs_one(const std::string& key = "") const {
    const std::string metrics = ask(port_, get("/metrics", key)).body;
    const size_t at = metrics.find("\nvllm:num_requests_running{");
    return at != std::string::npos && metrics.compare(metrics.find("} ", at), 3, "} 1") == 0;
  }
  // Its exit code; -1: it ended by a signal, -2: it did not end within two minutes.
  int wait() {
    int status = 0;
    const bool ended = eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; }) ||
                       eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; });
    if (!ended) return -2;
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  pid_t pid_ = 0;
  uint16_t port_ = 0;
};

}  // namespace quire::test
