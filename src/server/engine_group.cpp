#include "server/engine_group.h"

#include <algorithm>

namespace quire::server {
namespace {

// Boundaries that SentPrefixes keeps, about 170 bytes each: those of 16 million tokens.
constexpr size_t kMostBoundaries = size_t{1} << 18;

}  // namespace

EngineGroup::EngineGroup(std::vector<std::unique_ptr<EngineService>> engines)
    : engines_(std::move(engines)),
      slack_(placement_slack(engines_.front()->engine().plan().max_sequences)),
      sent_(static_cast<int>(engines_.size()), kMostBoundaries) {}

std::vector<EngineOffer> EngineGroup::offers(const PrefixHashes& prompt) {
  const std::vector<int64_t> prefixes = sent_.find(prompt);
  std::vector<EngineOffer> all;
  for (size_t i = 0; i < size(); ++i)
    all.push_back({.load = engines_[i]->unfinished(),
                   .prefix_tokens = prefixes[i],
                   .lost = engines_[i]->engine().lost().has_value()});
  return all;
}

ApiResult<std::vector<JobId>> EngineGroup::submit(std::vector<Job> jobs, EventSink sink) {
  if (size() == 1 || jobs.empty()) return engines_.front()->submit(std::move(jobs), std::move(sink));
  const PrefixHashes prompt = sent_.hashes_of(jobs.front().request);
  const std::vector<EngineOffer> all = offers(prompt);
  const int chosen = choose_engine(all, slack_, static_cast<int>(turn_++ % size()));
  if (chosen < 0) return health().error();
  const auto at = static_cast<size_t>(chosen);
  QUIRE_TRY(std::vector<JobId> ids, engines_[at]->submit(std::move(jobs), std::move(sink)));
  sent_.add(chosen, prompt);
  for (JobId& id : ids) id = name(at, id);
  return ids;
}

void EngineGroup::cancel(std::span<const JobId> jobs) {
  const auto count = static_cast<JobId>(size());
  for (const JobId id : jobs) {
    const JobId own = id / count;
    engines_[static_cast<size_t>(id % count)]->cancel(std::span(&own, 1));
  }
}

ApiStatus EngineGroup::health() const {
  ApiStatus first;
  for (const auto& engine : engines_) {
    ApiStatus s = engine->health();
    if (s.ok()) return {};
    if (first.ok()) first = std::move(s);
  }
  return first;
}

std::vector<int> EngineGroup::lost_engines() const {
  std::vector<int> lost;
  for (size_t i = 0; i < size(); ++i)
    if (engines_[i]->engine().lost()) lost.push_back(static_cast<int>(i));
  return lost;
}

void EngineGroup::stop() {
  for (const auto& engine : engines_) engine->stop();
}

}  // namespace quire::server
