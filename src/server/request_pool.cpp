#include "server/request_pool.h"

#include <malloc.h>

#include <algorithm>
#include <new>
#include <stdexcept>
#include <system_error>

#include "core/cpu.h"

namespace quire::server {
namespace {

// A large body. When it has been read, the memory that its parts took goes back to the system: malloc would keep it.
constexpr size_t kLarge = size_t{1} << 20;

// What a thread keeps to refuse a task with, when it has found no memory: so much that malloc does not give it back to
// the system, where others could take it.
constexpr size_t kReserve = size_t{64} << 10;
thread_local std::unique_ptr<char[]> reserve;

ApiError stopping() {
  return {503, "the server is shutting down", "", "shutting_down"};
}

int thread_count(int asked) {
  if (asked > 0) return std::min(asked, RequestPoolOptions::kMostThreads);
  return std::clamp(available_cpus() / 2, 2, 4);
}

}  // namespace

thread_local RequestPool::Current RequestPool::current_;

RequestPool::RequestPool(const RequestPoolOptions& options, Registry& registry)
    : options_(options),
      count_(thread_count(options.threads)),
      waiting_gauge_(registry.gauge("quire:request_pool_waiting_requests",
                                    "Requests that wait for a thread to read and tokenize them.")),
      running_gauge_(registry.gauge("quire:request_pool_running_requests",
                                    "Requests that are being read and tokenized, or whose answers are written.")),
      wait_seconds_(registry.histogram("quire:request_pool_wait_seconds",
                                       "How long requests waited for a thread to read and tokenize them.",
                                       {0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60})),
      refused_client_(registry.counter("quire:request_pool_rejected_total",
                                       "Requests refused before they were read: of one client (429), or of all "
                                       "together (503), too many waited.",
                                       {{"reason", "client"}})),
      refused_all_(registry.counter("quire:request_pool_rejected_total", "", {{"reason", "all"}})) {
  threads_.reserve(static_cast<size_t>(count_));
  try {
    while (std::ssize(threads_) < count_) threads_.emplace_back([this] { work(); });
  } catch (...) {
    stop();
    throw;
  }
}

RequestPool::~RequestPool() {
  stop();
}

ApiStatus RequestPool::check_room(const Client& client, const Task& task) const {
  const auto full = [&](size_t waiting, size_t bytes, size_t part) {
    // A body always fits where there is no other.
    return waiting >= options_.max_waiting / part ||
           (bytes > 0 && bytes + task.bytes > options_.max_waiting_bytes / part);
  };
  if (full(waiting_, bytes_, 1))
    return ApiError{.status = 503,
                    .message = fmt::format("{} requests wait to be read; try again later", waiting_),
                    .code = "overloaded",
                    .retry_after = 1};
  if (full(client.waiting.size(), client.bytes, 2))
    return ApiError{
        .status = 429,
        .message = fmt::format("{} requests of this client wait to be read; try again later", client.waiting.size()),
        .retry_after = 1};
  return {};
}

ApiStatus RequestPool::submit(Task task) {
  return add(std::move(task), false);
}

ApiStatus RequestPool::finish(Task task) {
  return add(std::move(task), true);
}

ApiStatus RequestPool::add(Task task, bool always) {
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return stopping();
    const auto client = clients_.try_emplace(task.client).first;
    if (ApiStatus room = always ? ApiStatus() : check_room(client->second, task); !room.ok()) {
      (room.error().status == 429 ? refused_client_ : refused_all_).add();
      forget_idle(client);
      return room;
    }
    const size_t bytes = task.bytes;
    client->second.waiting.push_back({std::move(task), Clock::now()});
    client->second.bytes += bytes;
    bytes_ += bytes;
    waiting_gauge_.set(static_cast<double>(++waiting_));
  }
  wake_.notify_one();
  return {};
}

void RequestPool::forget_idle(Clients::iterator client) {
  const Client& c = client->second;
  if (c.waiting.empty() && c.running == 0 && c.aside == 0) clients_.erase(client);
}

bool RequestPool::step_aside(Clients::iterator client) {
  const std::lock_guard lock(mutex_);
  if (stop_ || aside_ >= kMostAside || client->second.aside >= kMostAsideEach) return false;
  // Of all threads, those that wait included, as many are free as there would be without the tasks that wait.
  if (std::ssize(threads_) < count_ + aside_ + 1) {
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      return false;
    }
  }
  ++aside_;
  ++client->second.aside;
  --client->second.running;
  running_gauge_.set(--running_);
  wake_.notify_all();
  return true;
}

void RequestPool::step_back(Clients::iterator client) {
  const std::lock_guard lock(mutex_);
  --aside_;
  --client->second.aside;
  ++client->second.running;
  running_gauge_.set(++running_);
}

