// Forcing kernels by name: the names that options accept are the names that operators look for, and a forced
// kernel really runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "ops/gemm/core.h"
#include "ops/registry.h"
#include "ops/rows/rows.h"
#include "support/golden.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

// What is given to calls of `function` first: kLinearOp of dispatch(kLinearOp, ctx, a).
std::set<std::string> first_arguments(const std::string& text, const std::string& function) {
  std::set<std::string> out;
  const std::string begin = function + "(k";
  for (size_t at = text.find(begin); at != std::string::npos; at = text.find(begin, at + 1)) {
    const size_t name = at + begin.size() - 1;
    out.insert(text.substr(name, text.find(',', name) - name));
  }
  return out;
}

// An operator that the table lacks would have no conformance, and `--kernel` would not know it.
TEST(Kernels, TheTableHoldsEveryOperatorThatIsDispatched) {
  const std::string ops = QUIRE_SOURCE_DIR "/src/ops/";
  std::string sources;
  for (const auto& f : std::filesystem::recursive_directory_iterator(ops))
    if (f.path().extension() == ".cpp") sources += read_whole_file(f.path());
  const auto dispatched = first_arguments(sources, "dispatch");
  EXPECT_GT(dispatched.size(), 10u);
  EXPECT_EQ(dispatched, first_arguments(read_whole_file(ops + "registry.cpp"), "entry"));
  for (const OperatorInfo& op : operators()) EXPECT_EQ(op.kernels.back().name, "reference") << op.name;
}

struct KernelRun {
  std::vector<float> logprobs;  // of a few greedy tokens: prompt and decode steps
  std::vector<ForcedCount> forced;
};

void expect_no_engine(const ModelPtr& model, const KernelChoice& kernels, const std::string& why) {
  const auto engine = Engine::create(model, {.context = 256, .kernels = kernels});
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.error().fault, Fault::kRequest);
  EXPECT_NE(engine.error().message.find(why), std::string::npos) << engine.error().message;
}

KernelRun run_with(const ModelPtr& model, const KernelChoice& kernels, Device device = Device::kCpu) {
  const auto engine =
      std::move(Engine::create(model, {.device = device, .threads = 2, .context = 256, .kernels = kernels})).value();
  Request r;
  for (TokenId t = 0; t < 100; ++t) r.prompt.edit().push_back(t * 7 % 300);
  r.max_tokens = 24;
  r.ignore_eos = true;
  r.sampling.logprobs = 20;
  r.sampling.repetition_penalty = 1.1f;  // so that tokens are noted; logprobs are those of the raw logits
  KernelRun out;
  EXPECT_TRUE(engine
                  ->submit(r,
                           [&](const TokenEvent& e) {
                             if (const auto* const token = e.as<TokenEvent::Token>())
                               for (const TokenLogprob& t : token->top) out.logprobs.push_back(t.logprob);
                           })
                  .ok());
  while (engine->busy()) engine->step();
  out.forced = engine->forced_kernels();
  return out;
}

// Forces one operator to each of its kernels. Which calls the forced kernel took is counted where kernels are
// launched. Bits alone could not tell: an operator's bf16 outputs may be the same from kernels whose sums
// differ in float32.
void force_each_kernel(const ModelPtr& model, const std::string& op, const KernelRun& usual,
                       std::set<std::string>& called, std::set<std::string>& changed) {
  const KernelRun reference = run_with(model, {.forced = {{op, "reference"}}});
  const int64_t calls = reference.forced.front().ran;
  EXPECT_EQ(reference.forced.front().replaced, 0);
  if (calls == 0) return;  // an operator that this model has no use for
  called.insert(op);
  if (reference.logprobs != usual.logprobs) changed.insert(op);
  for (const KernelInfo& kernel : kernels_of(op)) {
    SCOPED_TRACE(kernel.name);
    const KernelChoice choice{.forced = {{op, std::string(kernel.name)}}};
    if (!reaches(Machine{}, kernel.needs)) {
      expect_no_engine(model, choice, "needs " + describe(kernel.needs));
      continue;
    }
    const KernelRun forced = run_with(model, choice);
    ASSERT_EQ(forced.logprobs.size(), usual.logprobs.size());
    EXPECT_NEAR(forced.logprobs.front(), usual.logprobs.front(), 0.5);
    const ForcedCount& count = forced.forced.front();
    EXPECT_EQ(count.op, op);
    EXPECT_EQ(count.kernel, kernel.name);
    EXPECT_EQ(count.ran + count.replaced, calls);
    // The first takes no BF16 weights, and the second other activations than these models have.
    const bool of_some = kernel.name == gemm::kIntegerBaseName || (op == "swiglu_mlp" && kernel.name == "linear");
    if (kernel.needs.cpu == CpuLevel::kBase && !of_some) {
      EXPECT_EQ(count.replaced, 0) << "what every CPU has takes all calls of a model";
    }
  }
}

