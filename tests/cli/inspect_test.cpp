// quire inspect: what it says of a model beside its tensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/gguf_edit.h"
#include "support/program.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class Inspect : public ProgramTest {
 protected:
  Inspect() {
    for (const TinyModel& m : tiny_models())
      if (m.name == "tiny-qwen35") {
        EXPECT_TRUE(m.write_gguf(path("plain.gguf")).ok());
      }
  }
  std::string edited(const std::string& name, const GgufEdit& edit) const {
    edit_gguf(path("plain.gguf"), path(name), edit);
    return path(name);
  }
  std::string text(const std::string& file) const {
    const Outcome o = quire("inspect " + file);
    EXPECT_EQ(o.code, 0) << o.err;
    return o.out;
  }
  json object(const std::string& file) const {
    const Outcome o = quire("inspect --json " + file);
    EXPECT_EQ(o.code, 0) << o.err;
    return json::parse(o.out);
  }
};

TEST_F(Inspect, SaysNothingOfWhatIsNotThere) {
  const std::string said = text(path("plain.gguf"));
  EXPECT_THAT(said, Not(HasSubstr("multi-token")));
  EXPECT_THAT(said, Not(HasSubstr("note:")));
  const json j = object(path("plain.gguf"));
  EXPECT_FALSE(j.contains("mtp"));
  EXPECT_FALSE(j.contains("problem"));
  EXPECT_EQ(j.at("unread_tensors"), json::array());
}

TEST_F(Inspect, SaysWhetherTheMtpBlockIsWhole) {
  const std::string whole = edited("whole.gguf", with_mtp_block());
  EXPECT_THAT(text(whole), HasSubstr("multi-token prediction: one block, whole\n"));
  EXPECT_EQ(object(whole).at("mtp"), json({{"blocks", 1}, {"whole", true}}));
  GgufEdit edit = with_mtp_block();
  edit.add.erase(edit.add.begin());
  const std::string damaged = edited("damaged.gguf", edit);
  const std::string problem = "tensor 'blk.4.nextn.eh_proj.weight' is missing";
  EXPECT_THAT(text(damaged), HasSubstr("multi-token prediction: cannot be used: " + problem + "\n"));
  EXPECT_EQ(object(damaged).at("mtp"), json({{"blocks", 1}, {"whole", false}, {"problem", problem}}));
  EXPECT_EQ(quire("run -m " + damaged + " -n 2 -p hello").code, 0) << "serving does without";
}

TEST_F(Inspect, NamesTensorsThatNothingReads) {
  const std::string more = edited("more.gguf", {.add = {{"v.patch.weight", {8}}, {"mm.0.weight", {1}}}});
  EXPECT_THAT(text(more), HasSubstr("note: nothing reads 2 of the tensors; the first is v.patch.weight\n"));
  EXPECT_EQ(object(more).at("unread_tensors"), json({"v.patch.weight", "mm.0.weight"}));
}

TEST_F(Inspect, SaysWhyAModelCannotBeRun) {
  const std::string sinks = edited("sinks.gguf", {.add = {{"blk.1.attn_sinks.weight", {2}}}});
  const std::string problem =
      "tensor blk.1.attn_sinks.weight: attention sinks are not supported for the architecture qwen35";
  EXPECT_THAT(text(sinks), HasSubstr("note: cannot be run: " + problem + "\n"));
  EXPECT_EQ(object(sinks).at("problem"), problem);
}

// What run refuses inspect says no of, in the same words, whatever is wrong with the file.
TEST_F(Inspect, JudgesAsRunDoes) {
  using gguf::Writer;
  const auto with_key = [](const std::string& key, std::function<void(Writer&)> add) {
    return GgufEdit{.drop = {key}, .metadata = std::move(add)};
  };
  const auto types = [](int32_t type) {
    return [type](Writer& w) {
      const std::vector<int32_t> all(333, type);
      w.add_array("tokenizer.ggml.token_type", std::span<const int32_t>(all));
    };
  };
  const std::pair<GgufEdit, const char*> cases[] = {
      {with_key("tokenizer.ggml.pre", [](Writer& w) { w.add_string("tokenizer.ggml.pre", "bloom"); }), "'bloom'"},
      {with_key("tokenizer.ggml.pre", nullptr), "tokenizer.ggml.pre is missing"},
      {with_key("tokenizer.ggml.token_type", types(5)), "no normal token for any byte"},
      {with_key("tokenizer.ggml.token_type", types(77)), "token_type[0] is 77"},
      {with_key("tokenizer.ggml.model", [](Writer& w) { w.add_string("tokenizer.ggml.model", "bert"); }), "'bert'"},
      {with_key("tokenizer.ggml.model", [](Writer& w) { w.add_string("tokenizer.ggml.model", "llama"); }),
       "tokenizer.ggml.scores is missing, and no token begins with"},
      {{.drop = {"tokenizer.ggml.model", "tokenizer.ggml.merges"},
        .metadata = [](Writer& w) { w.add_string("tokenizer.ggml.model", "llama"); }},
       "tokenizer.ggml.scores is missing, and so is tokenizer.ggml.merges"},
      {{.drop = {"tokenizer.ggml.model", "tokenizer.ggml.merges"},
        .metadata =
            [](Writer& w) {
              w.add_string("tokenizer.ggml.model", "llama");
              const std::vector<float> equal(333, -1000);
              w.add_array("tokenizer.ggml.scores", std::span<const float>(equal));
            }},
       "tokenizer.ggml.scores is -1000 for every token"},
      {{.add = {{"blk.0.more.weight", {2}}}}, "tensor 'blk.0.more.weight' is read by nothing"},
  };
  for (const auto& [edit, problem] : cases) {
    const std::string file = edited("bad.gguf", edit);
    const Outcome run = quire("run -p hello -n 2 -m " + file);
    EXPECT_EQ(run.code, 2) << problem;
    EXPECT_THAT(run.err, HasSubstr(problem));
    const json j = object(file);
    const std::string said = j.at("problem");
    EXPECT_THAT(said, HasSubstr(problem));
    EXPECT_THAT(run.err, HasSubstr(said));
    EXPECT_FALSE(j.at("forecast").at("runs").get<bool>()) << problem;
    EXPECT_THAT(text(file), HasSubstr("note: cannot be run: "));
  }
}

}  // namespace
}  // namespace quire::test
