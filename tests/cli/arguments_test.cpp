// What the program makes of its command line: numbers and texts that are checked as a whole, help, suggestions, words of
// other programs; and text of files and command lines, which reaches a terminal escaped, on one line and bounded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/arguments.h"
#include "gguf/reader.h"
#include "gguf/writer.h"
#include "support/program.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class Arguments : public ProgramTest {
 protected:
  Arguments() {
    for (const TinyModel& m : tiny_models())
      if (m.name == "tiny-qwen3") {
        EXPECT_TRUE(m.write_gguf(path("m.gguf")).ok());
      }
    write("text", std::string(600, 'x'));
  }
  std::string run(const std::string& more) const { return "run -m " + path("m.gguf") + " -p hello " + more; }
  // A script, with quoting as bash has it.
  Outcome bash(const std::string& script) const {
    write("script", script + "\n");
    const int status = std::system(
        ("bash " + path("script") + " >" + path("out") + " 2>" + path("err") + " </dev/null").c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_whole_file(path("out")),
            read_whole_file(path("err"))};
  }
  // The model again, with its metadata changed by `add`.
  template <class Add>
  std::string rewrite(const std::string& name, std::vector<std::string> without, Add&& add) const {
    const gguf::File in = std::move(gguf::File::open(path("m.gguf"))).value();
    gguf::Writer w;
    for (const auto& [key, value] : in.entries())
      if (std::find(without.begin(), without.end(), key) == without.end()) w.add_value(key, value);
    add(w);
    for (const gguf::TensorInfo& t : in.tensors())
      EXPECT_TRUE(
          w.add_tensor(t.name, t.dtype, std::vector<int64_t>(t.dims.begin(), t.dims.begin() + t.n_dims))
              .ok());
    EXPECT_TRUE(w.open(path(name)).ok());
    for (const gguf::TensorInfo& t : in.tensors())
      EXPECT_TRUE(w.write_tensor({t.data, static_cast<size_t>(t.bytes)}).ok());
    EXPECT_TRUE(w.finish().ok());
    return path(name);
  }
};

TEST_F(Arguments, NumbersAreNotSaturated) {
  expect_refused(run("-n 99999999999999999999"), "--max-tokens: 99999999999999999999 is out of range");
  expect_refused(run("-n -99999999999999999999"), "--max-tokens: -99999999999999999999 is out of range");
  expect_refused(run("-s 99999999999999999999"), "--seed: 99999999999999999999 is out of range");
  expect_refused(run("-s -1"), "--seed: '-1' is not a whole number");
  expect_refused(run("-t 99999999999"), "--threads");
  expect_refused(run("--temperature 1e999"), "--temperature: 1e999 is out of range");
  expect_refused(run("--temperature nan"), "--temperature: 'nan' is not a number");
  expect_refused(run("--top-p inf"), "--top-p: 'inf' is not a number");
  for (const char* const bad : {"0x10", "1e3", "1k", "1.5", "+1", "' 1'", "1_000", "abc"})
    expect_refused(run(std::string("-n ") + bad), "is not a whole number");
  expect_refused(run("-n 0"), "--max-tokens 0: must be at least 1, or -1");
  expect_refused(run("-n -2"), "--max-tokens -2: must be at least 1, or -1");
  const Outcome o = quire(run("-n 010 --ignore-eos --json"));
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(nlohmann::json::parse(o.out).at("tokens").size(), 10u) << "ten, and not eight";
}

TEST_F(Arguments, CountsThatMakeNoSense) {
  const std::string text = " -m " + path("m.gguf") + " -f " + path("text");
  expect_refused("synth " + path("s.gguf") + " --layers 0", "--layers 0: must be 1 to 512");
  expect_refused("synth " + path("s.gguf") + " --vocab 0", "--vocab 0: must be ");
  expect_refused("perplexity" + text + " --windows -1", "--windows -1: must be 0 (all) or more");
  expect_refused("perplexity" + text + " --window 1", "--window 1: a window has at least 2 tokens");
  expect_refused("perplexity" + text + " --window -5", "--window -5: a window has at least 2 tokens");
  expect_refused("perplexity" + text + " --window 5000", "less than a window of 5000");
  expect_refused("perplexity" + text + " -t -1", "-1");
}

