// What the program makes of its command line: numbers and texts that are checked as a whole, help, suggestions, words
// of other programs; and text of files and command lines, which reaches a terminal escaped, on one line and bounded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "command/arguments.h"
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
    const int status =
        std::system(("bash " + path("script") + " >" + path("out") + " 2>" + path("err") + " </dev/null").c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_whole_file(path("out")), read_whole_file(path("err"))};
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
      EXPECT_TRUE(w.add_tensor(t.name, t.dtype, std::vector<int64_t>(t.dims.begin(), t.dims.begin() + t.n_dims)).ok());
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
  expect_refused(run("-t 99999999999"), "--threads");
  expect_refused(run("--temperature 1e999"), "--temperature: 1e999 is out of range");
  expect_refused(run("--temperature nan"), "--temperature: 'nan' is not a number");
  expect_refused(run("--top-p inf"), "--top-p: 'inf' is not a number");
  for (const char* const bad : {"0x10", "1e3", "1kb", "1.5", "1.5K", "+1", "' 1'", "1_000", "abc"})
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
  expect_refused("compare " + path("m.gguf") + text + " --window 0", "--window 0: a window has at least 2 tokens");
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
  expect_refused(run("--max-token 3"), "run has no option --max-token, did you mean --max-tokens; see quire help run");
  expect_refused(run("--temprature=3"), "run has no option --temprature, did you mean --temperature");
  expect_refused(run("--penalty 3"), "did you mean --repetition-penalty");
  expect_refused(run("--qwertz 3"), "run has no option --qwertz; see quire help run");
  expect_refused("inspect " + path("m.gguf") + " more", "inspect takes no further argument, but there is 'more'");
}

TEST_F(Arguments, WordsOfLlamaCpp) {
  expect_refused(run("-ngl 99"),
                 "-ngl is an option of llama.cpp: a model runs on one device as a whole; --device cuda");
  expect_refused(run("--n-gpu-layers=99"), "--n-gpu-layers is an option of llama.cpp");
  expect_refused(run("-cnv"), "-cnv is an option of llama.cpp");
  expect_refused("bench -m " + path("m.gguf") + " -fa 1", "-fa is an option of llama.cpp");
}

// All of a pasted line's options at once.
TEST_F(Arguments, WordsOfVllm) {
  expect_refused(
      "serve " + path("m.gguf") + " -tp 2 --dtype auto",
      "-tp is an option of vLLM: tensors are not divided among GPUs; --pipeline-parallel-size puts a model's "
      "layers on several; --dtype is an option of vLLM: weights are computed with in");
  expect_refused("serve " + path("m.gguf") + " --no-enable-chunked-prefill -O3 --compilation-config.level 3",
                 "--no-enable-chunked-prefill is an option of vLLM: prompts are always computed in pieces");
  expect_refused("serve " + path("m.gguf") + " --enforce_eager", "--no-graphs launches every kernel by itself");
}

// CLI11 would read -tp 2 as -t with the value p.
TEST_F(Arguments, LettersAreNoValues) {
  expect_refused("serve " + path("m.gguf") + " -cb", "-cb is an option of llama.cpp: requests always share");
  expect_refused("serve -md draft.gguf -m " + path("m.gguf"), "-md is an option of llama.cpp: no second model drafts");
  expect_refused("serve " + path("m.gguf") + " -ub 512",
                 "-ub is an option of llama.cpp: --max-num-batched-tokens says how many");
  expect_refused(run("-tx 2"), "run has no option -tx (write a value apart: -t x); see quire help run");
  expect_refused("inspect -m" + path("m.gguf"), "(write a value apart: -m /");
  EXPECT_EQ(quire(run("-n2 -t1")).code, 0) << "a number may follow its letter";
  EXPECT_EQ(quire(run("-n=2 -t=1")).code, 0);
  EXPECT_EQ(quire("run " + path("m.gguf") + " -p -fa -n 1").code, 0) << "the value of an option is no option";
}

