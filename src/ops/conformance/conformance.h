// The conformance suite: every kernel of every operator against the reference, over a list of cases. `quire
// test-ops` runs it and prints `linear amx 806/806`-style counts. Each operator's test.cpp defines one suite,
// `void linear_conformance(Suite&)`, and the table of operators (ops/registry.cpp) names it. A suite looks like this:
//
//   void scale_conformance(Suite& s) {
//     for (const Case& c : cases()) {
//       Rng rng = s.rng_for_case(c.name);                    // inputs: the same for every kernel
//       Buffer x(DType::kBF16, {c.rows, c.cols});
//       x.fill([&] { return rng.normal(); });
//       const Expected want = by_hand_in_double(x);          // values, and the bound of each
//       if (!s.wants_case(c.name)) continue;
//       for (const auto& k : s.kernels(kScaleOp.kernels)) {
//         Buffer y(DType::kBF16, {c.rows, c.cols});          // starts as NaN
//         const ScaleArgs args{x, y};
//         if (!s.wants(k.name, c.name) || !k.fits(s.machine(), args)) continue;
//         k.launch(s.context(Device::kCpu), args);
//         s.expect_close(k.name, c.name, worst_excess(y.values(), want.values, want.bounds));
//         s.expect_guards(k.name, c.name, {&x, &y});
//         s.expect_row_invariant(k.name, c.name, c.rows, [&](std::span<const int32_t> rows) { ... });
//       }
//     }
//   }
//
// With a GPU (`quire test-ops --device cuda`) s.kernels(table, kOnGpu) are the table's kernels for it. Each is called
// through the operator, with the kernel forced, and gets its operands there and back for every launch (gpu.h). So a
// suite has the same cases and checks on both.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/op.h"

namespace quire {
class RepackedWeights;  // ops/gemm/repack.h
struct OperatorInfo;    // ops/registry.h
}  // namespace quire

namespace quire::conformance {

class Gpu;       // gpu.h
class Operands;  // likewise

struct Options {
  uint64_t seed = 1;
  std::string op;                                // only this operator; empty: all
  std::string kernel;                            // only this kernel
  std::string case_name;                         // only cases whose name contains this
  bool one_case = false;                         // of each kernel the first case that it fits, no more
  int threads = 0;                               // 0: all CPUs
  std::function<void(const std::string&)> each;  // called with a line for every check, when set
  Gpu* gpu = nullptr;                            // not null: its operators are tested, not the CPU's kernels
};

// Random numbers of a case: seeded by (suite seed, operator, case name), so that one case can be repeated
// alone.
class Rng {
 public:
  explicit Rng(uint64_t seed) : gen_(seed) {}
  float uniform(float lo, float hi) { return std::uniform_real_distribution<float>(lo, hi)(gen_); }
  float normal(float sd = 1.0f) { return sd * normal_(gen_); }
  int integer(int lo, int hi) { return std::uniform_int_distribution<int>(lo, hi)(gen_); }  // inclusive
  std::vector<int32_t> permutation(int n);
  std::mt19937_64& engine() { return gen_; }

 private:
  std::mt19937_64 gen_;
  std::normal_distribution<float> normal_;
};

// Memory for an output or an input between guard words, 64-byte aligned. Starts as NaN (integers: the least
// value), so an element that a kernel forgets fails. Element types: F32, BF16, I32, and I8 for bytes, which start as
// 0xff.
class Buffer {
 public:
  static constexpr int64_t kGuardBytes = 256;  // on each side; wider than one vector store and one tile row

  Buffer(DType dtype, std::initializer_list<int64_t> dims);
  Buffer(const Buffer& other);
  Buffer& operator=(const Buffer& other);
  Buffer(Buffer&&) noexcept = default;
  Buffer& operator=(Buffer&&) noexcept = default;

  const Tensor& tensor() const { return tensor_; }
  operator const Tensor&() const { return tensor_; }  // NOLINT(google-explicit-constructor)
  Buffer& fill(const std::function<float()>& value);  // in memory order, rounded to the element type
  Buffer& fill_nan();
  bool guards_intact() const;
  // All of its memory, guards included.
  std::span<std::byte> memory() const;
  // That of the buffer that this address lies in; empty if it lies in none.
  static std::span<std::byte> memory_around(const void* address);
  // The same values in another type (rounding): .as(kF32) hands a kernel's bf16 inputs to the reference.
  Buffer as(DType dtype) const;
  // The given rows of the outermost dimension, in this order: for row-invariance checks.
  Buffer gather(std::span<const int32_t> rows) const;
  std::vector<float> values() const;

