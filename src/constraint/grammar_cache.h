// Compiles grammars and keeps them for later requests.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "constraint/compile_pool.h"
#include "constraint/grammar.h"

namespace quire {

struct GrammarCacheOptions {
  // Compiled in processes of this program (CompilePool): for whoever compiles what clients send. Empty: on the thread
  // that asks, for programs that compile what they wrote themselves.
  std::string program;
  int threads = 0;       // that prepare masks. 0: a quarter of the cores, from 1 to 8
  CompileLimits limits;  // of one grammar
  // Of all grammars and of the masks that they share; those that somebody uses stay beyond it.
  int64_t cache_bytes = int64_t{512} << 20;
  size_t max_waiting = 256;  // compilations that wait for a place
};

struct GrammarCacheStats {
  int64_t compiled = 0, refused = 0, hits = 0;
  double compile_seconds = 0;
  int64_t bytes = 0;  // of all grammars kept, and of the masks that they share
};

// Who asks for a grammar.
struct GrammarAsker {
  std::string client;          // clients take turns
  std::function<bool()> gone;  // nobody waits for it any more; empty: somebody does
};

// Any thread. A grammar is compiled once however many ask for it at a time, and no further when all of them have gone;
// masks that its texts will come to need are computed behind its compilation, for as long as compiling may take.
class GrammarCache {
 public:
  GrammarCache(std::shared_ptr<const Vocabulary> vocabulary, GrammarCacheOptions options);
  ~GrammarCache();  // stop(), and waits for masks that are being computed
  GrammarCache(const GrammarCache&) = delete;

  // Waits until the grammar is compiled or refused, at most some three times as long as the limits say. Errors:
  // Fault::kRequest, it is no such grammar or is too large; Fault::kCapacity, too many wait, or the asker has gone.
  Result<std::shared_ptr<const Grammar>> get(const GrammarSpec& spec, const GrammarAsker& asker = {});
  // Ends what is being compiled, and compiles nothing any more.
  void stop();
  const std::shared_ptr<const Vocabulary>& vocabulary() const { return vocabulary_; }
  GrammarCacheStats stats() const;

 private:
  struct Entry {
    std::optional<Result<std::shared_ptr<const Grammar>>> done;  // none: it waits or is being compiled
    int64_t bytes = 0;                      // of stats_.bytes: of one that is kept, when it was last measured
    std::list<GrammarSpec>::iterator used;  // in used_, of one that is kept
    bool is_kept = false;
    int askers = 0;                       // that wait
    std::optional<uint64_t> compilation;  // of the pool
  };
  using Entries = std::map<GrammarSpec, std::shared_ptr<Entry>>;

  Result<std::shared_ptr<const Grammar>> wait_for(std::unique_lock<std::mutex>& lock, const GrammarSpec& spec,
                                                  const std::shared_ptr<Entry>& entry, const GrammarAsker& asker);
  Status begin(std::unique_lock<std::mutex>& lock, const GrammarSpec& spec, const std::shared_ptr<Entry>& entry,
               const std::string& client);
  void forget(const GrammarSpec& spec, const std::shared_ptr<Entry>& entry);
  void erase(Entries::iterator at);
  const GrammarCompiler& compiler();
  Result<std::shared_ptr<const Grammar>> from_bytes(Result<std::string> bytes);
  void finish(const GrammarSpec& spec, const std::shared_ptr<Entry>& entry, Result<std::shared_ptr<const Grammar>> done,
              double seconds);
  void work();
  void prepare(std::unique_lock<std::mutex>& lock);
  void measure(const GrammarSpec& spec, Entry& entry);
  void measure_some();
  void make_room();

  const std::shared_ptr<const Vocabulary> vocabulary_;
  const GrammarCacheOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable work_, done_;
  std::atomic<bool> stopping_{false};
  std::unique_ptr<GrammarCompiler> compiler_;  // made by the first that needs it
  std::once_flag made_;
  std::atomic<const GrammarCompiler*> ready_compiler_{nullptr};  // compiler_, once it is made
  Entries entries_;
  Entries::iterator to_measure_ = entries_.end();  // by measure_some(), next
  std::list<GrammarSpec> used_;                    // the one that was asked for last is first
  struct Preparation {
    std::shared_ptr<const Grammar> grammar;
    std::weak_ptr<Entry> entry;
    std::chrono::nanoseconds spent{0};
  };
  std::deque<Preparation> to_prepare_;
  GrammarCacheStats stats_;
  int64_t shared_bytes_ = 0;  // of stats_.bytes
  std::vector<std::thread> threads_;
  CompilePool pool_;  // calls finish() on its thread: ends first
};

}  // namespace quire
