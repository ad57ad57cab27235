#include "constraint/grammar_cache.h"

#include <algorithm>
#include <new>

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMostPreparations = 64;
constexpr int64_t kSharedPart = 8;              // of what the cache may hold, at most: masks that grammars share
constexpr std::chrono::milliseconds kTurn{50};  // of one grammar whose masks are prepared
constexpr std::chrono::milliseconds kLook{20};  // at whether those who ask are still there
constexpr int kLeastPlaces = 2;                 // one of them for whoever comes next

Error stopped() {
  return capacity_error("the server is shutting down");
}

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
    : vocabulary_(std::move(vocabulary)),
      options_(std::move(options)),
      pool_(vocabulary_, {.program = options_.program,
                          .places = std::max(threads_of(options_), kLeastPlaces),
                          .limits = options_.limits,
                          .max_waiting = options_.max_waiting}) {}

GrammarCache::~GrammarCache() {
  stop();
  for (std::thread& t : threads_) t.join();
}

void GrammarCache::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  done_.notify_all();
  pool_.stop();
}

const GrammarCompiler& GrammarCache::compiler() {
  std::call_once(made_, [&] { compiler_ = make_grammar_compiler(*vocabulary_, options_.cache_bytes / kSharedPart); });
  ready_compiler_ = compiler_.get();
  return *compiler_;
}

Result<std::shared_ptr<const Grammar>> GrammarCache::get(const GrammarSpec& spec, const GrammarAsker& asker) {
  if (!has_grammars())
    return request_error(
        "constrained output is not supported by this server: it was built without XGrammar (scripts/setup.sh fetches "
        "it)");
  std::unique_lock lock(mutex_);
  if (stopping_) return stopped();
  for (int i = std::ssize(threads_) == 0 ? threads_of(options_) : 0; i > 0; --i)
    threads_.emplace_back([this] { work(); });
  if (const auto at = entries_.find(spec); at != entries_.end()) {
    ++stats_.hits;
    if (at->second->done) used_.splice(used_.begin(), used_, at->second->used);
    return wait_for(lock, spec, std::shared_ptr(at->second), asker);
  }
  const auto entry = std::make_shared<Entry>();
  entries_.emplace(spec, entry);
  if (Status begun = begin(lock, spec, entry, asker.client); !begun.ok()) {
    entry->done = begun.error();
    forget(spec, entry);
    done_.notify_all();
  }
  return wait_for(lock, spec, entry, asker);
}

Result<std::shared_ptr<const Grammar>> GrammarCache::wait_for(std::unique_lock<std::mutex>& lock,
                                                              const GrammarSpec& spec,
                                                              const std::shared_ptr<Entry>& entry,
                                                              const GrammarAsker& asker) {
  // Those before it take their time, too.
  const auto patience = options_.limits.time * 3;
  const auto until = Clock::now() + patience;
  ++entry->askers;
  bool gone = false;
  while (!entry->done && !stopping_ && !gone && Clock::now() < until) {
    done_.wait_for(lock, kLook);
    gone = !entry->done && asker.gone && asker.gone();
  }
  --entry->askers;
  if (entry->done) return *entry->done;
  if (entry->askers == 0) {
    forget(spec, entry);
    if (entry->compilation) pool_.cancel(*entry->compilation);
  }
  if (stopping_) return stopped();
  if (gone) return capacity_error("nobody waits for the grammar any more");
  return capacity_error("the grammar was not compiled within {} ms: others are being compiled", patience.count());
}

// The entry is none any more for whoever asks next.
void GrammarCache::forget(const GrammarSpec& spec, const std::shared_ptr<Entry>& entry) {
  if (const auto at = entries_.find(spec); at != entries_.end() && at->second == entry) erase(at);
}

void GrammarCache::erase(Entries::iterator at) {
  if (to_measure_ == at) ++to_measure_;
  if (at->second->is_kept) used_.erase(at->second->used);
  at->second->is_kept = false;
  stats_.bytes -= at->second->bytes;
  entries_.erase(at);
}

Status GrammarCache::begin(std::unique_lock<std::mutex>& lock, const GrammarSpec& spec,
                           const std::shared_ptr<Entry>& entry, const std::string& client) {
  if (!options_.program.empty()) {
    const auto done = [this, spec, entry](Result<std::string> bytes, double seconds) {
      finish(spec, entry, from_bytes(std::move(bytes)), seconds);
    };
    QUIRE_TRY(entry->compilation, pool_.submit(spec, client, done));
    return {};
  }
  lock.unlock();
  const auto begin = Clock::now();
  Result<std::shared_ptr<const Grammar>> done = compiler().compile(spec, options_.limits);
  finish(spec, entry, std::move(done), std::chrono::duration<double>(Clock::now() - begin).count());
  lock.lock();
  return {};
}

