// quire inspect, run as a program on a small file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "gguf/writer.h"
#include "support/program.h"

namespace quire::test {
namespace {

using testing::HasSubstr;
using testing::Not;

class InspectSections : public ProgramTest {
 protected:
  // Two tensors, 64 + 32 parameters; `first` is the first value of the f32 one.
  std::string write_model(float first = 1) const {
    gguf::Writer w;
    w.add_string("general.architecture", "llama");
    w.add_string("general.name", "tiny \x1b[31m model");
    std::vector<int32_t> numbers(100, 7);
    w.add_array<int32_t>("numbers", numbers);
    w.add_string("tokenizer.chat_template", "line one\nline two");
    const int64_t wide[] = {32, 2}, flat[] = {32};
    EXPECT_TRUE(w.add_tensor("codes.weight", DType::kQ8_0, wide).ok());
    EXPECT_TRUE(w.add_tensor("norm.weight", DType::kF32, flat).ok());
    const std::string file = path("tiny.gguf");
    EXPECT_TRUE(w.open(file).ok());
    std::vector<float> values(32, 1.0f);
    values[0] = first;
    EXPECT_TRUE(w.write_tensor(std::vector<std::byte>(68)).ok());
    EXPECT_TRUE(w.write_tensor(std::as_bytes(std::span(values))).ok());
    EXPECT_TRUE(w.finish().ok());
    return file;
  }
};

TEST_F(InspectSections, PrintsEverySection) {
  const Outcome r = quire("inspect " + write_model());
  EXPECT_EQ(r.code, 0);
  for (const char* part : {"GGUF version 3", "architecture   llama", "tiny \\u001b[31m model", "96 (96) in 2 tensors",
                           "196 B (196 bytes), 16.33 bits per weight", "[7, 7, 7, 7, 7, 7, 7, 7, ... 100 in all]",
                           "line one\\nline two", "codes.weight q8_0               68  [32, 2]"})
    EXPECT_THAT(r.out, HasSubstr(part));
  EXPECT_THAT(r.out, Not(HasSubstr("\x1b"))) << "nothing in the file can steer the terminal";
}

TEST_F(InspectSections, ChoosesSections) {
  const std::string file = write_model();
  EXPECT_EQ(quire("inspect --template " + file).out, "line one\nline two\n");
  EXPECT_THAT(quire("inspect --tensors " + file).out, Not(HasSubstr("numbers")));
  EXPECT_THAT(quire("inspect --metadata " + file).out, Not(HasSubstr("codes.weight")));
}

TEST_F(InspectSections, SaysWhetherItWouldRunHere) {
  const std::string demo = QUIRE_SOURCE_DIR "/models/demo-dense-nvfp4.gguf";
  const Outcome text = quire("inspect -c 1000 " + demo);
  EXPECT_EQ(text.code, 0) << text.err;
  for (const char* part :
       {"here           cpu, ", "would it run   yes", "with one sequence of 1000 tokens", "tokens/s at most"})
    EXPECT_THAT(text.out, HasSubstr(part));
  const auto json = nlohmann::json::parse(quire("inspect --json --tensors " + demo).out);
  EXPECT_TRUE(json["forecast"]["runs"].get<bool>());
  EXPECT_GT(json["forecast"]["longest_context"].get<int64_t>(), 0);
  EXPECT_GT(json["here"]["bandwidth"].get<double>(), 0);
  const auto no = nlohmann::json::parse(quire("inspect --json " + write_model()).out);
  EXPECT_FALSE(no["forecast"]["runs"].get<bool>());
  EXPECT_THAT(no["forecast"]["problem"].get<std::string>(), HasSubstr("llama.block_count"));
  const Outcome long_context = quire("inspect -c 2000000000 " + demo);
  EXPECT_THAT(long_context.out, HasSubstr("would it run   no: "));
}

TEST_F(InspectSections, SaysOnWhichCardsItWouldRun) {
  const std::string demo = QUIRE_SOURCE_DIR "/models/demo-dense-nvfp4.gguf";
  const Outcome text = quire("inspect --tensors -c 1000 --cards 1,80 " + demo);
  EXPECT_EQ(text.code, 0) << text.err;
  for (const char* part :
       {"NVIDIA cards for sequences of 1000 tokens", "     1 GB  ", "    80 GB  one card: ", "(--data-parallel-size)"})
    EXPECT_THAT(text.out, HasSubstr(part));
  const auto j = nlohmann::json::parse(quire("inspect --json --tensors " + demo).out).at("cards");
  EXPECT_EQ(j.at("context"), 4096);
  ASSERT_EQ(j.at("of").size(), 7u);
  for (const auto& card : j.at("of")) {
    EXPECT_TRUE(card.at("runs").get<bool>()) << card;
    EXPECT_GT(card.at("sequences").get<int>(), 0) << card;
    EXPECT_GE(card.at("kv_tokens").get<int64_t>(), 4096) << card;
  }
  EXPECT_FALSE(nlohmann::json::parse(quire("inspect --json " + write_model()).out).contains("cards"));
  expect_refused("inspect --cards 0 " + demo, "--cards");
}

TEST_F(InspectSections, PrintsJson) {
  const Outcome r = quire("inspect --json --template " + write_model());
  ASSERT_EQ(r.code, 0);
  const auto j = nlohmann::json::parse(r.out);
  EXPECT_EQ(j["architecture"], "llama");
  EXPECT_EQ(j["parameters"], 96);
  EXPECT_EQ(j["tensor_bytes"], 196);
  EXPECT_EQ(j["tensors"][0]["shape"], (nlohmann::json{32, 2}));
  EXPECT_EQ(j["metadata"][2]["count"], 100);
  EXPECT_EQ(j["types"].size(), 2u);
  EXPECT_EQ(j["chat_template"], "line one\nline two");
}

// The four K- and IQ-types that are read are listed like the others; of another one it is said what to do.
TEST_F(InspectSections, SaysWhatCannotBeComputedWith) {
  gguf::Writer w;
  w.add_string("general.architecture", "llama");
  const int64_t shape[] = {256, 1};
  constexpr DType kTypes[] = {DType::kQ2_K, DType::kQ3_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kIQ2_XXS};
  for (const DType t : kTypes) ASSERT_TRUE(w.add_tensor(dtype_name(t), t, shape).ok());
  const std::string file = path("types.gguf");
  ASSERT_TRUE(w.open(file).ok());
  for (const DType t : kTypes)
    ASSERT_TRUE(w.write_tensor(std::vector<std::byte>(static_cast<size_t>(dtype_bytes(t, 256)))).ok());
  ASSERT_TRUE(w.finish().ok());
  const Outcome r = quire("inspect " + file);
  EXPECT_EQ(r.code, 0);
  for (const DType t : kTypes) EXPECT_THAT(r.out, HasSubstr("\n" + std::string(dtype_name(t)) + " "));
  EXPECT_THAT(r.out,
              HasSubstr("note: tensor 'iq2_xxs': type iq2_xxs cannot be computed with; take the model in one of "));
  EXPECT_THAT(r.out, Not(HasSubstr("type iq4_xs cannot")));
  const auto j = nlohmann::json::parse(quire("inspect --json " + file).out);
  for (const auto& type : j["types"]) EXPECT_EQ(type["computable"], type["type"] != "iq2_xxs") << type;
  EXPECT_THAT(quire("inspect --check " + file).out, HasSubstr("checked: 4 of 5 tensors decoded"));
}

TEST_F(InspectSections, ChecksValues) {
  const Outcome good = quire("inspect --check " + write_model());
  EXPECT_EQ(good.code, 0);
  EXPECT_EQ(good.out, "checked: 2 of 2 tensors decoded, all values finite\n");
  const Outcome bad = quire("inspect --check " + write_model(std::numeric_limits<float>::infinity()));
  EXPECT_EQ(bad.code, 2);
  EXPECT_EQ(bad.err, "quire: tensor 'norm.weight' is inf at row 0, element 0; the file is damaged, copy it again\n");
}

TEST_F(InspectSections, BadFilesAreOneLineAndExitCode2) {
  const Outcome absent = quire("inspect /no/such/file.gguf");
  EXPECT_EQ(absent.code, 2);
  EXPECT_EQ(absent.err, "quire: cannot open /no/such/file.gguf: No such file or directory\n");
  const std::string file = write_model();
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  const Outcome cut = quire("inspect " + file);
  EXPECT_EQ(cut.code, 2);
  EXPECT_THAT(cut.err, HasSubstr("tensor 1: 'norm.weight': its 128 bytes at data offset 96 reach past the end"));
  EXPECT_EQ(std::count(cut.err.begin(), cut.err.end(), '\n'), 1);
}

}  // namespace
}  // namespace quire::test
