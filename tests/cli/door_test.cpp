// Commands of programs that lie beside quire: typed as quire's, they are run there, and nobody sees a difference.
#include "command/doors.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "lab/commands.h"
#include "support/program.h"

namespace quire::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Doors : public ProgramTest {
 protected:
  Outcome program(const std::string& name, const std::string& arguments) const {
    const std::string command = name + " " + arguments + " </dev/null >" + path("out") + " 2>" + path("err");
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_whole_file(path("out")), read_whole_file(path("err"))};
  }
  // The same of quire and of quire-lab.
  void expect_same(const std::string& arguments) const {
    const Outcome a = quire(arguments), b = program(QUIRE_LAB, arguments);
    EXPECT_EQ(a.code, b.code) << arguments;
    EXPECT_EQ(a.out, b.out) << arguments;
    EXPECT_EQ(a.err, b.err) << arguments;
    EXPECT_NE(a.out + a.err, "") << arguments;
  }
};

TEST_F(Doors, LeadToTheOtherProgram) {
  for (const cli::Command& c : cli::kLab.commands) {
    const std::string name = c.name;
    if (name == "options" || name == "completions") continue;  // quire has its own
    expect_same(name + " --help");
    expect_same("help " + name);
    expect_same("options " + name);
    expect_same(name + " --no-such-option");
  }
  expect_same("--log-level error bench --help");
  expect_same("--log-level loud bench");
  expect_same("perplexity " + path("none") + " -f " + path("none"));
  expect_same("--cpu " + std::string(kBaseLevel) + " test-ops --one-case --op add_rms_norm");
}

TEST_F(Doors, AreNamedInHelpAndCompletions) {
  EXPECT_THAT(quire("help").out, HasSubstr("\nCommands that measure are quire-lab's, and"));
  EXPECT_THAT(quire("help").out, HasSubstr("Of quire-lab, which quire starts: synth, perplexity,"));
  EXPECT_THAT(quire("help").out, HasSubstr("Of quire-localai, which quire starts: localai\n"));
  EXPECT_THAT(quire("completions zsh").out, HasSubstr("'bench:Measure a model'"));
  EXPECT_THAT(program(QUIRE_LAB, "help").out, HasSubstr("\n  bench-serve "));
  EXPECT_THAT(program(QUIRE_LAB, "completions bash").out, HasSubstr("complete -o filenames -F _quire_lab quire-lab\n"));
  EXPECT_EQ(program(QUIRE_LAB, "--version").out, "quire-lab " QUIRE_VERSION "\n");
}

TEST_F(Doors, SayWhatToDoWhereTheProgramIsMissing) {
  fs::copy_file(QUIRE_PROGRAM, folder_ / "quire");
  const auto refused = [&](const std::string& arguments) {
    const Outcome o = program(path("quire"), arguments);
    EXPECT_EQ(o.code, 2);
    EXPECT_EQ(o.out, "");
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
    return o.err;
  };
  EXPECT_EQ(refused("bench -m m.gguf"), "quire: bench is a command of quire-lab, and there is no " + path("quire-lab") +
                                            "; `ninja quire-lab` builds it; copy it there\n");
  EXPECT_THAT(refused("options snapshot"), HasSubstr("snapshot is a command of quire-lab"));
  EXPECT_THAT(refused("localai --addr=127.0.0.1:0"),
              HasSubstr(path("quire-localai") + "; copy it there; it is built where gRPC is: libgrpc++-dev"));
  write("quire-lab", "no program");
  EXPECT_EQ(refused("bench"), "quire: " + path("quire-lab") + ": cannot be run: Permission denied\n");
  EXPECT_EQ(program(path("quire"), "version").code, 0);
}

}  // namespace
}  // namespace quire::test
