// What plan_step admits of those that wait in a WaitingQueue.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>

#include "engine/scheduler_states.h"
#include "engine/waiting_queue.h"

namespace quire::test {
namespace {

// What one step admits of those that wait in a queue, into places that are all free.
std::vector<int64_t> admitted(WaitingQueue& queue, const std::vector<int64_t>& deferred, int32_t places) {
  SchedulerState now = state({}, {});
  queue.begin(1);
  while (const auto next = queue.next()) {
    ScheduledSequence& s = now.waiting.emplace_back(fresh(static_cast<int32_t>(next->id), 9));
    s.client = next->client;
    s.arrival = next->arrival;
    s.deferred = std::find(deferred.begin(), deferred.end(), next->id) != deferred.end();
  }
  now.clients.assign(queue.clients().begin(), queue.clients().end());
  std::vector<int64_t> ids;
  for (const SeqId id : plan_step(now, limits(512, places)).admit) ids.push_back(id.v);
  return ids;
}

// The first computes what the next fifteen can use; all come before those who can use nothing of it.
TEST(Scheduler, FifteenRequestsThatWaitForASharedPrefixHoldNoPlace) {
  for (const bool by_client : {false, true}) {
    WaitingQueue queue({});
    std::vector<int64_t> deferred, expected = {0};
    for (int64_t id = 0; id < 40; ++id) {
      queue.add(id, by_client && id >= 16 ? 2 : 1, 0, 0);
      if (id > 0 && id < 16) deferred.push_back(id);
      if (id >= 16 && id < 31) expected.push_back(id);
    }
    EXPECT_EQ(admitted(queue, deferred, 16), expected);
  }
}

// 17 prompts with 16 answers each have all places only while nobody else wants one.
TEST(Scheduler, OneRequestsManyAnswersLeavePlacesToOthers) {
  constexpr int kPlaces = 16;
  SchedulerState now = state({}, {});
  WaitingQueue queue({});
  std::map<int64_t, uint64_t> client_of;
  std::deque<int64_t> running;
  int64_t ids = 0;
  const auto join = [&](uint64_t client, int count) {
    for (; count > 0; --count) {
      client_of[++ids] = client;
      queue.add(ids, client, 0, 0);
    }
  };
  const auto fill = [&] {
    while (running.size() < kPlaces) {
      const auto next = admitted(queue, {}, 1);
      if (next.empty()) return;
      queue.admit(next[0], 1);
      running.push_back(next[0]);
    }
  };
  const auto has = [&](uint64_t client) {
    return std::count_if(running.begin(), running.end(), [&](int64_t id) { return client_of[id] == client; });
  };
  join(1, 272);
  fill();
  EXPECT_EQ(has(1), kPlaces);
  join(2, 30);
  join(3, 2);
  for (int ended = 0; ended < 40; ++ended) {
    queue.end(client_of[running.front()]);
    running.pop_front();
    fill();
    EXPECT_EQ(std::ssize(running), kPlaces);
    if (ended == 3) {
      EXPECT_EQ(has(2), 2);
      EXPECT_EQ(has(3), 2);
    } else if (ended == 13) {
      EXPECT_EQ(has(1), 7);
      EXPECT_EQ(has(2), 7);
    }
  }
}

}  // namespace
}  // namespace quire::test
