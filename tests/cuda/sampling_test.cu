// Sampling on the GPU against the reference on the host: every parameter, rows alone and together, what it leaves
// behind.
#include <cmath>
#include <limits>
#include <map>

#include "cuda/support.h"
#include "ops/sampling/check.h"
#include "ops/sampling/cuda/sample.h"
#include "ops/sampling/internal.h"

namespace quire::cuda_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kMaxTop = 20, kUnset = -77;

using Rng = std::mt19937;
float uniform(Rng& rng, float low, float high) {
  return std::uniform_real_distribution<float>(low, high)(rng);
}
int integer(Rng& rng, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(rng);
}
float normal(Rng& rng, float spread) {
  return std::normal_distribution<float>(0.0f, spread)(rng);
}

struct LogitCase {
  const char* name;
  float (*draw)(Rng&);
};
constexpr LogitCase kLogits[] = {
    {"normal", [](Rng& r) { return normal(r, 3.0f); }},
    {"flat", [](Rng&) { return 1.5f; }},
    {"ties", [](Rng& r) { return static_cast<float>(integer(r, -4, 4)) * 0.5f; }},
    {"peaked", [](Rng& r) { return integer(r, 0, 63) == 0 ? uniform(r, 10, 20) : normal(r, 1.0f); }},
    {"huge", [](Rng& r) { return normal(r, 1e30f); }},
    {"masked", [](Rng& r) { return integer(r, 0, 9) == 0 ? normal(r, 3.0f) : -kInf; }},
    {"spoilt",
     [](Rng& r) { return integer(r, 0, 2000) == 0 ? (integer(r, 0, 1) == 0 ? NAN : kInf) : normal(r, 3.0f); }},
};

// Rows that differ in everything, on the host.
struct Batch {
  int vocab, stride, batch_slots;
  std::vector<float> logits, bias_values;
  std::vector<SampleRow> rows;
  std::vector<int32_t> bias_ids, suppressed, counts, seen, seen_count;
  std::vector<int32_t> ids;  // of columns; empty: a column is its own token
  std::vector<uint32_t> masks;

  Batch(Rng& rng, const LogitCase& kind, int n, int v) : vocab(v), stride((v + 3) / 4 * 4), batch_slots(n + 3) {
    logits.assign(static_cast<size_t>(n * stride), NAN);
    for (int r = 0; r < n; ++r)
      for (int i = 0; i < v; ++i) logits[static_cast<size_t>(r * stride + i)] = kind.draw(rng);
    counts.assign(static_cast<size_t>(batch_slots * v), 0);
    seen.assign(static_cast<size_t>(batch_slots * capacity()), 0);
    seen_count.assign(static_cast<size_t>(batch_slots), 0);
    for (int h = 0; h < batch_slots; ++h)
      for (int i = integer(rng, 0, 60); i > 0; --i)
        sampling::note(history(), h, integer(rng, 0, v - 1), integer(rng, 0, 1) == 0);
    for (int i = integer(rng, 0, 1) * integer(rng, 0, 40); i > 0 && v > 1; --i)
      suppressed.push_back(integer(rng, 0, v - 1));
    for (int r = 0; r < n; ++r) add_row(rng, r);
  }
  int capacity() const { return std::min(vocab, 61); }
  TokenHistory history() { return {counts.data(), seen.data(), seen_count.data(), batch_slots, vocab, capacity()}; }

