// What the program does where the system has less than it asks for: memory, threads, room for its output, a reader of
// it, time to end. One line that begins with "quire: ", the exit code, nothing left behind.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>

#include "support/hf_folder.h"
#include "support/program.h"
#include "support/sanitizers.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::HasSubstr;
using testing::StartsWith;

const std::string kDemo = QUIRE_SOURCE_DIR "/models/demo-dense-nvfp4.gguf";

class Faults : public ProgramTest {
 protected:
  Faults() {
    for (const TinyModel& m : tiny_models())
      if (m.name == "tiny-qwen3") {
        EXPECT_TRUE(m.write_gguf(path("m.gguf")).ok());
      }
    write("text", std::string(4000, 'x'));
    write("tasks", R"({"id": 1, "type": "t", "prompt": "a", "expected": "b"})"
                   "\n");
  }

  // The program as a shell runs it: `before` may set limits, `redirect` sends standard output elsewhere.
  Outcome shell(const std::string& before, const std::string& arguments, const std::string& redirect) const {
    const std::string command =
        "( " + before + " exec " QUIRE_PROGRAM " " + arguments + " ) </dev/null " + redirect + " 2>" + path("err");
    const int status = std::system(("bash -c '" + command + "'").c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, "", read_whole_file(path("err"))};
  }
  // The last line, and no other, is an error. Before it there may be what a command says of its work.
  static bool is_one_line(const std::string& err) {
    const size_t last = err.size() < 2 ? err.npos : err.rfind('\n', err.size() - 2);
    const size_t begin = last == err.npos ? 0 : last + 1;
    return err.ends_with('\n') && err.find("quire: ") == begin;
  }
  std::vector<std::string> partial_files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_))
      if (const std::string name = entry.path().filename(); name.find(".partial") != name.npos) names.push_back(name);
    return names;
  }
  std::string m() const { return path("m.gguf"); }

  // Every command that works without a GPU or a network, with arguments that let it come to its end.
  std::vector<std::string> commands() const {
    const std::string text = " -f " + path("text");
    return {"--help",
            "run --help",
            "--version",
            "version",
            "run -m " + m() + " -p hello -n 4 --ignore-eos",
            "run -m " + m() + " -p hello -n 4 --json",
            "inspect " + m(),
            "inspect --json " + m(),
            "inspect --template " + m(),
            "inspect --check " + m(),
            "tokenize -m " + m() + " -p hello",
            "tokenize -m " + m() + " -p hello --json",
            "tokenize -m " + m() + " -p 40,41 --decode",
            "perplexity -m " + m() + text + " --window 64 --windows 1",
            "perplexity -m " + m() + text + " --window 64 --windows 1 --json",
            "compare " + m() + " " + m() + text + " --window 64 --windows 1",
            "eval -m " + m() + " -f " + path("tasks"),
            "bench -m " + m() + " -p 8 -n 2 -r 1",
            "bench-batch -m " + m() + " -npp 8 -ntg 2 -npl 1 --repetitions 1",
            "imatrix -m " + m() + text + " --window 64 --windows 1 -o " + path("i.gguf"),
            "quantize " + m() + " " + path("q.gguf") + " --type q8_0",
            "quantize " + m() + " " + path("q.gguf") + " --type q8_0 --json",
            "synth " + path("s.gguf") + " --layers 1 --vocab 512",
            "test-ops --list",
            "test-ops --op copy_slots"};
  }
};

// ---- Output that nobody gets ----

TEST_F(Faults, AFullDiskBehindStandardOutput) {
  for (const std::string& arguments : commands()) {
    const Outcome o = shell("", arguments, ">/dev/full");
    EXPECT_EQ(o.code, 2) << arguments << "\n" << o.err;
    EXPECT_THAT(o.err, HasSubstr("quire: cannot write to standard output: No space left on device\n")) << arguments;
  }
}

TEST_F(Faults, IntermediatesThatAreNotAllDumped) {
  fs::create_directories(path("dump/00000-model-embed.npy"));  // a folder where a file should be
  const Outcome o = quire("run " + m() + " --tokens 1,2 -n 1 --ignore-eos --quiet --dump-layers " + path("dump"));
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.err, HasSubstr("cannot write " + path("dump/00000-model-embed.npy")));
  EXPECT_THAT(o.err, HasSubstr("quire: --dump-layers " + path("dump") + ": not all was written\n"));
  EXPECT_EQ(quire("run " + m() + " --tokens 1,2 -n 1 --ignore-eos --dump-layers " + path("whole")).code, 0);
}

