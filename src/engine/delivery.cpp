#include "engine/delivery.h"

#include <algorithm>
#include <chrono>
#include <new>

#include "engine/short_memory.h"

namespace quire {
namespace {

// What the delivering thread keeps to tell of an error with, when it has found no memory: so much that malloc does not
// give it back to the system, where others could take it.
constexpr size_t kReserve = size_t{64} << 10;
thread_local std::unique_ptr<char[]> reserve;

constexpr int kAttempts = 100;
constexpr std::chrono::milliseconds kPause{10};

}  // namespace

Delivery::Stream::Stream(const Request& r, Listener listener, const Tokenizer* tokenizer, StopMatcher stop)
    : listener_(std::move(listener)),
      stop_(std::move(stop), r.stop.empty() ? std::nullopt : r.reasoning),
      silent_(r.stop_tokens),
      shown_stops_(r.include_stop ? r.stop : std::vector<std::string>()),
      tokenizer_(tokenizer),
      ignore_eos_(r.ignore_eos),
      unmatched_(r.min_tokens) {
  if (tokenizer_ == nullptr) return;
  // What a grammar allows has no space that encoding put there.
  const bool formed = r.constraint != nullptr && r.constraint->forms_the_beginning();
  const TextPart part = formed ? TextPart::kContinuation : tokenizer_->part_after(r.prompt);
  detokenizer_.emplace(*tokenizer_, r.render_special, part);
}

void Delivery::Stream::fill_in(TokenEvent::What& what) {
  if (const auto* const begun = std::get_if<TokenEvent::Begun>(&what)) admitted_ = begun->admitted;
  if (auto* const token = std::get_if<TokenEvent::Token>(&what)) fill_in(*token);
  auto* const end = std::get_if<TokenEvent::Ended>(&what);
  if (end == nullptr || end->finish == FinishReason::kCancelled || end->finish == FinishReason::kError) return;
  if (stopped_) end->finish = FinishReason::kStop;
  if (end->finish == FinishReason::kStop) end->stop = stop_.stop_index();
}

void Delivery::Stream::fill_in(TokenEvent::Token& token) {
  if (!detokenizer_) return;
  const bool silent = std::find(silent_.begin(), silent_.end(), token.id) != silent_.end() ||
                      (!ignore_eos_ && tokenizer_->is_eog(token.id));
  if (!silent) {
    token.text = stop_.push(detokenizer_->push(token.id), unmatched_ <= 0);
    if (unmatched_ > 0) --unmatched_;
  }
  if (stop_.stopped()) {
    stopped_ = true;
    token.ends = FinishReason::kStop;
  } else if (token.ends != FinishReason::kNone) {
    // An incomplete character becomes U+FFFD; a stop text may still be completed by it.
    token.text += stop_.push(detokenizer_->flush());
    token.text += stop_.flush();
  }
  if (stop_.stopped() && !shown_stops_.empty()) token.text += shown_stops_[static_cast<size_t>(stop_.stop_index())];
}

Delivery::Delivery(Ended ended) : ended_(std::move(ended)) {
  queue_.reserve(kMostQueued);
  items_.reserve(kMostQueued);
  thread_ = std::thread([this] { work(); });
}

Delivery::~Delivery() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Delivery::push(std::shared_ptr<Stream> stream, TokenEvent::What what) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.size() < kMostQueued; });
    queue_.push_back({std::move(stream), std::move(what)});
  }
  changed_.notify_all();
}

void Delivery::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && !delivering_; });
}

void Delivery::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    items_.swap(queue_);
    delivering_ = true;
    lock.unlock();
    changed_.notify_all();  // there is room again
    for (Item& item : items_) deliver(item);
    items_.clear();
    lock.lock();
    delivering_ = false;
    changed_.notify_all();
  }
}

namespace {

// Whether the engine goes on with the request behind this.
bool goes_on(const TokenEvent::What& what) {
  if (std::holds_alternative<TokenEvent::Ended>(what)) return false;
  const auto* const token = std::get_if<TokenEvent::Token>(&what);
  return token == nullptr || token->ends == FinishReason::kNone;
}

}  // namespace

// Where there is no memory for an event, its request ends with an error of its own.
void Delivery::deliver(Item& item) {
  Stream& s = *item.stream;
  if (s.ended_) return;
  if (!reserve) reserve.reset(new (std::nothrow) char[kReserve]);
  const bool running = goes_on(item.what);
  const auto tell = [&](TokenEvent::What what) {
    const TokenEvent e{s.id_, std::move(what)};
    if (s.listener_) s.listener_(e);
    s.ended_ = e.as<TokenEvent::Ended>() != nullptr;
  };
  const bool told = within_memory([&] {
    s.fill_in(item.what);
    tell(std::move(item.what));
    if (s.stopped_ && running) tell(s.end_by_text());
  });
  if (!told) {
    reserve = nullptr;
    // Another thread may have what was freed first: then it has it for a short time.
    for (int attempt = 0; attempt < kAttempts && !within_memory([&] { tell(out_of_memory()); }); ++attempt)
      std::this_thread::sleep_for(kPause);
    s.ended_ = true;
  }
  if (!s.ended_) return;
  s.listener_ = nullptr;  // lets go of what it holds
  ended_(s.id_, running);
}

}  // namespace quire
