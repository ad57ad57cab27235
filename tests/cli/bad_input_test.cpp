// What the program says to bad files, options and prompts: exactly one line on standard error that begins
// with "quire: " and names what is wrong, nothing on standard output, exit code 2.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/all_commands.h"
#include "gguf/reader.h"
#include "support/gguf_edit.h"
#include "support/program.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class BadInput : public ProgramTest {
 protected:
  BadInput() {
    for (const TinyModel& m : tiny_models())
      if (m.name == "tiny-qwen3") {
        EXPECT_TRUE(m.write_gguf(path("good.gguf")).ok());
      }
  }

  std::string run(const std::string& model, const std::string& more = "-p hello") const {
    return "run -m " + model + " -n 4 " + more;
  }

  // The good model again, with some changes.
  struct Changes {
    std::string architecture, drop, reshape;
    std::vector<int64_t> dims = {};  // of `reshape`; none: its first two are exchanged
  };
  std::string rewrite(const std::string& name, const Changes& c) const {
    GgufEdit edit;
    if (!c.drop.empty()) edit.drop.insert(c.drop);
    if (!c.architecture.empty()) {
      edit.drop.insert("general.architecture");
      edit.metadata = [&](gguf::Writer& w) { w.add_string("general.architecture", c.architecture); };
    }
    if (!c.reshape.empty()) {
      const gguf::File good = std::move(gguf::File::open(path("good.gguf"))).value();
      const gguf::TensorInfo* t = good.find_tensor(c.reshape);
      edit.reshape[c.reshape] = c.dims.empty() ? std::vector<int64_t>{t->dims[1], t->dims[0]} : c.dims;
    }
    edit_gguf(path("good.gguf"), path(name), edit);
    return path(name);
  }
};

TEST_F(BadInput, Files) {
  const std::string good = read_whole_file(path("good.gguf"));
  expect_refused(run(path("none.gguf")), "none.gguf: No such file or directory");
  expect_refused(run(write("empty.gguf", "")), "empty.gguf");
  expect_refused(run(write("text.gguf", std::string(500, 'x'))), "text.gguf");
  expect_refused(run(write("header.gguf", good.substr(0, 3000))), "header.gguf");
  expect_refused(run(write("short.gguf", good.substr(0, good.size() - 64))), "short.gguf");
  expect_refused(run(folder_), "has no config.json");
  expect_refused("inspect " + path("none.gguf"), "No such file or directory");
  expect_refused("perplexity -m " + path("good.gguf") + " -f " + path("none.txt"), "No such file or directory");
  expect_refused("perplexity -m " + path("good.gguf") + " -f /dev/null",
                 "the text has 0 tokens, less than a window of 512");
}

TEST_F(BadInput, Models) {
  ASSERT_EQ(quire(run(rewrite("same.gguf", {}))).code, 0) << "rewriting itself does no harm";
  expect_refused(run(rewrite("arch.gguf", {.architecture = "mamba9"})), "architecture 'mamba9' is not supported");
  expect_refused(run(rewrite("missing.gguf", {.drop = "blk.1.ffn_down.weight"})), "blk.1.ffn_down.weight");
  expect_refused(run(rewrite("shape.gguf", {.reshape = "blk.0.attn_k.weight"})), "blk.0.attn_k.weight: shape");
}

// As many elements as are needed are not a shape. A dimension of one more or less is: writers differ in that.
TEST_F(BadInput, ShapesWithTheRightProduct) {
  const gguf::File good = std::move(gguf::File::open(path("good.gguf"))).value();
  const int64_t width = good.find_tensor("output_norm.weight")->dims[0];
  const int64_t head = good.find_tensor("blk.0.attn_q_norm.weight")->dims[0];
  ASSERT_EQ(width % 4 + head % 4, 0);
  for (const auto& [name, n] : {std::pair{"output_norm.weight", width},
                                {"blk.1.attn_norm.weight", width},
                                {"blk.0.ffn_norm.weight", width},
                                {"blk.0.attn_q_norm.weight", head}}) {
    for (const std::vector<int64_t>& dims : {std::vector<int64_t>{n / 2, 2}, {2, n / 2}, {n / 4, 2, 2}})
      expect_refused(run(rewrite("product.gguf", {.reshape = name, .dims = dims})),
                     fmt::format("tensor {}: shape [{}] does not fit the model, which needs [{}]", name,
                                 fmt::join(dims, ", "), n));
    for (const std::vector<int64_t>& dims : {std::vector<int64_t>{n, 1}, {1, n}})
      EXPECT_EQ(quire(run(rewrite("one.gguf", {.reshape = name, .dims = dims}))).code, 0) << name;
  }
}

TEST_F(BadInput, ANumberThatIsNoneHasNoPerplexity) {
  std::string bytes = read_whole_file(path("good.gguf"));
  {
    const gguf::File f = std::move(gguf::File::open(path("good.gguf"))).value();
    const gguf::TensorInfo* norm = f.find_tensor("output_norm.weight");
    const std::string_view values(reinterpret_cast<const char*>(norm->data), static_cast<size_t>(norm->bytes));
    const size_t at = bytes.find(values);
    ASSERT_NE(at, std::string::npos);
    const uint32_t nan = 0x7fc00000;
    std::memcpy(bytes.data() + at, &nan, sizeof nan);
  }
  expect_refused("perplexity -m " + write("nan.gguf", bytes) + " --window 8 -f " +
                     write("text.txt", "one two three four five six seven eight nine ten eleven twelve"),
                 "the model computes values that are not finite (window 0 of ");
}