TEST_F(Faults, AClosedStandardOutput) {
  for (const std::string& arguments : commands()) {
    const Outcome o = shell("", arguments, ">&-");
    EXPECT_EQ(o.code, 2) << arguments << "\n" << o.err;
    EXPECT_THAT(o.err, HasSubstr("quire: cannot write to standard output: Bad file descriptor\n")) << arguments;
  }
  // And no file that is opened takes its place.
  ASSERT_EQ(quire("quantize " + m() + " " + path("want.gguf") + " --type q8_0").code, 0);
  EXPECT_EQ(read_whole_file(path("q.gguf")).size(), read_whole_file(path("want.gguf")).size());
}

TEST_F(Faults, AReaderThatIsGoneIsNotAnAbort) {
  for (const std::string& arguments : commands()) {
    // The reader ends first; with SIGPIPE ignored, as some parents leave it, a write fails.
    const Outcome o = shell("trap \"\" PIPE; exec > >(exec true); wait $!;", arguments, "");
    EXPECT_EQ(o.code, 2) << arguments << "\n" << o.err;
    EXPECT_THAT(o.err, HasSubstr("quire: cannot write to standard output: Broken pipe\n")) << arguments;
  }
}

// The program with a pipe to read from and one to tell what it says.
class Child {
 public:
  explicit Child(const std::vector<std::string>& arguments, bool ignore_sigpipe = false) {
    int out[2], err[2];
    EXPECT_EQ(pipe2(out, O_CLOEXEC) | pipe2(err, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out[1], 1);
      dup2(err[1], 2);
      close(0);
      open("/dev/null", O_RDONLY);
      std::signal(SIGPIPE, ignore_sigpipe ? SIG_IGN : SIG_DFL);
      std::vector<char*> argv{const_cast<char*>(QUIRE_PROGRAM)};
      for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
      argv.push_back(nullptr);
      execv(QUIRE_PROGRAM, argv.data());
      _exit(99);
    }
    close(out[1]);
    close(err[1]);
    out_ = out[0];
    err_ = err[0];
  }
  ~Child() {
    if (pid_ > 0) kill(pid_, SIGKILL), waitpid(pid_, nullptr, 0);
    close_output();
    close(err_);
  }
  // The first bytes of its output, or nothing if there are none within a minute.
  std::string read_some() const {
    pollfd p = {.fd = out_, .events = POLLIN, .revents = 0};
    char buffer[4096];
    if (poll(&p, 1, 60000) <= 0) return {};
    const ssize_t n = read(out_, buffer, sizeof buffer);
    return n > 0 ? std::string(buffer, static_cast<size_t>(n)) : std::string();
  }
  void close_output() {
    if (out_ >= 0) close(std::exchange(out_, -1));
  }
  void signal(int number) const { kill(pid_, number); }
  // Its status; -1 if it is still there after so long.
  int wait(milliseconds longest) {
    int status = 0;
    for (const auto end = steady_clock::now() + longest; steady_clock::now() < end; usleep(2000))
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        return status;
      }
    return -1;
  }
  std::string errors() const {
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = read(err_, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(n));
    return text;
  }

 private:
  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
};

constexpr milliseconds kLong{120000};
// What an interrupted command may take on a machine that others use too. Its work would take far longer.
constexpr milliseconds kSoon{kSlow ? 60000 : 20000};

// So many tokens take minutes: ending soon is ending early.
std::vector<std::string> endless_run() {
  return {"run", "-m", kDemo, "-p", "Once", "-n", "-1", "--ignore-eos", "--device", "reference"};
}

TEST_F(Faults, RunStopsWhenNobodyReads) {
  for (const bool ignored : {false, true}) {
    Child child(endless_run(), ignored);
    ASSERT_NE(child.read_some(), "") << child.errors();
    child.close_output();
    const int status = child.wait(kLong);
    if (ignored)
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 2) << status;
    else
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE) << status;
    EXPECT_EQ(child.errors(), ignored ? "quire: cannot write to standard output: Broken pipe\n" : "");
  }
}

// With --json there is no text on the way that could fail to be written.
TEST_F(Faults, RunWithJsonStopsWhenNobodyReads) {
  std::vector<std::string> arguments = endless_run();
  arguments.emplace_back("--json");
  Child child(arguments, true);
  usleep(500000);
  child.close_output();
  const int status = child.wait(kLong);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 2) << status;
}

