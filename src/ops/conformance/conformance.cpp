#include "ops/conformance/conformance.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>

#include "ops/conformance/gpu.h"
#include "ops/gemm/repack.h"
#include "ops/registry.h"

namespace quire::conformance {
namespace {

constexpr int64_t kGuardBytes = Buffer::kGuardBytes;
constexpr size_t kMaxFailures = 20;

std::byte guard_byte(int64_t i) {
  return static_cast<std::byte>(0xa5 ^ (i * 31));
}

uint64_t hash_text(uint64_t h, std::string_view text) {  // FNV-1a
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return (h ^ 0xff) * 0x100000001b3u;  // a separator: ("ab", "c") is not ("a", "bc")
}

int64_t element_bytes(DType t) {
  QUIRE_CHECK(t == DType::kF32 || t == DType::kBF16 || t == DType::kI32 || t == DType::kF8E4M3 || t == DType::kI8,
              "test buffers hold f32, bf16, i32, E4M3 codes or bytes, not {}", dtype_name(t));
  return dtype_info(t).block_bytes;
}

// Where buffers lie, by their first byte: a view says nothing of the buffer that it shows a part of.
struct LiveBuffers {
  std::mutex mutex;
  std::map<const std::byte*, int64_t> bytes;
};
LiveBuffers& live_buffers() {
  static LiveBuffers live;
  return live;
}

float load(const Tensor& t, int64_t elem) {
  if (t.dtype == DType::kI32) return static_cast<float>(static_cast<const int32_t*>(t.data)[elem]);
  if (element_bytes(t.dtype) == 1) return static_cast<const uint8_t*>(t.data)[elem];
  return load_float(t, elem);
}

// Calls fn(position in memory, index in row-major order) for every element of a view.
template <class Fn>
void for_each_element(const Tensor& t, Fn&& fn) {
  const int64_t n = t.elems();
  for (int64_t i = 0; i < n; ++i) {
    int64_t rest = i, at = 0;
    for (int d = t.rank - 1; d >= 0; --d) {
      at += rest % t.dim(d) * t.stride[static_cast<size_t>(d)];
      rest /= t.dim(d);
    }
    fn(at, i);
  }
}

template <class Want>
Excess find_worst(std::span<const float> got, std::span<const Want> want, std::span<const double> bound) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  if (got.size() != want.size() || got.size() != bound.size())
    return {kInf, static_cast<int64_t>(std::min({got.size(), want.size(), bound.size()})), 0, 0, 0};
  Excess worst;
  for (size_t i = 0; i < got.size(); ++i) {
    const double g = got[i], w = want[i], diff = g == w ? 0.0 : std::abs(g - w);
    double ratio = diff == 0.0 ? 0.0 : diff / bound[i];
    if (std::isnan(ratio) || !(bound[i] >= 0)) ratio = kInf;  // NaN anywhere, or a bound that is none
    if (worst.at < 0 || ratio > worst.ratio) worst = {ratio, static_cast<int64_t>(i), g, w, bound[i]};
  }
  return worst;
}

}  // namespace

std::vector<int32_t> Rng::permutation(int n) {
  std::vector<int32_t> p(static_cast<size_t>(n));
  std::iota(p.begin(), p.end(), 0);
  std::shuffle(p.begin(), p.end(), gen_);
  return p;
}

void Buffer::Free::operator()(std::byte* p) const {
  {
    LiveBuffers& live = live_buffers();
    const std::lock_guard lock(live.mutex);
    live.bytes.erase(p);
  }
  std::free(p);
}

int64_t Buffer::memory_bytes() const {
  return (tensor_.elems() * element_bytes(tensor_.dtype) + 2 * kGuardBytes + 63) / 64 * 64;
}

std::span<std::byte> Buffer::memory() const {
  return {store_.get(), static_cast<size_t>(memory_bytes())};
}

