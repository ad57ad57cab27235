// The suites on a GPU, without one: a device whose memory is an array and whose kernels are those of a CPU with AVX2.
// What it proves is the way there and back: that every operand is placed, that each kernel is called, and that what
// goes wrong there fails.
#include "ops/conformance/gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "ops/registry.h"
#include "ops/rows/rows.h"

namespace quire::conformance {
namespace {

class FakeGpu final : public Gpu {
 public:
  std::string name() const override { return "fake"; }
  Machine machine() const override { return machine_; }
  std::span<std::byte> memory() override { return memory_; }
  std::span<std::byte> staging() override { return staging_; }
  int64_t packed_bytes(const Weight& w, bool paired) const override { return w.bytes() * (paired ? 2 : 1); }
  Status pack(const Weight& w, const Weight*, std::byte* to, int64_t, int64_t first_expert) override {
    std::memcpy(to + first_expert * w.rows * w.row_bytes(), w.data, static_cast<size_t>(w.bytes()));
    return {};
  }
  bool takes_table(DType type, int64_t) const override {
    return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16 || type == DType::kQ8_0 ||
           type == DType::kNVFP4;
  }
  int64_t kv_offset(int64_t token, int64_t c, int64_t d, bool value) const override {
    return value ? (token / 2) * (d * 2) + c * 2 + token % 2 : (c / 2) * 32 + token * 2 + c % 2;
  }
  Status run(int64_t bytes, const std::function<Status()>& pack,
             const std::function<void(const OpContext&)>& op) override {
    std::copy_n(staging_.begin(), bytes, memory_.begin());
    QUIRE_CHECKED(pack());
    op({.pool = pool_, .workspace = workspace_, .machine = machine_});
    if (damage >= 0) memory_[static_cast<size_t>(damage)] ^= std::byte{1};
    std::copy_n(memory_.begin(), bytes, staging_.begin());
    ++runs;
    return std::exchange(fails, Status{});
  }

  int64_t damage = -1;  // a byte that every call changes
  Status fails;         // of the next call
  int runs = 0;

