#include <cmath>
#include <limits>

#include "ops/conformance/gpu.h"
#include "ops/sampling/check.h"
#include "ops/sampling/internal.h"
#include "ops/sampling/rows.h"

namespace quire::conformance {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

constexpr OnGpu<SampleArgs> kOnGpu{
    [](Operands& o, SampleArgs& a) {
      int64_t biases = 0, masks = 0;
      for (int64_t r = 0; r < a.logits.dim(0); ++r) {
        biases = std::max({biases, int64_t{a.rows[r].bias_begin} + a.rows[r].bias_count,
                           int64_t{a.rows[r].unnoted_begin} + a.rows[r].unnoted_count});
        masks = std::max(masks, int64_t{a.rows[r].mask} + 1);
      }
      o.array(a.rows, a.logits.dim(0));
      o.array(a.bias_ids, biases);
      o.array(a.bias_values, biases);
      o.array(a.suppressed, a.suppressed_count);
      o.array(a.masks, masks * mask_words(a.logits.dim(1)));
      if (a.ids != nullptr) o.array(a.ids, a.logits.dim(1));
      place_history(o, a.history);
      for (Tensor* t : {&a.logits, &a.out.tokens, &a.out.logprobs, &a.out.top_ids, &a.out.top_logprobs,
                        &a.out.top_count, &a.out.ranks, &a.out.sampled})
        o.tensor(*t);
    },
    sample};

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
    for (int i = rng.integer(1, 4); i > 0; --i) p.logit_bias[rng.integer(0, vocab - 1)] = rng.uniform(-100.0f, 100.0f);
  p.seed = rng.engine()();
  p.logprobs = sometimes() ? -1 : rng.integer(0, std::min(20, vocab));
  return p;
}

std::vector<int32_t> random_ids(Rng& rng, int count, int vocab) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = rng.integer(0, vocab - 1);
  return ids;
}

constexpr int kMaxTop = 20;
constexpr int kDrafts = 9;      // behind the batch slots
constexpr int32_t kUnset = -7;  // of batch slots that no row of a call settles

// A batch of requests that differ in everything, at shuffled batch slots and histories; some rows are idle or
// tentative.
struct Batch {
  int vocab;
  Buffer logits;        // rows begin at multiples of 16 bytes, as an engine's do
  int32_t batch_slots;  // and histories: some belong to no row
  std::vector<SampleRow> rows;
  std::vector<SeenTokens> seen;  // of every history
  HistoryBuffers history;
  std::vector<int32_t> bias_ids, suppressed, drafts;
  std::vector<float> bias_values;
  std::vector<uint32_t> masks;

