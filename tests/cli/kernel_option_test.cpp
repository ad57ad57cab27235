// --kernel and --cpu: what cannot be is refused, and what was is said.
#include <nlohmann/json.hpp>

#include "core/cpu.h"
#include "support/program.h"

namespace quire::test {
namespace {

const std::string kDense = QUIRE_SOURCE_DIR "/models/demo-dense-nvfp4.gguf";

const std::string kBase(kBaseLevel);
// A level above it, and its kernel of products.
struct NewerKernel {
  std::string level, kernel;
};
const NewerKernel kNewer = kOnX86 ? NewerKernel{"amx", "amx"} : NewerKernel{"i8mm", "integer_i8mm"};

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
  expect_refused(run + "--kernel linear=" + kBase + " --kernel linear=reference",
                 "forced to " + kBase + " and to reference");
  expect_refused(run + "--cpu " + kBase + " --kernel linear=" + kNewer.kernel,
                 "linear=" + kNewer.kernel + " needs a CPU with " + kNewer.level + "; this one has " + kBase);
  expect_refused(run + "--cpu sse9", "this CPU cannot run as 'sse9'");
}

TEST_F(KernelOption, SaysWhatAForcedKernelRan) {
  const Outcome text = run("--kernel linear=" + kBase);
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.err.find("[linear=" + kBase + ": ran "), std::string::npos) << text.err;
  EXPECT_EQ(text.err.find("warning"), std::string::npos) << text.err;

  const Outcome told = run("--json --kernel linear=" + kBase);
  const auto forced = nlohmann::json::parse(told.out).at("forced_kernels");
  ASSERT_EQ(forced.size(), 1u);
  EXPECT_EQ(forced[0].at("operator"), "linear");
  EXPECT_EQ(forced[0].at("kernel"), kBase);
  EXPECT_GT(forced[0].at("ran"), 0);
  EXPECT_EQ(forced[0].at("replaced"), 0);
  EXPECT_FALSE(nlohmann::json::parse(run("--json").out).contains("forced_kernels"));
}

TEST_F(KernelOption, SaysWhatAnotherRanInstead) {
  const Outcome o = run("--device reference --kernel paged_attention=" + kBase);
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_NE(o.err.find("paged_attention is forced to " + kBase + ", which does not take all calls"), std::string::npos)
      << o.err;
  EXPECT_NE(o.err.find("[paged_attention=" + kBase + ": ran 0 of "), std::string::npos) << o.err;
}

TEST_F(KernelOption, WithoutAGpuItsOperatorsCannotBeTested) {
  // One line, whatever is missing: CUDA, the driver, or the GPU.
  const Outcome o = quire("test-ops --device cuda --op copy_slots");
  if (o.code != 0) expect_refused("test-ops --device cuda --op copy_slots", "--device cuda: ");
  expect_refused("test-ops --device tpu", "--device tpu: must be cpu or cuda");
}

TEST_F(KernelOption, TheCpuCanBeLimited) {
  EXPECT_NE(quire("--cpu " + kBase + " version").out.find("cpu: " + kBase + "\n"), std::string::npos);
  const Outcome o = quire("test-ops --cpu " + kBase + " --op linear --case none");
  EXPECT_EQ(o.code, 2);
  EXPECT_NE(o.out.find("linear " + kNewer.kernel + " skipped: needs a CPU with " + kNewer.level + "\n"),
            std::string::npos)
      << o.out;
  EXPECT_NE(o.out.find("linear " + kBase + " 0/0\n"), std::string::npos) << o.out;
}

}  // namespace
}  // namespace quire::test