  void add_row(Rng& rng, int r) {
    const auto sometimes = [&] { return integer(rng, 0, 2) == 0; };
    SampleRow p;
    p.temperature = sometimes() ? 0.0f : uniform(rng, 0.05f, 2.0f);
    if (sometimes()) p.top_k = integer(rng, 1, sometimes() ? vocab + 2 : std::min(vocab, 60));
    if (sometimes()) p.top_p = uniform(rng, 0.0f, 1.0f);
    if (sometimes()) p.min_p = uniform(rng, 0.0f, 0.3f);
    if (sometimes()) p.typical_p = uniform(rng, 0.0f, 1.0f);
    if (sometimes()) p.repetition_penalty = uniform(rng, 0.5f, 2.0f);
    if (sometimes()) p.presence_penalty = uniform(rng, -2.0f, 2.0f);
    if (sometimes()) p.frequency_penalty = uniform(rng, -2.0f, 2.0f);
    p.seed = uint64_t{rng()} << 32 | rng();
    p.position = integer(rng, 0, std::numeric_limits<int>::max());
    p.logprobs = sometimes() ? -1 : integer(rng, 0, std::min(kMaxTop + 5, vocab));
    p.batch_slot = integer(rng, 0, 9) == 0 ? -1 : r;
    p.history = has_penalties({.repetition_penalty = p.repetition_penalty,
                               .presence_penalty = p.presence_penalty,
                               .frequency_penalty = p.frequency_penalty,
                               .history = 0}) ||
                        sometimes()
                    ? batch_slots - 1 - r
                    : -1;
    std::map<int32_t, float> biases;
    if (sometimes())
      for (int i = integer(rng, 1, 70); i > 0; --i)
        biases[integer(rng, 0, vocab - 1)] = integer(rng, 0, 3) == 0 ? -kInf : uniform(rng, -100.0f, 100.0f);
    p.bias_begin = static_cast<int32_t>(bias_ids.size());
    p.bias_count = static_cast<int32_t>(biases.size());
    for (const auto& [id, value] : biases) {
      bias_ids.push_back(id);
      bias_values.push_back(value);
    }
    if (sometimes()) {
      const int64_t words = mask_words(vocab);
      p.mask = static_cast<int32_t>(static_cast<int64_t>(masks.size()) / words);
      const int kind = integer(rng, 0, 9);  // of no token, of half of them, of few or of nearly all
      for (int64_t i = 0; i < words; ++i) {
        const auto bits = static_cast<uint32_t>(rng());
        masks.push_back(kind == 0 ? 0 : kind < 5 ? bits : integer(rng, 0, 7) == 0 ? bits & bits >> 1 : ~0u);
      }
    }
    if (integer(rng, 0, 9) == 0) p.flags |= kSampleIdle;
    if (integer(rng, 0, 9) == 0) p.flags |= kSampleTentative;
    if (integer(rng, 0, 4) == 0) {
      p.target = integer(rng, 0, vocab - 1);
      p.logprobs = std::max(p.logprobs, 0);
      p.batch_slot = p.history = -1;
    }
    rows.push_back(p);
  }
};

// What a call leaves.
struct Results {
  std::vector<int32_t> tokens, top_ids, top_count, ranks, sampled, counts, seen, seen_count;
  std::vector<float> logprobs, top_logprobs;
  explicit Results(const Batch& b, size_t n)
      : tokens(n, kUnset),
        top_ids(n * kMaxTop, kUnset),
        top_count(n, kUnset),
        ranks(n, kUnset),
        sampled(static_cast<size_t>(b.batch_slots), kUnset),
        counts(b.counts),
        seen(b.seen),
        seen_count(b.seen_count),
        logprobs(n, 0.5f),
        top_logprobs(n * kMaxTop, 0.5f) {}
};

std::vector<float> gather(const Batch& b, const std::vector<int>& which) {
  std::vector<float> logits;
  for (const int r : which)
    logits.insert(logits.end(), b.logits.begin() + r * b.stride, b.logits.begin() + (r + 1) * b.stride);
  return logits;
}
std::vector<SampleRow> rows_of(const Batch& b, const std::vector<int>& which) {
  std::vector<SampleRow> rows;
  for (const int r : which) rows.push_back(b.rows[static_cast<size_t>(r)]);
  return rows;
}
template <class T>
std::vector<T> padded(std::vector<T> v) {  // so that there is something to upload
  if (v.empty()) v.resize(1);
  return v;
}

