// The pool by itself: turns, limits, and ends, with tasks that wait until the test lets them go.
#include "server/request_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <new>
#include <stdexcept>
#include <thread>

namespace quire::test {
namespace {

using namespace server;
using testing::ElementsAre;
using testing::HasSubstr;

// A door that tasks stand before until it is opened.
class Door {
 public:
  void open() { promise_.set_value(); }
  std::function<void()> waiter() {
    return [future = future_] { future.wait(); };
  }

 private:
  std::promise<void> promise_;
  std::shared_future<void> future_{promise_.get_future().share()};
};

// What was called, in order.
class Log {
 public:
  void add(const std::string& what) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(what);
    changed_.notify_all();
  }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  void wait_for(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return lines_.size() >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
};

RequestPool::Task task(const std::string& client, const std::string& name, Log& log,
                       const std::function<void()>& then = {}) {
  RequestPool::Task t;
  t.client = client;
  t.run = [&log, name, then] {
    log.add(name);
    if (then) then();
  };
  t.refuse = [&log, name](const ApiError& e) { log.add(fmt::format("{}: {}", name, e.code)); };
  return t;
}

TEST(RequestPool, ClientsTakeTurns) {
  Registry registry;
  Log log;
  Door door;
  RequestPool pool({.threads = 1}, registry);
  ASSERT_TRUE(pool.submit(task("a", "a1", log, door.waiter())).ok());
  log.wait_for(1);
  for (const char* name : {"a2", "a3"}) ASSERT_TRUE(pool.submit(task("a", name, log)).ok());
  for (const char* name : {"b1", "b2"}) ASSERT_TRUE(pool.submit(task("b", name, log)).ok());
  ASSERT_TRUE(pool.submit(task("c", "c1", log)).ok());
  door.open();
  log.wait_for(6);
  EXPECT_THAT(log.lines(), ElementsAre("a1", "b1", "c1", "a2", "b2", "a3"));
}

// Who comes finds a thread at once, whatever others have queued.
TEST(RequestPool, OneClientNeverHasAllThreads) {
  Registry registry;
  Log log;
  Door door;
  RequestPool pool({.threads = 3}, registry);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(pool.submit(task("a", "a", log, door.waiter())).ok());
  log.wait_for(2);
  ASSERT_TRUE(pool.submit(task("b", "b", log)).ok());
  log.wait_for(3);
  EXPECT_THAT(log.lines(), ElementsAre("a", "a", "b"));
  door.open();
  log.wait_for(6);
}

// Nor does it get the last one when another client's task ends there.
TEST(RequestPool, TheLastThreadWaitsForOthers) {
  Registry registry;
  Log log;
  Door long_task, short_task;
  RequestPool pool({.threads = 2}, registry);
  ASSERT_TRUE(pool.submit(task("a", "a1", log, long_task.waiter())).ok());
  log.wait_for(1);
  ASSERT_TRUE(pool.submit(task("b", "b1", log, short_task.waiter())).ok());
  log.wait_for(2);
  ASSERT_TRUE(pool.submit(task("a", "a2", log, long_task.waiter())).ok());
  short_task.open();
  // The thread that had b1 looks for its next task before anybody else can bring one.
  while (registry.text().find("quire:request_pool_running_requests 1\n") == std::string::npos && log.lines().size() < 3)
    std::this_thread::yield();
  ASSERT_TRUE(pool.submit(task("b", "b2", log)).ok());
  log.wait_for(3);
  EXPECT_THAT(log.lines(), ElementsAre("a1", "b1", "b2"));
  long_task.open();
  log.wait_for(4);
}

// Tasks that wait for something else leave their threads to others, as many as there may be.
TEST(RequestPool, TasksThatWaitHoldNobodyUp) {
  Registry registry;
  Log log;
  Door door;
  const auto waiting = [wait = door.waiter()] {
    const RequestPool::Waits waits;
    wait();
  };
  RequestPool pool({.threads = 2}, registry);
  constexpr int kTasks = RequestPool::kMostAsideEach + 3;
  for (int i = 0; i < kTasks; ++i) ASSERT_TRUE(pool.submit(task("a", "a", log, waiting)).ok());
  log.wait_for(RequestPool::kMostAsideEach + 1);  // the last one has a thread of its own, and the other is kept free
  ASSERT_TRUE(pool.submit(task("b", "b", log)).ok());
  log.wait_for(RequestPool::kMostAsideEach + 2);
  EXPECT_EQ(log.lines().back(), "b");
  // The one that has a thread of its own counts as running, and those that wait do not.
  while (registry.text().find("quire:request_pool_running_requests 1\n") == std::string::npos)
    std::this_thread::yield();
  door.open();
  log.wait_for(kTasks + 1);
  pool.stop();
  EXPECT_THAT(registry.text(), HasSubstr("quire:request_pool_running_requests 0\n"));
  { const RequestPool::Waits nowhere; }  // on no thread of a pool
}

TEST(RequestPool, LimitsWhatWaits) {
  Registry registry;
  Log log;
  Door door;
  RequestPool pool({.threads = 1, .max_waiting = 4, .max_waiting_bytes = 1000}, registry);
  ASSERT_TRUE(pool.submit(task("a", "a1", log, door.waiter())).ok());
  log.wait_for(1);
  ASSERT_TRUE(pool.submit(task("a", "a2", log)).ok());
  ASSERT_TRUE(pool.submit(task("a", "a3", log)).ok());
  const ApiStatus third = pool.submit(task("a", "a4", log));
  ASSERT_FALSE(third.ok());
  EXPECT_EQ(third.error().status, 429);
  EXPECT_GT(third.error().retry_after, 0);
  EXPECT_THAT(third.error().message, HasSubstr("2 requests of this client wait"));
  ASSERT_TRUE(pool.finish(task("a", "a5", log)).ok()) << "what follows a request that was accepted";
  ASSERT_TRUE(pool.submit(task("b", "b1", log)).ok());
  const ApiStatus fifth = pool.submit(task("c", "c1", log));
  ASSERT_FALSE(fifth.ok());
  EXPECT_EQ(fifth.error().status, 503);
  EXPECT_EQ(fifth.error().code, "overloaded");
  door.open();
  log.wait_for(5);
  EXPECT_THAT(log.lines(), ElementsAre("a1", "b1", "a2", "a3", "a5"));
  EXPECT_THAT(registry.text(), HasSubstr("quire:request_pool_rejected_total{reason=\"client\"} 1\n"));
  EXPECT_THAT(registry.text(), HasSubstr("quire:request_pool_rejected_total{reason=\"all\"} 1\n"));
}

TEST(RequestPool, LimitsBytes) {
  Registry registry;
  Log log;
  Door door;
  RequestPool pool({.threads = 1, .max_waiting_bytes = 1000}, registry);
  const auto of = [&](const std::string& client, size_t bytes, const std::function<void()>& then = {}) {
    RequestPool::Task t = task(client, client, log, then);
    t.bytes = bytes;
    return pool.submit(std::move(t));
  };
  ASSERT_TRUE(of("a", 900, door.waiter()).ok()) << "there is no other";
  log.wait_for(1);
  EXPECT_EQ(of("a", 1).error().status, 429) << "what runs counts";
  EXPECT_EQ(of("b", 101).error().status, 503);
  ASSERT_TRUE(of("b", 100).ok());
  door.open();
  log.wait_for(2);
  pool.stop();
}

// Large bodies are read one after the other as far as their sizes demand it; small ones need not wait for that.
TEST(RequestPool, LargeBodiesTakeTurns) {
  Registry registry;
  Log log;
  Door door;
  RequestPool pool({.threads = 4, .max_running_bytes = size_t{8} << 20}, registry);
  const auto of = [&](const std::string& name, size_t mib, const std::function<void()>& then = {}) {
    RequestPool::Task t = task(name, name, log, then);
    t.bytes = mib << 20;
    ASSERT_TRUE(pool.submit(std::move(t)).ok());
  };
  of("a", 5, door.waiter());
  log.wait_for(1);
  of("b", 4);
  of("c", 0);
  log.wait_for(2);
  of("d", 1);  // would fit beside the first, but comes after the second
  of("e", 0);
  log.wait_for(3);
  EXPECT_THAT(log.lines(), ElementsAre("a", "c", "e"));
  door.open();
  log.wait_for(5);
}

TEST(RequestPool, DropsWhatNobodyWaitsFor) {
  Registry registry;
  Log log;
  Door door;
  RequestPool pool({.threads = 1}, registry);
  const auto running = std::make_shared<RequestPool::Ticket>(), waiting = std::make_shared<RequestPool::Ticket>();
  RequestPool::Task first = task("a", "a1", log, door.waiter()), second = task("a", "a2", log);
  first.ticket = running;
  second.ticket = waiting;
  const auto held = std::make_shared<int>();
  second.run = [held, &log] { log.add("a2"); };
  ASSERT_TRUE(pool.submit(std::move(first)).ok());
  log.wait_for(1);
  ASSERT_TRUE(pool.submit(std::move(second)).ok());
  ASSERT_TRUE(pool.submit(task("a", "a3", log)).ok());
  EXPECT_EQ(held.use_count(), 2);
  pool.cancel(waiting);
  EXPECT_EQ(held.use_count(), 1) << "what it held is freed";
  EXPECT_TRUE(waiting->cancelled());
  EXPECT_FALSE(running->cancelled());
  pool.cancel(running);
  EXPECT_TRUE(running->cancelled());
  door.open();
  log.wait_for(2);
  EXPECT_THAT(log.lines(), ElementsAre("a1", "a3"));
}

TEST(RequestPool, MemoryThatRunsOutEndsOneTask) {
  Registry registry;
  Log log;
  RequestPool pool({.threads = 2}, registry);
  const auto held = std::make_shared<int>();
  RequestPool::Task bad = task("a", "bad", log), long_text = task("b", "long", log);
  bad.run = [held] { throw std::bad_alloc(); };
  long_text.run = [] { std::string().resize(std::string().max_size() + 1); };
  bad.refuse = [&log, weak = std::weak_ptr(held)](const ApiError& e) {
    log.add(fmt::format("bad: {} {} {}", e.status, e.code, weak.use_count()));
  };
  std::weak_ptr<int> seen = held;
  ASSERT_TRUE(pool.submit(std::move(bad)).ok());
  log.wait_for(1);
  EXPECT_THAT(log.lines(), ElementsAre("bad: 503 overloaded 1")) << "the task is freed before it is answered";
  ASSERT_TRUE(pool.submit(std::move(long_text)).ok());
  log.wait_for(2);
  EXPECT_EQ(log.lines()[1], "long: overloaded");
  ASSERT_TRUE(pool.submit(task("a", "next", log)).ok());
  log.wait_for(3);
}

// What runs is finished, what waits is told that nobody will.
TEST(RequestPool, Stops) {
  Registry registry;
  Log log;
  Door door;
  RequestPool pool({.threads = 1}, registry);
  ASSERT_TRUE(pool.submit(task("a", "a1", log,
                               [&] {
                                 door.waiter()();
                                 log.add("end of a1");
                               }))
                  .ok());
  log.wait_for(1);
  ASSERT_TRUE(pool.submit(task("a", "a2", log)).ok());
  auto stopped = std::async(std::launch::async, [&] { pool.stop(); });
  log.wait_for(2);
  EXPECT_THAT(log.lines(), ElementsAre("a1", "a2: shutting_down"));
  EXPECT_EQ(pool.submit(task("a", "a3", log)).error().code, "shutting_down");
  door.open();
  stopped.get();
  EXPECT_THAT(log.lines(), ElementsAre("a1", "a2: shutting_down", "end of a1"));
}

}  // namespace
}  // namespace quire::test
