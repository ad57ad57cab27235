// quire compare, run as a program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "lab/compare_report.h"
#include "support/program.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

TEST(LargestDisagreements, KeepsTheLargestInOrder) {
  cli::LargestDisagreements largest(3);
  int64_t position = 0;
  for (const double kl : {0.0, 0.5, 0.1, 0.5, 2.0, 0.5, 0.0, 0.2}) {
    if (largest.wants(kl)) largest.add({.position = position, .divergence = {.kl = kl}});
    ++position;
  }
  std::vector<int64_t> kept;
  for (const cli::Disagreement& d : largest.list()) kept.push_back(d.position);
  EXPECT_EQ(kept, (std::vector<int64_t>{4, 1, 3}));
  EXPECT_FALSE(cli::LargestDisagreements(0).wants(1.0));
}

class Compare : public ProgramTest {
 protected:
  Compare() {
    for (const TinyModel& m : tiny_models())
      if (m.name == "tiny-qwen35moe" || m.name == "tiny-qwen3") {
        EXPECT_TRUE(m.write_gguf(path(m.name + ".gguf")).ok());
      }
    a_ = path("tiny-qwen35moe.gguf");
    b_ = path("b.gguf");
    EXPECT_EQ(quire("quantize " + a_ + " " + b_ + " --type q8_0").code, 0);
    std::string text;
    for (int i = 0; i < 50; ++i) text += "Line " + std::to_string(i * i) + ": a <wheel> & an axle.\n";
    text_ = write("text.txt", text);
  }
  json compare(const std::string& arguments) const {
    const Outcome o = quire("compare " + arguments + " --json");
    EXPECT_EQ(o.code, 0) << o.err;
    return json::parse(o.out, nullptr, false);
  }
  std::string with_text(const std::string& more = "") const { return " -f " + text_ + " --window 100 " + more; }

  std::string a_, b_, text_;
};

TEST_F(Compare, AModelWithItself) {
  const json j = compare(a_ + " " + a_ + with_text());
  for (const char* key :
       {"mean_kl", "median_kl", "p90_kl", "p99_kl", "max_kl", "mean_kl_standard_error", "rms_delta_p"})
    EXPECT_EQ(j.at(key), 0.0) << key;
  EXPECT_EQ(j.at("top1_agreement"), 1.0);
  EXPECT_EQ(j.at("ppl_ratio"), 1.0);
  EXPECT_TRUE(j.at("disagreements").empty());
}

TEST_F(Compare, PerplexitiesAreThoseOfPerplexity) {
  const json j = compare(a_ + " " + b_ + with_text());
  for (const auto& [model, nll, ppl] : {std::tuple{a_, "nll_reference", "ppl_reference"}, {b_, "nll", "ppl"}}) {
    const Outcome o = quire("perplexity -m " + model + with_text("--json"));
    ASSERT_EQ(o.code, 0) << o.err;
    const json p = json::parse(o.out);
    EXPECT_EQ(j.at(nll), p.at("nll")) << "the same bits";
    EXPECT_EQ(j.at(ppl), p.at("ppl"));
    EXPECT_EQ(j.at("positions"), p.at("scored"));
    EXPECT_EQ(j.at("windows"), p.at("windows"));
  }
  EXPECT_GT(j.at("mean_kl"), 0.0);
  EXPECT_LT(j.at("mean_kl"), 0.1);
  EXPECT_LE(j.at("median_kl"), j.at("p90_kl"));
  EXPECT_LE(j.at("p90_kl"), j.at("p99_kl"));
  EXPECT_LE(j.at("p99_kl"), j.at("max_kl"));
  const double max_kl = j.at("max_kl").get<double>();  // kept as float32
  EXPECT_NEAR(j.at("disagreements")[0].at("kl").get<double>(), max_kl, std::ldexp(max_kl, -24));
  EXPECT_EQ(j.at("disagreements").size(), 10u);
  EXPECT_EQ(j.at("by_position").back().at("last"), 98);
}

// Generated tokens take the recurrent form, and other kernels for Q8_0: close to a prompt's, but not the
// same.
TEST_F(Compare, JudgesTheModelAsItGenerates) {
  const std::string both = a_ + " " + b_ + with_text();
  const json as_prompt = compare(both), generated = compare(both + " --generated");
  EXPECT_EQ(generated.at("nll_reference"), as_prompt.at("nll_reference"));
  EXPECT_NE(generated.at("nll"), as_prompt.at("nll"));
  EXPECT_LT(generated.at("mean_kl"), 0.1);
  const Outcome o = quire("perplexity --generated -m " + b_ + with_text("--json"));
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(json::parse(o.out).at("nll"), generated.at("nll")) << "the same bits";
}

TEST_F(Compare, ThreadsChangeNothing) {
  const std::string two = a_ + " " + b_ + with_text("--max-windows 3 --threads ");
  EXPECT_EQ(compare(two + "1"), compare(two + "3"));
}