std::span<std::byte> Buffer::memory_around(const void* address) {
  LiveBuffers& live = live_buffers();
  const std::lock_guard lock(live.mutex);
  auto next = live.bytes.upper_bound(static_cast<const std::byte*>(address));
  if (next == live.bytes.begin()) return {};
  const auto& [first, bytes] = *--next;
  if (static_cast<const std::byte*>(address) >= first + bytes) return {};
  return {const_cast<std::byte*>(first), static_cast<size_t>(bytes)};
}

Buffer::Buffer(DType dtype, std::initializer_list<int64_t> dims) : tensor_(make_tensor(nullptr, dtype, dims)) {
  allocate();
}

Buffer::Buffer(const Tensor& like) : tensor_(like) {
  int64_t stride = 1;
  for (int d = tensor_.rank - 1; d >= 0; --d) {
    tensor_.stride[static_cast<size_t>(d)] = stride;
    stride *= tensor_.dim(d);
  }
  allocate();
}

Buffer::Buffer(const Buffer& other) : Buffer(other.tensor_) {
  std::memcpy(tensor_.data, other.tensor_.data, static_cast<size_t>(tensor_.elems() * element_bytes(tensor_.dtype)));
}

Buffer& Buffer::operator=(const Buffer& other) {
  if (this != &other) *this = Buffer(other);
  return *this;
}

void Buffer::allocate() {
  const int64_t bytes = tensor_.elems() * element_bytes(tensor_.dtype);
  const int64_t all = memory_bytes();
  store_.reset(static_cast<std::byte*>(std::aligned_alloc(64, static_cast<size_t>(all))));
  QUIRE_CHECK(store_ != nullptr, "out of memory for a test buffer of {} bytes", all);
  {
    LiveBuffers& live = live_buffers();
    const std::lock_guard lock(live.mutex);
    live.bytes.emplace(store_.get(), all);
  }
  const int64_t used = bytes + 2 * kGuardBytes;
  std::memset(store_.get() + used, 0, static_cast<size_t>(all - used));
  for (int64_t i = 0; i < kGuardBytes; ++i) {
    store_.get()[i] = guard_byte(i);
    store_.get()[kGuardBytes + bytes + i] = guard_byte(i);
  }
  tensor_.data = store_.get() + kGuardBytes;
  fill_nan();
}

Buffer& Buffer::fill(const std::function<float()>& value) {
  const int64_t n = tensor_.elems();
  for (int64_t i = 0; i < n; ++i) {
    if (tensor_.dtype == DType::kI32)
      tensor_.as<int32_t>()[i] = static_cast<int32_t>(value());
    else
      store_float(tensor_, i, value());
  }
  return *this;
}

Buffer& Buffer::fill_nan() {
  const int64_t n = tensor_.elems();
  for (int64_t i = 0; i < n; ++i) {
    if (tensor_.dtype == DType::kI32)
      tensor_.as<int32_t>()[i] = std::numeric_limits<int32_t>::min();
    else if (element_bytes(tensor_.dtype) == 1)
      static_cast<uint8_t*>(tensor_.data)[i] = 0xff;
    else
      store_float(tensor_, i, std::numeric_limits<float>::quiet_NaN());
  }
  return *this;
}

bool Buffer::guards_intact() const {
  const int64_t bytes = tensor_.elems() * element_bytes(tensor_.dtype);
  for (int64_t i = 0; i < kGuardBytes; ++i)
    if (store_.get()[i] != guard_byte(i) || store_.get()[kGuardBytes + bytes + i] != guard_byte(i)) return false;
  return true;
}

Buffer Buffer::as(DType dtype) const {
  Tensor like = tensor_;
  like.dtype = dtype;
  Buffer b(like);
  int64_t i = 0;
  b.fill([&] { return load(tensor_, i++); });
  return b;
}

