// --kernel and --cpu: what cannot be is refused, and what was is said.
#include <nlohmann/json.hpp>

#include "support/program.h"

namespace quire::test {
namespace {

const std::string kDense = QUIRE_SOURCE_DIR "/models/demo-dense-nvfp4.gguf";

class KernelOption : public ProgramTest {
 protected:
  Outcome run(const std::string& options) const {
    return quire("run -m " + kDense + " --tokens 1,2,3 -n 3 --ignore-eos " + options);
  }
};

TEST_F(KernelOption, RefusesWhatCannotBe) {
  const std::string run = "run -m " + kDense + " -p x -n 1 ";
  expect_refused(run + "--kernel linear", "write it as operator=kernel");
  expect_refused(run + "--kernel lniear=avx2", "there is no operator lniear");
  expect_refused(run + "--kernel linear=fast", "operator linear has no kernel fast");
  expect_refused(run + "--kernel linear=avx2 --kernel linear=reference", "forced to avx2 and to reference");
  expect_refused(run + "--cpu avx2 --kernel linear=amx", "linear=amx needs a CPU with amx; this one has avx2");
  expect_refused(run + "--cpu sse9", "this CPU cannot run as 'sse9'");
}

TEST_F(KernelOption, SaysWhatAForcedKernelRan) {
  const Outcome text = run("--kernel linear=avx2");
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.err.find("[linear=avx2: ran "), std::string::npos) << text.err;
  EXPECT_EQ(text.err.find("warning"), std::string::npos) << text.err;

  const Outcome told = run("--json --kernel linear=avx2");
  const auto forced = nlohmann::json::parse(told.out).at("forced_kernels");
  ASSERT_EQ(forced.size(), 1u);
  EXPECT_EQ(forced[0].at("operator"), "linear");
  EXPECT_EQ(forced[0].at("kernel"), "avx2");
  EXPECT_GT(forced[0].at("ran"), 0);
  EXPECT_EQ(forced[0].at("replaced"), 0);
  EXPECT_FALSE(nlohmann::json::parse(run("--json").out).contains("forced_kernels"));
}

TEST_F(KernelOption, SaysWhatAnotherRanInstead) {
  const Outcome o = run("--device reference --kernel paged_attention=avx2");
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("paged_attention is forced to avx2, which does not take all calls"), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("[paged_attention=avx2: ran 0 of "), std::string::npos) << o.err;
}

TEST_F(KernelOption, WithoutAGpuItsOperatorsCannotBeTested) {
  // One line, whatever is missing: CUDA, the driver, or the GPU.
  const Outcome o = quire("test-ops --device cuda --op copy_slots");
  if (o.code != 0) expect_refused("test-ops --device cuda --op copy_slots", "--device cuda: ");
  expect_refused("test-ops --device tpu", "--device tpu: must be cpu or cuda");
}

TEST_F(KernelOption, TheCpuCanBeLimited) {
  EXPECT_NE(quire("--cpu avx2 version").out.find("cpu: avx2\n"), std::string::npos);
  const Outcome o = quire("test-ops --cpu avx2 --op linear --case none");
  EXPECT_EQ(o.code, 2);
  EXPECT_NE(o.out.find("linear amx skipped: needs a CPU with amx\n"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("linear avx2 0/0\n"), std::string::npos) << o.out;
}

}  // namespace
}  // namespace quire::test
