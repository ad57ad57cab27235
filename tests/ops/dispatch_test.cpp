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
                        .machine = {device, {.base = true, .avx512 = avx512}},
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

// ---- Kernels of several devices in one table

bool few(const Machine&, const NoteArgs& a) {
  return a.n < 10;
}
bool prefers_two(const Machine&, const NoteArgs& a) {
  return a.n == 2;
}
bool on_large_cards(const Machine& m, const NoteArgs&) {
  return m.gpu.multiprocessors >= 100;
}
std::string describe_note(const NoteArgs& a) {
  return fmt::format("n {}", a.n);
}
constexpr Kernel<NoteArgs> kMixedTable[] = {
    {"cuda_two", few, note<'2'>, GpuLevel::kMma, prefers_two, "n below 10"},
    {"cuda_large", on_large_cards, note<'L'>, GpuLevel::kWgmma, nullptr, "large cards"},
    {"cuda_old", few, note<'o'>, GpuLevel::kNoWgmma, nullptr, "n below 10, older cards"},
    {"any", fits_always<NoteArgs>, note<'a'>},
    {"reference", fits_always<NoteArgs>, note<'r'>},
};
constexpr Operator<NoteArgs> kMixedOp{"mixed", kMixedTable, [](const NoteArgs& a) { return Traffic{.bytes = a.n}; },
                                      describe_note};

// Calls mixed with a made-up part of it.
void in_parts(const OpContext& ctx, const NoteArgs& a) {
  dispatch(kMixedOp, ctx, a);
}
constexpr Kernel<NoteArgs> kWholeTable[] = {
    {.name = "parts", .fits = fits_always<NoteArgs>, .launch = in_parts, .of_operators = true},
    {"reference", fits_always<NoteArgs>, note<'R'>},
};
constexpr Operator<NoteArgs> kWholeOp{"whole", kWholeTable, nullptr};

// Writes down "(op=kernel" and ")".
class Seen final : public LaunchObserver {
 public:
  void begin(const Launch& l) override {
    text += fmt::format("({}={}{}", l.op, l.kernel, l.forced ? "!" : "");
    for (const PassedOver& p : l.passed) text += fmt::format(" {}: {};", p.kernel, reason(p.why));
    last = l;
  }
  void end() override { text += ")"; }
  void refused(const Error& e) override { refusals.push_back(e.message); }

  std::string text;
  Launch last;
  std::vector<std::string> refusals;
};

class Devices : public testing::Test {
 protected:
  static Machine gpu(int processors, bool wgmma) {
    Machine m{.device = Device::kCuda};
    m.gpu = {.multiprocessors = processors, .major = wgmma ? 9 : 8, .wgmma = wgmma};
    return m;
  }
  OpContext context(const Machine& m) {
    OpContext ctx{.pool = pool_, .workspace = workspace_, .machine = m, .choice = &choice_, .launches = &seen_};
    if (m.device == Device::kCuda) ctx.gpu = &context_;
    return ctx;
  }
  std::string run(const Machine& m, int n) {
    std::string notes;
    dispatch(kMixedOp, context(m), NoteArgs{n, &notes});
    return notes;
  }
  ThreadPool pool_{1};
  Workspace workspace_;
  KernelChoice choice_;
  GpuContext context_;
  Seen seen_;
};

TEST_F(Devices, SeeTheirOwnKernelsOnly) {
  EXPECT_EQ(run({Device::kCpu, {.base = true}}, 2), "a");
  EXPECT_EQ(run({Device::kReference, {.base = true}}, 2), "r");
  EXPECT_EQ(run(gpu(132, true), 2), "2");
  EXPECT_EQ(run(gpu(132, true), 3), "L") << "cuda_two could, and does not prefer it";
  EXPECT_EQ(run(gpu(132, true), 30), "L");
  EXPECT_EQ(run(gpu(132, false), 3), "o") << "kernels with wgmma are not for this code";
  EXPECT_EQ(run(gpu(20, true), 3), "2") << "nobody prefers it: the first that fits";
  EXPECT_TRUE(context_.status.ok());
}

TEST_F(Devices, AreForcedToTheirOwnKernelsOnly) {
  for (const auto& [kernel, machine, want] : {std::tuple{"cuda_two", gpu(132, true), "2"},
                                              {"cuda_large", gpu(132, true), "L"},
                                              {"cuda_large", gpu(20, true), "2"},  // which does not fit there
                                              {"cuda_old", gpu(132, true), "L"},   // nor does this code
                                              {"any", gpu(132, true), "L"},        // a CPU's
                                              {"reference", gpu(132, true), "L"},
                                              {"cuda_two", Machine{Device::kCpu, {.base = true}}, "a"},
                                              {"reference", Machine{Device::kCpu, {.base = true}}, "r"}}) {
    choice_.forced = {{"mixed", kernel}};
    EXPECT_EQ(run(machine, 3), want) << kernel;
  }
}

