// quire imatrix, run as a program on small models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "quant/importance.h"
#include "support/program.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

using quant::Importance;
using testing::ElementsAre;
using testing::HasSubstr;

class Imatrix : public ProgramTest {
 protected:
  Imatrix() {
    for (const TinyModel& m : tiny_models())
      if (m.architecture == "qwen35moe" || m.name == "tiny-qwen3") {
        EXPECT_TRUE(m.write_gguf(path(m.architecture + ".gguf")).ok());
      }
    std::string text;
    for (int i = 0; i < 60; ++i) text += "The wheel number " + std::to_string(i * 37) + " turns.\n";
    write("text.txt", text);
  }

  std::string run(const std::string& output, const std::string& more = "",
                  const std::string& model = "qwen35moe.gguf") const {
    return "imatrix -m " + path(model) + " -f " + path("text.txt") + " -o " + path(output) + " --window 64 " + more;
  }
  void expect_refused(const std::string& arguments, const std::string& reason) const {
    ProgramTest::expect_refused(arguments, reason);
    for (const auto& f : std::filesystem::directory_iterator(folder_))
      EXPECT_FALSE(f.path().filename().string().starts_with("refused")) << f.path();
  }
};

TEST_F(Imatrix, WritesOneFileWhateverTheThreads) {
  const Outcome one = quire(run("one", "-t 1")), two = quire(run("two", "-t 2"));
  ASSERT_EQ(one.code, 0) << one.err;
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_EQ(one.err, "");
  EXPECT_THAT(one.out, HasSubstr("perplexity"));
  EXPECT_THAT(one.out, HasSubstr("experts reached"));
  EXPECT_EQ(read_whole_file(path("one")), read_whole_file(path("two")));
  const auto f = Importance::open(path("one"));
  ASSERT_TRUE(f.ok()) << f.error().message;
  EXPECT_GT(f->entries().size(), 20u);
  EXPECT_THAT(f->origin().datasets, ElementsAre("text.txt"));
  EXPECT_EQ(f->origin().chunk_size, 64u);
  EXPECT_GT(f->origin().chunk_count, 3u);
  EXPECT_EQ(f->entries()[0].counts[0], 64.0f * static_cast<float>(f->origin().chunk_count));
}

TEST_F(Imatrix, JsonAndReferenceDevice) {
  const Outcome o = quire(run("out.imatrix", "--chunks 2 --device reference --json"));
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.err, "");
  const nlohmann::json j = nlohmann::json::parse(o.out);
  EXPECT_EQ(j.at("windows"), 2);
  EXPECT_EQ(j.at("run").at("tokens"), 128);
  EXPECT_GT(j.at("run").at("ppl"), 1.0);
  EXPECT_EQ(j.at("bytes"), std::filesystem::file_size(path("out.imatrix")));
  EXPECT_EQ(j.at("tensors"), Importance::open(path("out.imatrix"))->entries().size());
  const auto unseen = j.at("run").at("unseen_matrices").get<std::vector<std::string>>();
  EXPECT_THAT(unseen, testing::Contains("token_embd.weight")) << "a table, and not tied";
  EXPECT_GT(j.at("experts"), 0);
  int64_t listed = 0;
  for (const auto& [block, experts] : j.at("unreached").items()) listed += static_cast<int64_t>(experts.size());
  EXPECT_EQ(j.at("experts_unreached"), listed);
}

TEST_F(Imatrix, FilesAddUp) {
  ASSERT_EQ(quire(run("a", "--chunks 1")).code, 0);
  ASSERT_EQ(quire(run("all", "--chunks 3")).code, 0);
  ASSERT_EQ(quire("imatrix --merge " + path("a") + " " + path("all") + " -o " + path("merged")).code, 0);
  ASSERT_EQ(quire(run("again", "--chunks 3 --merge " + path("a"))).code, 0);
  const Importance a = Importance::open(path("a")).value(), all = Importance::open(path("all")).value(),
                   merged = Importance::open(path("merged")).value(), again = Importance::open(path("again")).value();
  for (const Importance* f : {&merged, &again}) {
    EXPECT_EQ(f->origin().chunk_count, 4u);
    ASSERT_EQ(f->entries().size(), all.entries().size());
    for (size_t i = 0; i < all.entries().size(); ++i) {
      const auto &x = a.entries()[i], &y = all.entries()[i], &z = f->entries()[i];
      ASSERT_EQ(y.tensor, z.tensor);
      for (size_t k = 0; k < z.counts.size(); ++k) EXPECT_EQ(z.counts[k], x.counts[k] + y.counts[k]);
      for (size_t k = 0; k < z.sum2.size(); ++k) EXPECT_NEAR(z.sum2[k], x.sum2[k] + y.sum2[k], 1e-6f * z.sum2[k]);
    }
  }
}

// The names in the file are those that quantize looks for: it encodes otherwise.
TEST_F(Imatrix, GuidesQuantize) {
  ASSERT_EQ(quire(run("m.imatrix")).code, 0);
  const auto quantize = [&](const std::string& more) {
    const Outcome o =
        quire("quantize " + path("qwen35moe.gguf") + " " + path("q.gguf") + " --type q4_0 --json " + more);
    EXPECT_EQ(o.code, 0) << o.err;
    return read_whole_file(path("q.gguf"));
  };
  EXPECT_NE(quantize(""), quantize("--imatrix " + path("m.imatrix")));
}

TEST_F(Imatrix, RefusesWithOneLine) {
  write("short.txt", "Once");
  write("empty.txt", "");
  const std::string model = "imatrix -m " + path("qwen3.gguf"), text = " -f " + path("text.txt"),
                    out = " -o " + path("refused");
  expect_refused(model + " -f " + path("short.txt") + out, "less than a window of 512");
  expect_refused(model + " -f " + path("empty.txt") + out, "the text has 0 tokens, less than a window of 512");
  expect_refused(model + text + out + " --window 1", "a window has at least 2");
  expect_refused(model + text + out + " --device cuda", "observed on the CPU only: use --device cpu");
  expect_refused(model + text + out + " --window -5", "a window has at least 2");
  expect_refused(model + text + out + " --chunks -1", "--windows -1: must be 0 (all) or more");
  expect_refused(model + text + out + " --window 64 -t -1", "-1 threads: must be between 1 and 1024");
  expect_refused(model + " -f " + path("none.txt") + out, "none.txt");
  expect_refused("imatrix -m " + path("none.gguf") + text + out, "none.gguf");
  expect_refused("imatrix -m " + path("text.txt") + text + out, "not a GGUF file");
  expect_refused(model + out, "give a model (-m) and a text (-f) together");
  expect_refused("imatrix" + text + out, "give a model (-m) and a text (-f) together");
  expect_refused("imatrix -o " + path("refused"), "or files to --merge");
  expect_refused(model + text, "--output is required");
  expect_refused(model + text + " -o " + path("absent/refused"), "cannot create " + path("absent/refused"));
  expect_refused(model + text + " -o " + folder_.string(), "Is a directory");
  expect_refused(model + text + out + " --device gpu", "--device gpu");
  expect_refused(model + text + out + " --merge " + path("text.txt"), "not a GGUF file");
  expect_refused(model + text + out + " --merge " + path("qwen3.gguf"), "not an importance file");
  ASSERT_EQ(quire(run("other", "--chunks 1")).code, 0);
  expect_refused(run("refused", "--merge " + path("other"), "qwen3.gguf"), "made with another model");
}

}  // namespace
}  // namespace quire::test