Buffer Buffer::gather(std::span<const int32_t> rows) const {
  Tensor like = tensor_;
  like.shape[0] = static_cast<int64_t>(rows.size());
  Buffer b(like);
  const int64_t row_bytes = tensor_.stride[0] * element_bytes(tensor_.dtype);
  for (size_t i = 0; i < rows.size(); ++i)
    std::memcpy(static_cast<std::byte*>(b.tensor_.data) + static_cast<int64_t>(i) * row_bytes,
                static_cast<const std::byte*>(tensor_.data) + rows[i] * row_bytes, static_cast<size_t>(row_bytes));
  return b;
}

std::vector<float> Buffer::values() const {
  return conformance::values(tensor_);
}

std::vector<float> values(const Tensor& t) {
  std::vector<float> v(static_cast<size_t>(t.elems()));
  for_each_element(t, [&](int64_t at, int64_t i) { v[static_cast<size_t>(i)] = load(t, at); });
  return v;
}

int64_t first_difference(const Tensor& a, const Tensor& b) {
  if (a.dtype != b.dtype || a.rank != b.rank || a.shape != b.shape) return 0;
  const int64_t size = element_bytes(a.dtype);
  std::vector<int64_t> place_b(static_cast<size_t>(b.elems()));
  for_each_element(b, [&](int64_t at, int64_t i) { place_b[static_cast<size_t>(i)] = at; });
  int64_t first = -1;
  for_each_element(a, [&](int64_t at, int64_t i) {
    if (first >= 0) return;
    const auto* x = static_cast<const std::byte*>(a.data) + at * size;
    const auto* y = static_cast<const std::byte*>(b.data) + place_b[static_cast<size_t>(i)] * size;
    if (std::memcmp(x, y, static_cast<size_t>(size)) != 0) first = i;
  });
  return first;
}

Excess worst_excess(std::span<const float> got, std::span<const float> want, std::span<const double> bound) {
  return find_worst(got, want, bound);
}

Excess worst_excess(std::span<const float> got, std::span<const double> want, std::span<const double> bound) {
  return find_worst(got, want, bound);
}

Suite::Suite(std::string op, Options options) : op_(std::move(op)), options_(std::move(options)) {
  if (options_.threads <= 0) options_.threads = available_cpus();
}

ThreadPool& Suite::pool(int threads) {
  const int n = threads > 0 ? threads : options_.threads;
  std::unique_ptr<ThreadPool>& pool = pools_[n];
  if (!pool) pool = std::make_unique<ThreadPool>(n);
  return *pool;
}

std::unique_ptr<RepackedWeights> Suite::repack(std::span<const Weight> weights) {
  auto copies = RepackedWeights::create(weights, pool(0));
  QUIRE_CHECK(copies.ok(), "{}", copies.error().message);
  return std::move(copies).value();
}

OpContext Suite::context(Device device, int threads) {
  // A kernel that reads scratch memory before it writes there finds NaN, not what the last case left.
  constexpr int64_t kPoisoned = 256 << 10, kPiece = 16 << 10;
  Workspace::Scope scope(*workspace_);
  for (int64_t at = 0; at < kPoisoned; at += kPiece) std::memset(scope.take<std::byte>(kPiece), 0xff, kPiece);
  return {pool(threads), *workspace_, {device}};
}

Rng Suite::rng_for_case(std::string_view case_name) const {
  return Rng(hash_text(hash_text(options_.seed * 0x9e3779b97f4a7c15u, op_), case_name));
}

bool Suite::wants(std::string_view kernel, std::string_view case_name) {
  if (!options_.kernel.empty() && options_.kernel != kernel) return false;
  if (case_name.empty()) return true;
  if (options_.one_case) {
    const Count* c = find(kernel);
    if (c != nullptr && !c->first_case.empty() && c->first_case != case_name) return false;
  }
  if (case_name.find(options_.case_name) == std::string_view::npos) return false;
  asked_ = case_name;
  return true;
}

