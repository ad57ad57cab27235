#include "constraint/grammar_cache.h"

#include <algorithm>

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostPreparations = 64;

int threads_of(const GrammarCacheOptions& options) {
  if (options.threads > 0) return options.threads;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 4, 1, 8);
}

// Of an entry besides its grammar: of refused ones there is nothing else.
int64_t entry_bytes(const GrammarSpec& spec) {
  return static_cast<int64_t>(2 * spec.text.size()) + 512;
}

// What a grammar says of itself leaves out what its containers keep free and malloc adds: 1.6 to 1.8 times as much is
// what the heap grows by.
int64_t grammar_bytes(const Grammar& grammar) {
  return 2 * grammar.bytes();
}

}  // namespace

GrammarCache::GrammarCache(std::shared_ptr<const Vocabulary> vocabulary, GrammarCacheOptions options)
    : vocabulary_(std::move(vocabulary)), options_(options) {}

GrammarCache::~GrammarCache() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  done_.notify_all();
  for (std::thread& t : threads_) t.join();
}

Result<std::shared_ptr<const Grammar>> GrammarCache::get(const GrammarSpec& spec) {
  if (!has_grammars())
    return request_error(
        "constrained output is not supported by this server: it was built without XGrammar (scripts/setup.sh fetches "
        "it)");
  std::unique_lock lock(mutex_);
  for (int i = std::ssize(threads_) == 0 ? threads_of(options_) : 0; i > 0; --i)
    threads_.emplace_back([this] { work(); });
  std::shared_ptr<Entry> entry;
  if (const auto at = entries_.find(spec); at != entries_.end()) {
    entry = at->second;
    ++stats_.hits;
    if (entry->done) used_.splice(used_.begin(), used_, entry->used);
  } else {
    if (to_compile_.size() >= options_.max_waiting)
      return capacity_error("{} grammars wait to be compiled already", to_compile_.size());
    entry = std::make_shared<Entry>();
    entries_.emplace(spec, entry);
    to_compile_.push_back(spec);
    ++queued_;
    work_.notify_one();
  }
  // Those before it in the queue take their time, too.
  const auto patience = options_.limits.time * 3;
  if (!done_.wait_for(lock, patience, [&] { return entry->done.has_value() || stopping_; }) || !entry->done)
    return capacity_error("the grammar was not compiled within {} ms: others are being compiled", patience.count());
  return *entry->done;
}

GrammarCacheStats GrammarCache::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void GrammarCache::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stopping_ || !to_compile_.empty() || !to_prepare_.empty(); });
    if (stopping_) return;
    if (!to_compile_.empty())
      compile(lock);
    else
      prepare(lock);
  }
}

void GrammarCache::compile(std::unique_lock<std::mutex>& lock) {
  const GrammarSpec spec = std::move(to_compile_.front());
  to_compile_.pop_front();
  --queued_;
  lock.unlock();
  std::call_once(made_, [&] { compiler_ = make_grammar_compiler(*vocabulary_); });
  const auto begin = Clock::now();
  Result<std::shared_ptr<const Grammar>> done = [&]() -> Result<std::shared_ptr<const Grammar>> {
    try {
      return compiler_->compile(spec, options_.limits);
    } catch (const std::bad_alloc&) {
      return capacity_error("there is no memory to compile the grammar");
    }
  }();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const int64_t bytes = entry_bytes(spec) + (done.ok() ? grammar_bytes(**done) : 0);
  lock.lock();
  stats_.compile_seconds += seconds;
  ++(done.ok() ? stats_.compiled : stats_.refused);
  if (done.ok()) {
    // What waits here is held, also when the cache has let go of it: of many that are never prepared, the last few.
    if (to_prepare_.size() == kMostPreparations) to_prepare_.pop_front();
    to_prepare_.push_back({*done});
    work_.notify_one();
  }
  const auto at = entries_.find(spec);
  // An error that a busy machine may have caused is none for the next one who asks.
  const bool in_time = seconds < std::chrono::duration<double>(options_.limits.time).count();
  const bool keep = done.ok() || (done.error().fault == Fault::kRequest && in_time);
  at->second->done = std::move(done);
  if (keep) {
    at->second->used = used_.insert(used_.begin(), spec);
    at->second->bytes = bytes;
    stats_.bytes += bytes;
    make_room();
  } else {
    entries_.erase(at);
  }
  done_.notify_all();
}

void GrammarCache::prepare(std::unique_lock<std::mutex>& lock) {
  const Preparation preparation = std::move(to_prepare_.front());
  const std::shared_ptr<const Grammar>& grammar = preparation.grammar;
  to_prepare_.pop_front();
  lock.unlock();
  // What is left when another grammar comes is done behind that one. A grammar of very many states is left unfinished:
  // its texts need few of them.
  bool interrupted = false;
  const auto begin = Clock::now();
  const auto spent = [&] { return preparation.spent + (Clock::now() - begin); };
  grammar->prepare([&] {
    interrupted = stopping_ || queued_ > 0;
    return interrupted || grammar.use_count() == 1 || spent() > options_.limits.time;
  });
  const int64_t bytes = grammar_bytes(*grammar);
  lock.lock();
  if (interrupted && !stopping_ && to_prepare_.size() < kMostPreparations) to_prepare_.push_back({grammar, spent()});
  for (const auto& [spec, entry] : entries_) {
    if (!entry->done || !entry->done->ok() || **entry->done != grammar) continue;
    const int64_t now = entry_bytes(spec) + bytes;
    stats_.bytes += now - entry->bytes;
    entry->bytes = now;
    break;
  }
  make_room();
}

void GrammarCache::make_room() {
  while (stats_.bytes > options_.cache_bytes && used_.size() > 1) {
    const auto at = entries_.find(used_.back());
    stats_.bytes -= at->second->bytes;
    entries_.erase(at);
    used_.pop_back();
  }
}

}  // namespace quire