TEST_F(Arguments, HintsDoNotMislead) {
  for (const char* const option : {"--temp", "--dtype"}) {
    const Outcome o = quire("inspect " + path("m.gguf") + " " + option + " 1");
    EXPECT_EQ(o.err, "quire: inspect has no option " + std::string(option) + "; see quire help inspect\n");
  }
  expect_refused("serve " + path("m.gguf") + " --temp 1", "a request says how its tokens are chosen");
}

TEST_F(Arguments, LettersForThousands) {
  // From the table of memory on: the lines before it have a speed, which is measured.
  const auto context = [&](const std::string& c) {
    const std::string out = quire("inspect " + path("m.gguf") + " -c " + c).out;
    return out.substr(std::min(out.size(), out.find("memory to run")));
  };
  EXPECT_NE(context("1k"), "");
  EXPECT_EQ(context("1k"), context("1000"));
  EXPECT_EQ(context("1K"), context("1024"));
  EXPECT_EQ(context("1.5k"), context("1500"));
  EXPECT_NE(context("1k"), context("1K"));
  expect_refused(run("-n 99999999999999g"), "--max-tokens: 99999999999999g is out of range");
}

TEST_F(Arguments, UnderscoresAreDashes) {
  EXPECT_EQ(quire(run("--max_tokens 2 --ignore_eos --batch_tokens=64")).code, 0);
  EXPECT_EQ(quire("--log_level warning inspect " + path("m.gguf")).code, 0);
}

