// --activations: who takes it, and what is refused.
#include <nlohmann/json.hpp>

#include "cli/model_options.h"
#include "support/program.h"

namespace quire::test {
namespace {

class ActivationsOption : public ProgramTest {};

TEST_F(ActivationsOption, RefusesWhatItDoesNotKnow) {
  const std::string model = " -m " + kModelFile + " --activations fp6";
  const std::string message = "--activations fp6: must be auto, bf16, fp8 or fp4";
  expect_refused("run -p x -n 1" + model, message);
  expect_refused("serve" + model, message);
  expect_refused("bench -p 1 -n 1" + model, message);
  expect_refused("bench-batch" + model, message);
  expect_refused("perplexity -f " + kText + model, message);
  expect_refused("eval -f " + kText + model, message);
  expect_refused("explain" + model, message);
  expect_refused("compare " + kModelFile + " " + kModelFile + " -f " + kText + " --activations fp6", message);
  expect_refused("compare " + kModelFile + " -f " + kText + " --save-logits x --activations fp8",
                 "--activations is for the model that is judged, and there is only a reference");
}

TEST_F(ActivationsOption, RefusesFp8WhereNothingComputesIt) {
  const std::string model = " -m " + kModelFile + " --activations fp8 --device ";
  const std::string cpu = "--activations fp8: a CPU computes prompts with bf16 activations",
                    none = "--activations fp8: this model has no FP8 weights";
  expect_refused("run --tokens 1 -n 1" + model + "cpu", cpu);
  expect_refused("run --tokens 1 -n 1" + model + "reference", none);
  expect_refused("bench-batch -npp 1 -ntg 1 -npl 1" + model + "cpu", cpu);
  expect_refused("bench -p 1 -n 1" + model + "cpu", cpu);
  expect_refused("perplexity -f " + kText + model + "cpu", cpu);
  expect_refused("compare " + kModelFile + " " + kModelFile + " -f " + kText + " --activations fp8 --device cpu", cpu);
  expect_refused("explain" + model + "cpu", cpu);
}

TEST_F(ActivationsOption, RefusesFp4WhereNothingComputesIt) {
  const std::string model = " -m " + kModelFile + " --activations fp4 --device ";
  const std::string cpu = "--activations fp4: a CPU computes prompts with bf16 activations";
  expect_refused("run --tokens 1 -n 1" + model + "cpu", cpu);
  expect_refused("perplexity -f " + kText + model + "cpu", cpu);
  expect_refused("explain" + model + "cpu", cpu);
}

TEST_F(ActivationsOption, AutoIsBf16WhereThereIsNothingElse) {
  const auto fingerprint = [&](const std::string& activations) {
    const Outcome o = quire("run -m " + kModelFile + " --tokens 1,2,3 -n 1 --json --activations " + activations);
    EXPECT_EQ(o.code, 0) << o.err;
    return nlohmann::json::parse(o.out).at("fingerprint").get<std::string>();
  };
  EXPECT_EQ(fingerprint("auto"), fingerprint("bf16"));
}

}  // namespace
}  // namespace quire::test