  Batch(Rng& rng, const LogitCase& kind, int n, int tokens)
      : vocab(tokens),
        logits(DType::kF32, {n, (vocab + 3) / 4 * 4}),
        batch_slots(n + n / 2 + 1),
        history(batch_slots, vocab, std::min(vocab, 81)) {
    logits.fill([&] { return kind.draw(rng); });
    for (int32_t h = 0; h < batch_slots; ++h) {
      seen.push_back({random_ids(rng, rng.integer(0, 40), vocab), random_ids(rng, rng.integer(0, 40), vocab)});
      history.set(h, seen.back(), rng);
    }
    const std::vector<int32_t> batch_slot = rng.permutation(batch_slots), tracked = rng.permutation(batch_slots);
    drafts = random_ids(rng, kDrafts, vocab);
    if (rng.integer(0, 1) == 0) suppressed = random_ids(rng, rng.integer(0, 3), vocab);
    for (size_t r = 0; r < static_cast<size_t>(n); ++r) add_row(rng, batch_slot[r], tracked[r]);
  }
  void add_row(Rng& rng, int32_t batch_slot, int32_t tracked) {
    SamplingParams p = random_params(rng, vocab);
    for (const int32_t id : random_ids(rng, rng.integer(0, 2), vocab)) p.logit_bias[id] = -kInf;
    const SampleTarget target{.position = rng.integer(0, std::numeric_limits<int>::max()),
                              .batch_slot = rng.integer(0, 9) == 0 ? -1 : batch_slot,
                              .history = p.has_penalties() || rng.integer(0, 2) == 0 ? tracked : -1,
                              .tentative = rng.integer(0, 9) == 0};
    SampleRow row;
    std::vector<int32_t> ids(p.logit_bias.size());
    std::vector<float> values(p.logit_bias.size());
    SampleRowList list({vocab, batch_slots, batch_slots, vocab, 10}, {{&row, 1}, ids, values});
    const Status added = list.add(p, target);
    QUIRE_CHECK(added.ok(), "{}", added.error().message);
    row.bias_begin = static_cast<int32_t>(bias_ids.size());
    bias_ids.insert(bias_ids.end(), ids.begin(), ids.end());
    bias_values.insert(bias_values.end(), values.begin(), values.end());
    if (rng.integer(0, 2) == 0) add_mask(rng, row);
    if (rng.integer(0, 4) == 0) {
      row.target = rng.integer(0, vocab - 1);
      row.logprobs = std::max(row.logprobs, 0);
      row.batch_slot = row.history = -1;
    }
    if (rng.integer(0, 9) == 0) row.flags |= kSampleIdle;
    if (has_penalties(row) && rng.integer(0, 1) == 0) add_unnoted(rng, row);
    rows.push_back(row);
  }
  // Some that the history has as well, and some twice.
  void add_unnoted(Rng& rng, SampleRow& row) {
    row.unnoted_begin = static_cast<int32_t>(bias_ids.size());
    row.unnoted_count = rng.integer(0, kMostUnnoted - kDrafts);
    for (const int32_t id : random_ids(rng, row.unnoted_count, vocab)) bias_ids.push_back(id), bias_values.push_back(0);
    row.drafts_count = rng.integer(0, kDrafts);
    row.drafts_begin = batch_slots + rng.integer(0, kDrafts - row.drafts_count);
  }
  // Of many tokens, of few, or of none.
  void add_mask(Rng& rng, SampleRow& row) {
    const int64_t words = mask_words(vocab);
    row.mask = static_cast<int32_t>(std::ssize(masks) / words);
    const int kind = rng.integer(0, 9);
    for (int64_t i = 0; i < words; ++i) {
      const auto bits =
          static_cast<uint32_t>(rng.integer(0, 0xffff)) << 16 | static_cast<uint32_t>(rng.integer(0, 0xffff));
      masks.push_back(kind == 0 ? 0 : kind < 5 ? bits : rng.integer(0, 7) == 0 ? bits & bits >> 1 : ~0u);
    }
  }
  bool idle(size_t r) const { return (rows[r].flags & kSampleIdle) != 0; }
  bool settles(size_t r) const { return (rows[r].flags & (kSampleIdle | kSampleTentative)) == 0; }
};

// One call over some rows of a batch: its outputs and its own copy of the histories.
struct Call {
  const Batch& batch;
  std::vector<SampleRow> rows;
  Buffer logits, tokens, logprobs, top_ids, top_logprobs, top_count, ranks, sampled;
  HistoryBuffers history;

  Call(const Batch& b, std::span<const int32_t> which)
      : batch(b),
        logits(b.logits.gather(which)),
        tokens(DType::kI32, {std::ssize(which)}),
        logprobs(DType::kF32, {std::ssize(which)}),
        top_ids(DType::kI32, {std::ssize(which), kMaxTop}),
        top_logprobs(DType::kF32, {std::ssize(which), kMaxTop}),
        top_count(DType::kI32, {std::ssize(which)}),
        ranks(DType::kI32, {std::ssize(which)}),
        sampled(DType::kI32, {b.batch_slots + kDrafts}),
        history(b.history) {
    for (const int32_t r : which) rows.push_back(b.rows[static_cast<size_t>(r)]);
    std::fill_n(sampled.tensor().as<int32_t>(), b.batch_slots, kUnset);
    std::copy_n(b.drafts.begin(), kDrafts, sampled.tensor().as<int32_t>() + b.batch_slots);
  }
  SampleArgs args() const {
    return {.logits = logits.tensor().cols(0, batch.vocab),
            .rows = rows.data(),
            .bias_ids = batch.bias_ids.data(),
            .bias_values = batch.bias_values.data(),
            .suppressed = batch.suppressed.data(),
            .suppressed_count = static_cast<int32_t>(batch.suppressed.size()),
            .masks = batch.masks.data(),
            .history = history.view(),
            .out = {tokens, logprobs, top_ids, top_logprobs, top_count, ranks, sampled}};
  }
  int32_t token(size_t r) const { return tokens.tensor().as<int32_t>()[r]; }
  int32_t rank(size_t r) const { return ranks.tensor().as<int32_t>()[r]; }
};

std::vector<int32_t> all_rows(const Batch& b) {
  std::vector<int32_t> rows(b.rows.size());
  for (size_t r = 0; r < rows.size(); ++r) rows[r] = static_cast<int32_t>(r);
  return rows;
}

std::string wrong_token(const Batch& b, const Call& before, size_t r, int32_t token) {
  if (b.idle(r)) return token == -1 ? "" : fmt::format("row {}: token {} though it is idle", r, token);
  if (const int32_t target = b.rows[r].target; target >= 0) {
    const float* const raw = b.logits.tensor().row<float>(static_cast<int64_t>(r));
    const bool possible = std::any_of(raw, raw + b.vocab, [](float x) { return x > -kInf; });
    return token == (possible ? target : -1) ? "" : fmt::format("row {}: {} is not its target", r, token);
  }
  return draws_token(before.args(), r, token) ? "" : fmt::format("row {}: token {} is not the one drawn", r, token);
}

