// The engine's waiting room: who is to be looked at next of all who wait. Knows numbers only: no clock, no threads, no
// requests, so that it is tested and simulated like the scheduler. Internal to the engine.
//
// Clients take turns. First come those whose best request has the best priority, then those with the fewest requests
// running, then those that have waited longest since one of theirs was admitted. A client's own requests go by priority
// and arrival. So a client with very many requests has all places only while nobody else wants one.
//
// Priorities age: after every `ageing_steps` of waiting what a request lacks to the best priority is half of it. So
// whoever waits is among the first one day, however many better ones keep coming.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/scheduler.h"

namespace quire {

class WaitingQueue {
 public:
  struct Options {
    int32_t top_priority = 0;     // the best one that there is to reach
    int64_t ageing_steps = 1024;  // at least 1
  };
  explicit WaitingQueue(const Options& options) : options_(options) {}

  // Memory for walks that look at so many.
  void reserve(size_t looked_at);

  // `step`: of the engine; never less than before. `id`: nobody else's who waits.
  void add(int64_t id, uint64_t client, int32_t priority, int64_t step);
  // It waits no more: it was cancelled, or it runs from now on until end() is called for its client.
  void remove(int64_t id);
  void admit(int64_t id, int64_t step);
  void end(uint64_t client);
  // Makes priorities those of this step.
  void age(int64_t step);

  int64_t size() const { return static_cast<int64_t>(positions_.size()); }
  int32_t running(uint64_t client) const;

  struct Entry {
    int64_t id = 0;
    int32_t priority = 0;  // as it has aged
    int64_t age = 0;       // steps that it has waited
    int64_t arrival = 0;   // later ones have greater numbers; comparable with ScheduledClient::since
    int32_t client = 0;    // index into clients()
  };
  // Goes through those that wait, in the order in which they would be served if each one could be: begin(), then next()
  // until it has none or nobody wants more. The time it takes depends on how many are looked at, not on how many wait;
  // it takes memory only while its lists grow. Until the next change to the queue.
  void begin(int64_t step);
  std::optional<Entry> next();
  // The clients of all that next() gave since begin().
  std::span<const ScheduledClient> clients() const { return seen_; }

 private:
  struct Key {
    int32_t priority = 0;  // as it has aged
    int64_t arrival = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Item {
    int64_t id = 0;
    int32_t priority = 0;  // as it was asked for
    int64_t arrived = 0;   // step
  };
  using Items = std::map<Key, Item>;
  // Where a client stands among those who wait.
  struct Rank {
    int32_t priority = 0, running = 0;
    int64_t since = 0;
    auto operator<=>(const Rank&) const = default;
  };
  struct Client {
    Items items;
    Rank rank;  // while there are items
    int32_t running = 0;
    int64_t since = 0;      // the order of its last admission among arrivals and admissions
    int64_t admitted = -1;  // the step of it; -1: there was none
    uint64_t walk = 0;      // in which it was seen, and
    int32_t seen = 0;       // its index there
  };
  struct Position {
    uint64_t client = 0;
    Key key;
  };
  struct Cursor {
    Rank rank;
    Client* client = nullptr;
    Items::const_iterator item;
  };

  int32_t aged(int32_t priority, int64_t age) const;
  void take_out(int64_t id, int64_t admitted);
  void reorder(Client& c, bool listed);
  Entry entry(Client& c, Items::const_iterator item);
  void forget_if_idle(uint64_t id);

  Options options_;
  std::unordered_map<uint64_t, Client> clients_;  // that have requests, waiting or running
  std::map<Rank, Client*> order_;                 // those of them that wait; ranks differ by `since`
  std::unordered_map<int64_t, Position> positions_;
  std::multimap<int64_t, int64_t> due_;  // the step by which a request's priority changes; also of some that have left
  int64_t stamps_ = 0;                   // of arrivals and admissions
  // The walk.
  uint64_t walk_ = 0;
  int64_t walk_step_ = 0, walk_stamps_ = 0;
  std::map<Rank, Client*>::const_iterator front_;  // the first whom it has not come by
  std::vector<Cursor> heap_;                       // those whom it has, with what they have left
  std::optional<Cursor> current_;
  std::vector<ScheduledClient> seen_;
};

}  // namespace quire
