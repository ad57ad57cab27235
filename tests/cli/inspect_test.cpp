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

}  // namespace
}  // namespace quire::test
