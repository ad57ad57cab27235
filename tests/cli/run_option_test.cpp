// What `quire run` does where nobody says: how long an answer is, how it is sampled; and positions that a command line
// scales.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "gguf/reader.h"
#include "support/gguf_edit.h"
#include "support/program.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class RunOptionsTest : public ProgramTest {
 protected:
  std::string model(const std::string& name) const {
    for (const TinyModel& m : tiny_models())
      if (m.name == name) {
        EXPECT_TRUE(m.write_gguf(path(name + ".gguf")).ok());
      }
    return path(name + ".gguf");
  }
  json answer(const std::string& arguments) const {
    const Outcome o = quire("run " + arguments + " --json");
    EXPECT_EQ(o.code, 0) << o.err;
    return o.code == 0 ? json::parse(o.out) : json();
  }
};

TEST_F(RunOptionsTest, AnAnswerEndsByItselfOrWithTheContext) {
  const std::string m = model("tiny-qwen3");
  for (const char* length : {"", " -n -1", " -n 8k"}) {
    const json j = answer(m + " hello -c 64 --ignore-eos" + length);
    EXPECT_EQ(j.at("tokens").size() + j.at("prompt_tokens").get<size_t>(), 64u) << length;
    EXPECT_EQ(j.at("finish_reason"), "length");
  }
  EXPECT_GT(answer(m + " hello --raw -c 700 --ignore-eos").at("tokens").size(), 600u);
}

TEST_F(RunOptionsTest, AChatIsSampledAsTheFamilysMakersPublish) {
  const std::string m = model("tiny-qwen3") + " hello -n 24 --ignore-eos";
  const auto tokens = [&](const std::string& more) { return answer(m + more).at("tokens"); };
  const std::string plain = " --top-p 0.8 --top-k 20 --min-p 0";
  EXPECT_EQ(tokens(""), tokens(" --temperature 0.7" + plain));
  EXPECT_EQ(tokens(" --seed 5"), tokens(" --temperature 0.7 --seed 5" + plain));
  EXPECT_NE(tokens(""), tokens(" --seed 5"));
  EXPECT_EQ(tokens(" --think"), tokens(" --think --temperature 0.6 --top-p 0.95 --top-k 20 --min-p 0"));
  EXPECT_EQ(tokens(" --top-k 3"), tokens(" --temperature 0.7 --top-k 3 --top-p 0.8 --min-p 0"));
  EXPECT_NE(tokens(""), tokens(" --temperature 0"));
  // Texts that are continued are greedy.
  EXPECT_EQ(tokens(" --raw"), tokens(" --raw --temperature 0"));
}

// A penalty of the family would change what is asked for greedily.
TEST_F(RunOptionsTest, GreedyIsGreedy) {
  const std::string m = model("tiny-qwen35") + " hello -n 24 --ignore-eos --temperature 0";
  EXPECT_EQ(answer(m).at("tokens"), answer(m + " --presence-penalty 0").at("tokens"));
  EXPECT_NE(answer(m).at("tokens"), answer(m + " --presence-penalty 1.5").at("tokens"));
}

// ---- Positions ----

class RopeOption : public RunOptionsTest {
 protected:
  RopeOption() : plain_(model("tiny-qwen3")) {}
  // The model with keys of its own.
  std::string with_keys(const std::string& name, const std::string& type, std::map<std::string, float> numbers,
                        uint32_t original) const {
    edit_gguf(plain_, path(name), {.metadata = [&](gguf::Writer& w) {
                w.add_string("qwen3.rope.scaling.type", type);
                w.add("qwen3.rope.scaling.original_context_length", original);
                for (const auto& [key, value] : numbers) w.add("qwen3.rope.scaling." + key, value);
              }});
    return path(name);
  }
  // The likeliest tokens and their probabilities after a text: what of it no scaling changes, two do not share.
  json logprobs(const std::string& arguments) const {
    return answer(arguments + " --tokens 5,6,7,8,9,10,11,12,13,14,15 -n 8 --ignore-eos --logprobs 3").at("logprobs");
  }
  std::string plain_;
};