// A GPU has no reference to fall back on.
TEST_F(Devices, SayWhatNobodyTakes) {
  EXPECT_EQ(run(gpu(20, true), 11), "");
  const std::string want =
      "mixed: no kernel takes n 11 on a GPU of compute capability 9.0 with 20 multiprocessors; there are: "
      "cuda_two (n "
      "below 10), cuda_large (large cards), cuda_old (n below 10, older cards); use --device cpu, or a model "
      "that they take";
  ASSERT_EQ(seen_.refusals.size(), 1u);
  EXPECT_EQ(seen_.refusals[0], want);
  ASSERT_FALSE(context_.status.ok());
  EXPECT_EQ(context_.status.error().message, want);
  EXPECT_EQ(context_.status.error().fault, Fault::kRequest);

  EXPECT_EQ(run(gpu(20, true), 12), "");
  EXPECT_EQ(context_.status.error().message, want) << "the first one is kept";

  std::string notes;
  dispatch(kNoteOp, context(gpu(20, true)), NoteArgs{1, &notes});
  EXPECT_NE(seen_.refusals.back().find("note: no kernel takes such a call"), std::string::npos);
  EXPECT_NE(seen_.refusals.back().find("there is none for it"), std::string::npos) << seen_.refusals.back();
}

TEST_F(Devices, ShowLaunchesAndWhatWasPassedOver) {
  run(gpu(132, true), 3);
  EXPECT_EQ(seen_.text, "(mixed=cuda_large cuda_two: expected to be slower;)");
  EXPECT_EQ(seen_.last.arguments, "n 3");
  EXPECT_EQ(seen_.last.traffic.bytes, 3);
  seen_.text.clear();
  run(gpu(132, false), 30);
  EXPECT_EQ(seen_.text, "") << "refused";
  EXPECT_EQ(seen_.refusals.size(), 1u);
  run(gpu(132, false), 3);
  EXPECT_EQ(seen_.text, "(mixed=cuda_old cuda_two: expected to be slower; cuda_large: not for this machine;)");
  seen_.text.clear();
  choice_.forced = {{"mixed", "reference"}};
  run({Device::kCpu, {.base = true}}, 3);
  EXPECT_EQ(seen_.text, "(mixed=reference! any: another is forced;)");
}

TEST_F(Devices, OnlyChooseIfThatIsAsked) {
  std::string notes;
  OpContext ctx = context({Device::kCpu, {.base = true}});
  ctx.only_chooses = true;
  dispatch(kMixedOp, ctx, NoteArgs{1, &notes});
  dispatch(kWholeOp, ctx, NoteArgs{1, &notes});
  EXPECT_EQ(notes, "");
  EXPECT_EQ(seen_.text, "(mixed=any)(whole=parts(mixed=any))") << "a kernel that calls operators shows theirs";
  ctx.only_chooses = false;
  dispatch(kWholeOp, ctx, NoteArgs{1, &notes});
  EXPECT_EQ(notes, "a");
  // A GPU that is not there.
  OpContext dry = context(gpu(132, true));
  dry.only_chooses = true;
  dry.gpu = nullptr;
  seen_.text.clear();
  dispatch(kMixedOp, dry, NoteArgs{30, &notes});
  EXPECT_EQ(seen_.text, "(mixed=cuda_large cuda_two: does not fit;)");
  EXPECT_EQ(notes, "a");
}

TEST(Cards, AreReadAndRefused) {
  const auto h100 = parse_card("sm_90:132");
  ASSERT_TRUE(h100.ok());
  EXPECT_EQ(h100->gpu.multiprocessors, 132);
  EXPECT_TRUE(h100->gpu.wgmma);
  EXPECT_EQ(describe(*h100), "a GPU of compute capability 9.0 with 132 multiprocessors");
  EXPECT_FALSE(parse_card("sm_80:108")->gpu.wgmma);
  for (const char* card : {"sm_120:170", "sm_121:48"}) EXPECT_TRUE(parse_card(card)->fp4) << card;
  for (const char* card : {"sm_89:128", "sm_90:132", "sm_100:148"}) EXPECT_FALSE(parse_card(card)->fp4) << card;
  const Needs fp4 = GpuLevel::kFp4;
  EXPECT_TRUE(reaches(*parse_card("sm_121:48"), fp4));
  EXPECT_FALSE(reaches(*parse_card("sm_90:132"), fp4));
  for (const char* wrong :
       {"", "sm_90", "90:132", "sm_75:40", "sm_90:0", "sm_90:x", "sm_:132", "sm_90:132 ", "sm_90:99999"})
    EXPECT_FALSE(parse_card(wrong).ok()) << wrong;
}

}  // namespace
}  // namespace quire