Results run(const Batch& b, const std::vector<int>& which) {
  Results out(b, which.size());
  DeviceBuffer<float> logits(gather(b, which)), bias_values(padded(b.bias_values)), logprobs(out.logprobs),
      top_logprobs(out.top_logprobs);
  DeviceBuffer<SampleRow> rows(rows_of(b, which));
  DeviceBuffer<uint32_t> masks(padded(b.masks));
  DeviceBuffer<int32_t> bias_ids(padded(b.bias_ids)), suppressed(padded(b.suppressed)), counts(b.counts), seen(b.seen),
      seen_count(b.seen_count), ids(padded(b.ids)), tokens(out.tokens), top_ids(out.top_ids), top_count(out.top_count),
      ranks(out.ranks), sampled(out.sampled);
  const int n = static_cast<int>(which.size());
  DeviceBuffer<char> workspace(static_cast<size_t>(cuda::sample_workspace_bytes(n, b.vocab)));
  const cuda::SampleParams p{
      .logits = logits.data(),
      .logits_stride = b.stride,
      .rows = n,
      .vocab = b.vocab,
      .row = rows.data(),
      .bias_ids = bias_ids.data(),
      .bias_values = bias_values.data(),
      .suppressed = suppressed.data(),
      .suppressed_count = static_cast<int32_t>(b.suppressed.size()),
      .masks = masks.data(),
      .ids = b.ids.empty() ? nullptr : ids.data(),
      .history = {counts.data(), seen.data(), seen_count.data(), b.batch_slots, b.vocab, b.capacity()},
      .tokens = tokens.data(),
      .logprobs = logprobs.data(),
      .top_ids = top_ids.data(),
      .top_logprobs = top_logprobs.data(),
      .top_count = top_count.data(),
      .ranks = ranks.data(),
      .max_top = kMaxTop,
      .sampled = sampled.data()};
  const Status launched = cuda::launch_sample(nullptr, p, workspace.data());
  EXPECT_TRUE(launched.ok()) << launched.error().message;
  must(cudaDeviceSynchronize(), "sample");
  EXPECT_TRUE(workspace.guards_intact() && tokens.guards_intact() && top_ids.guards_intact() && ranks.guards_intact() &&
              top_logprobs.guards_intact() && seen.guards_intact() && counts.guards_intact());
  out.tokens = tokens.download();
  out.top_ids = top_ids.download();
  out.top_count = top_count.download();
  out.ranks = ranks.download();
  out.sampled = sampled.download();
  out.counts = counts.download();
  out.seen = seen.download();
  out.seen_count = seen_count.download();
  out.logprobs = logprobs.download();
  out.top_logprobs = top_logprobs.download();
  return out;
}

SampleArgs host_args(Batch& b, Results& out) {
  const auto n = static_cast<int64_t>(b.rows.size());
  Tensor logits = make_tensor(b.logits.data(), DType::kF32, {n, b.vocab});
  logits.stride[0] = b.stride;
  return {.logits = logits,
          .rows = b.rows.data(),
          .bias_ids = b.bias_ids.data(),
          .bias_values = b.bias_values.data(),
          .suppressed = b.suppressed.data(),
          .suppressed_count = static_cast<int32_t>(b.suppressed.size()),
          .masks = b.masks.empty() ? nullptr : b.masks.data(),
          .ids = b.ids.empty() ? nullptr : b.ids.data(),
          .history = {out.counts.data(), out.seen.data(), out.seen_count.data(), b.batch_slots, b.vocab, b.capacity()},
          .out = {make_tensor(out.tokens.data(), DType::kI32, {n}), make_tensor(out.logprobs.data(), DType::kF32, {n}),
                  make_tensor(out.top_ids.data(), DType::kI32, {n, kMaxTop}),
                  make_tensor(out.top_logprobs.data(), DType::kF32, {n, kMaxTop}),
                  make_tensor(out.top_count.data(), DType::kI32, {n}), make_tensor(out.ranks.data(), DType::kI32, {n}),
                  make_tensor(out.sampled.data(), DType::kI32, {b.batch_slots})}};
}

std::string wrong_token(const SampleArgs& before, const Batch& b, size_t r, int32_t token) {
  const SampleRow& row = b.rows[r];
  if ((row.flags & kSampleIdle) != 0) return token == -1 ? "" : fmt::format("{} of an idle row", token);
  bool spoilt = false;
  for (int i = 0; i < b.vocab; ++i)
    spoilt |= !(b.logits[r * static_cast<size_t>(b.stride) + static_cast<size_t>(i)] < kInf);
  if (row.target >= 0) {
    const auto raw = b.logits.begin() + static_cast<int64_t>(r) * b.stride;
    const bool possible = !spoilt && std::any_of(raw, raw + b.vocab, [](float x) { return x > -kInf; });
    return token == (possible ? row.target : -1) ? "" : fmt::format("{} is not the target", token);
  }
  if (spoilt ? token == -1 : conformance::draws_token(before, r, token)) return "";
  return fmt::format("token {} is not the one drawn (temperature {}, k {}, p {}, min {}, typical {})", token,
                     row.temperature, row.top_k, row.top_p, row.min_p, row.typical_p);
}