TEST_F(RopeOption, IsWhatTheFileWouldSay) {
  const std::string yarn = with_keys("yarn.gguf", "yarn", {{"factor", 4.0F}}, 32);
  const std::string flags = " --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 32";
  EXPECT_EQ(logprobs(plain_ + flags), logprobs(yarn));
  EXPECT_NE(logprobs(plain_), logprobs(yarn));
  EXPECT_EQ(logprobs(yarn + " --rope-scaling none"), logprobs(plain_));
  EXPECT_EQ(logprobs(plain_ + " --rope-scaling linear --rope-scale 2"),
            logprobs(with_keys("linear.gguf", "linear", {{"factor", 2.0F}}, 32)));
  // Over the file's, one by one.
  EXPECT_EQ(logprobs(yarn + " --rope-scale 8"), logprobs(with_keys("8.gguf", "yarn", {{"factor", 8.0F}}, 32)));
  EXPECT_EQ(logprobs(yarn + " --yarn-orig-ctx 16"), logprobs(with_keys("16.gguf", "yarn", {{"factor", 4.0F}}, 16)));
  EXPECT_EQ(logprobs(yarn + " --yarn-attn-factor 0.5 --yarn-beta-fast 8 --yarn-beta-slow 0.05"),
            logprobs(with_keys(
                "all.gguf", "yarn",
                {{"factor", 4.0F}, {"attn_factor", 0.5F}, {"yarn_beta_fast", 8.0F}, {"yarn_beta_slow", 0.05F}}, 32)));
  EXPECT_NE(logprobs(yarn + " --yarn-beta-slow 0.05"), logprobs(yarn));
  EXPECT_EQ(logprobs(yarn + " --yarn-beta-fast 32 --yarn-beta-slow 1 --yarn-ext-factor 1"), logprobs(yarn));
  EXPECT_EQ(logprobs(yarn + " --yarn-ext-factor 0"), logprobs(plain_ + " --rope-scaling linear --rope-scale 4"))
      << "nothing is left as it is";
}

TEST_F(RopeOption, MakesTheContextLonger) {
  const std::string flags = " --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 1024 --tokens 1,2 -n 1";
  EXPECT_NE(answer(plain_ + flags).at("fingerprint"), answer(plain_ + " --tokens 1,2 -n 1").at("fingerprint"));
  const Outcome o = quire("run " + plain_ + flags);
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.err, HasSubstr("prompts that fit the context of the training are answered a little worse"));
  const std::string context = std::to_string(gguf::File::open(plain_).value().get_u32("qwen3.context_length").value());
  EXPECT_EQ(quire("run " + plain_ + " --tokens 1,2 -n 1 -c " + context + "0").code, 2) << "more than the training's";
  EXPECT_EQ(quire("run " + plain_ + " --tokens 1,2 -n 1 --rope-scaling yarn --rope-scale 16 -c " + context + "0").code,
            0);
}

TEST_F(RopeOption, WhatCannotBeIsRefused) {
  const auto refuse = [&](const std::string& flags, const std::string& reason) {
    expect_refused("run " + plain_ + " --tokens 1,2 -n 1 " + flags, reason);
  };
  refuse("--rope-scaling dynamic --rope-scale 2", "--rope-scaling dynamic: must be none, linear or yarn");
  refuse("--rope-scaling yarn", "say how many times longer contexts become");
  refuse("--rope-scale 4", "the model's positions are not scaled: say how with --rope-scaling yarn");
  refuse("--yarn-beta-fast 8", "the model's positions are not scaled");
  refuse("--rope-scaling yarn --rope-scale 0", "--rope-scale 0: must be between 1 and 1024");
  refuse("--rope-scaling yarn --rope-scale 1e9", "must be between 1 and 1024");
  refuse("--rope-scaling yarn --rope-scale 2 --yarn-orig-ctx 0", "--yarn-orig-ctx 0: must be at least 1");
  refuse("--rope-scaling yarn --rope-scale 2 --yarn-ext-factor 2", "--yarn-ext-factor 2: must be between 0 and 1");
  refuse("--rope-scaling yarn --rope-scale 2 --yarn-beta-fast 1", "must be above --yarn-beta-slow 1");
  refuse("--rope-scaling linear --rope-scale 2 --yarn-beta-fast 8", "are for --rope-scaling yarn, not for linear");
  refuse("--rope-scaling none --rope-scale 2", "--rope-scaling none takes no --rope-scale");
  expect_refused("compare " + plain_ + " " + plain_ + " -f " + write("t", "x") + " --rope-scale 2",
                 "--rope-scale is an option of llama.cpp");
}

}  // namespace
}  // namespace quire::test