TEST_F(Arguments, EmptyValues) {
  for (const char* const option : {"-p", "-f", "--tokens", "--stop", "--device", "--dump-layers", "--kernel"})
    expect_refused("run -m " + path("m.gguf") + " " + option + " ''",
                   "is empty; give a value, or leave the option out");
  expect_refused("run -m '' -p x", "--model: is empty");
  expect_refused("inspect ''", "is empty");
  const Outcome o = quire("tokenize -m " + path("m.gguf") + " -p '' --no-bos --json");
  EXPECT_EQ(o.out, "{\"tokens\":[]}\n") << "the empty text has tokens: none";
}

TEST_F(Arguments, Help) {
  EXPECT_EQ(quire("help").out, quire("--help").out);
  EXPECT_EQ(quire("help run").out, quire("run --help").out);
  EXPECT_THAT(quire("help run").out, HasSubstr("--max-tokens"));
  EXPECT_THAT(quire("help").out, HasSubstr("quire help COMMAND"));
  expect_refused("help nope", "there is no command 'nope'");
}

TEST_F(Arguments, Suggestions) {
  expect_refused("perplexty", "there is no command 'perplexty', did you mean perplexity; there are run,");
  expect_refused(run("--max-token 3"),
                 "run has no option --max-token, did you mean --max-tokens; see quire help run");
  expect_refused(run("--temprature=3"), "run has no option --temprature, did you mean --temperature");
  expect_refused(run("--penalty 3"), "did you mean --repetition-penalty");
  expect_refused(run("--qwertz 3"), "run has no option --qwertz; see quire help run");
  expect_refused("inspect " + path("m.gguf") + " more",
                 "inspect takes no further argument, but there is 'more'");
}

TEST_F(Arguments, WordsOfLlamaCpp) {
  expect_refused(run("-ngl 99"),
                 "-ngl is an option of llama.cpp: a model runs on one device as a whole: --device cuda");
  expect_refused(run("--n-gpu-layers=99"), "--n-gpu-layers is an option of llama.cpp");
  expect_refused(run("-cnv"), "-cnv is an option of llama.cpp");
  expect_refused("bench -m " + path("m.gguf") + " -fa 1", "-fa is an option of llama.cpp");
}

TEST_F(Arguments, OneNameForOneIdea) {
  const std::string m = path("m.gguf"), text = path("text");
  for (const std::string& command :
       {"perplexity -m " + m + " -f " + text, "compare " + m + " " + m + " -f " + text,
        "imatrix -m " + m + " -f " + text + " -o " + path("i")})
    for (const char* const name : {"--windows", "--max-windows", "--chunks"})
      EXPECT_EQ(quire(command + " --window 64 -t 1 " + name + " 1").code, 0) << command << name;
  EXPECT_EQ(quire("quantize " + m + " " + path("q") + " --type Q8_0 -t 1").code, 0) << "types in any case";
  EXPECT_EQ(quire("tokenize -m " + m + " -f " + text).code, 0);
  EXPECT_EQ(quire(run("-n 1 --kv-cache-dtype BF16")).code, 0);
}

TEST_F(Arguments, Nearest) {
  const std::vector<std::string> names = {"run", "serve", "perplexity", "--max-tokens"};
  EXPECT_EQ(cli::nearest("rnu", names), "run");
  EXPECT_EQ(cli::nearest("server", names), "serve");
  EXPECT_EQ(cli::nearest("--tokens", names), "--max-tokens");
  EXPECT_EQ(cli::nearest("quantum", names), "");
  EXPECT_EQ(cli::nearest("", names), "");
  EXPECT_EQ(cli::nearest(std::string(100000, 'x'), names), "");
}

// ---- Prompts ----

TEST_F(Arguments, PositionalModelAndPrompt) {
  const std::string want = quire(run("-n 4 --ignore-eos")).out;
  EXPECT_EQ(quire("run " + path("m.gguf") + " hello -n 4 --ignore-eos").out, want);
  EXPECT_EQ(quire("run -n 4 --ignore-eos -m " + path("m.gguf") + " hello").out, want);
}

