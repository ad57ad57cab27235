// The conformance suite: every kernel of every operator against the reference, over a list of cases. `quire
// test-ops` runs it and prints `linear 806/806`-style counts. Each operator's test.cpp defines one suite and
// conformance.cpp lists them.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/op.h"

namespace quire::conformance {

struct Options {
  uint64_t seed = 1;
  std::string op;      // only this operator; empty: all
  std::string kernel;  // only this kernel
  int threads = 0;     // 0: all CPUs
  bool verbose = false;
};

// Random numbers of a case: seeded by (suite seed, case number), so that one case can be repeated alone.
class Rng {
 public:
  explicit Rng(uint64_t seed) : gen_(seed) {}
  float uniform(float lo, float hi) { return std::uniform_real_distribution<float>(lo, hi)(gen_); }
  float normal(float sd = 1.0f) { return std::normal_distribution<float>(0.0f, sd)(gen_); }
  int integer(int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(gen_); }  // inclusive
  std::mt19937_64& engine() { return gen_; }

 private:
  std::mt19937_64 gen_;
};

// Memory for an output or an input between guard words. Outputs start as NaN, so an element that a kernel
// forgets fails.
class Buffer {
 public:
  Buffer(DType dtype, std::initializer_list<int64_t> dims);
  const Tensor& tensor() const { return tensor_; }
  operator const Tensor&() const { return tensor_; }  // NOLINT(google-explicit-constructor)
  Buffer& fill(const std::function<float()>& value);  // rounds to the element type
  Buffer& fill_nan();
  bool guards_intact() const;
  // The same values in another type (rounding); for handing a kernel's bf16 inputs to the f32 reference use
  // to_f32.
  Buffer as(DType dtype) const;
  std::vector<float> values() const;
  const std::byte* bytes() const;
  int64_t size_bytes() const { return bytes_; }

 private:
  std::vector<std::byte> store_;
  Tensor tensor_;
  int64_t bytes_ = 0;
};

// |got - want| <= bound element by element; NaN or a missing value fails. The worst ratio of difference to
// bound, and where; 1 or less passes. `bound` comes from the arithmetic: rounding units times the sum of
// magnitudes that were added.
struct Excess {
  double ratio = 0.0;
  int64_t at = -1;
  float got = 0.0f, want = 0.0f;
  double bound = 0.0;
};
Excess worst_excess(const std::vector<float>& got, const std::vector<float>& want,
                    const std::vector<double>& bound);

inline constexpr double kEpsBf16 =
    0x1p-8;  // relative rounding error of one conversion to bf16 (half an ulp: 2^-9; x2)
inline constexpr double kEpsF32 = 0x1p-23;

class Suite {
 public:
  Suite(std::string op, const Options& options);

  const Options& options() const { return options_; }
  // Contexts to run kernels in; `threads` of 0 means the suite's pool (all CPUs).
  OpContext context(Device device);
  Rng rng_for_case(std::string_view kernel, std::string_view name) const;

  // Whether the options ask for this kernel.
  bool wants(std::string_view kernel) const { return options_.kernel.empty() || options_.kernel == kernel; }

  // Record one check. The name identifies the case; details are printed when it fails.
  void expect(std::string_view kernel, std::string_view case_name, bool pass, const std::string& detail);
  void expect_close(std::string_view kernel, std::string_view case_name, const Excess& e);
  void expect_same_bits(std::string_view kernel, std::string_view case_name, const Buffer& a,
                        const Buffer& b);
  void expect_guards(std::string_view kernel, std::string_view case_name,
                     std::initializer_list<const Buffer*> buffers);

  int passed() const { return passed_; }
  int failed() const { return failed_; }
  const std::string& op() const { return op_; }
  const std::vector<std::string>& failures() const { return failures_; }  // the first 20

 private:
  std::string op_;
  Options options_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Workspace> workspace_;
  int passed_ = 0, failed_ = 0;
  std::vector<std::string> failures_;
};

struct SuiteEntry {
  const char* op;
  void (*run)(Suite&);
};
// All suites, in the order of the architecture document.
std::span<const SuiteEntry> suites();

// Random rows of a weight in any encodable type (through quant's encoders; random blocks where there is no
// encoder), kept alive by the returned object.
struct RandomWeight {
  std::vector<std::byte> bytes;
  std::vector<float> scales;
  Weight weight;
};
RandomWeight random_weight(Rng& rng, DType dtype, int64_t rows, int64_t cols, int64_t experts = 1,
                           float sd = 0.5f);
// The decoded values, [experts * rows * cols], scale not applied.
std::vector<float> decode_all(const Weight& w);
// The types that a kernel must handle.
std::span<const DType> weight_types();

}  // namespace quire::conformance