TEST_F(BadInput, CommandsAndOptions) {
  const std::string good = path("good.gguf");
  expect_refused("nope", "there is no command 'nope'; there are run,");
  expect_refused("--log-level error nope", "there is no command 'nope'");
  expect_refused("", "give a command: run,");
  expect_refused("--bogus", "--bogus");
  expect_refused("run", "give a model: quire run FILE");
  expect_refused(run(good, "--bogus"), "--bogus");
  expect_refused(run(good, "-p hi --max-tokens abc"), "--max-tokens");
  expect_refused(run(good, "-p hi --device tpu"), "--device tpu: must be auto, cpu, cuda or reference");
  expect_refused(run(good, "-p hi --kernel linear"), "--kernel linear: write it as operator=kernel");
  expect_refused(run(good, "-p hi --kernel nope=avx2"), "there is no operator nope (there are: embed,");
  expect_refused(run(good, "-p hi --kernel linear=nope"), "operator linear has no kernel nope (it has: ");
  expect_refused(run(good, "-p hi --temperature -1"), "--temperature -1: must be between 0 and 100");
  expect_refused(run(good, "-p hi --logit-bias x=1"), "--logit-bias x=1: write it as token=value");
  expect_refused("--log-level loud " + run(good), "no log level 'loud'");
}

TEST_F(BadInput, Prompts) {
  const std::string good = path("good.gguf");
  expect_refused(run(good, ""), "the prompt is empty");
  expect_refused(run(good, "-f " + folder_.string()), "Is a directory");
  expect_refused(run(good, "-f " + path("none.txt")), "No such file or directory");
  expect_refused(run(good, "-p a --tokens 1"), "give one of --prompt, --file and --tokens");
  expect_refused(run(good, "--tokens 1,,2"), "--tokens: expected numbers separated by commas, at character 3");
  expect_refused(run(good, "--tokens 1,2,"), "--tokens: expected numbers separated by commas");
  expect_refused(run(good, "--tokens 99999999999"), "--tokens: expected numbers");
  expect_refused(run(good, "--tokens 5,99999"), "prompt token 1 is 99999: the vocabulary has ");
  expect_refused(run(good, "-p 0123456789 -c 8"), "but the context holds 8 including the answer");
  expect_refused(run(good, "-f " + write("long.txt", std::string(5000, '\xc3'))),
                 "but the context holds 2048 including the answer");
  expect_refused(run(rewrite("plain.gguf", {.drop = "tokenizer.chat_template"}), "--chat -p hi"),
                 "this model file has no chat template");
}

// A byte that belongs to no character counts as U+FFFD: no reason to refuse anything.
TEST_F(BadInput, InvalidUtf8IsReplaced) {
  const auto ids = [&](const std::string& text) {
    const Outcome o = quire(run(path("good.gguf"), "--json -f " + write("prompt.txt", text)));
    EXPECT_EQ(o.code, 0) << o.err;
    return nlohmann::json::parse(o.out).at("prompt_token_ids").get<std::vector<int>>();
  };
  EXPECT_EQ(ids("ab\xff"
                "cd"),
            ids("ab\uFFFD"
                "cd"));
}

TEST_F(BadInput, JsonIsOneObject) {
  const std::string arguments = run(path("good.gguf"), "-p 'The wheel' --json --ignore-eos --temperature 0");
  Outcome o = quire(arguments + " --logprobs 3");
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.err, "");
  const nlohmann::json j = nlohmann::json::parse(o.out);
  EXPECT_EQ(j.at("prompt_tokens"), j.at("prompt_token_ids").size());
  EXPECT_EQ(j.at("tokens").size(), 4u);
  EXPECT_TRUE(j.at("text").is_string());
  EXPECT_EQ(j.at("finish_reason"), "length");
  ASSERT_EQ(j.at("logprobs").size(), 4u);
  EXPECT_EQ(j["logprobs"][0].at("top").size(), 3u);
  EXPECT_EQ(j["logprobs"][0]["top"][0].at("token"), j["tokens"][0]);
  EXPECT_EQ(j["logprobs"][0]["top"][0].at("logprob"), j["logprobs"][0].at("logprob"));
  EXPECT_GE(j.at("timings").at("generated_tokens_per_second"), 0);
  o = quire(arguments);
  EXPECT_FALSE(nlohmann::json::parse(o.out).contains("logprobs")) << "only when asked for";
}

TEST_F(BadInput, EveryCommandHasHelp) {
  for (const cli::Command& c : all_commands()) {
    const Outcome o = quire(std::string(c.name) + " --help");
    EXPECT_EQ(o.code, 0) << c.name;
    std::string unfolded = o.out;
    std::replace(unfolded.begin(), unfolded.end(), '\n', ' ');
    EXPECT_THAT(unfolded, HasSubstr(c.summary));
    EXPECT_EQ(o.err, "");
  }
  EXPECT_EQ(quire("--help").code, 0);
  EXPECT_EQ(quire("--version").code, 0);
}

}  // namespace
}  // namespace quire::test