TEST_F(Arguments, OneNameForOneIdea) {
  const std::string m = path("m.gguf"), text = path("text");
  for (const std::string& command : {"perplexity -m " + m + " -f " + text, "compare " + m + " " + m + " -f " + text,
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
  EXPECT_EQ(quire("run hello -n 4 --ignore-eos -m " + path("m.gguf")).out, want);
  EXPECT_EQ(quire("run --stop nothing " + path("m.gguf") + " hello -n 4 --ignore-eos").out, want);
}

// As in other programs: scripts put what they were given behind their own.
TEST_F(Arguments, OfAFlagGivenTwiceTheLastOneCounts) {
  const std::string want = quire(run("-n 4 --ignore-eos")).out;
  EXPECT_EQ(quire(run("-n 2 -n 4 --ignore-eos")).out, want);
  EXPECT_EQ(quire(run("--max-tokens=2 --ignore-eos --ignore-eos -n 4 --seed 5 --seed 0")).out, want);
  EXPECT_EQ(quire("run -m " + path("none") + " -p x -p hello -n 4 --ignore-eos -m " + path("m.gguf")).out, want);
  EXPECT_NE(quire(run("-n 4 -n 2 --ignore-eos")).out, want);
  expect_refused(run("-n x -n 4"), "'x' is not a whole number");
  // What may be given several times keeps all of them.
  EXPECT_NE(quire(run("-n 4 --stop a --stop b --kernel gemm=none --kernel embed=none")).code, 0);
}

TEST_F(Arguments, SeedsAreAny64Bits) {
  const auto text = [&](const std::string& seed) {
    const Outcome o = quire(run("-n 8 --temp 2 --ignore-eos --seed " + seed));
    EXPECT_EQ(o.code, 0) << o.err;
    return o.out;
  };
  EXPECT_EQ(text("-1"), text("18446744073709551615"));
  EXPECT_EQ(text("-9223372036854775808"), text("9223372036854775808"));
  EXPECT_NE(text("-1"), text("-2"));
  for (const char* wrong : {"18446744073709551616", "-9223372036854775809", "1.5", "x"})
    expect_refused(run(std::string("--seed ") + wrong), wrong);
}

// By position or as -m, in every command that takes a model.
TEST_F(Arguments, TheModelOfEveryCommand) {
  const std::string m = path("m.gguf"), text = " -f " + path("text") + " --window 64 --windows 1 -t 1";
  write("tasks", R"({"id": 1, "type": "t", "prompt": "a", "expected": "b"})"
                 "\n");
  for (const std::string& rest : std::vector<std::string>{
           "tokenize MODEL hello", "inspect MODEL", "perplexity MODEL" + text, "eval MODEL -f " + path("tasks"),
           "bench MODEL -p 8 -n 2 -r 1 --batch 1", "bench-batch MODEL -npp 8 -ntg 2 -npl 1 -r 1",
           "imatrix MODEL" + text + " -o " + path("i"), "quantize MODEL " + path("q") + " --type q8_0",
           "compare " + m + " MODEL" + text}) {
    for (const std::string& how : {m, "-m " + m, "--model=" + m}) {
      std::string command = rest;
      command.replace(command.find("MODEL"), 5, how);
      const Outcome o = quire(command);
      EXPECT_EQ(o.code, 0) << command << "\n" << o.err;
    }
  }
  EXPECT_EQ(quire("quantize " + path("q2") + " --type q8_0 -m " + m).code, 0) << "what stands alone is the output";
  EXPECT_EQ(quire("quantize --type q8_0 -o " + path("q3") + " " + m).code, 0);
  expect_refused("serve", "give a model: quire serve FILE");
  expect_refused("compare " + m + text, "give two models");
  expect_refused("serve " + path("none") + " --port 0", "none: No such file");
  expect_refused("serve -a one two " + path("none") + " --port 0", "none: No such file");
  expect_refused("serve " + path("none") + " -a one two --port 0", "none: No such file");
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
  EXPECT_EQ(nlohmann::json::parse(o.out).at("prompt_token_ids"), prompt("--raw")) << "where there is none, text";
}

TEST_F(Arguments, UntilTheEnd) {
  const Outcome o = quire("run " + path("m.gguf") + " hello --raw -n -1 -c 64 --ignore-eos --json");
  ASSERT_EQ(o.code, 0) << o.err;
  const auto j = nlohmann::json::parse(o.out);
  EXPECT_EQ(j.at("tokens").size() + j.at("prompt_tokens").get<size_t>(), 64u);
}

TEST_F(Arguments, PromptsWithoutAnEnd) {
  const std::string m = path("m.gguf"), program = QUIRE_PROGRAM;
  for (const char* const command : {"run", "tokenize"})
    expect_refused(command + (" -m " + m) + " -f /dev/zero", "/dev/zero is a device, not a text; give a file");
  expect_refused("perplexity -m " + m + " -f /dev/urandom", "/dev/urandom is a device");
  const Outcome device = bash(program + " run " + m + " -f - </dev/zero");
  EXPECT_THAT(device.err, HasSubstr("standard input is a device"));
  const Outcome pipe = bash("yes | " + program + " run " + m + " -c 64");
  EXPECT_EQ(pipe.code, 2);
  EXPECT_THAT(pipe.err, testing::MatchesRegex("quire: standard input has more than [0-9]+ bytes: no text so long fits "
                                              "a context of 64 tokens\n"));
  const Outcome fits = bash("echo hello | " + program + " run " + m + " -c 64 -n 1");
  EXPECT_EQ(fits.code, 0) << fits.err;
}

TEST_F(Arguments, TokensFromStandardInput) {
  const std::string m = path("m.gguf"), program = QUIRE_PROGRAM;
  const std::string want = quire("run " + m + " hello --raw -n 4 --ignore-eos").out;
  for (const char* const how : {"", "--json"}) {
    const Outcome o = bash(program + " tokenize -m " + m + " -p hello " + how + " | " + program + " run " + m +
                           " --tokens - -n 4 --ignore-eos");
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
        "quantize " + path("m.gguf") + " none/" + evil + " --type q8_0", "eval -m " + path("m.gguf") + " -f " + evil,
        run("--device " + evil), run("--kernel " + evil), run("--" + evil), evil, "--log-level " + evil + " version",
        "help " + evil, "convert " + evil + " x.gguf", "inspect " + std::string(3000, 'y')}) {
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