bool Suite::wants_case(std::string_view case_name) const {
  if (case_name.find(options_.case_name) == std::string_view::npos) return false;
  const auto waits = [](const Count& c) { return c.skipped.empty() && c.first_case.empty(); };
  return !options_.one_case || counts_.empty() || std::any_of(counts_.begin(), counts_.end(), waits);
}

Machine Suite::machine() const {
  return options_.gpu != nullptr ? options_.gpu->machine() : Machine{};
}

bool Suite::can_run(std::string_view kernel, const Needs& needs) {
  Count& c = count(kernel);
  if (!reaches(machine(), needs)) c.skipped = fmt::format("needs {}", describe(needs));
  return c.skipped.empty();
}

void Suite::expect_all_reached() {
  if (!options_.case_name.empty()) return;
  for (const Count& c : counts_)
    if (c.skipped.empty() && c.passed + c.failed == 0)
      expect(
          c.kernel, "all", false,
          fmt::format("this {} can run the kernel, but no case reaches it", options_.gpu != nullptr ? "GPU" : "CPU"));
}

void Suite::not_taken(std::string_view kernel, std::string_view why) {
  ++count(kernel).not_taken[std::string(why)];
}

namespace {

// Whether all calls of an operator go to one kernel.
class OneKernel final : public LaunchObserver {
 public:
  OneKernel(std::string_view op, std::string_view kernel) : op_(op), kernel_(kernel) {}
  void begin(const Launch& l) override { holds_ = holds_ && (l.op != op_ || l.kernel == kernel_); }
  void refused(const Error&) override { holds_ = false; }
  bool holds() const { return holds_; }

 private:
  std::string_view op_, kernel_;
  bool holds_ = true;
};

}  // namespace

bool Suite::takes_on_gpu(std::string_view kernel, const std::function<void(Operands&)>& place,
                         const std::function<void(const OpContext&)>& run) {
  Operands operands(*options_.gpu);
  place(operands);
  const KernelChoice choice{{{op_, std::string(kernel)}}};
  OneKernel seen(op_, kernel);
  run({.pool = pool(1),
       .workspace = *workspace_,
       .machine = machine(),
       .choice = &choice,
       .launches = &seen,
       .only_chooses = true});
  return seen.holds();
}

void Suite::run_on_gpu(std::string_view kernel, const std::function<void(Operands&)>& place,
                       const std::function<void(const OpContext&)>& run) {
  Operands operands(*options_.gpu);
  place(operands);
  const KernelChoice choice{{{op_, std::string(kernel)}}};
  const Status done = operands.run([&](const OpContext& ctx) {
    OpContext forced = ctx;
    forced.choice = &choice;
    run(forced);
  });
  if (!done.ok()) expect(kernel, asked_, false, done.error().message);
}

const Suite::Count* Suite::find(std::string_view kernel) const {
  for (const Count& c : counts_)
    if (c.kernel == kernel) return &c;
  return nullptr;
}

Suite::Count& Suite::count(std::string_view kernel) {
  for (Count& c : counts_)
    if (c.kernel == kernel) return c;
  return counts_.emplace_back(Count{std::string(kernel)});
}

void Suite::expect(std::string_view kernel, std::string_view case_name, bool pass, const std::string& detail) {
  if (options_.each)
    options_.each(fmt::format("{} {} {} {}: {}", pass ? "pass" : "FAIL", op_, kernel, case_name, detail));
  Count& c = count(kernel);
  if (c.first_case.empty()) c.first_case = asked_.empty() ? case_name : asked_;
  if (pass) {
    ++c.passed;
    return;
  }
  ++c.failed;
  if (failures_.size() < kMaxFailures)
    failures_.push_back(
        fmt::format("{} {} {}: {}\n  repeat: quire test-ops --op {}{} --kernel {} --case '{}' --seed {} --threads {}",
                    op_, kernel, case_name, detail, op_, options_.gpu != nullptr ? " --device cuda" : "", kernel,
                    case_name, options_.seed, options_.threads));
}

