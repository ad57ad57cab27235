// --pipeline-parallel-size and --tensor-split: the same text from several devices, and what is refused.
#include <nlohmann/json.hpp>

#include "cli/model_options.h"
#include "support/program.h"

namespace quire::test {
namespace {

class LayerSplitOption : public ProgramTest {};

TEST_F(LayerSplitOption, RefusesWhatCannotBe) {
  const std::string run = "run --device cpu --raw -p x -n 1 -m " + kModelFile;
  expect_refused(run + " --pipeline-parallel-size 0", "--pipeline-parallel-size");
  for (const char* list : {"3,x", "3,", ",1", "0,1", "-1,2"})
    expect_refused(run + " --pipeline-parallel-size 2 --tensor-split=" + list, "must be numbers above 0, as in 3,1");
  expect_refused(run + " --pipeline-parallel-size 2 --tensor-split 1,2,3",
                 "--tensor-split 1,2,3: 3 numbers, and --pipeline-parallel-size is 2");
  expect_refused("serve --device cpu --gpus 0,1,2 --pipeline-parallel-size 2 -m " + kModelFile,
                 "--gpus 0,1,2: 3 GPUs, and each engine has 2 (--pipeline-parallel-size)");
}

TEST_F(LayerSplitOption, ChangesNoText) {
  const auto told = [&](const std::string& flags) {
    const Outcome o =
        quire("run --device cpu --raw -p 'Once there was a girl who' -n 24 --seed 3 --json -m " + kModelFile + flags);
    EXPECT_EQ(o.code, 0) << o.err;
    const auto j = nlohmann::json::parse(o.out);
    return j.at("text").get<std::string>() + j.at("fingerprint").get<std::string>();
  };
  const std::string one = told("");
  EXPECT_EQ(told(" --pipeline-parallel-size 2"), one);
  EXPECT_EQ(told(" --pipeline-parallel-size 2 --tensor-split 1,3 --depth 1"), one);
}

}  // namespace
}  // namespace quire::test