TEST_F(Arguments, TheTemplateIsTheDefault) {
  const auto prompt = [&](const std::string& options) {
    const Outcome o = quire(run(options + " -n 1 --json"));
    EXPECT_EQ(o.code, 0) << o.err;
    return o.code == 0 ? nlohmann::json::parse(o.out).at("prompt_token_ids") : nlohmann::json();
  };
  EXPECT_EQ(prompt(""), prompt("--chat"));
  EXPECT_NE(prompt(""), prompt("--raw"));
  expect_refused(run("--raw --chat"), "--raw leaves the chat template out");
  const std::string plain = rewrite("plain.gguf", {"tokenizer.chat_template"}, [](gguf::Writer&) {});
  const Outcome o = quire("run " + plain + " hello -n 1 --json");
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(nlohmann::json::parse(o.out).at("prompt_token_ids"), prompt("--raw"))
      << "where there is none, text";
}

TEST_F(Arguments, UntilTheEnd) {
  const Outcome o = quire("run " + path("m.gguf") + " hello --raw -n -1 -c 64 --ignore-eos --json");
  ASSERT_EQ(o.code, 0) << o.err;
  const auto j = nlohmann::json::parse(o.out);
  EXPECT_EQ(j.at("tokens").size() + j.at("prompt_tokens").get<size_t>(), 64u);
}

TEST_F(Arguments, TokensFromStandardInput) {
  const std::string m = path("m.gguf"), program = QUIRE_PROGRAM;
  const std::string want = quire("run " + m + " hello --raw -n 4 --ignore-eos").out;
  for (const char* const how : {"", "--json"}) {
    const Outcome o = bash(program + " tokenize -m " + m + " -p hello " + how + " | " + program + " run " +
                           m + " --tokens - -n 4 --ignore-eos");
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_EQ(o.out, want) << how;
  }
  expect_refused("run " + m + " --tokens -", "--tokens: no token given");
}

TEST_F(Arguments, TheFileRecommendsHowToSample) {
  const std::string m = rewrite("s.gguf", {}, [](gguf::Writer& w) {
    w.add("general.sampling.temp", 1.5f);
    w.add("general.sampling.top_k", int32_t{7});
  });
  const auto text = [&](const std::string& options) {
    return quire("run " + options + " hello -n 12 --ignore-eos --raw").out;
  };
  const std::string drawn = text(path("m.gguf") + " --temperature 1.5 --top-k 7");
  EXPECT_EQ(text(m), drawn);
  EXPECT_NE(drawn, text(path("m.gguf")));
  EXPECT_EQ(text(m + " --temperature 0"), text(path("m.gguf"))) << "the command line decides";
}

// ---- Text of strangers ----

// What could move a terminal's cursor, end a line, or turn the direction of writing.
void expect_harmless(const std::string& text) {
  for (const unsigned char c : text) EXPECT_TRUE((c >= 0x20 && c != 0x7f) || c == '\n') << text;
  EXPECT_EQ(text.find("\xc2\x9b"), text.npos) << text;
  EXPECT_EQ(text.find("\u202e"), text.npos) << text;
  EXPECT_LE(text.size(), 2100u);
}

TEST_F(Arguments, FileNamesInErrors) {
  const std::string evil = "$'\\x1b[2J\\n\\xc2\\x9b\\xe2\\x80\\xae'";
  for (const std::string& command :
       {"run -m " + evil + " -p x", "inspect " + evil, "perplexity -m " + path("m.gguf") + " -f " + evil,
        "quantize " + path("m.gguf") + " none/" + evil + " --type q8_0",
        "eval -m " + path("m.gguf") + " -f " + evil, run("--device " + evil), run("--kernel " + evil),
        run("--" + evil), evil, "--log-level " + evil + " version", "help " + evil,
        "convert " + evil + " x.gguf", "inspect " + std::string(3000, 'y')}) {
    const Outcome o = bash(std::string(QUIRE_PROGRAM) + " " + command);
    EXPECT_EQ(o.code, 2) << command;
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
    expect_harmless(o.err);
  }
}

TEST_F(Arguments, ATemplateThatRaises) {
  const std::string m = rewrite("t.gguf", {"tokenizer.chat_template"}, [](gguf::Writer& w) {
    w.add_string("tokenizer.chat_template", "{{ raise_exception('\x1b[2Jgone\n\u202e' ~ 'x' * 50000) }}");
  });
  const Outcome o = quire("run " + m + " hello");
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.err, HasSubstr("refuses the conversation (line 1): \\u001b[2Jgone\\n\\u202exxx"));
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1);
  expect_harmless(o.err);
}

}  // namespace
}  // namespace quire::test
