// The waiting room against one that is sorted anew for every look, and what becomes of clients who ask for very much.
#include "engine/waiting_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace quire {
namespace {

// The same promises, kept in the plainest way.
class Plain {
 public:
  explicit Plain(const WaitingQueue::Options& o) : o_(o) {}
  void add(int64_t id, uint64_t client, int32_t priority, int64_t step) {
    items_.push_back({id, client, priority, step, ++stamps_});
  }
  void remove(int64_t id) {
    std::erase_if(items_, [&](const Item& i) { return i.id == id; });
    forget();
  }
  void admit(int64_t id, int64_t step) {
    const auto at = std::find_if(items_.begin(), items_.end(), [&](const Item& i) { return i.id == id; });
    Client& c = clients_[at->client];
    ++c.running;
    c.since = ++stamps_;
    c.admitted = step;
    items_.erase(at);
  }
  void end(uint64_t client) {
    --clients_[client].running;
    forget();
  }
  // Everybody, in the order of next().
  std::vector<int64_t> walk(int64_t step) const {
    std::vector<Item> left = items_;
    std::map<uint64_t, Client> clients = clients_;
    int64_t stamps = stamps_;
    std::vector<int64_t> order;
    const auto priority = [&](const Item& i) {
      int64_t lacks = i.priority - o_.top_priority;
      if (lacks <= 0) return int64_t{i.priority};
      for (int64_t age = step - i.arrived; age >= o_.ageing_steps && lacks > 0; age -= o_.ageing_steps) lacks /= 2;
      return o_.top_priority + lacks;
    };
    while (!left.empty()) {
      std::map<uint64_t, size_t> first;  // of each client
      for (size_t i = 0; i < left.size(); ++i) {
        const auto [at, fresh] = first.try_emplace(left[i].client, i);
        const auto key = [&](const Item& x) { return std::pair(priority(x), x.arrival); };
        if (!fresh && key(left[i]) < key(left[at->second])) at->second = i;
      }
      const auto rank = [&](size_t i) {
        const Client& c = clients[left[i].client];
        return std::tuple(priority(left[i]), c.running, std::max(c.since, left[i].arrival));
      };
      size_t best = first.begin()->second;
      for (const auto& [client, i] : first)
        if (rank(i) < rank(best)) best = i;
      order.push_back(left[best].id);
      Client& c = clients[left[best].client];
      ++c.running;
      c.since = ++stamps;
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(best));
    }
    return order;
  }

 private:
  struct Item {
    int64_t id;
    uint64_t client;
    int32_t priority;
    int64_t arrived, arrival;
  };
  struct Client {
    int32_t running = 0;
    int64_t since = 0, admitted = -1;
  };
  void forget() {
    std::erase_if(clients_, [&](const auto& c) {
      return c.second.running == 0 &&
             std::none_of(items_.begin(), items_.end(), [&](const Item& i) { return i.client == c.first; });
    });
  }
  WaitingQueue::Options o_;
  std::vector<Item> items_;
  std::map<uint64_t, Client> clients_;
  int64_t stamps_ = 0;
};

std::vector<WaitingQueue::Entry> look(WaitingQueue& queue, int64_t step, size_t most = SIZE_MAX) {
  std::vector<WaitingQueue::Entry> seen;
  queue.age(step);
  queue.begin(step);
  while (seen.size() < most) {
    const auto next = queue.next();
    if (!next) break;
    seen.push_back(*next);
  }
  return seen;
}

std::vector<int64_t> ids(const std::vector<WaitingQueue::Entry>& entries) {
  std::vector<int64_t> all;
  for (const WaitingQueue::Entry& e : entries) all.push_back(e.id);
  return all;
}

TEST(WaitingQueue, KeepsTheOrderOfAPlainOne) {
  std::mt19937_64 rng(11);
  const auto number = [&](int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(rng); };
  const WaitingQueue::Options options{.top_priority = -3, .ageing_steps = 7};
  WaitingQueue queue(options);
  Plain plain(options);
  std::vector<int64_t> waiting;
  std::vector<uint64_t> running;
  std::map<int64_t, uint64_t> client_of;
  int64_t id = 0;
  for (int64_t step = 0; step < 3000; ++step) {
    for (int64_t n = number(0, 2); n > 0 && waiting.size() < 40; --n) {
      const auto client = static_cast<uint64_t>(number(0, 1) == 0 ? 1 : number(1, 9));
      const auto priority = static_cast<int32_t>(number(0, 2) == 0 ? number(-5, 2000) : number(-3, 0));
      queue.add(++id, client, priority, step);
      plain.add(id, client, priority, step);
      waiting.push_back(id);
      client_of[id] = client;
    }
    const std::vector<WaitingQueue::Entry> seen = look(queue, step);
    ASSERT_EQ(ids(seen), plain.walk(step)) << "step " << step;
    ASSERT_EQ(queue.size(), std::ssize(waiting));
    for (int64_t n = number(0, 2); n > 0 && !waiting.empty(); --n) {
      const auto at = waiting.begin() + number(0, std::ssize(waiting) - 1);
      if (number(0, 3) == 0) {
        queue.remove(*at);
        plain.remove(*at);
      } else {
        queue.admit(*at, step);
        plain.admit(*at, step);
        running.push_back(client_of[*at]);
      }
      waiting.erase(at);
    }
    while (running.size() > 6 || (!running.empty() && number(0, 2) == 0)) {
      const auto at = running.begin() + number(0, std::ssize(running) - 1);
      ASSERT_GT(queue.running(*at), 0);
      queue.end(*at);
      plain.end(*at);
      running.erase(at);
    }
  }
}

