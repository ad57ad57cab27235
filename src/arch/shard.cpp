#include "arch/shard.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

namespace quire {
namespace {

using enum TensorRole;
using enum Division;
using enum Extent;

// clang-format off
constexpr TensorShare kShares[] = {
    // Rows of tables are looked up, one for each token: a share would cost an exchange in every step. Where the
    // embedding is the head as well, that is divided as the head.
    {kTokenEmbedding}, {kPerLayerEmbedding}, {kPerLayerProjection}, {kPerLayerNorm}, {kOutputNorm},
    {kOutput, kRows}, {kOutputBias, kColumns}, {kRopeFreqs}, {kRopeShort}, {kRopeLong},

    {kAttnNorm}, {kFfnNorm}, {kPostAttentionNorm}, {kPostFfnNorm}, {kPostDenseNorm}, {kExpertsNorm}, {kPostExpertsNorm},
    {kLayerScale},
    // Small beside all else, and behind the sum of the ranks' results.
    {kPerLayerGate}, {kPerLayerOut}, {kPostPerLayerNorm},

    {kAttnQ, kRows}, {kAttnQBias, kColumns}, {kAttnK, kRows}, {kAttnKBias, kColumns}, {kAttnV, kRows},
    {kAttnVBias, kColumns}, {kAttnQkv, kRows}, {kAttnQkvBias, kColumns}, {kAttnOutput, kColumns},
    {kAttnOutputBias, kFirst}, {kAttnQNorm}, {kAttnKNorm}, {kAttnSinks, kColumns},

    {kDeltaQkv, kRows}, {kDeltaZ, kRows}, {kDeltaAlpha, kRows}, {kDeltaBeta, kRows}, {kDeltaBetaAlpha, kRows},
    {kDeltaPackedIn}, {kDeltaConv, kRows}, {kDeltaA, kColumns}, {kDeltaDtBias, kColumns}, {kDeltaNorm},
    {kDeltaOut, kColumns},

    {kFfnGate, kRows}, {kFfnGateBias, kColumns}, {kFfnUp, kRows}, {kFfnGateUp, kRows}, {kFfnUpBias, kColumns},
    {kFfnDown, kColumns}, {kFfnDownBias, kFirst},

    // Every rank routes every token.
    {kRouter}, {kRouterBias}, {kRouterScale}, {kRouterSelectionBias},
    {kExpertsGateUp, kRows, true}, {kExpertsGate, kRows, true}, {kExpertsUp, kRows, true},
    {kExpertsDown, kColumns, true}, {kExpertsGateUpBias, kColumns, true}, {kExpertsGateBias, kColumns, true},
    {kExpertsUpBias, kColumns, true}, {kExpertsDownBias, kFirst, true},
    {kSharedRouter}, {kSharedGate, kRows}, {kSharedUp, kRows}, {kSharedDown, kColumns},

    {kMtpProjection}, {kMtpEmbeddingNorm}, {kMtpHiddenNorm}, {kMtpHeadNorm}, {kMtpEmbedding}, {kMtpHead, kRows},
    {kMtpHeadTokens},  // what rows of the whole head stand for
};
// clang-format on

static_assert(std::size(kShares) == kTensorRoles);
static_assert(
    [] {
      for (size_t i = 0; i < std::size(kShares); ++i)
        if (kShares[i].role != static_cast<TensorRole>(i)) return false;
      return true;
    }(),
    "the table is in the order of the roles");

// What ranks' rows of a head are multiples of.
constexpr int64_t kVocabGrain = 16;

int64_t units_of(int64_t count, int64_t grain) {
  return (count + grain - 1) / grain;
}

// The ranks have equal numbers of units of `grain`, or some of the first ones one more; the last unit may be smaller.
ShareRange in_units(int64_t count, int64_t grain, const Shard& s) {
  const int64_t units = units_of(count, grain), each = units / s.of, more = units % s.of;
  const auto begin = [&](int64_t rank) { return std::min((rank * each + std::min(rank, more)) * grain, count); };
  return {begin(s.rank), begin(s.rank + 1) - begin(s.rank)};
}

// Of `heads` that ranks share equally; where they are fewer than the ranks, several ranks have the same one.
ShareRange of_heads(int64_t heads, const Shard& s) {
  if (heads >= s.of) return {heads / s.of * s.rank, heads / s.of};
  return {s.rank * heads / s.of, heads > 0 ? 1 : 0};
}

ShareRange times(const ShareRange& r, int64_t n) {
  return {r.begin * n, r.count * n};
}

// Heads of queries go with their heads of keys. Ranks that share one of these have some of its queries' each, and may
// differ by one.
ShareRange query_heads(const ModelSizes& m, const Shard& s) {
  if (m.kv_heads == 0) return {};
  const int64_t group = m.heads / m.kv_heads;
  const ShareRange kv = of_heads(m.kv_heads, s);
  if (m.kv_heads >= s.of) return {kv.begin * group, kv.count * group};
  const auto sharers = static_cast<int32_t>(s.of / m.kv_heads);
  const ShareRange mine = in_units(group, 1, {.rank = s.rank % sharers, .of = sharers});
  return {kv.begin * group + mine.begin, mine.count};
}

// `r`, behind so many other elements.
ShareRange behind(int64_t before, const ShareRange& r) {
  return {before + r.begin, r.count};
}

// A rank's value heads of delta nets: those of its key heads. They go round the key heads, or follow theirs.
std::vector<ShareRange> value_heads(const ModelSizes& m, const Shard& s) {
  const ShareRange keys = of_heads(m.key_heads, s);
  const int64_t rounds = m.key_heads == 0 ? 0 : m.value_heads / m.key_heads;
  if (m.grouped_value_heads) return {of_heads(m.value_heads, s)};
  // Where ranks share a key head, each has some of the rounds.
  const int64_t sharers = m.key_heads == 0 ? 1 : std::max<int64_t>(1, s.of / m.key_heads);
  const int64_t mine = rounds / sharers, first = s.rank % sharers * mine;
  std::vector<ShareRange> all;
  for (int64_t i = first; i < first + mine; ++i) all.push_back(behind(i * m.key_heads, keys));
  return all;
}

std::vector<ShareRange> times(std::vector<ShareRange> all, int64_t n, int64_t before = 0) {
  for (ShareRange& r : all) r = behind(before, times(r, n));
  return all;
}

int64_t total(const std::vector<ShareRange>& all) {
  int64_t sum = 0;
  for (const ShareRange& r : all) sum += r.count;
  return sum;
}

// Neighbours become one.
std::vector<ShareRange> joined(const std::vector<ShareRange>& parts) {
  std::vector<ShareRange> all;
  for (const ShareRange& r : parts)
    if (!all.empty() && all.back().begin + all.back().count == r.begin)
      all.back().count += r.count;
    else
      all.push_back(r);
  return all;
}

// Gate and up of so many columns in one, the gate's first.
std::vector<ShareRange> twice(int64_t width, const ShareRange& r) {
  return {r, behind(width, r)};
}

std::vector<ShareRange> parts_of(Extent e, const ModelSizes& m, const Shard& s) {
  const int64_t query = m.head_dim * (m.gated_query ? 2 : 1), kv_all = m.kv_heads * m.head_dim;
  const ShareRange heads = query_heads(m, s), kv = times(of_heads(m.kv_heads, s), m.head_dim);
  const ShareRange keys = times(of_heads(m.key_heads, s), m.key_dim);
  switch (e) {
    case kVocab:
      return {in_units(m.vocab, kVocabGrain, s)};
    case kQueryRows:
      return {times(heads, query)};
    case kHeads:
      return {times(heads, m.head_dim)};
    case kHeadCount:
      return {heads};
    case kKvHeads:
      return {kv};
    case kQkvRows:
      return {times(heads, query), behind(m.heads * query, kv), behind(m.heads * query + kv_all, kv)};
    case kFfn:
      return {in_units(m.d_ff, s.grains.ffn, s)};
    case kTwiceFfn:
      return twice(m.d_ff, in_units(m.d_ff, s.grains.ffn, s));
    case kExpertFfn:
      return {s.whole_experts ? ShareRange{0, m.d_ff_expert} : in_units(m.d_ff_expert, s.grains.expert_ffn, s)};
    case kTwiceExpertFfn:
      return twice(m.d_ff_expert, parts_of(kExpertFfn, m, s)[0]);
    case kSharedFfn:
      return {in_units(m.d_ff_shared, s.grains.shared_ffn, s)};
    case kConvChannels: {
      std::vector<ShareRange> all = {keys, behind(m.key_heads * m.key_dim, keys)};
      std::ranges::copy(times(value_heads(m, s), m.value_dim, 2 * m.key_heads * m.key_dim), std::back_inserter(all));
      return all;
    }
    case kDeltaInner:
      return times(value_heads(m, s), m.value_dim);
    case kDeltaHeads:
      return value_heads(m, s);
    case kTwiceDeltaHeads:  // of each key head its value heads' beta, then their alpha
      return {times(of_heads(m.key_heads, s), m.key_heads == 0 ? 0 : 2 * m.value_heads / m.key_heads)};
    default:
      return {{0, size_of(e, m)}};
  }
}

// The first thing that so many ranks cannot share, or nothing.
std::string obstacle(const ModelSizes& m, const Shard& s) {
  const auto shared = [&](int64_t heads) { return heads == 0 || heads % s.of == 0 || s.of % heads == 0; };
  if (!shared(m.kv_heads)) return fmt::format("{} heads of keys and values do not divide", m.kv_heads);
  if (m.heads < s.of) return fmt::format("{} heads of attention do not suffice", m.heads);
  if (!shared(m.key_heads)) return fmt::format("{} key heads of delta nets do not divide", m.key_heads);
  if (m.value_heads % s.of != 0) return fmt::format("{} value heads of delta nets do not divide", m.value_heads);
  // In one tensor, beta and alpha of a key head lie together.
  if (m.grouped_value_heads && m.key_heads % s.of != 0)
    return fmt::format("{} key heads of delta nets, each with its value heads, do not divide", m.key_heads);
  const auto columns = [&](std::string_view of, int64_t width, int64_t grain) {
    return width == 0 || units_of(width, grain) >= s.of
               ? std::string()
               : fmt::format("the {} inner columns of {}, cut in blocks of {}, do not suffice", width, of, grain);
  };
  if (auto o = columns("feed-forwards", m.d_ff, s.grains.ffn); !o.empty()) return o;
  if (auto o = columns("shared experts", m.d_ff_shared, s.grains.shared_ffn); !o.empty()) return o;
  if (s.whole_experts && m.experts > 0 && m.experts < s.of) return fmt::format("{} experts do not suffice", m.experts);
  if (!s.whole_experts)
    if (auto o = columns("experts", m.d_ff_expert, s.grains.expert_ffn); !o.empty()) return o;
  if (units_of(m.vocab, kVocabGrain) < s.of) return fmt::format("{} tokens do not suffice", m.vocab);
  return {};
}

}  // namespace

const TensorShare& tensor_share(TensorRole role) {
  return kShares[static_cast<size_t>(role)];
}

std::vector<ShareRange> share_of(Extent e, const ModelSizes& whole, const Shard& s) {
  return s.is_whole() ? std::vector<ShareRange>{{0, size_of(e, whole)}} : joined(parts_of(e, whole, s));
}

ShareRange expert_share(int64_t experts, const Shard& s) {
  return s.whole_experts ? in_units(experts, 1, s) : ShareRange{0, experts};
}

ModelSizes share_sizes(const ModelSizes& whole, const Shard& s) {
  if (s.is_whole()) return whole;
  ModelSizes m = whole;
  m.heads = query_heads(whole, s).count;
  m.kv_heads = of_heads(whole.kv_heads, s).count;
  m.key_heads = of_heads(whole.key_heads, s).count;
  m.value_heads = total(value_heads(whole, s));
  m.d_ff = total(share_of(kFfn, whole, s));
  m.d_ff_expert = total(share_of(kExpertFfn, whole, s));
  m.d_ff_shared = total(share_of(kSharedFfn, whole, s));
  m.vocab = total(share_of(kVocab, whole, s));
  return m;
}

std::array<int64_t, kMostRanks + 1> head_begins(int64_t vocab, const Shard& s) {
  std::array<int64_t, kMostRanks + 1> begins;
  begins.fill(vocab);
  for (Shard other{.rank = 0, .of = s.of}; other.rank < s.of; ++other.rank)
    begins[static_cast<size_t>(other.rank)] = in_units(vocab, kVocabGrain, other).begin;
  return begins;
}

Status check_shares(const ModelSizes& whole, const Shard& s) {
  if (s.of < 1 || s.of > kMostRanks || s.rank < 0 || s.rank >= s.of)
    return request_error("rank {} of {}: a model is shared by 1 to {} devices", s.rank, s.of, kMostRanks);
  const std::string what = s.is_whole() ? std::string() : obstacle(whole, s);
  if (what.empty()) return {};
  std::vector<int32_t> possible;
  for (Shard other = {.rank = 0, .of = 1, .whole_experts = s.whole_experts, .grains = s.grains}; other.of <= kMostRanks;
       ++other.of)
    if (other.is_whole() || obstacle(whole, other).empty()) possible.push_back(other.of);
  return request_error("{} devices cannot share this model: {} (possible: {})", s.of, what, fmt::join(possible, ", "));
}

}  // namespace quire