Result<std::shared_ptr<const Grammar>> GrammarCache::from_bytes(Result<std::string> bytes) {
  if (!bytes.ok()) return bytes.take_error();
  try {
    return compiler().from_bytes(*bytes);
  } catch (const std::bad_alloc&) {
    return capacity_error("there is no memory for the grammar");
  }
}

GrammarCacheStats GrammarCache::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void GrammarCache::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [&] { return stopping_ || !to_prepare_.empty(); });
    if (stopping_) return;
    prepare(lock);
  }
}

void GrammarCache::finish(const GrammarSpec& spec, const std::shared_ptr<Entry>& entry,
                          Result<std::shared_ptr<const Grammar>> done, double seconds) {
  const std::lock_guard lock(mutex_);
  stats_.compile_seconds += seconds;
  ++(done.ok() ? stats_.compiled : stats_.refused);
  if (done.ok()) {
    // What waits here is held, also when the cache has let go of it: of many that are never prepared, the last few.
    if (to_prepare_.size() == kMostPreparations) to_prepare_.pop_front();
    to_prepare_.push_back({*done, entry});
    work_.notify_one();
  }
  // An error that a busy machine may have caused is none for the next one who asks.
  const bool in_time = seconds < std::chrono::duration<double>(options_.limits.time).count();
  const bool keep = done.ok() || (done.error().fault == Fault::kRequest && in_time);
  entry->done = std::move(done);
  const auto at = entries_.find(spec);
  const bool is_there = at != entries_.end() && at->second == entry;  // all who asked may have gone
  if (keep && is_there) {
    entry->used = used_.insert(used_.begin(), spec);
    entry->is_kept = true;
    measure(spec, *entry);
    measure_some();
    make_room();
  } else if (is_there) {
    erase(at);
  }
  done_.notify_all();
}

void GrammarCache::prepare(std::unique_lock<std::mutex>& lock) {
  Preparation preparation = std::move(to_prepare_.front());
  const std::shared_ptr<const Grammar>& grammar = preparation.grammar;
  to_prepare_.pop_front();
  lock.unlock();
  // Others take turns with what is left. A grammar of very many states is left unfinished: its texts need few of them.
  bool interrupted = false;
  const auto begin = Clock::now();
  const auto spent = [&] { return preparation.spent + (Clock::now() - begin); };
  grammar->prepare([&] {
    interrupted = stopping_ || Clock::now() - begin > kTurn;
    return interrupted || grammar.use_count() == 1 || spent() > options_.limits.time;
  });
  lock.lock();
  if (interrupted && !stopping_ && to_prepare_.size() < kMostPreparations)
    to_prepare_.push_back({grammar, preparation.entry, spent()});
  if (const auto entry = preparation.entry.lock(); entry && entry->is_kept) measure(*entry->used, *entry);
  make_room();
}

// Grammars grow while texts come to need their masks.
void GrammarCache::measure(const GrammarSpec& spec, Entry& entry) {
  const int64_t bytes = entry_bytes(spec) + (entry.done->ok() ? grammar_bytes(***entry.done) : 0);
  stats_.bytes += bytes - entry.bytes;
  entry.bytes = bytes;
}

// A few at each compilation, in turns: one that comes is seen again when a sixteenth as many have come as are there.
void GrammarCache::measure_some() {
  constexpr size_t kSome = 16;
  for (size_t i = std::min(kSome, entries_.size()); i > 0; --i) {
    if (to_measure_ == entries_.end()) to_measure_ = entries_.begin();
    const auto& [spec, entry] = *to_measure_++;
    if (entry->is_kept) measure(spec, *entry);
  }
}

void GrammarCache::make_room() {
  const GrammarCompiler* const compiler = ready_compiler_;
  const int64_t shared = compiler != nullptr ? compiler->shared_bytes() : 0;
  stats_.bytes += shared - shared_bytes_;
  shared_bytes_ = shared;
  while (stats_.bytes > options_.cache_bytes && used_.size() > 1) erase(entries_.find(used_.back()));
}

}  // namespace quire
