// The comparator is tested first: a suite that cannot fail proves nothing.
#include "ops/conformance/conformance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/registry.h"

namespace quire::conformance {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

double ratio(std::vector<float> got, std::vector<float> want, std::vector<double> bound) {
  return worst_excess(got, want, bound).ratio;
}

TEST(WorstExcess, RespectsTheBound) {
  EXPECT_LE(ratio({1.5f}, {1.0f}, {0.5}), 1.0);
  EXPECT_GT(ratio({1.5f}, {1.0f}, {0.49}), 1.0);
  EXPECT_LE(ratio({0.5f}, {1.0f}, {0.5}), 1.0);
  EXPECT_EQ(ratio({2.0f}, {2.0f}, {0.0}), 0.0) << "equal values pass even where no error is allowed";
  EXPECT_GT(ratio({std::nextafter(2.0f, 3.0f)}, {2.0f}, {0.0}), 1.0);
}

TEST(WorstExcess, FindsTheWorstElementRelativeToItsBound) {
  const std::vector<float> got{1, 2, 3.1f}, want{1.5f, 2, 3};
  const Excess e = worst_excess(got, want, std::vector<double>{1, 1, 0.05});
  EXPECT_EQ(e.at, 2);
  EXPECT_NEAR(e.ratio, 2.0, 1e-4);
}

TEST(WorstExcess, NanFailsWhereverItStands) {
  EXPECT_GT(ratio({kNan}, {1.0f}, {kInf}), 1.0);
  EXPECT_GT(ratio({1.0f}, {kNan}, {kInf}), 1.0);
  EXPECT_GT(ratio({kNan}, {kNan}, {1.0}), 1.0);
  EXPECT_GT(ratio({1.0f}, {1.1f}, {static_cast<double>(kNan)}), 1.0);
  EXPECT_GT(ratio({1.0f}, {1.0f}, {-1.0}), 1.0) << "a negative bound is a mistake of the test";
  EXPECT_GT(ratio({1.0f, 1.0f, kNan, 1.0f}, {1.0f, 1.0f, 1.0f, 1.0f}, {9, 9, 9, 9}), 1.0);
}

TEST(WorstExcess, InfinityMatchesOnlyItself) {
  EXPECT_EQ(ratio({kInf}, {kInf}, {0.0}), 0.0);
  EXPECT_GT(ratio({kInf}, {-kInf}, {1.0}), 1.0);
  EXPECT_GT(ratio({kInf}, {3e38f}, {1e30}), 1.0);
}

TEST(WorstExcess, SizesMustAgree) {
  EXPECT_GT(ratio({1.0f}, {1.0f, 1.0f}, {1, 1}), 1.0);
  EXPECT_GT(ratio({1.0f, 1.0f}, {1.0f, 1.0f}, {1}), 1.0);
  EXPECT_LE(ratio({}, {}, {}), 1.0) << "an empty batch is legal";
}

TEST(Buffer, StartsAsNanSoThatAForgottenElementFails) {
  for (const DType t : {DType::kF32, DType::kBF16}) {
    Buffer b(t, {2, 3});
    for (int i = 0; i < 6; ++i)
      if (i != 4) store_float(b, i, 1.0f);
    const std::vector<float> want(6, 1.0f);
    const Excess e = worst_excess(b.values(), want, std::vector<double>(6, 100.0));
    EXPECT_GT(e.ratio, 1.0);
    EXPECT_EQ(e.at, 4);
  }
}

TEST(Buffer, SeesDamageOnBothSides) {
  for (const int64_t elems : {1, 5, 16, 64, 1000}) {
    for (const int64_t at : {int64_t{-256}, int64_t{-1}, elems * 2, elems * 2 + 255}) {
      Buffer b(DType::kBF16, {elems});
      EXPECT_TRUE(b.guards_intact());
      auto* bytes = static_cast<unsigned char*>(b.tensor().data);
      bytes[at] ^= 1;
      EXPECT_FALSE(b.guards_intact()) << elems << " elements, byte " << at;
      bytes[at] ^= 1;
    }
  }
}

TEST(Buffer, CopiesAreTheirOwn) {
  Buffer a(DType::kF32, {2, 2});
  a.fill([v = 0.0f]() mutable { return v++; });
  Buffer b = a;
  store_float(b, 0, 9.0f);
  EXPECT_THAT(a.values(), testing::ElementsAre(0, 1, 2, 3));
  a = b;
  EXPECT_THAT(a.values(), testing::ElementsAre(9, 1, 2, 3));
  EXPECT_THAT(a.gather(std::vector<int32_t>{1, 0, 1}).values(), testing::ElementsAre(2, 3, 9, 1, 2, 3));
  EXPECT_THAT(values(a.tensor().cols(1, 1)), testing::ElementsAre(1, 3)) << "a view with a stride";
  EXPECT_THAT(a.as(DType::kBF16).as(DType::kF32).values(), testing::ElementsAre(9, 1, 2, 3));
}

TEST(FirstDifference, ComparesBitsNotValues) {
  Buffer a(DType::kF32, {2}), b(DType::kF32, {2});
  EXPECT_EQ(first_difference(a, b), -1) << "the same NaN is the same bits";
  a.fill([] { return 0.0f; });
  b.fill([] { return 0.0f; });
  store_float(b, 1, -0.0f);
  EXPECT_EQ(first_difference(a, b), 1);
  EXPECT_EQ(first_difference(a, Buffer(DType::kF32, {3})), 0);
}

// A little operator to break: y[r] = the sum of row r.
Buffer row_sums(const Buffer& x) {
  Buffer y(DType::kF32, {x.tensor().dim(0), 1});
  for (int64_t r = 0; r < x.tensor().dim(0); ++r) {
    float sum = 0;
    for (int64_t i = 0; i < x.tensor().dim(1); ++i) sum += x.tensor().row<float>(r)[i];
    store_float(y, r, sum);
  }
  return y;
}

struct SumCase {
  Suite suite{"sum", {}};
  Buffer x{DType::kF32, {40, 100}};
  std::vector<double> want, bound;

