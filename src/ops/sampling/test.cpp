#include <cmath>
#include <limits>

#include "ops/conformance/conformance.h"
#include "ops/sampling/internal.h"

namespace quire::conformance {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct LogitCase {
  const char* name;
  float (*draw)(Rng&);
};
constexpr LogitCase kLogits[] = {
    {"normal", [](Rng& r) { return r.normal(3.0f); }},
    {"flat", [](Rng&) { return 1.5f; }},
    {"ties", [](Rng& r) { return static_cast<float>(r.integer(-4, 4)) * 0.5f; }},
    {"peaked", [](Rng& r) { return r.integer(0, 63) == 0 ? r.uniform(10, 20) : r.normal(); }},
    {"huge", [](Rng& r) { return r.normal(1e30f); }},
    {"masked", [](Rng& r) { return r.integer(0, 9) == 0 ? r.normal(3.0f) : -kInf; }},
};

SamplingParams random_params(Rng& rng, int vocab) {
  SamplingParams p;
  const auto sometimes = [&] { return rng.integer(0, 2) == 0; };
  p.temperature = sometimes() ? 0.0f : rng.uniform(0.05f, 2.0f);
  if (sometimes()) p.top_k = rng.integer(1, vocab + 2);
  if (sometimes()) p.top_p = rng.uniform(0.0f, 1.0f);
  if (sometimes()) p.min_p = rng.uniform(0.0f, 0.3f);
  if (sometimes()) p.typical_p = rng.uniform(0.0f, 1.0f);
  if (sometimes()) p.repetition_penalty = rng.uniform(0.5f, 2.0f);
  if (sometimes()) p.presence_penalty = rng.uniform(-2.0f, 2.0f);
  if (sometimes()) p.frequency_penalty = rng.uniform(-2.0f, 2.0f);
  if (sometimes())
    for (int i = rng.integer(1, 4); i > 0; --i)
      p.logit_bias[rng.integer(0, vocab - 1)] = rng.uniform(-100.0f, 100.0f);
  p.seed = rng.engine()();
  p.logprobs = sometimes() ? -1 : rng.integer(0, std::min(20, vocab));
  return p;
}

std::vector<int32_t> random_ids(Rng& rng, int count, int vocab) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = rng.integer(0, vocab - 1);
  return ids;
}

// A batch of requests that differ in everything.
struct Batch {
  Buffer logits;
  std::vector<SamplingParams> params;
  std::vector<std::vector<int32_t>> prompt, output, suppressed;
  std::vector<SampleRow> rows;

  Batch(Rng& rng, const LogitCase& kind, int n, int vocab) : logits(DType::kF32, {n, vocab}) {
    logits.fill([&] { return kind.draw(rng); });
    for (int r = 0; r < n; ++r) {
      params.push_back(random_params(rng, vocab));
      prompt.push_back(random_ids(rng, rng.integer(0, 40), vocab));
      output.push_back(random_ids(rng, rng.integer(0, 40), vocab));
      suppressed.push_back(random_ids(rng, rng.integer(0, 2), vocab));
    }
    for (size_t r = 0; r < params.size(); ++r)
      rows.push_back({&params[r], rng.integer(0, 1 << 20), prompt[r], output[r], suppressed[r]});
  }
};

// The kernel sums float32 weights, the reference float64 ones: where the random number falls within 1e-5 of
// the border between two tokens, either may be drawn.
std::string wrong_token(const Batch& b, size_t r, int32_t token) {
  const SampleRow& row = b.rows[r];
  const auto vocab = static_cast<size_t>(b.logits.tensor().dim(1));
  const auto distribution =
      sampling::reference_distribution({b.logits.tensor().row<float>(static_cast<int64_t>(r)), vocab}, row);
  if (distribution.empty()) return token == -1 ? "" : fmt::format("row {}: {} drawn from nothing", r, token);
  if (distribution.size() == 1 && distribution[0].id == token) return "";
  const double u = sample_uniform(row.params->seed, row.position);
  double sum = 0;
  for (const auto& t : distribution) {
    if (t.id == token && u > sum - 1e-5 && u < sum + t.p + 1e-5) return "";
    sum += t.p;
  }
  return fmt::format("row {}: token {} is not the one at {} of {} tokens left", r, token, u,
                     distribution.size());
}