TEST(WaitingQueue, SaysOfClientsWhatTheSchedulerNeeds) {
  WaitingQueue queue({});
  queue.add(1, 70, 0, 5);
  queue.add(2, 80, 3, 5);
  queue.add(3, 70, 0, 6);
  queue.admit(1, 7);
  const auto seen = look(queue, 10);
  ASSERT_EQ(ids(seen), (std::vector<int64_t>{3, 2}));
  EXPECT_EQ(seen[0].age, 4);
  EXPECT_EQ(seen[1].priority, 3);
  const ScheduledClient &one = queue.clients()[static_cast<size_t>(seen[0].client)],
                        &other = queue.clients()[static_cast<size_t>(seen[1].client)];
  EXPECT_EQ(one.running, 1);
  EXPECT_EQ(one.idle, 3);
  EXPECT_GT(one.since, seen[0].arrival);
  EXPECT_EQ(other.running, 0);
  EXPECT_EQ(other.idle, INT64_MAX);
}

// A place becomes free in every step, and is taken by the first in line, whoever that is.
class Line {
 public:
  explicit Line(const WaitingQueue::Options& o) : queue(o) {}
  // Who is admitted.
  int64_t turn() {
    const auto first = look(queue, ++step, 1);
    if (first.empty()) return -1;
    queue.admit(first[0].id, step);
    if (running >= 0) queue.end(static_cast<uint64_t>(running));
    running = static_cast<int64_t>(client_of[first[0].id]);
    return first[0].id;
  }
  int64_t join(uint64_t client, int32_t priority) {
    client_of[++ids] = client;
    queue.add(ids, client, priority, step);
    return ids;
  }
  WaitingQueue queue;
  std::map<int64_t, uint64_t> client_of;
  int64_t step = 0, ids = 0, running = -1;
};

TEST(WaitingQueue, WhoeverWaitsIsServedOneDayHoweverManyBetterOnesCome) {
  for (const uint64_t patient : {1, 5})  // one of those who keep coming, or another one
    for (const int32_t top : {0, -10})
      for (const int32_t priority : {1, 7, 1'000'000, INT32_MAX}) {
        Line line({.top_priority = top, .ageing_steps = 16});
        for (int i = 0; i < 10; ++i) line.join(1 + static_cast<uint64_t>(i % 3), top);
        const int64_t it = line.join(patient, priority);
        bool served = false;
        while (line.step < 16 * 40 && !served) {
          served = line.turn() == it;
          line.join(1 + static_cast<uint64_t>(line.step % 3), top);
          line.join(1 + static_cast<uint64_t>(line.step % 2), top);
          line.join(1000 + static_cast<uint64_t>(line.step), top);  // and ever new ones
        }
        EXPECT_TRUE(served) << "client " << patient << ", priority " << priority;
        if (priority > top + 1) {
          EXPECT_GT(line.step, 16) << "but not at once";
        }
      }
}

TEST(WaitingQueue, ClientsTakeTurns) {
  Line line({});
  for (int i = 0; i < 272; ++i) line.join(1, 0);
  for (int i = 0; i < 5; ++i) line.turn();
  for (int i = 0; i < 4; ++i) line.join(2, 0);
  std::vector<uint64_t> clients;
  for (int i = 0; i < 10; ++i) clients.push_back(line.client_of[line.turn()]);
  EXPECT_EQ(clients, (std::vector<uint64_t>{2, 1, 2, 1, 2, 1, 2, 1, 1, 1}));
}

TEST(WaitingQueue, ALookCostsWhatIsLookedAt) {
  WaitingQueue queue({});
  for (int64_t i = 0; i < 20000; ++i) queue.add(i, i % 2 == 0 ? 7 : static_cast<uint64_t>(i), 0, 0);
  for (int step = 0; step < 10000; ++step) {
    const auto seen = look(queue, step, 48);
    ASSERT_EQ(seen.size(), 48u);
    ASSERT_LE(queue.clients().size(), 48u);
    queue.admit(seen[0].id, step);
  }
  EXPECT_EQ(queue.size(), 10000);
}

}  // namespace
}  // namespace quire