  SumCase() {
    Rng rng = suite.rng_for_case("sums");
    x.fill([&] { return rng.normal(); });
    for (int64_t r = 0; r < 40; ++r) {
      double sum = 0, magnitude = 0;
      for (int64_t i = 0; i < 100; ++i) {
        sum += x.tensor().row<float>(r)[i];
        magnitude += std::abs(x.tensor().row<float>(r)[i]);
      }
      want.push_back(sum);
      bound.push_back(100 * kEpsF32 * magnitude);
    }
  }
  void compare(const Buffer& y) { suite.expect_close("kernel", "sums", worst_excess(y.values(), want, bound)); }
};

TEST(Suite, PassesARightKernelAndCatchesAWrongOne) {
  SumCase c;
  Buffer y = row_sums(c.x);
  c.compare(y);
  EXPECT_EQ(c.suite.failed(), 0);
  EXPECT_EQ(c.suite.passed(), 1);
  // One row misses its last term: a kernel with a broken tail.
  store_float(y, 17, load_float(y, 17) - c.x.tensor().row<float>(17)[99]);
  c.compare(y);
  EXPECT_EQ(c.suite.failed(), 1);
  ASSERT_EQ(c.suite.failures().size(), 1u);
  EXPECT_THAT(c.suite.failures()[0], testing::HasSubstr("at element 17"));
  EXPECT_THAT(c.suite.failures()[0], testing::HasSubstr("--case 'sums' --seed 1"));
}

TEST(Suite, CatchesWritesOutsideABuffer) {
  Suite suite("op", {});
  Buffer a(DType::kF32, {4}), b(DType::kF32, {4});
  suite.expect_guards("kernel", "case", {&a, &b});
  EXPECT_EQ(suite.failed(), 0);
  static_cast<float*>(b.tensor().data)[4] = 0.0f;
  suite.expect_guards("kernel", "case", {&a, &b});
  EXPECT_EQ(suite.failed(), 1);
}

TEST(Suite, CatchesRowsThatDependOnTheirBatch) {
  SumCase c;
  c.suite.expect_row_invariant("kernel", "rows", 40, [&](auto rows) { return row_sums(c.x.gather(rows)); });
  EXPECT_EQ(c.suite.failed(), 0);
  // A kernel that sums in another order once 16 rows are there: right within any bound, other bits.
  c.suite.expect_row_invariant("kernel", "rows", 40, [&](auto rows) {
    const Buffer x = c.x.gather(rows);
    Buffer y = row_sums(x);
    if (rows.size() < 16) return y;
    for (int64_t r = 0; r < std::ssize(rows); ++r) {
      float sum = 0;
      for (int64_t i = 99; i >= 0; --i) sum += x.tensor().row<float>(r)[i];
      store_float(y, r, sum);
    }
    if (rows.size() == 40) c.compare(y);
    return y;
  });
  EXPECT_EQ(c.suite.passed(), 2) << "the whole batch is within the bounds";
  EXPECT_EQ(c.suite.failed(), 1) << "but rows depend on their batch";
  // A kernel that lets the last row of a batch leak into the first.
  Suite fresh("op", {});
  fresh.expect_row_invariant("kernel", "rows", 40, [&](auto rows) {
    Buffer y = row_sums(c.x.gather(rows));
    if (rows.size() > 1) store_float(y, 0, load_float(y, 0) + 1e-6f * load_float(y, std::ssize(rows) - 1));
    return y;
  });
  EXPECT_EQ(fresh.failed(), 1);
}

TEST(Suite, FiltersKernelsAndCases) {
  Options o;
  o.kernel = "amx";
  o.case_name = "T=17";
  Suite suite("op", o);
  EXPECT_TRUE(suite.wants("amx"));
  EXPECT_FALSE(suite.wants("avx2"));
  EXPECT_TRUE(suite.wants("amx", "q8_0 T=17 N=5"));
  EXPECT_FALSE(suite.wants("amx", "q8_0 T=16 N=5"));
}

// Three kernels, as a table lists them: one for even numbers, one for a CPU that there is not, one for all.
struct CountArgs {
  int n = 0;
};
bool even(const Machine&, const CountArgs& a) {
  return a.n % 2 == 0;
}
bool never(const Machine&, const CountArgs&) {
  return false;
}
constexpr Kernel<CountArgs> kCountKernels[] = {{"wide", never, nullptr, static_cast<CpuLevel>(99)},
                                               {"even", even, nullptr},
                                               {"any", fits_always<CountArgs>, nullptr}};

void count_conformance(Suite& suite, std::initializer_list<int> numbers, std::vector<std::string>* ran = nullptr) {
  for (const int n : numbers) {
    const std::string name = fmt::format("n={}", n);
    if (!suite.wants_case(name)) continue;
    for (const auto& k : suite.kernels(std::span<const Kernel<CountArgs>>(kCountKernels), kNotOnGpu<CountArgs>)) {
      if (!suite.wants(k.name, name) || !k.fits(suite.machine(), {n})) continue;
      suite.expect(k.name, name + ", part", true, "");
      suite.expect(k.name, name + ", another", true, "");
      if (ran != nullptr) ran->push_back(fmt::format("{} {}", k.name, name));
    }
  }
}

TEST(Suite, FailsForAKernelThatNoCaseReaches) {
  Suite reached("count", {});
  count_conformance(reached, {1, 2});
  reached.expect_all_reached();
  EXPECT_EQ(reached.failed(), 0);
  ASSERT_EQ(reached.counts().size(), 3u);
  EXPECT_EQ(reached.counts()[0].kernel, "wide");
  EXPECT_THAT(reached.counts()[0].skipped, testing::HasSubstr("needs a CPU with"));
  EXPECT_EQ(reached.counts()[1].skipped, "");

  Suite missed("count", {});
  count_conformance(missed, {1, 3});
  missed.expect_all_reached();
  EXPECT_EQ(missed.failed(), 1);
  EXPECT_THAT(missed.failures(), testing::ElementsAre(testing::HasSubstr("no case reaches it")));

  Options one;
  one.case_name = "n=3";
  Suite asked("count", one);
  count_conformance(asked, {1, 2, 3});
  asked.expect_all_reached();
  EXPECT_EQ(asked.failed(), 0) << "who asks for a case gets that case";
}

TEST(Suite, RunsOneCaseOfEachKernelIfAsked) {
  Options options;
  options.one_case = true;
  Suite suite("count", options);
  std::vector<std::string> ran;
  count_conformance(suite, {1, 3, 4, 6}, &ran);
  EXPECT_THAT(ran, testing::ElementsAre("any n=1", "even n=4"));
  EXPECT_TRUE(suite.wants("even", "n=4"));
  EXPECT_FALSE(suite.wants("even", "n=6"));
  EXPECT_FALSE(suite.wants_case("n=6")) << "not even its inputs";
  suite.expect_all_reached();
  EXPECT_EQ(suite.passed(), 4);
  EXPECT_EQ(suite.failed(), 0);
}

TEST(Suite, KernelsOfTheRegistryMustBeReached) {
  Options options;
  options.kernel = "reference";
  const Suite suite = run_suite({"linear", {{"reference"}}, [](Suite&) {}}, options);
  EXPECT_EQ(suite.failed(), 1) << "a suite that forgets its table";
}

TEST(Suite, InputsDependOnSeedOperatorAndCaseOnly) {
  const auto first = [](uint64_t seed, const char* op, const char* name) {
    Options o;
    o.seed = seed;
    return Suite(op, o).rng_for_case(name).integer(0, 1 << 30);
  };
  EXPECT_EQ(first(1, "a", "x"), first(1, "a", "x"));
  EXPECT_NE(first(1, "a", "x"), first(2, "a", "x"));
  EXPECT_NE(first(1, "a", "x"), first(1, "b", "x"));
  EXPECT_NE(first(1, "a", "x"), first(1, "a", "y"));
}

TEST(RandomWeight, DecodesToTheSpreadAskedFor) {
  for (const DType t : weight_types()) {
    Rng rng(7);
    const RandomWeight w = random_weight(rng, t, 8, 512, 3, 0.25f);
    const std::vector<float> v = decode_all(w.weight);
    ASSERT_EQ(v.size(), 3u * 8 * 512) << dtype_name(t);
    double squares = 0;
    for (size_t i = 0; i < v.size(); ++i) {
      const float x = v[i] * w.weight.scale_of(static_cast<int64_t>(i) / (8 * 512));
      ASSERT_TRUE(std::isfinite(x)) << dtype_name(t);
      squares += x * x;
    }
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(v.size())), 0.25, 0.05) << dtype_name(t);
  }
}

TEST(Operators, NamesAreDistinct) {
  std::vector<std::string> names;
  for (const OperatorInfo& op : operators()) names.emplace_back(op.name);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

}  // namespace
}  // namespace quire::conformance