std::string wrong_logprobs(const Sampled& got, const Sampled& want) {
  if (got.top.size() != want.top.size())
    return fmt::format("{} likeliest tokens, not {}", got.top.size(), want.top.size());
  for (size_t i = 0; i < want.top.size(); ++i)
    if (got.top[i].token != want.top[i].token ||
        !(std::abs(got.top[i].logprob - want.top[i].logprob) <= 1e-6 * (20 + std::abs(want.top[i].logprob))))
      return fmt::format("likeliest token {} is {} ({}), not {} ({})", i, got.top[i].token,
                         got.top[i].logprob, want.top[i].token, want.top[i].logprob);
  if (got.token == want.token &&
      !(std::abs(got.logprob - want.logprob) <= 1e-6 * (20 + std::abs(want.logprob))))
    return fmt::format("the token's log-probability is {}, not {}", got.logprob, want.logprob);
  return "";
}

void check_batch(Suite& s, const std::string& name, const Batch& b) {
  const auto n = static_cast<int32_t>(b.rows.size());
  std::vector<Sampled> want(b.rows.size());
  bool have_want = false;
  for (const auto& k : s.kernels(sample_kernels())) {
    if (!s.wants(k.name, name)) continue;
    if (!have_want) sampling::sample_reference(s.context(Device::kReference), {b.logits, b.rows, want});
    have_want = true;
    std::vector<Sampled> got(b.rows.size());
    k.launch(s.context(Device::kCpu), {b.logits, b.rows, got});
    std::string wrong;
    for (size_t r = 0; r < got.size() && wrong.empty(); ++r) {
      wrong = wrong_token(b, r, got[r].token);
      if (wrong.empty()) wrong = wrong_logprobs(got[r], want[r]);
    }
    s.expect(k.name, name, wrong.empty(), wrong.empty() ? "tokens and log-probabilities agree" : wrong);
    if (k.name == "reference" && b.logits.tensor().dim(1) > 1000) continue;  // it sorts the vocabulary: slow
    s.expect_row_invariant(k.name, name, n, [&](std::span<const int32_t> rows) {
      const Buffer logits = b.logits.gather(rows);
      std::vector<SampleRow> row;
      for (const int32_t r : rows) row.push_back(b.rows[static_cast<size_t>(r)]);
      std::vector<Sampled> out(rows.size());
      k.launch(s.context(Device::kCpu, 1 + static_cast<int>(rows.size()) % 4), {logits, row, out});
      Buffer flat(DType::kF32, {std::ssize(rows), 23});
      flat.fill([] { return 0.0f; });
      for (int64_t r = 0; r < std::ssize(rows); ++r) {
        const Sampled& o = out[static_cast<size_t>(r)];
        float* at = flat.tensor().row<float>(r);
        *at++ = static_cast<float>(o.token);
        *at++ = o.logprob;
        for (const TokenLogprob& t : o.top) *at++ = t.logprob + static_cast<float>(t.token);
      }
      return flat;
    });
  }
}

}  // namespace

void sample_conformance(Suite& s) {
  for (const LogitCase& kind : kLogits) {
    for (const int vocab : {1, 7, 63, 64, 65, 1000, 32003}) {
      const std::string name = fmt::format("{} V={}", kind.name, vocab);
      Rng rng = s.rng_for_case(name);
      check_batch(s, name, Batch(rng, kind, vocab > 1000 ? 12 : 40, vocab));
    }
  }
  // Damaged rows report -1 and leave their neighbours alone.
  Rng rng = s.rng_for_case("damaged");
  Batch b(rng, kLogits[0], 40, 100);
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(), kInf, -kInf};
  for (int r = 0; r < 40; r += 2) {
    float* row = b.logits.tensor().row<float>(r);
    if (r % 3 == 2)
      std::fill(row, row + 100, -kInf);
    else
      row[rng.integer(0, 99)] = bad[r % 3];
  }
  for (const auto& k : s.kernels(sample_kernels())) {
    if (!s.wants(k.name, "damaged")) continue;
    std::vector<Sampled> got(40);
    k.launch(s.context(Device::kCpu), {b.logits, b.rows, got});
    int wrong = -1;
    for (int r = 0; r < 40; ++r)
      if ((got[static_cast<size_t>(r)].token == -1) != (r % 2 == 0)) wrong = r;
    s.expect(k.name, "damaged", wrong < 0, fmt::format("last wrong row: {}", wrong));
  }
}

}  // namespace quire::conformance