void Suite::expect_close(std::string_view kernel, std::string_view case_name, const Excess& e) {
  expect(kernel, case_name, e.ratio <= 1.0,
         fmt::format("worst {:.3g} of the bound, at element {}: got {:.9g}, want {:.9g} +- {:.3g}", e.ratio, e.at,
                     e.got, e.want, e.bound));
}

void Suite::expect_same_bits(std::string_view kernel, std::string_view case_name, const Tensor& got,
                             const Tensor& want) {
  const int64_t at = first_difference(got, want);
  if (at < 0) return expect(kernel, case_name, true, "same bits");
  if (got.dtype != want.dtype || got.rank != want.rank || got.shape != want.shape)
    return expect(kernel, case_name, false, "bits cannot be compared: shapes or types differ");
  expect(kernel, case_name, false,
         fmt::format("bits differ first at element {}: {:.9g}, not {:.9g}", at, values(got)[static_cast<size_t>(at)],
                     values(want)[static_cast<size_t>(at)]));
}

void Suite::expect_guards(std::string_view kernel, std::string_view case_name,
                          std::initializer_list<const Buffer*> buffers) {
  int index = 0, damaged = -1;
  for (const Buffer* b : buffers) {
    if (!b->guards_intact() && damaged < 0) damaged = index;
    ++index;
  }
  expect(kernel, case_name, damaged < 0,
         damaged < 0 ? "guards intact" : fmt::format("wrote outside buffer {} of the check", damaged));
}

void Suite::expect_row_invariant(std::string_view kernel, std::string_view case_name, int64_t rows,
                                 const std::function<Buffer(std::span<const int32_t> rows)>& run) {
  if (rows <= 0) return;
  Rng rng = rng_for_case(case_name);
  const int n = static_cast<int>(rows);
  std::vector<int32_t> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  const Buffer whole = run(all);

  std::vector<std::vector<int32_t>> batches;
  for (const int32_t r : rng.permutation(n))
    if (batches.size() < 24) batches.push_back({r});
  for (const int size : {2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, n}) {
    if (size > n) continue;
    std::vector<int32_t> p = rng.permutation(n);
    p.resize(static_cast<size_t>(size));
    batches.push_back(std::move(p));
  }
  for (const std::vector<int32_t>& batch : batches) {
    const Buffer got = run(batch), want = whole.gather(batch);
    const int64_t at = first_difference(got, want);
    if (at < 0) continue;
    const int64_t row = got.tensor().elems() == 0 ? 0 : at / got.tensor().stride[0];
    return expect(
        kernel, case_name, false,
        fmt::format("row {} has other bits as row {} of a batch of {} than in the whole batch of {} (element {})",
                    batch[static_cast<size_t>(row)], row, batch.size(), n, at));
  }
  expect(kernel, case_name, true, fmt::format("rows independent over {} batches", batches.size()));
}

int Suite::passed() const {
  return std::accumulate(counts_.begin(), counts_.end(), 0, [](int n, const Count& c) { return n + c.passed; });
}

int Suite::failed() const {
  return std::accumulate(counts_.begin(), counts_.end(), 0, [](int n, const Count& c) { return n + c.failed; });
}

Suite run_suite(const OperatorInfo& op, const Options& options) {
  Suite suite(std::string(op.name), options);
  const Device device = suite.machine().device;
  const auto is_here = [&](const KernelInfo& k) { return is_for(device, k.needs); };
  if (std::none_of(op.kernels.begin(), op.kernels.end(), is_here)) {
    suite.skip("cuda", "a GPU has no kernel of its own for it");
    return suite;
  }
  op.conformance(suite);
  for (const KernelInfo& k : op.kernels)
    if (is_here(k) && suite.wants(k.name)) suite.can_run(k.name, k.needs);
  suite.expect_all_reached();
  return suite;
}

}  // namespace quire::conformance
