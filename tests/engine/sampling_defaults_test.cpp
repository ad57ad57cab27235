// What makers recommend for sampling, from a model file and from generation_config.json.
#include "engine/sampling_defaults.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "gguf/writer.h"

namespace quire {
namespace {

class SamplingDefaultsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "defaults-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string path(const char* name) const { return (folder_ / name).string(); }
  std::string write(const char* name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }
  std::filesystem::path folder_;
};

std::string told(const Result<SamplingDefaults>& d) {
  return d.ok() ? d->text() : d.error().message;
}

TEST_F(SamplingDefaultsTest, OfGenerationConfigs) {
  const std::string file = write("generation_config.json",
                                 R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": null,
                                     "repetition_penalty": 1.05, "eos_token_id": [1, 2]})");
  const std::string all = "temperature 0.6, top_k 20, top_p 0.95, repetition_penalty 1.05";
  EXPECT_EQ(told(read_generation_config(file)), all);
  EXPECT_EQ(told(read_generation_config(folder_.string())), all) << "the folder that has it";
  SamplingParams p{.top_k = 5, .min_p = 0.25f, .seed = 9};
  read_generation_config(file)->apply(p);
  EXPECT_FLOAT_EQ(p.temperature, 0.6f);
  EXPECT_FLOAT_EQ(p.top_p, 0.95f);
  EXPECT_FLOAT_EQ(p.min_p, 0.25f) << "not recommended";
  EXPECT_EQ(p.top_k, 20);
  EXPECT_EQ(p.seed, 9u);
  EXPECT_EQ(told(read_generation_config(write("greedy", R"({"do_sample": false, "temperature": 0.6})"))), "");
  EXPECT_EQ(told(read_generation_config(write("off", R"({"top_k": -1})"))), "top_k 0");
  EXPECT_EQ(told(read_generation_config(write("huge", R"({"top_k": 18446744073709551615})"))), "top_k 2147483647");
}

// Model cards and generation_config.json of the makers; sampling_defaults.cpp names them.
TEST_F(SamplingDefaultsTest, OfFamilies) {
  const auto plain = [](const char* family) { return family_sampling(family, false).text(); };
  const auto thinking = [](const char* family) { return family_sampling(family, true).text(); };
  for (const char* family : {"qwen35", "qwen35moe"}) {
    EXPECT_EQ(plain(family), "temperature 0.7, top_k 20, top_p 0.8, min_p 0, presence_penalty 1.5");
    EXPECT_EQ(thinking(family), "temperature 1, top_k 20, top_p 0.95, min_p 0, presence_penalty 1.5");
  }
  for (const char* family : {"qwen3", "qwen3moe", "qwen3next"}) {
    EXPECT_EQ(plain(family), "temperature 0.7, top_k 20, top_p 0.8, min_p 0");
    EXPECT_EQ(thinking(family), "temperature 0.6, top_k 20, top_p 0.95, min_p 0");
  }
  EXPECT_EQ(plain("qwen2"), "temperature 0.7, top_k 20, top_p 0.8, repetition_penalty 1.05");
  EXPECT_EQ(plain("llama"), "temperature 0.6, top_p 0.9");
  for (const char* family : {"gemma3", "gemma4"}) EXPECT_EQ(plain(family), "temperature 1, top_k 64, top_p 0.95");
  EXPECT_EQ(plain("gpt-oss"), "temperature 1, top_p 1");
  EXPECT_EQ(plain("glm4"), "temperature 0.6, top_k 40, top_p 0.95");
  EXPECT_EQ(plain("glm4moe"), "temperature 1, top_p 0.95");
  for (const char* none : {"phi3", "", " ", "qwen", "moe", "qwen35 qwen35moe"}) EXPECT_EQ(plain(none), "") << none;
}

TEST_F(SamplingDefaultsTest, SaysWhatIsWrong) {
  EXPECT_EQ(told(read_generation_config(write("a", R"({"temperature": "hot"})"))),
            path("a") + ": 'temperature' is not a number");
  EXPECT_EQ(told(read_generation_config(write("b", R"({"top_k": 1.5})"))), path("b") + ": 'top_k' is not an integer");
  EXPECT_NE(told(read_generation_config(path("none"))).find(path("none")), std::string::npos);
  EXPECT_TRUE(told(read_generation_config(write("c", "[1]"))).starts_with(path("c") + ": "));
}

}  // namespace
}  // namespace quire
