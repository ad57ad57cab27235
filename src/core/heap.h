// The memory that malloc has from the system. A server's requests take and free much of it, on many threads; what they
// have freed is to go back, so that what the process has of the machine's memory is what it holds.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace quire {

struct HeapUse {
  int64_t used = 0;  // bytes that somebody holds
  int64_t free = 0;  // freed ones that malloc keeps, backed by memory or not
};
HeapUse heap_use();

// Of this process, in bytes: what of its memory is in the machine's, files that are mapped included.
int64_t resident_memory();

// For a program that serves: threads share few arenas, each of which keeps memory of its own; whatever is large is
// mapped by itself, and goes when it is freed. Before there are threads.
void prepare_heap();

// A thread that gives freed memory back, when there is much and the process has grown since it last did.
class HeapKeeper {
 public:
  // `measure`, if not empty, is called there now and then, the first time soon.
  explicit HeapKeeper(std::function<void()> measure = nullptr);
  ~HeapKeeper();
  HeapKeeper(const HeapKeeper&) = delete;

 private:
  void work();

  const std::function<void()> measure_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace quire