// Those of vision towers, which no text needs (tests/vision runs them), and of ranks, which one device has no use for
// (tests/model).
constexpr std::string_view kOfOthers[] = {"gelu",        "layer_norm",       "mix_rows",   "normalise_patches",
                                          "scale_clamp", "vision_attention", "all_reduce", "all_gather"};

TEST(Kernels, AForcedKernelRuns) {
  std::set<std::string> called, changed;
  for (const TinyModel& m : tiny_models()) {
    if (!m.hybrid() && m.name != "tiny-gemma4e") continue;  // between them they call all operators
    SCOPED_TRACE(m.name);
    const TinyModelFile file(m);
    const ModelPtr model = load_or_die(file.path());
    const KernelRun usual = run_with(model, {});
    EXPECT_TRUE(usual.forced.empty());
    for (const OperatorInfo& op : operators()) {
      SCOPED_TRACE(op.name);
      force_each_kernel(model, std::string(op.name), usual, called, changed);
    }
  }
  for (const OperatorInfo& op : operators())
    EXPECT_NE(called.contains(std::string(op.name)), std::ranges::find(kOfOthers, op.name) != std::end(kOfOthers))
        << op.name;
  // Products add hundreds of terms, which shows on every CPU.
  EXPECT_TRUE(changed.contains("linear")) << "forcing the reference of linear changed nothing";
}

TEST(Kernels, WhatAForcedKernelDoesNotTakeIsCounted) {
  const TinyModelFile file(tiny_models().back());
  const ModelPtr model = load_or_die(file.path());
  // On the reference device everything is float32, and the fast kernels of attention take bf16.
  const KernelChoice choice{
      .forced = {{"paged_attention", std::string(kBaseLevel)}, {"linear", std::string(kBaseLevel)}}};
  const KernelRun forced = run_with(model, choice, Device::kReference);
  ASSERT_EQ(forced.forced.size(), 2u);
  EXPECT_EQ(forced.forced[0].ran, 0);
  EXPECT_GT(forced.forced[0].replaced, 0);
  EXPECT_GT(forced.forced[1].ran, 0);
  EXPECT_EQ(forced.forced[1].replaced, 0);
}

TEST(Kernels, WhatCannotBeForcedIsRefused) {
  const TinyModelFile file(tiny_models().front());
  const ModelPtr model = load_or_die(file.path());
  expect_no_engine(model, {.forced = {{"lniear", std::string(kBaseLevel)}}},
                   "there is no operator lniear (there are: embed, ");
  expect_no_engine(model, {.forced = {{"linear", "fast"}}}, "operator linear has no kernel fast (it has: ");
  expect_no_engine(model, {.forced = {{"linear", std::string(kBaseLevel)}, {"linear", "reference"}}},
                   "operator linear is forced to " + std::string(kBaseLevel) + " and to reference");
  const Result<std::unique_ptr<Scorer>> scorer =
      Scorer::create(model, {.window = 64, .kernels = {.forced = {{"linear", "fast"}}}});
  EXPECT_FALSE(scorer.ok());
}

}  // namespace
}  // namespace quire::test
