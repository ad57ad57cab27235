#include "server/placement.h"

#include <algorithm>

namespace quire::server {

int choose_engine(std::span<const EngineOffer> engines, int64_t slack, int turn) {
  int64_t least = INT64_MAX;
  for (const EngineOffer& e : engines)
    if (!e.lost) least = std::min(least, e.load);
  const int count = static_cast<int>(engines.size());
  int best = -1;
  for (int i = 0; i < count; ++i) {
    const int at = (turn + i) % count;
    const EngineOffer& e = engines[static_cast<size_t>(at)];
    if (e.lost || e.load > least + slack) continue;
    if (best >= 0) {
      const EngineOffer& b = engines[static_cast<size_t>(best)];
      if (e.prefix_tokens < b.prefix_tokens || (e.prefix_tokens == b.prefix_tokens && e.load >= b.load)) continue;
    }
    best = at;
  }
  return best;
}

SentPrefixes::SentPrefixes(int engines, size_t most) : engines_(static_cast<size_t>(engines)), most_(most) {}

PrefixHashes SentPrefixes::hashes_of(const Request& request) const {
  return hash_prefixes(hash_, request.cache_salt, request.prompt);
}

std::vector<int64_t> SentPrefixes::find(const PrefixHashes& prompt) {
  std::vector<int64_t> tokens(engines_, 0);
  const std::lock_guard lock(mutex_);
  size_t known = 0;
  for (; known < prompt.at.size(); ++known) {
    const auto entry = entries_.find(prompt.at[known]);
    if (entry == entries_.end()) break;
    for (size_t e = 0; e < engines_; ++e)
      if (entry->second->sent[e]) tokens[e] = static_cast<int64_t>(known + 1) * kChunkTokens;
  }
  while (known-- > 0) use(entries_.find(prompt.at[known])->second);
  return tokens;
}

void SentPrefixes::use(std::list<Entry>::iterator entry) {
  recent_.splice(recent_.begin(), recent_, entry);
}

void SentPrefixes::add(int engine, const PrefixHashes& prompt) {
  const std::lock_guard lock(mutex_);
  for (size_t i = prompt.at.size(); i-- > 0;) {
    auto [entry, is_new] = entries_.try_emplace(prompt.at[i]);
    if (is_new) entry->second = recent_.insert(recent_.begin(), {prompt.at[i], std::vector<bool>(engines_)});
    use(entry->second);
    entry->second->sent[static_cast<size_t>(engine)] = true;
  }
  while (entries_.size() > most_) {
    entries_.erase(recent_.back().at);
    recent_.pop_back();
  }
}

}  // namespace quire::server
