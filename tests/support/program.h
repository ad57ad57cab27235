// Running the program as a user does. For test programs only: QUIRE_PROGRAM is defined there.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "support/golden.h"

namespace quire::test {

struct Outcome {
  int code;
  std::string out, err;
};

// A folder of its own for every test, and the program run in it. Standard input is empty and no terminal.
class ProgramTest : public testing::Test {
 protected:
  ProgramTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "quire-test-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~ProgramTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ / name; }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  Outcome quire(const std::string& arguments) const {
    const std::string command = QUIRE_PROGRAM " " + arguments + " </dev/null >" + path("out") + " 2>" + path("err");
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_whole_file(path("out")), read_whole_file(path("err"))};
  }
  // One line on standard error that contains `reason`, nothing on standard output.
  void expect_refused(const std::string& arguments, const std::string& reason, int code = 2) const {
    SCOPED_TRACE(arguments);
    const Outcome o = quire(arguments);
    EXPECT_EQ(o.code, code);
    EXPECT_EQ(o.out, "");
    EXPECT_TRUE(o.err.starts_with("quire: ")) << o.err;
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
    EXPECT_NE(o.err.find(reason), std::string::npos) << o.err;
  }
  std::filesystem::path folder_;
};

}  // namespace quire::test