std::string wrong_logprobs(const Results& got, const Results& want, size_t r) {
  if (got.top_count[r] != want.top_count[r])
    return fmt::format("{} likeliest tokens, not {}", got.top_count[r], want.top_count[r]);
  const auto far = [](float x, float y) {
    return x != y && !(std::abs(x - y) <= 1e-6f * (20 + std::abs(y)));  // a target may be impossible: -infinity
  };
  for (size_t i = r * kMaxTop; i < r * kMaxTop + static_cast<size_t>(want.top_count[r]); ++i)
    if (got.top_ids[i] != want.top_ids[i] || far(got.top_logprobs[i], want.top_logprobs[i]))
      return fmt::format("likeliest {} is {} ({}), not {} ({})", i % kMaxTop, got.top_ids[i], got.top_logprobs[i],
                         want.top_ids[i], want.top_logprobs[i]);
  for (size_t i = r * kMaxTop + static_cast<size_t>(want.top_count[r]); i < (r + 1) * kMaxTop; ++i)
    if (got.top_ids[i] != kUnset) return "an entry beyond the count was written";
  if (got.ranks[r] != want.ranks[r]) return fmt::format("rank {}, not {}", got.ranks[r], want.ranks[r]);
  if (got.tokens[r] == want.tokens[r] && far(got.logprobs[r], want.logprobs[r]))
    return fmt::format("log-probability {}, not {}", got.logprobs[r], want.logprobs[r]);
  return "";
}

// Every batch slot and history after a call, given its tokens.
void expect_settled(const Batch& b, const Results& got) {
  Batch after = b;
  std::vector<int32_t> sampled(static_cast<size_t>(b.batch_slots), kUnset);
  for (size_t r = 0; r < b.rows.size(); ++r) {
    const SampleRow& row = b.rows[r];
    if ((row.flags & (kSampleIdle | kSampleTentative)) != 0) continue;
    if (row.batch_slot >= 0) sampled[static_cast<size_t>(row.batch_slot)] = got.tokens[r];
    if (row.history >= 0) sampling::note(after.history(), row.history, got.tokens[r], false);
  }
  EXPECT_EQ(got.sampled, sampled);
  EXPECT_EQ(got.counts, after.counts);
  EXPECT_EQ(got.seen, after.seen);
  EXPECT_EQ(got.seen_count, after.seen_count);
}

std::vector<int> all_rows(const Batch& b) {
  std::vector<int> rows(b.rows.size());
  for (size_t r = 0; r < rows.size(); ++r) rows[r] = static_cast<int>(r);
  return rows;
}

