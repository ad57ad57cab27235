// Where a request goes when several engines serve one model: to the one that has most of its prompt in its prefix
// cache, as long as that one is not far busier than others.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache/prefix_hash.h"
#include "engine/request.h"

namespace quire::server {

// An engine as placement sees it.
struct EngineOffer {
  int64_t load = 0;           // answers that were accepted there and have not ended
  int64_t prefix_tokens = 0;  // of the prompt, that its prefix cache probably has
  bool lost = false;          // takes nothing any more
};

// Index of the engine to take; -1: all are lost. Of those with at most `slack` answers more than the one that has the
// fewest: the longest prefix, then the fewest answers, then the first from `turn` on, around the end.
int choose_engine(std::span<const EngineOffer> engines, int64_t slack, int turn);

// How many answers more than the idlest engine's a prefix is worth, where engines run so many at once: no engine has a
// queue while another one has room for a quarter of its sequences.
constexpr int64_t placement_slack(int64_t max_sequences) {
  return max_sequences / 4 > 2 ? max_sequences / 4 : 2;
}

// Which engines were sent which prefixes: an engine's own cache may have lost them since, and then computes them again.
// Any thread.
class SentPrefixes {
 public:
  // `most` boundaries of 64 tokens are remembered, the least recently used ones forgotten first.
  SentPrefixes(int engines, size_t most);

  // Of each engine, how many tokens of the prompt it was sent before, up to a boundary.
  std::vector<int64_t> find(const PrefixHashes& prompt);
  void add(int engine, const PrefixHashes& prompt);
  // For those of a prompt.
  PrefixHashes hashes_of(const Request& request) const;

 private:
  struct Entry {
    Hash128 at;
    std::vector<bool> sent;  // by engine
  };
  struct OfHash {
    size_t operator()(const Hash128& h) const { return h.low; }
  };

  void use(std::list<Entry>::iterator entry);

  size_t engines_, most_;
  KeyedHash hash_ = KeyedHash::random();
  std::mutex mutex_;
  // The most recent first. Of a prompt the first boundary counts as used last, so that its end is forgotten before its
  // beginning, and whoever was sent a boundary was sent all before it.
  std::list<Entry> recent_;
  std::unordered_map<Hash128, std::list<Entry>::iterator, OfHash> entries_;
};

}  // namespace quire::server