// ---- Interruption ----

TEST_F(Faults, InterruptedCommandsEndWithinASecond) {
  const std::string long_text = write("long.txt", std::string(3000000, 'x'));
  const std::vector<std::vector<std::string>> work = {
      endless_run(),
      {"run", "-m", kDemo, "-f", write("prompt.txt", std::string(1500, 'x')), "--device", "reference"},
      {"perplexity", "-m", kDemo, "-f", long_text, "--window", "2048"},
      {"compare", kDemo, kDemo, "-f", long_text},
      {"imatrix", "-m", kDemo, "-f", long_text, "-o", path("i.gguf")},
      {"synth", path("s.gguf"), "--preset", "4b-hybrid", "--type", "q4_k"},
      {"quantize", kDemo, path("q.gguf"), "--type", "q4_k", "-t", "1"},
      {"bench", "-m", kDemo, "-r", "100"},
      {"test-ops"}};
  for (const auto& arguments : work) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      SCOPED_TRACE(arguments.front() + " " + std::to_string(signal));
      Child child(arguments);
      usleep(arguments.front() == "quantize" ? 30000 : 400000);
      child.signal(signal);
      const int status = child.wait(kSoon);
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status << " " << child.errors();
      EXPECT_THAT(partial_files(), testing::IsEmpty());
    }
  }
  EXPECT_FALSE(fs::exists(path("s.gguf")));
}

TEST_F(Faults, AnInterruptedCommandSaysWhatWasNotWritten) {
  Child child({"synth", path("s.gguf"), "--preset", "4b-hybrid"});
  const auto end = steady_clock::now() + kLong;
  while (partial_files().empty() && steady_clock::now() < end) usleep(1000);
  child.signal(SIGINT);
  (void)child.wait(kSoon);
  EXPECT_EQ(child.errors(), "quire: interrupted; " + path("s.gguf") + " was not written\n");
}