void check(Batch& b, const std::string& name, bool alone) {
  const Results got = run(b, all_rows(b));
  Results before(b, b.rows.size()), want(b, b.rows.size());
  ThreadPool pool(1);
  Workspace workspace;
  sampling::sample_reference({pool, workspace}, host_args(b, want));
  for (size_t r = 0; r < b.rows.size(); ++r) {
    const std::string token = wrong_token(host_args(b, before), b, r, got.tokens[r]),
                      probabilities = wrong_logprobs(got, want, r);
    EXPECT_TRUE(token.empty()) << name << " row " << r << ": " << token;
    EXPECT_TRUE(probabilities.empty()) << name << " row " << r << ": " << probabilities;
    if (!alone) continue;
    const Results one = run(b, {static_cast<int>(r)});
    EXPECT_EQ(one.tokens[0], got.tokens[r]) << name << " row " << r;
    EXPECT_EQ(one.ranks[0], got.ranks[r]) << name << " row " << r;
    EXPECT_EQ(std::memcmp(&one.logprobs[0], &got.logprobs[r], sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(one.top_logprobs.data(), &got.top_logprobs[r * kMaxTop], kMaxTop * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(one.top_ids.data(), &got.top_ids[r * kMaxTop], kMaxTop * sizeof(int32_t)), 0);
  }
  expect_settled(b, got);
}

TEST(CudaSampling, MatchesTheReferenceAndRowsStandAlone) {
  Rng rng(1);
  for (const LogitCase& kind : kLogits) {
    for (const int vocab : {1, 3, 7, 64, 511, 512, 513, 2048, 5003}) {
      Batch b(rng, kind, 24, vocab);
      check(b, fmt::format("{} of {}", kind.name, vocab), vocab == 513 || vocab == 5003);
    }
  }
}

TEST(CudaSampling, MatchesTheReferenceOnALargeVocabulary) {
  Rng rng(2);
  for (const LogitCase& kind : kLogits) {
    Batch b(rng, kind, 16, 100003);
    check(b, fmt::format("{} of {}", kind.name, b.vocab), false);
  }
}

__global__ void noise_of(const uint32_t* bits, float* noise, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) noise[i] = gumbel_of(bits[i]);
}

// Bits of all sizes, since small ones are those that win.
TEST(CudaSampling, NoiseHasTheBitsOfTheCpus) {
  Rng rng(4);
  std::vector<uint32_t> bits{0, 1, 0x55555554, 0x55555555, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
  while (bits.size() < (1 << 20)) bits.push_back(rng() >> integer(rng, 0, 31));
  const int n = static_cast<int>(bits.size());
  DeviceBuffer<uint32_t> d_bits(bits);
  DeviceBuffer<float> d_noise(bits.size());
  noise_of<<<static_cast<unsigned>(n / 256), 256>>>(d_bits.data(), d_noise.data(), n);
  CUDA_OK(cudaDeviceSynchronize());
  const std::vector<float> noise = d_noise.download();
  for (size_t i = 0; i < bits.size(); ++i)
    ASSERT_EQ(std::bit_cast<uint32_t>(noise[i]), std::bit_cast<uint32_t>(gumbel_of(bits[i]))) << "bits " << bits[i];
}

// Columns of a trimmed head: its rows draw with the noise of the tokens that they stand for.
TEST(CudaSampling, ColumnsWithIds) {
  Rng rng(5);
  for (const int columns : {5, 512, 5003, 65536}) {
    std::vector<int32_t> ids(static_cast<size_t>(columns));
    int32_t id = 3;
    for (int32_t& x : ids) x = id, id += 1 + integer(rng, 0, 2) * integer(rng, 0, 3);
    Batch b(rng, kLogits[0], 8, columns);
    b.ids = ids;
    b.suppressed.clear();
    for (SampleRow& row : b.rows) {
      row.history = row.target = row.logprobs = row.mask = -1;
      row.bias_count = 0;
      row.flags = 0;
    }
    Results before(b, b.rows.size());
    const Results got = run(b, all_rows(b));
    for (size_t r = 0; r < b.rows.size(); ++r)
      EXPECT_TRUE(conformance::draws_token(host_args(b, before), r, got.tokens[r])) << columns << " columns, row " << r;
  }
}

TEST(CudaSampling, NotesTokens) {
  Rng rng(3);
  for (const int capacity : {5, 40, 300}) {
    constexpr int kVocab = 300, kHistories = 7;
    std::vector<int32_t> tokens(500), counts(kVocab * kHistories, 0),
        seen(static_cast<size_t>(capacity * kHistories), -1), seen_count(kHistories, 0);
    for (int32_t& t : tokens) t = integer(rng, -2, kVocab + 2);
    const TokenHistory host{counts.data(), seen.data(), seen_count.data(), kHistories, kVocab, capacity};
    for (int i = 0; i < 60; ++i)
      sampling::note(host, integer(rng, 0, 6), integer(rng, 0, kVocab - 1), integer(rng, 0, 1) == 0);
    const std::vector<HistoryUpdate> ranges = {
        {0, 10, 200, 150, 0}, {3, 0, 20, 0, 1}, {-1, 0, 500, 0, 1}, {5, 300, 100, 100, 1}, {2, 7, 0, 0, 0}};
    DeviceBuffer<int32_t> d_tokens(tokens), d_counts(counts), d_seen(seen), d_seen_count(seen_count);
    DeviceBuffer<HistoryUpdate> d_ranges(ranges);
    const cuda::UpdateHistoryParams p{
        d_tokens.data(),
        d_ranges.data(),
        static_cast<int>(ranges.size()),
        {d_counts.data(), d_seen.data(), d_seen_count.data(), kHistories, kVocab, capacity}};
    ASSERT_TRUE(cuda::launch_update_history(nullptr, p).ok());
    CUDA_OK(cudaDeviceSynchronize());
    for (const HistoryUpdate& range : ranges) {
      if (range.history < 0) continue;
      if (range.reset != 0) sampling::empty(host, range.history);
      for (int i = 0; i < range.count; ++i)
        sampling::note(host, range.history, tokens[static_cast<size_t>(range.begin + i)], i < range.prompt);
    }
    EXPECT_EQ(d_counts.download(), counts);
    EXPECT_EQ(d_seen_count.download(), seen_count);
    const auto listed = d_seen.download();
    for (int h = 0; h < kHistories; ++h) {
      const auto sorted = [&](const std::vector<int32_t>& all) {
        std::vector<int32_t> v(all.begin() + h * capacity,
                               all.begin() + h * capacity + seen_count[static_cast<size_t>(h)]);
        std::sort(v.begin(), v.end());
        return v;
      };
      EXPECT_EQ(sorted(listed), sorted(seen)) << "history " << h << " of capacity " << capacity;
    }
    EXPECT_TRUE(d_seen.guards_intact() && d_counts.guards_intact());
  }
}

}  // namespace
}  // namespace quire::cuda_test
