// Compiles grammars on threads of its own, and keeps them for later requests.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "constraint/grammar.h"

namespace quire {

struct GrammarCacheOptions {
  int threads = 0;                           // 0: a quarter of the cores, from 1 to 8
  CompileLimits limits;                      // of one grammar
  int64_t cache_bytes = int64_t{512} << 20;  // of grammars that nobody uses any more
  size_t max_waiting = 256;                  // compilations that wait for a thread
};

struct GrammarCacheStats {
  int64_t compiled = 0, refused = 0, hits = 0;
  double compile_seconds = 0;
  int64_t bytes = 0;  // of all grammars kept
};

// Any thread. A grammar is compiled once however many ask for it at a time; masks that its texts will come to need are
// computed behind its compilation, where no other grammar waits for a thread, for as long as compiling may take.
class GrammarCache {
 public:
  GrammarCache(std::shared_ptr<const Vocabulary> vocabulary, GrammarCacheOptions options);
  ~GrammarCache();  // what is compiled then is waited for
  GrammarCache(const GrammarCache&) = delete;

  // Waits until the grammar is compiled or refused, at most a little longer than the limits say. Errors:
  // Fault::kRequest, it is no such grammar or is too large; Fault::kCapacity, too many wait.
  Result<std::shared_ptr<const Grammar>> get(const GrammarSpec& spec);
  const std::shared_ptr<const Vocabulary>& vocabulary() const { return vocabulary_; }
  GrammarCacheStats stats() const;

 private:
  struct Entry {
    std::optional<Result<std::shared_ptr<const Grammar>>> done;  // none: it waits or is being compiled
    int64_t bytes = 0;
    std::list<GrammarSpec>::iterator used;  // in used_, once it is done
  };
  void work();
  void compile(std::unique_lock<std::mutex>& lock);
  void prepare(std::unique_lock<std::mutex>& lock);
  void make_room();

  const std::shared_ptr<const Vocabulary> vocabulary_;
  const GrammarCacheOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable work_, done_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> queued_{0};
  std::unique_ptr<GrammarCompiler> compiler_;  // made by the first thread that needs it
  std::once_flag made_;
  std::map<GrammarSpec, std::shared_ptr<Entry>> entries_;
  std::list<GrammarSpec> used_;  // the one that was asked for last is first
  std::deque<GrammarSpec> to_compile_;
  struct Preparation {
    std::shared_ptr<const Grammar> grammar;
    std::chrono::nanoseconds spent{0};
  };
  std::deque<Preparation> to_prepare_;
  GrammarCacheStats stats_;
  std::vector<std::thread> threads_;
};

}  // namespace quire