std::string wrong_logprobs(const Sampled& got, const Sampled& want) {
  if (got.top.size() != want.top.size())
    return fmt::format("{} likeliest tokens, not {}", got.top.size(), want.top.size());
  for (size_t i = 0; i < want.top.size(); ++i)
    if (got.top[i].token != want.top[i].token ||
        !(std::abs(got.top[i].logprob - want.top[i].logprob) <= 1e-6 * (20 + std::abs(want.top[i].logprob))))
      return fmt::format("likeliest token {} is {} ({}), not {} ({})", i, got.top[i].token, got.top[i].logprob,
                         want.top[i].token, want.top[i].logprob);
  if (got.token == want.token && got.logprob != want.logprob &&  // a target may be impossible: -infinity
      !(std::abs(got.logprob - want.logprob) <= 1e-6 * (20 + std::abs(want.logprob))))
    return fmt::format("the token's log-probability is {}, not {}", got.logprob, want.logprob);
  return "";
}

// What a call leaves for the next step, given its tokens: every batch slot and history, those of no row included.
std::string wrong_settled(const Batch& b, const Call& call) {
  std::vector<int32_t> sampled(static_cast<size_t>(b.batch_slots), kUnset);
  std::vector<SeenTokens> seen = b.seen;
  for (size_t r = 0; r < b.rows.size(); ++r) {
    if (!b.settles(r)) continue;
    if (b.rows[r].batch_slot >= 0) sampled[static_cast<size_t>(b.rows[r].batch_slot)] = call.token(r);
    if (b.rows[r].history >= 0 && call.token(r) >= 0)
      seen[static_cast<size_t>(b.rows[r].history)].output.push_back(call.token(r));
  }
  for (int32_t p = 0; p < b.batch_slots; ++p) {
    const int32_t got = call.sampled.tensor().as<int32_t>()[p];
    if (got != sampled[static_cast<size_t>(p)])
      return fmt::format("batch_slot {} holds {}, not {}", p, got, sampled[static_cast<size_t>(p)]);
    const std::string wrong = wrong_history(call.history.view(), p, seen[static_cast<size_t>(p)]);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

// Everything that a call wrote for its rows, as numbers.
Buffer flat(const Call& call) {
  const auto n = std::ssize(call.rows);
  Buffer b(DType::kF32, {n, 6 + 2 * kMaxTop});
  b.fill([] { return 0.0f; });
  for (int64_t r = 0; r < n; ++r) {
    const Sampled s = read_sampled(call.args().out, r);
    const SampleRow& row = call.rows[static_cast<size_t>(r)];
    float* at = b.tensor().row<float>(r);
    *at++ = static_cast<float>(s.token);
    *at++ = s.logprob;
    *at++ = static_cast<float>(s.top.size());
    *at++ = static_cast<float>(call.rank(static_cast<size_t>(r)));
    *at++ = row.batch_slot < 0 ? 0.0f : static_cast<float>(call.sampled.tensor().as<int32_t>()[row.batch_slot]);
    *at++ = row.history < 0 ? 0.0f : static_cast<float>(call.history.view().seen_count[row.history]);
    for (const TokenLogprob& t : s.top) *at++ = static_cast<float>(t.token), *at++ = t.logprob;
  }
  return b;
}

void check_batch(Suite& s, const std::string& name, const Batch& b) {
  const std::vector<int32_t> all = all_rows(b);
  const Call before(b, all), want(b, all);
  bool have_want = false;
  for (const auto& k : s.kernels(kSampleOp.kernels, kOnGpu)) {
    if (!s.wants(k.name, name)) continue;
    if (!have_want) sampling::sample_reference(s.context(Device::kReference), want.args());
    have_want = true;
    const Call got(b, all);
    k.launch(s.context(Device::kCpu), got.args());
    std::string wrong;
    for (size_t r = 0; r < all.size() && wrong.empty(); ++r) {
      const auto row = static_cast<int64_t>(r);
      wrong = wrong_token(b, before, r, got.token(r));
      if (wrong.empty() && (got.token(r) < 0) == (want.token(r) < 0))
        wrong = wrong_logprobs(read_sampled(got.args().out, row), read_sampled(want.args().out, row));
      if (wrong.empty() && got.rank(r) != want.rank(r))
        wrong = fmt::format("row {}: rank {}, not {}", r, got.rank(r), want.rank(r));
    }
    if (wrong.empty()) wrong = wrong_settled(b, got);
    s.expect(k.name, name, wrong.empty(), wrong.empty() ? "tokens and log-probabilities agree" : wrong);
    s.expect_same_bits(k.name, name, got.logits, b.logits);
    s.expect_guards(k.name, name,
                    {&got.tokens, &got.logprobs, &got.top_ids, &got.top_logprobs, &got.top_count, &got.ranks,
                     &got.sampled, &got.history.counts, &got.history.seen, &got.history.seen_count});
    if (k.name == "reference" && b.logits.tensor().dim(1) > 1000) continue;  // it sorts the vocabulary: slow
    s.expect_row_invariant(k.name, name, static_cast<int32_t>(all.size()), [&](std::span<const int32_t> rows) {
      const Call call(b, rows);
      k.launch(s.context(Device::kCpu, 1 + static_cast<int>(rows.size()) % 4), call.args());
      return flat(call);
    });
  }
}

// Damaged rows report -1 and leave their neighbours alone.
void check_damaged(Suite& s) {
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
  for (size_t r = 1; r < 40; r += 2) b.rows[r].mask = -1;  // some masks leave nothing
  for (const auto& k : s.kernels(kSampleOp.kernels, kOnGpu)) {
    if (!s.wants(k.name, "damaged")) continue;
    const Call got(b, all_rows(b));
    k.launch(s.context(Device::kCpu), got.args());
    int wrong = -1;
    for (size_t r = 0; r < 40; ++r)
      if ((got.token(r) == -1) != (r % 2 == 0 || b.idle(r))) wrong = static_cast<int>(r);
    s.expect(k.name, "damaged", wrong < 0, fmt::format("last wrong row: {}", wrong));
    const std::string settled = wrong_settled(b, got);
    s.expect(k.name, "damaged", settled.empty(), settled);
  }
}

// Columns that stand for other tokens: they get those tokens' noise, and the tokens are named.
void check_ids(Suite& s, const LogitCase& kind, int columns) {
  const std::string name = fmt::format("{} V={} with ids", kind.name, columns);
  Rng rng = s.rng_for_case(name);
  std::vector<int32_t> ids(static_cast<size_t>(columns));
  int32_t id = rng.integer(0, 5);
  for (int32_t& x : ids) x = id, id += 1 + rng.integer(0, 3) * rng.integer(0, 3);
  constexpr int kRows = 24;
  Buffer logits(DType::kF32, {kRows, (columns + 3) / 4 * 4}), tokens(DType::kI32, {kRows}),
      logprobs(DType::kF32, {kRows}), top_count(DType::kI32, {kRows}), sampled(DType::kI32, {kRows});
  logits.fill([&] { return kind.draw(rng); });
  std::vector<SampleRow> rows(kRows);
  for (int32_t r = 0; r < kRows; ++r) {
    SampleRow& row = rows[static_cast<size_t>(r)];
    row.seed = rng.engine()();
    row.position = rng.integer(0, 1 << 20);
    row.temperature = r % 8 == 0 ? 0.0f : rng.uniform(0.05f, 2.0f);
    if (r % 3 == 0) row.top_k = rng.integer(1, columns + 2);
    if (r % 5 == 0) row.top_p = rng.uniform(0.0f, 1.0f);
    row.batch_slot = r;
  }
  const Buffer none(DType::kI32, {kRows, 0});
  for (const auto& k : s.kernels(kSampleOp.kernels, kOnGpu)) {
    if (!s.wants(k.name, name)) continue;
    const SampleArgs args{.logits = logits.tensor().cols(0, columns),
                          .rows = rows.data(),
                          .ids = ids.data(),
                          .out = {.tokens = tokens,
                                  .logprobs = logprobs,
                                  .top_ids = none,
                                  .top_logprobs = none,
                                  .top_count = top_count,
                                  .sampled = sampled}};
    k.launch(s.context(Device::kCpu), args);
    std::string wrong;
    for (size_t r = 0; r < kRows && wrong.empty(); ++r) {
      const int32_t token = tokens.tensor().as<int32_t>()[r];
      if (!draws_token(args, r, token)) wrong = fmt::format("row {}: token {} is not the one drawn", r, token);
      if (sampled.tensor().as<int32_t>()[r] != token) wrong = fmt::format("row {}: another token in `sampled`", r);
    }
    s.expect(k.name, name, wrong.empty(), wrong.empty() ? "tokens agree" : wrong);
    s.expect_guards(k.name, name, {&tokens, &logprobs, &top_count, &sampled});
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
  for (const LogitCase& kind : kLogits)
    for (const int columns : {1, 65, 5003}) check_ids(s, kind, columns);
  check_damaged(s);
}

}  // namespace quire::conformance