// Before there is anything of the output: the program has checked that it can write it, and stands at a text that does
// not come.
TEST_F(Faults, ACommandInterruptedBeforeItsFirstByteSaysWhatWasNotWritten) {
  const std::string pipe = path("pipe"), out = path("out");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::vector<std::vector<std::string>> work = {{"imatrix", "-m", m(), "-f", pipe, "-o", out},
                                                      {"eval", "-m", m(), "-f", pipe, "-o", out},
                                                      {"compare", m(), m(), "-f", pipe, "--svg", out},
                                                      {"compare", m(), "-f", pipe, "--save-logits", out}};
  for (const auto& arguments : work) {
    for (const int signal : {SIGINT, SIGTERM}) {
      SCOPED_TRACE(arguments.front());
      Child child(arguments);
      // There is no writer's end before the program has opened its own.
      int writer = -1;
      for (const auto end = steady_clock::now() + kLong; writer < 0 && steady_clock::now() < end; usleep(1000))
        writer = open(pipe.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
      ASSERT_GE(writer, 0) << child.errors();
      child.signal(signal);
      const int status = child.wait(kSoon);
      close(writer);
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << status;
      EXPECT_EQ(child.errors(), "quire: interrupted; " + out + " was not written\n");
      EXPECT_FALSE(fs::exists(out));
      EXPECT_THAT(partial_files(), testing::IsEmpty());
    }
  }
}

// A shell shows 130.
TEST_F(Faults, TheTextSoFarAndTheStatusLineOfAnInterruptedRun) {
  Child child(endless_run());
  ASSERT_NE(child.read_some(), "");
  child.signal(SIGINT);
  const int status = child.wait(kSoon);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
  EXPECT_THAT(child.errors(), StartsWith("[cancelled | "));
}

// ---- Threads and memory ----

TEST_F(Faults, ThreadsThatDoNotStart) {
  if (kSlow) GTEST_SKIP() << "sanitizers take more address space than there would be";
  for (const std::string& arguments :
       {"run -m " + m() + " -p hello -n 2 -t 1000", "perplexity -m " + m() + " -f " + path("text") + " -t 1000",
        "quantize " + m() + " " + path("q.gguf") + " --type q8_0 -t 1000", "bench -m " + m() + " -t 1000"}) {
    const Outcome o = shell("ulimit -v 4000000;", arguments, ">/dev/null");
    EXPECT_EQ(o.code, 3) << arguments;
    EXPECT_TRUE(is_one_line(o.err)) << o.err;
    EXPECT_THAT(o.err, HasSubstr("of 1000 does not start")) << arguments;
    EXPECT_THAT(partial_files(), testing::IsEmpty());
    EXPECT_FALSE(fs::exists(path("q.gguf")));
  }
}

// In every address space from too small to begin to large enough: done, or one line and code 3.
TEST_F(Faults, MemoryThatRunsOut) {
  if (kSlow) GTEST_SKIP() << "sanitizers take more address space than there would be";
  const HfFolder folder(tiny_models().front());
  const std::string big = write("big", std::string(8 << 20, 'x'));
  for (const std::string& arguments :
       {"run -m " + kDemo + " -p hello -n 2", "run -m " + kDemo + " -f " + path("text") + " -n 2 --json",
        "perplexity -m " + kDemo + " -f " + path("text") + " --window 64 --windows 2",
        "quantize " + kDemo + " " + path("q.gguf") + " --type q8_0", "convert " + folder.path() + " " + path("c.gguf"),
        "inspect --json " + kDemo,
        "imatrix -m " + kDemo + " -f " + path("text") + " --window 64 --windows 1 -o " + path("i.gguf"),
        "compare " + kDemo + " " + kDemo + " -f " + path("text") + " --window 64 --windows 1 --save-logits " +
            path("logits"),
        "synth " + path("s.gguf") + " --layers 1 --vocab 512", "tokenize -m " + kDemo + " --json -f " + big}) {
    bool done = false, short_of = false;
    for (int mib = 20; mib < 3000 && !done; mib += mib / 3) {
      const std::string limit = "ulimit -v " + std::to_string(mib * 1024) + ";";
      // Libraries and what is constructed before main() need some, too, and there is nobody yet to say so.
      const int begun = shell(limit, "version", ">/dev/null").code;
      if (begun != 0 && begun != 3) continue;
      const Outcome o = shell(limit, arguments, ">/dev/null");
      done = o.code == 0;
      short_of |= o.code == 3;
      SCOPED_TRACE(arguments + " within " + std::to_string(mib) + " MiB: code " + std::to_string(o.code));
      if (!done) {
        EXPECT_EQ(o.code, 3) << o.err;
        EXPECT_TRUE(is_one_line(o.err)) << o.err;
      }
      EXPECT_THAT(partial_files(), testing::IsEmpty());
    }
    EXPECT_TRUE(done) << arguments;
    EXPECT_TRUE(short_of) << arguments;
  }
}

// ---- Outputs are checked before the work ----

// Of a processor, by programs that have ended: a busy machine does not count.
double children_seconds() {
  rusage used{};
  getrusage(RUSAGE_CHILDREN, &used);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * t.tv_usec; };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

TEST_F(Faults, OutputsThatCannotBeAreRefusedAtOnce) {
  const std::string text = " -f " + path("text"), two = "compare " + kDemo + " " + kDemo + text, none = path("none/x");
  const double begin = children_seconds();
  expect_refused(two + " --svg " + none, "cannot create " + none + ": No such file or directory");
  expect_refused(two + " --svg " + folder_.string(), "Is a directory");
  expect_refused("compare " + kDemo + text + " --save-logits " + none, "cannot create " + none);
  expect_refused("eval -m " + kDemo + " -f " + path("tasks") + " --output " + none, "cannot create " + none);
  expect_refused("imatrix -m " + kDemo + text + " -o " + none, "cannot create " + none);
  expect_refused("imatrix -m " + kDemo + text + " -o " + folder_.string(), "Is a directory");
  expect_refused("imatrix -m " + kDemo + text + " -o /proc/x", "cannot create /proc/x: No such file or directory");
  expect_refused("quantize " + kDemo + " " + none + " --type q8_0", "cannot create " + none);
  EXPECT_LT(children_seconds() - begin, kSlow ? 60 : 4) << "no model was run";
  for (const std::string& arguments :
       {two + " --svg \"\"", "eval -m " + kDemo + " -f " + path("tasks") + " -o \"\"",
        "imatrix -m " + m() + text + " -o \"\"", "quantize " + kDemo + " \"\" --type q8_0", std::string("synth \"\""),
        "convert " + folder_.string() + " \"\""})
    expect_refused(arguments, "is empty");
}

}  // namespace
}  // namespace quire::test