 private:
  explicit Buffer(const Tensor& like);
  void allocate();
  int64_t memory_bytes() const;
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> store_;
  Tensor tensor_;
};

// The elements of a view (any strides) in row-major order.
std::vector<float> values(const Tensor& t);
// Whether two views of equal shape and type hold the same bits; -1, or the first element that differs.
int64_t first_difference(const Tensor& a, const Tensor& b);

// |got - want| <= bound element by element; NaN or a missing value fails. The worst ratio of difference to
// bound, and where; 1 or less passes. `bound` comes from the arithmetic: rounding units times the sum of
// magnitudes that were added.
struct Excess {
  double ratio = 0.0;
  int64_t at = -1;
  double got = 0.0, want = 0.0, bound = 0.0;
};
Excess worst_excess(std::span<const float> got, std::span<const float> want, std::span<const double> bound);
Excess worst_excess(std::span<const float> got, std::span<const double> want, std::span<const double> bound);

inline constexpr double kEpsBf16 = 0x1p-8;  // the relative error of one rounding to bf16
inline constexpr double kEpsF16 = 0x1p-11;  // the same to half precision, while the result is normal
inline constexpr double kEpsF32 = 0x1p-23;  // twice that of one rounding to float32

// Segments and their block tables, as a step holds them. Decode segments are added first.
class SegmentList {
 public:
  SegmentList() = default;
  SegmentList(std::initializer_list<Segment> decoding, std::initializer_list<Segment> prompts);
  void add_decode(const Segment& s, std::span<const int32_t> blocks = {});
  void add(const Segment& s, std::span<const int32_t> blocks = {});

  size_t size() const { return segments_.size(); }
  const Segment& operator[](size_t i) const { return segments_[i]; }
  Segment& operator[](size_t i) { return segments_[i]; }
  std::span<const int32_t> blocks(size_t i) const {
    return {tables_.data() + i * static_cast<size_t>(pitch_), static_cast<size_t>(pitch_)};
  }
  operator SegmentArray() const {  // NOLINT(google-explicit-constructor)
    return {segments_.data(), static_cast<int32_t>(segments_.size()), decodes_, tables_.data(), pitch_};
  }

 private:
  std::vector<Segment> segments_;
  std::vector<int32_t> tables_;
  int32_t decodes_ = 0, pitch_ = 0;
};

// An operator on a GPU: what of its calls lies in memory, and its entry.
template <class Args>
struct OnGpu {
  void (*place)(Operands& o, Args& a);  // puts every operand on the device
  void (*run)(const OpContext& ctx, const Args& a);
  // Null, or why such a call cannot be placed there; empty if it can. What kernels do not take is their own matter.
  std::string_view (*limit)(const Args& a) = nullptr;
};

// Of operators that no GPU has kernels for: their suites are not run there.
template <class Args>
inline constexpr OnGpu<Args> kNotOnGpu{};

class Suite;

// What a suite tests: a kernel of the operator's table.
template <class Args>
class Tested {
 public:
  explicit Tested(const Kernel<Args>& kernel) : name(kernel.name), kernel_(&kernel) {}
  Tested(const Kernel<Args>& kernel, Suite& suite, const OnGpu<Args>& gpu)
      : name(kernel.name), kernel_(&kernel), suite_(&suite), gpu_(&gpu) {}

  std::string_view name;
  bool on_gpu() const { return gpu_ != nullptr; }
  // What a GPU's kernel does not take is counted, for the report.
  bool fits(const Machine& m, const Args& a) const;
  // ctx is a CPU's: a GPU has its own.
  void launch(const OpContext& ctx, const Args& a) const;

 private:
  const Kernel<Args>* kernel_;
  Suite* suite_ = nullptr;
  const OnGpu<Args>* gpu_ = nullptr;
};

class Suite {
 public:
  struct Count {
    std::string kernel;
    int passed = 0, failed = 0;
    std::string skipped;                   // why it cannot be run here; empty if it can
    std::string first_case;                // the first in which anything was checked
    std::map<std::string, int> not_taken;  // cases that a GPU's kernel does not take, by what it does take
  };

  Suite(std::string op, Options options);

  const std::string& op() const { return op_; }
  const Options& options() const { return options_; }
  // Whose kernels are tested: this CPU, or the GPU.
  Machine machine() const;
  // A context to run kernels in. `threads` of 0 means the number from the options. The workspace is shared.
  OpContext context(Device device, int threads = 0);
  Rng rng_for_case(std::string_view case_name) const;
  // Copies of weights for Weight::repacked.
  std::unique_ptr<RepackedWeights> repack(std::span<const Weight> weights);