TEST_F(Compare, SavedLogitsGiveTheSameNumbers) {
  const std::string both = a_ + " " + b_ + with_text();
  json direct = compare(both);
  EXPECT_EQ(compare(both + " --save-logits " + path("with")), direct);
  const Outcome o = quire("compare " + a_ + with_text("--save-logits " + path("only")));
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.err, HasSubstr("of reference logits to write"));
  EXPECT_EQ(read_whole_file(path("with")), read_whole_file(path("only")));
  json saved = compare(b_ + " -f " + text_ + " --logits " + path("only"));
  EXPECT_EQ(saved.at("reference"), "tiny-qwen35moe.gguf");
  saved.erase("reference");
  direct.erase("reference");
  EXPECT_EQ(saved, direct);
  const json fewer = compare(b_ + with_text("--max-windows 2 --logits " + path("only")));
  EXPECT_EQ(fewer.at("windows"), 2);
  EXPECT_EQ(fewer, [&] {
    json j = compare(both + " --max-windows 2");
    j["reference"] = "tiny-qwen35moe.gguf";
    return j;
  }());
}

TEST_F(Compare, TableAndPlot) {
  const Outcome o = quire("compare " + a_ + " " + b_ + with_text("--top 2 --svg " + path("plot.svg")));
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.err, "");
  for (const char* part :
       {"perplexity", "ratio", "99th percentile", "same top token", "largest disagreements", "  2. KL ", "actual"})
    EXPECT_THAT(o.out, HasSubstr(part));
  EXPECT_EQ(o.out.find("  3. KL "), std::string::npos);
  EXPECT_THAT(read_whole_file(path("plot.svg")), HasSubstr("</svg>"));
}

TEST_F(Compare, WhatIsRefused) {
  const std::string two = "compare " + a_ + " " + b_, file = path("logits");
  expect_refused("compare " + a_ + with_text(), "give two models");
  expect_refused("compare " + a_ + " " + path("tiny-qwen3.gguf") + with_text(), "different vocabularies");
  expect_refused(two + " -f " + text_ + " --window 1", "a window has at least 2 tokens");
  expect_refused(two + " -f " + text_ + " --window 100000", "less than a window of 100000");
  expect_refused(two + " -f /dev/null", "the text has 0 tokens, less than a window");
  expect_refused(two + " -f " + path("none.txt"), "No such file or directory");
  expect_refused(two + with_text("--max-windows -1"), "--windows -1");
  expect_refused(two + with_text("--top -1"), "--top -1");
  expect_refused(two + with_text("--device cuda"), "use --device cpu");
  expect_refused(two, "--file is required");
  expect_refused(two + " " + a_ + with_text(), "models: ");
  expect_refused("compare " + a_ + with_text("--svg x.svg --save-logits " + file), "nothing to plot");
  expect_refused(two + with_text("--max-windows 1 --svg " + path("none/plot.svg")), "cannot create");

  ASSERT_EQ(quire("compare " + a_ + with_text("--max-windows 4 --save-logits " + file)).code, 0);
  const std::string one = "compare " + b_ + " --logits " + file;
  expect_refused(two + with_text("--logits " + file), "give only the model to judge");
  expect_refused(one + with_text("--save-logits x"), "exclude each other");
  expect_refused(one + " -f " + text_ + " --window 64", "was saved with --window 100, not 64");
  expect_refused(one + with_text("--max-windows 5"), "holds 4 windows, --windows asks for 5");
  expect_refused(one + " -f " + write("other.txt", std::string(3000, 'x')), "was saved for another text");
  expect_refused(one + " -f " + write("short.txt", std::string(150, 'x')), "was saved for another text");
  expect_refused("compare " + path("tiny-qwen3.gguf") + " --logits " + file + with_text(), "was saved for a");
  expect_refused("compare " + b_ + " --logits " + text_ + with_text(), "no file of reference logits");
  fs::resize_file(file, fs::file_size(file) - 1);
  expect_refused(one + with_text(), "it is cut short or damaged");
}

TEST_F(Compare, AFullDisk) {
  const Outcome o = quire("compare " + a_ + with_text("--save-logits /dev/full"));
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.err, HasSubstr("quire: cannot write /dev/full"));
}

// Interrupted, it leaves nothing of the file it was writing.
TEST_F(Compare, ASignalLeavesNothing) {
  const std::string model = QUIRE_SOURCE_DIR "/models/demo-moe-nvfp4.gguf", text = golden_folder() + "ppl.txt";
  const auto files = [&] { return std::distance(fs::directory_iterator(folder_), {}); };
  const auto before = files();
  const pid_t child = fork();
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(98);
    execl(QUIRE_PROGRAM, QUIRE_PROGRAM, "compare", model.c_str(), "-f", text.c_str(), "--save-logits",
          path("logits").c_str(), nullptr);
    _exit(99);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (files() == before && std::chrono::steady_clock::now() < deadline) sched_yield();
  kill(child, SIGINT);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
  EXPECT_EQ(files(), before);
}

// Real weights, quantised further: close, but not the same.
TEST_F(Compare, DemoModel) {
  const std::string demo = QUIRE_SOURCE_DIR "/models/demo-dense-nvfp4.gguf";
  ASSERT_EQ(quire("quantize " + demo + " " + path("q4.gguf") + " --type q4_0").code, 0);
  const json j = compare(demo + " " + path("q4.gguf") + " -f " + golden_folder() + "ppl.txt --max-windows 2");
  EXPECT_EQ(j.at("window"), 512);
  EXPECT_NEAR(j.at("ppl_ratio").get<double>(), 1.0, 0.1);
  EXPECT_GT(j.at("mean_kl"), 1e-5);
  EXPECT_LT(j.at("mean_kl"), 0.1);
  EXPECT_GT(j.at("top1_agreement"), 0.9);
}

}  // namespace
}  // namespace quire::test
