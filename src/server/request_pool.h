// The threads that do the work of requests: reading their JSON, filling in chat templates, tokenizing, and writing
// long answers. The threads that move bytes between sockets do none of it, so that no body, however long it takes,
// holds up the streams of others.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/metrics.h"
#include "server/protocol/api_error.h"

namespace quire::server {

struct RequestPoolOptions {
  int threads = 0;                               // 0: half as many as there are cores, from 2 to 4
  size_t max_waiting = 1024;                     // requests, of all clients; a single client: half of them
  size_t max_waiting_bytes = size_t{256} << 20;  // of their bodies, likewise
  // Of bodies of a MiB or more that are read at the same time, because tokenizing takes many times their size. One is
  // always read.
  size_t max_running_bytes = size_t{16} << 20;
  static constexpr int kMostThreads = 256;
};

// Runs tasks of clients that take turns. A client with no task running goes before those that have one. Where there
// are two threads or more, a client that has a task running gets another thread only if one is left idle: whoever
// comes next need not wait for others' long tasks. Of tasks with large bodies only some run at once; where the next
// one has to wait for that, only tasks with small bodies begin. A client's own tasks begin in the order in which they
// came.
class RequestPool {
 public:
  // Whether somebody still waits for what a task is to do. Any thread.
  class Ticket {
   public:
    bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

   private:
    friend class RequestPool;
    std::atomic<bool> cancelled_{false};
  };
  using TicketPtr = std::shared_ptr<Ticket>;

  struct Task {
    std::string client;         // whose turn it is
    size_t bytes = 0;           // that it holds while it waits: those of a body
    TicketPtr ticket;           // may be null
    std::function<void()> run;  // on a thread of the pool
    // What the client is told instead of what run() would have said. Must be quick, and hold nothing large.
    std::function<void(const ApiError&)> refuse;
  };

  // `registry` must outlive this. Where the system has no more threads to give: std::system_error.
  RequestPool(const RequestPoolOptions& options, Registry& registry);
  ~RequestPool();  // stop()
  RequestPool(const RequestPool&) = delete;

  // Any thread. Errors, with which nothing is kept of the task: 429 the client's share of the queue is full, 503 the
  // whole queue is, or stop() was called. Afterwards run() is called, unless the task is cancelled before; if memory
  // runs out in it (std::bad_alloc, std::length_error), what it holds is freed and refuse() called with 503. What still
  // waits in stop() is refused with 503.
  ApiStatus submit(Task task);
  // The same for further work of a request that was accepted, such as writing its answer: never refused for want of
  // room.
  ApiStatus finish(Task task);
  // Any thread. A task that waits is dropped, one that runs can find out. Nothing is called any more for the former.
  void cancel(const TicketPtr& ticket);
  // Not from a task. Refuses what waits, and returns when what runs has ended.
  void stop();

  int threads() const { return count_; }

  // While one exists, the task that made it waits for something that takes no processor of this pool's: another one may
  // begin on a further thread. So a client whose tasks wait for others holds nobody up. Where many wait already it does
  // nothing. On the task's thread, one at a time.
  class Waits {
   public:
    Waits();
    ~Waits();
    Waits(const Waits&) = delete;

   private:
    bool stepped_aside_;
  };
  static constexpr int kMostAside = 64, kMostAsideEach = 16;  // tasks that wait so, of all clients and of one

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    Task task;
    Clock::time_point since;
  };
  struct Client {
    std::deque<Waiting> waiting;
    size_t bytes = 0;   // of those that wait and those that run
    int running = 0;    // and do not wait for others
    int aside = 0;      // those that do
    uint64_t turn = 0;  // when one of its tasks began last, as a number that grows
  };
  using Clients = std::map<std::string, Client>;

  ApiStatus check_room(const Client& client, const Task& task) const;
  ApiStatus add(Task task, bool always);
  Clients::iterator next();
  Clients::iterator first_in_turn(bool small_only);
  void work();
  void run(Task& task);
  void ended(Clients::iterator client, size_t bytes);
  void forget_idle(Clients::iterator client);
  bool step_aside(Clients::iterator client);
  void step_back(Clients::iterator client);

  // Whose task this thread runs.
  struct Current {
    RequestPool* pool = nullptr;
    Clients::iterator client;
  };
  static thread_local Current current_;

  const RequestPoolOptions options_;
  const int count_;  // of threads
  Gauge& waiting_gauge_;
  Gauge& running_gauge_;
  Histogram& wait_seconds_;
  Counter &refused_client_, &refused_all_;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  Clients clients_;  // those that have a task
  size_t waiting_ = 0, bytes_ = 0;
  size_t large_bytes_ = 0;  // of large bodies that are being read
  int running_ = 0, aside_ = 0;
  uint64_t turns_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace quire::server
