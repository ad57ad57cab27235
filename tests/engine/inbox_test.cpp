// What other threads leave for the stepping one: requests in order or not at all, cancels, ends, and when it wakes.
#include "engine/inbox.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

namespace quire {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// Longer than any test takes: whoever waits for so long was not woken.
constexpr milliseconds kLong{60000};

std::vector<std::unique_ptr<Sequence>> sequences(int count) {
  std::vector<std::unique_ptr<Sequence>> all;
  for (int i = 0; i < count; ++i) {
    auto s = std::make_unique<Sequence>();
    s->stream = std::make_shared<Delivery::Stream>(s->request, nullptr, nullptr, StopMatcher::create({}).value());
    all.push_back(std::move(s));
  }
  return all;
}

TEST(Inbox, PassesOnWhatIsPutInItsOrder) {
  Inbox inbox(10, 4);
  EXPECT_TRUE(inbox.take().empty());
  EXPECT_FALSE(inbox.busy());
  const std::vector<RequestId> first = inbox.put(sequences(2)).value(), second = inbox.put(sequences(1)).value();
  EXPECT_TRUE(inbox.busy());
  EXPECT_EQ(inbox.queued(), 3);
  Inbox::Arrivals& got = inbox.take();
  ASSERT_EQ(got.sequences.size(), 3u);
  EXPECT_EQ(got.sequences[0]->id, first[0]);
  EXPECT_EQ(got.sequences[1]->id, first[1]);
  EXPECT_EQ(got.sequences[2]->id, second[0]);
  EXPECT_NE(first[0], first[1]);
  EXPECT_NE(first[1], second[0]);
  EXPECT_EQ(inbox.queued(), 3) << "they wait until they leave the queue";
  EXPECT_TRUE(inbox.take().empty()) << "each arrives once";
}

TEST(Inbox, TakesAllOrNone) {
  Inbox inbox(3, 4);
  EXPECT_TRUE(inbox.put(sequences(2)).ok());
  const auto refused = inbox.put(sequences(2));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().fault, Fault::kCapacity);
  EXPECT_EQ(refused.error().message, "2 requests wait already, and at most 3 may; try again later");
  EXPECT_EQ(inbox.queued(), 2);
  EXPECT_TRUE(inbox.put(sequences(1)).ok());
  EXPECT_EQ(inbox.take().sequences.size(), 3u);
  EXPECT_FALSE(inbox.put(sequences(1)).ok()) << "whoever was taken still waits";
  inbox.leave_queue(2);
  EXPECT_EQ(inbox.queued(), 1);
  EXPECT_TRUE(inbox.put(sequences(2)).ok());
}

TEST(Inbox, PassesOnCancelsAndEnds) {
  Inbox inbox(10, 4);
  const std::vector<RequestId> ids = inbox.put(sequences(3)).value();
  inbox.take();
  inbox.cancel(ids[1]);
  inbox.cancel(RequestId{12345});
  inbox.end(ids[0], true);
  inbox.end(ids[2], false);
  const Inbox::Arrivals& got = inbox.take();
  EXPECT_EQ(got.cancelled, (std::vector<RequestId>{ids[1], RequestId{12345}}));
  EXPECT_EQ(got.ended_by_text, std::vector<RequestId>{ids[0]}) << "who ended otherwise is known to have";
  EXPECT_FALSE(got.cancelled_all);
  EXPECT_TRUE(inbox.busy());
  inbox.end(ids[1], false);
  EXPECT_FALSE(inbox.busy());
  inbox.cancel_all();
  EXPECT_TRUE(inbox.take().cancelled_all);
  EXPECT_FALSE(inbox.take().cancelled_all) << "those that are put later go on";
}

TEST(Inbox, RefusesEverythingOnceTheDeviceIsLost) {
  Inbox inbox(10, 4);
  EXPECT_FALSE(inbox.lost());
  EXPECT_TRUE(inbox.put(sequences(1)).ok());
  inbox.lose({Fault::kBug, "it burns"});
  ASSERT_TRUE(inbox.lost());
  EXPECT_EQ(inbox.lost()->message, "it burns");
  const auto refused = inbox.put(sequences(1));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "it burns");
  EXPECT_EQ(inbox.take().sequences.size(), 1u) << "what came before has yet to be told";
}

TEST(Inbox, WaitsWhileSomebodyHasYetToEnd) {
  Inbox inbox(10, 4);
  const auto waited = [&](milliseconds longest) {
    const auto begin = Clock::now();
    inbox.wait(longest);
    return Clock::now() - begin;
  };
  EXPECT_LT(waited(kLong), kLong) << "nobody has";
  const RequestId id = inbox.put(sequences(1)).value().front();
  EXPECT_LT(waited(kLong), kLong) << "it has arrived";
  inbox.take();
  EXPECT_GE(waited(milliseconds(5)), milliseconds(5)) << "nothing has";
  inbox.wake();
  EXPECT_LT(waited(kLong), kLong);
  EXPECT_TRUE(inbox.take().woken);
  EXPECT_TRUE(inbox.take().empty());
  inbox.end(id, false);
  EXPECT_LT(waited(kLong), kLong) << "the last one has ended";
}

TEST(Inbox, IsWokenByEveryThing) {
  Inbox inbox(10, 4);
  const RequestId id = inbox.put(sequences(1)).value().front();
  const std::function<void()> things[] = {
      [&] { inbox.cancel(id); },    [&] { inbox.cancel_all(); },
      [&] { inbox.wake(); },        [&] { (void)inbox.put(sequences(1)); },
      [&] { inbox.end(id, true); },
  };
  for (const auto& thing : things) {
    inbox.take();
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(5));
      thing();
    });
    const auto begin = Clock::now();
    inbox.wait(kLong);
    EXPECT_LT(Clock::now() - begin, kLong);
    other.join();
    EXPECT_FALSE(inbox.take().empty());
  }
}

// Every request arrives once, with an id of its own, whoever puts it and whenever it is taken.
TEST(Inbox, LosesNothingBetweenThreads) {
  constexpr int kThreads = 4, kEach = 200;
  Inbox inbox(kThreads * kEach, 4);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) inbox.cancel(inbox.put(sequences(1)).value().front());
    });
  std::set<int32_t> arrived, cancelled;
  size_t sequences_seen = 0;
  while (cancelled.size() < kThreads * kEach) {
    const Inbox::Arrivals& got = inbox.take();
    for (const auto& s : got.sequences) arrived.insert(s->id.v), ++sequences_seen;
    for (const RequestId id : got.cancelled) {
      EXPECT_TRUE(arrived.contains(id.v)) << "a cancel does not overtake its request";
      cancelled.insert(id.v);
    }
    inbox.wait(milliseconds(1));
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(arrived.size(), sequences_seen);
  EXPECT_EQ(arrived, cancelled);
  EXPECT_EQ(inbox.queued(), kThreads * kEach);
}

}  // namespace
}  // namespace quire