 private:
  std::vector<std::byte> memory_{size_t{128} << 20}, staging_{size_t{128} << 20};
  ThreadPool pool_{1};
  Workspace workspace_;
  const Machine machine_{Device::kCpu, {.base = true}};
};

Suite run_on(Gpu& gpu, std::string_view name, const std::string& case_name = {}) {
  Options o;
  o.gpu = &gpu;
  o.case_name = case_name;
  for (const OperatorInfo& op : operators())
    if (op.name == name) return run_suite(op, o);
  ADD_FAILURE() << "no operator " << name;
  return Suite("", {});
}

// Gate and up are one matrix on a GPU, which no CPU reads: swiglu_mlp and moe are left out.
TEST(GpuSuites, EveryOperandIsPlacedAndComesBack) {
  const std::map<std::string, std::string> kCases = {{"linear", "K=64"},
                                                     {"embed", ""},
                                                     {"gather_rows", ""},
                                                     {"reduce_partials", "P=2"},
                                                     {"all_reduce", "D=16"},
                                                     {"soft_cap", "V=16 "},
                                                     {"gated_product", "D=40"},
                                                     {"add_rms_norm", "D=64"},
                                                     {"gated_rms_norm", "Dv=128"},
                                                     {"attention_prepare", ""},
                                                     {"paged_attention", "ratio4"},
                                                     {"gated_delta_net", "one key head"},
                                                     {"update_history", ""},
                                                     {"sample", "V=65"},
                                                     {"copy_slots", ""},
                                                     {"layer_norm", "D=64"},
                                                     {"gelu", "D=65"},
                                                     {"mix_rows", "D=65"},
                                                     {"normalise_patches", "runs of 256"},
                                                     {"scale_clamp", "D=65"},
                                                     {"vision_attention", "d=64"}};
  FakeGpu gpu;
  for (const OperatorInfo& op : operators()) {
    SCOPED_TRACE(op.name);
    const auto cases = kCases.find(std::string(op.name));
    if (cases == kCases.end()) {
      EXPECT_TRUE(op.name.starts_with("gdn_") || op.name == "swiglu_mlp" || op.name == "moe" || op.name == "all_gather")
          << op.name;
      continue;
    }
    const int before = gpu.runs;
    const Suite suite = run_on(gpu, op.name, cases->second);
    EXPECT_GT(gpu.runs, before);
    EXPECT_GT(suite.passed(), 0);
    EXPECT_EQ(suite.failed(), 0);
    for (const std::string& f : suite.failures()) ADD_FAILURE() << f;
    int called = 0;
    for (const Suite::Count& c : suite.counts()) called += c.passed > 0 ? 1 : 0;
    EXPECT_GE(called, 2) << "a kernel of the CPU's, and the reference";
  }
}

TEST(GpuSuites, WhatAGpuDoesNotTakeIsCountedAndNothingIsFailure) {
  FakeGpu gpu;
  // What cannot be placed, and what the kernel does not take.
  const Suite attention = run_on(gpu, "paged_attention", "e4m3 chunk1");
  EXPECT_EQ(attention.failed(), 0);
  ASSERT_FALSE(attention.counts().empty());
  for (const Suite::Count& c : attention.counts()) {
    if (!c.skipped.empty()) continue;
    EXPECT_EQ(c.passed, 0) << c.kernel;
    EXPECT_THAT(c.not_taken, testing::ElementsAre(testing::Pair("KV of other types than bf16", testing::Gt(0))));
  }

  Options o;
  o.gpu = &gpu;
  const Suite none = run_suite({"linear", {{"reference"}}, [](Suite&) {}}, o);
  EXPECT_EQ(none.failed(), 1);
  EXPECT_THAT(none.failures(), testing::ElementsAre(testing::HasSubstr("this GPU can run the kernel, but no case")));
  const Suite no_kernel = run_suite({"linear", {{"cuda", GpuLevel::kMma}}, [](Suite&) {}}, o);
  EXPECT_EQ(no_kernel.passed() + no_kernel.failed(), 0);
  EXPECT_EQ(no_kernel.counts()[0].skipped, "a GPU has no kernel of its own for it");
}

TEST(GpuSuites, ErrorsAndDamageFail) {
  FakeGpu gpu;
  gpu.fails = Error{Fault::kBug, "an illegal memory access"};
  const Suite lost = run_on(gpu, "copy_slots", "small slots");
  EXPECT_GE(lost.failed(), 1);
  EXPECT_THAT(lost.failures()[0], testing::HasSubstr("an illegal memory access"));
  EXPECT_THAT(lost.failures()[0], testing::HasSubstr("test-ops --op copy_slots --device cuda --kernel cpu"));

  // Two buffers and a list: the first buffer's guard, the list, and the memory behind the list.
  const int64_t pool = (2 * Buffer::kGuardBytes + 64 * 24 * 4 + 63) / 64 * 64 + 256, list = 66 * 4;
  for (const auto& [at, what] : {std::pair<int64_t, const char*>{3, "wrote outside buffer 0"},
                                 {pool, "an array that is only read has changed"},
                                 {pool + list + 1, "wrote behind an operand of 264 bytes"}}) {
    gpu.damage = at;
    const Suite damaged = run_on(gpu, "copy_slots", "small slots");
    EXPECT_GE(damaged.failed(), 1) << what;
    EXPECT_THAT(damaged.failures(), testing::Contains(testing::HasSubstr(what)));
  }
}

// An operand that nobody places is read where it was, and there is garbage.
TEST(GpuSuites, AForgottenOperandShows) {
  FakeGpu gpu;
  Buffer x(DType::kF32, {4, 8}), y(DType::kF32, {2, 8});
  x.fill([i = 0.0f]() mutable { return i++; });
  const std::vector<int32_t> rows{2, 0};
  for (const bool all : {true, false}) {
    GatherRowsArgs a{x, make_tensor(rows.data(), {2}), y};
    Operands o(gpu);
    o.tensor(a.rows);
    o.tensor(a.y);
    if (all) o.tensor(a.x);
    if (!all) {
      Tensor t = x;
      o.tensor(t);
    }
    const Status done = o.run([&](const OpContext& ctx) { gather_rows(ctx, a); });
    ASSERT_TRUE(done.ok()) << done.error().message;
    EXPECT_EQ(first_difference(y, x.gather(rows)) < 0, all);
  }
}

}  // namespace
}  // namespace quire::conformance