RequestPool::Waits::Waits() : stepped_aside_(current_.pool != nullptr && current_.pool->step_aside(current_.client)) {}

RequestPool::Waits::~Waits() {
  if (stepped_aside_) current_.pool->step_back(current_.client);
}

// Whose turn it is; with `small_only` among those whose next task has a small body. The end if there is none.
RequestPool::Clients::iterator RequestPool::first_in_turn(bool small_only) {
  auto best = clients_.end();
  for (auto c = clients_.begin(); c != clients_.end(); ++c) {
    if (c->second.waiting.empty()) continue;
    if (small_only && c->second.waiting.front().task.bytes >= kLarge) continue;
    const auto rank = [](const Client& x) { return std::pair(x.running, x.turn); };
    if (best == clients_.end() || rank(c->second) < rank(best->second)) best = c;
  }
  return best;
}

// Whose task begins now; the end if nobody's may.
RequestPool::Clients::iterator RequestPool::next() {
  if (running_ >= count_) return clients_.end();
  auto best = first_in_turn(false);
  if (best == clients_.end()) return best;
  const size_t bytes = best->second.waiting.front().task.bytes;
  if (bytes >= kLarge && large_bytes_ > 0 && large_bytes_ + bytes > options_.max_running_bytes)
    best = first_in_turn(true);
  if (best == clients_.end()) return best;
  const bool last_thread = running_ + 1 == count_ && count_ > 1;
  return best->second.running > 0 && last_thread ? clients_.end() : best;
}

void RequestPool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    auto client = clients_.end();
    wake_.wait(lock, [&] { return stop_ || (client = next()) != clients_.end(); });
    if (stop_) return;
    Client& its = client->second;
    Task task = std::move(its.waiting.front().task);
    wait_seconds_.observe(std::chrono::duration<double>(Clock::now() - its.waiting.front().since).count());
    its.waiting.pop_front();
    ++its.running;
    if (task.bytes >= kLarge) large_bytes_ += task.bytes;
    its.turn = ++turns_;
    waiting_gauge_.set(static_cast<double>(--waiting_));
    running_gauge_.set(++running_);
    current_ = {this, client};
    lock.unlock();
    run(task);
    lock.lock();
    current_ = {};
    ended(client, task.bytes);  // it is still there: it has a task that runs
  }
}

void RequestPool::ended(Clients::iterator client, size_t bytes) {
  client->second.bytes -= bytes;
  bytes_ -= bytes;
  if (bytes >= kLarge) large_bytes_ -= bytes;
  --client->second.running;
  running_gauge_.set(--running_);
  forget_idle(client);
  wake_.notify_all();  // a thread that was kept idle may have a task now
}

void RequestPool::run(Task& task) {
  bool short_of_memory = false;
  if (!reserve) reserve.reset(new (std::nothrow) char[kReserve]);
  try {
    task.run();
  } catch (const std::bad_alloc&) {
    short_of_memory = true;
  } catch (const std::length_error&) {
    short_of_memory = true;
  }
  task.run = nullptr;  // and with it the request
  if (task.bytes >= kLarge) malloc_trim(0);
  if (short_of_memory) reserve = nullptr;
  // Another thread may have what was freed before the client is told: then it has it for a short time.
  for (int attempt = 0; short_of_memory && attempt < 1000; ++attempt) {
    try {
      task.refuse(out_of_memory());
      short_of_memory = false;
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  task.refuse = nullptr;
}

void RequestPool::cancel(const TicketPtr& ticket) {
  if (ticket == nullptr) return;
  ticket->cancelled_.store(true, std::memory_order_relaxed);
  Task dropped;  // destroyed without the mutex
  const std::lock_guard lock(mutex_);
  for (auto client = clients_.begin(); client != clients_.end(); ++client) {
    std::deque<Waiting>& all = client->second.waiting;
    const auto at = std::find_if(all.begin(), all.end(), [&](const Waiting& w) { return w.task.ticket == ticket; });
    if (at == all.end()) continue;
    dropped = std::move(at->task);
    all.erase(at);
    client->second.bytes -= dropped.bytes;
    bytes_ -= dropped.bytes;
    waiting_gauge_.set(static_cast<double>(--waiting_));
    return forget_idle(client);
  }
}

void RequestPool::stop() {
  std::vector<Waiting> left;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    for (auto& [name, client] : clients_) {
      for (Waiting& w : client.waiting) {
        client.bytes -= w.task.bytes;
        bytes_ -= w.task.bytes;
        left.push_back(std::move(w));
      }
      client.waiting.clear();
    }
    waiting_ = 0;
    waiting_gauge_.set(0);
  }
  wake_.notify_all();
  for (Waiting& w : left) w.task.refuse(stopping());
  left.clear();
  for (std::thread& t : threads_)
    if (t.joinable()) t.join();
}

}  // namespace quire::server