  // The kernels of a table that the options ask for and this machine can run.
  template <class Args>
  std::vector<Tested<Args>> kernels(std::span<const Kernel<Args>> table, const OnGpu<Args>& gpu) {
    std::vector<Tested<Args>> wanted;
    for (const Kernel<Args>& k : table) {
      if (!is_for(machine().device, k.needs) || !wants(k.name) || !can_run(k.name, k.needs)) continue;
      if (options_.gpu == nullptr)
        wanted.emplace_back(k);
      else if (gpu.run != nullptr)
        wanted.emplace_back(k, *this, gpu);
    }
    return wanted;
  }
  // Whether the options ask for this kernel, and for this case of it.
  bool wants(std::string_view kernel, std::string_view case_name = {});
  // Whether they may ask for this case of any kernel: before its inputs and expected values are computed.
  bool wants_case(std::string_view case_name) const;
  // Enters a kernel among the counts; false, and the reason kept, if this machine lacks what it needs.
  bool can_run(std::string_view kernel, const Needs& needs);
  // Enters a kernel among the counts that cannot be run, and why.
  void skip(std::string_view kernel, std::string_view why) { count(kernel).skipped = why; }
  // A kernel that can be run here and no case reached has failed, unless the options ask for certain cases.
  void expect_all_reached();

  // For Tested, with a GPU: calls of the operator, with this kernel forced. A case that it does not take; whether it
  // takes one; and a call there, of which an error is a check that failed.
  void not_taken(std::string_view kernel, std::string_view why);
  bool takes_on_gpu(std::string_view kernel, const std::function<void(Operands&)>& place,
                    const std::function<void(const OpContext&)>& run);
  void run_on_gpu(std::string_view kernel, const std::function<void(Operands&)>& place,
                  const std::function<void(const OpContext&)>& run);

  // Record one check. The name identifies the case; details are kept for a check that fails.
  void expect(std::string_view kernel, std::string_view case_name, bool pass, const std::string& detail);
  void expect_close(std::string_view kernel, std::string_view case_name, const Excess& e);
  void expect_same_bits(std::string_view kernel, std::string_view case_name, const Tensor& got, const Tensor& want);
  void expect_guards(std::string_view kernel, std::string_view case_name, std::initializer_list<const Buffer*> buffers);
  // run(rows) computes the output for these rows of the case's batch, in this order. It is called for the
  // whole batch, for rows alone (all of them, or a sample of 24), and for random batches at sizes around tile
  // edges; every row must have the bits that it has in the whole batch. One check.
  void expect_row_invariant(std::string_view kernel, std::string_view case_name, int64_t rows,
                            const std::function<Buffer(std::span<const int32_t> rows)>& run);

  int passed() const;
  int failed() const;
  std::span<const Count> counts() const { return counts_; }
  const std::vector<std::string>& failures() const { return failures_; }  // the first 20, ready to print

  // Whether a kernel of this name runs on a GPU: all of theirs begin so.
  static constexpr bool is_on_gpu(std::string_view kernel) { return kernel.starts_with("cuda"); }

 private:
  Count& count(std::string_view kernel);
  const Count* find(std::string_view kernel) const;
  ThreadPool& pool(int threads);

  std::string op_;
  Options options_;
  std::map<int, std::unique_ptr<ThreadPool>> pools_;
  std::unique_ptr<Workspace> workspace_ = std::make_unique<Workspace>();
  std::vector<Count> counts_;  // in the order of the tables
  std::string asked_;          // the case that wants() last allowed; its checks may have longer names
  std::vector<std::string> failures_;
};

template <class Args>
bool Tested<Args>::fits(const Machine& m, const Args& a) const {
  if (gpu_ == nullptr) return kernel_->fits(m, a);
  const std::string_view limit = gpu_->limit == nullptr ? std::string_view() : gpu_->limit(a);
  Args there = a;
  const bool taken = limit.empty() && suite_->takes_on_gpu(
                                          name, [&](Operands& o) { gpu_->place(o, there); },
                                          [&](const OpContext& ctx) { gpu_->run(ctx, there); });
  if (!taken) suite_->not_taken(name, limit.empty() ? fmt::format("it takes {}", kernel_->takes) : std::string(limit));
  return taken;
}

template <class Args>
void Tested<Args>::launch(const OpContext& ctx, const Args& a) const {
  if (gpu_ == nullptr) return kernel_->launch(ctx, a);
  Args there = a;
  suite_->run_on_gpu(
      name, [&](Operands& o) { gpu_->place(o, there); }, [&](const OpContext& on_gpu) { gpu_->run(on_gpu, there); });
}

// Runs an operator's suite, and demands that it reach every kernel that this machine can run.
Suite run_suite(const OperatorInfo& op, const Options& options);

// Random rows of a weight in any decodable type (through quant's encoders; for some types random bits with
// finite scales, which reach every code), kept alive by the returned object. NVFP4 gets a per-expert scale.
struct RandomWeight {
  std::vector<std::byte> bytes;
  std::vector<float> scales;
  Weight weight;
};
RandomWeight random_weight(Rng& rng, DType dtype, int64_t rows, int64_t cols, int64_t experts = 1, float sd = 0.5f);
// The decoded values, [experts * rows * cols], scale not applied.
std::vector<float> decode_all(const Weight& w);
// The types that a kernel must handle.
std::span<const DType> weight_types();

}  // namespace quire::conformance
