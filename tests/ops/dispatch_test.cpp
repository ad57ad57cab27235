// Which kernel of a table runs, and what is said about one that was forced.
#include <gtest/gtest.h>

#include <optional>

#include "ops/op.h"

namespace quire {
namespace {

// A table whose kernels write down their names. The first takes even numbers only.
struct NoteArgs {
  int n = 0;
  std::string* note = nullptr;
};
bool even(const Machine&, const NoteArgs& a) {
  return a.n % 2 == 0;
}
bool needs_avx512(const Machine& m, const NoteArgs&) {
  return m.cpu.avx512;
}
template <char kName>
void note(const OpContext&, const NoteArgs& a) {
  *a.note += kName;
}
constexpr Kernel<NoteArgs> kTable[] = {
    {"wide", needs_avx512, note<'w'>, CpuLevel::kAvx512},
    {"even", even, note<'e'>},
    {"any", fits_always<NoteArgs>, note<'a'>},
    {"reference", fits_always<NoteArgs>, note<'r'>},
};
constexpr Operator<NoteArgs> kNoteOp{"note", kTable, nullptr};

class Dispatch : public testing::Test {
 protected:
  // The kernels that 0, 1, 2 and 3 are given to.
  std::string run(Device device, std::optional<std::string> forced, bool avx512 = false) {
    KernelChoice choice;
    if (forced) choice.forced.emplace_back("note", *forced);
    counts_.emplace(choice);
    const OpContext ctx{.pool = pool_,
                        .workspace = workspace_,
                        .machine = {device, {.avx2 = true, .avx512 = avx512}},
                        .choice = &choice,
                        .forced = &*counts_};
    std::string notes;
    for (const int n : {0, 1, 2, 3}) dispatch(kNoteOp, ctx, NoteArgs{n, &notes});
    return notes;
  }
  ThreadPool pool_{1};
  Workspace workspace_;
  std::optional<ForcedCounts> counts_;
};

TEST_F(Dispatch, TakesTheFirstThatFits) {
  EXPECT_EQ(run(Device::kCpu, {}), "eaea");
  EXPECT_EQ(run(Device::kCpu, {}, true), "wwww");
  EXPECT_EQ(run(Device::kReference, {}), "rrrr");
  EXPECT_TRUE(counts_->all().empty());
}

TEST_F(Dispatch, CountsWhatAForcedKernelRan) {
  EXPECT_EQ(run(Device::kCpu, "any"), "aaaa");
  ASSERT_EQ(counts_->all().size(), 1u);
  EXPECT_EQ(counts_->all()[0].op, "note");
  EXPECT_EQ(counts_->all()[0].kernel, "any");
  EXPECT_EQ(counts_->all()[0].ran, 4);
  EXPECT_EQ(counts_->all()[0].replaced, 0);
}

TEST_F(Dispatch, CountsAndLogsWhatAnotherTook) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(run(Device::kReference, "even"), "erer");
  const std::string log = testing::internal::GetCapturedStdout();
  EXPECT_EQ(counts_->all()[0].ran, 2);
  EXPECT_EQ(counts_->all()[0].replaced, 2);
  const std::string warning = "note is forced to even, which does not take all calls";
  const size_t at = log.find(warning);
  EXPECT_NE(at, std::string::npos) << log;
  EXPECT_EQ(log.find(warning, at + 1), std::string::npos) << "once is enough";
}

TEST_F(Dispatch, DoesNotRunWhatTheCpuCannot) {
  EXPECT_EQ(run(Device::kCpu, "wide"), "eaea");
  EXPECT_EQ(counts_->all()[0].replaced, 4);
}

}  // namespace
}  // namespace quire
