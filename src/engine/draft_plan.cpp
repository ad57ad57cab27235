#include "engine/draft_plan.h"

#include <algorithm>
#include <bit>

namespace quire {
namespace {

double expected_tokens(const DraftOffer& offer, int32_t drafts) {
  return offer.most == 0 ? 1 : offer.acceptance->expected_tokens(std::min(drafts, offer.most));
}

int64_t drafts_of_all(std::span<const DraftOffer> offers, int32_t drafts) {
  int64_t sum = 0;
  for (const DraftOffer& o : offers) sum += std::min(drafts, o.most);
  return sum;
}

}  // namespace

int32_t drafts_of_each(int64_t drafts, int64_t sequences) {
  return drafts == 0 ? 0 : static_cast<int32_t>(std::max<int64_t>(1, (drafts + sequences / 2) / sequences));
}

double AcceptanceAverages::expected_tokens(int32_t drafts) const {
  double sum = 1, right = 1;
  for (int32_t depth = 0; depth < drafts; ++depth) sum += right *= static_cast<double>(at(depth));
  return sum;
}

void AcceptanceAverages::observe(int32_t drafts, int32_t accepted) {
  for (int32_t depth = 0; depth < std::min(drafts, accepted + 1); ++depth) {
    float& share = share_[static_cast<size_t>(depth)];
    share += weight_ * ((depth < accepted ? 1.0f : 0.0f) - share);
  }
}

size_t StepCosts::size_of(int32_t sequences) {
  return std::min<size_t>(std::bit_width(static_cast<uint32_t>(std::max(sequences, 1) - 1)), kSizes - 1);
}

void StepCosts::observe(int32_t sequences, int32_t drafts, double seconds) {
  Kind& k = kinds_[size_of(sequences)][static_cast<size_t>(drafts)];
  if (++k.seen <= kUncounted) return;
  if (k.seen == kUncounted + 1) {
    k.seconds = seconds;
    return;
  }
  k.seen = kUncounted + 2;
  // Of a machine that others use as well, a slow step says little.
  k.seconds += (std::min(seconds, 1.5 * k.seconds) - k.seconds) * 0.1;
}

bool StepCosts::seen(int32_t sequences, int32_t drafts) const {
  return kinds_[size_of(sequences)][static_cast<size_t>(drafts)].seconds > 0;
}

double StepCosts::seconds(int32_t sequences, int32_t drafts) const {
  const auto& kinds = kinds_[size_of(sequences)];
  if (const double known = kinds[static_cast<size_t>(drafts)].seconds; known > 0) return known;
  const auto assumed = [](int32_t d) { return 1 + kOfDraft * d; };
  for (int32_t off = 1; off <= kMostDrafts; ++off)
    for (const int32_t near : {drafts - off, drafts + off})
      if (near >= 0 && near <= kMostDrafts && kinds[static_cast<size_t>(near)].seconds > 0)
        return kinds[static_cast<size_t>(near)].seconds * assumed(drafts) / assumed(near);
  return 0;
}

int32_t DraftPlan::best(std::span<const DraftOffer> offers, int64_t rows, int32_t turn) const {
  const auto sequences = static_cast<int32_t>(offers.size());
  int32_t most = 0;
  for (const DraftOffer& o : offers) most = std::max(most, o.most);
  while (most > 0 && drafts_of_all(offers, most) > rows) --most;
  if (most == 0) return 0;
  // Steps without drafts come first: all else is measured against them.
  if (!costs_.seen(sequences, 0)) return 0;
  int32_t best = 0;
  double rate = 0;
  for (int32_t drafts = 0; drafts <= most; ++drafts) {
    double tokens = 0;
    for (const DraftOffer& o : offers) tokens += expected_tokens(o, drafts);
    const double now = tokens / costs_.seconds(sequences, drafts_of_each(drafts_of_all(offers, drafts), sequences));
    if (now > rate) rate = now, best = drafts;
  }
  const bool tries = turn % kTryEvery == 0;
  if (!tries) return best;
  const bool up = turn / kTryEvery % 2 == 0;
  return std::clamp(up ? best + 1 : best - 1, 0, most);
}

int32_t DraftPlan::choose(std::span<const DraftOffer> offers, int64_t rows) {
  return best(offers, rows, ++turn_);
}

bool DraftPlan::wants_drafts(std::span<const DraftOffer> offers, int64_t rows) const {
  return best(offers, rows, turn_ + 1) > 0;
}

}  // namespace quire
