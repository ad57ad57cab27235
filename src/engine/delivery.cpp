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

// Fills in the text, and ends the request at a stop text.
TokenEvent Delivery::Stream::event(TokenEvent e) {
  e.request = id_;
  if (!detokenizer_ || e.finish == FinishReason::kCancelled || e.finish == FinishReason::kError) return e;
  const bool silent = e.token >= 0 && (std::find(silent_.begin(), silent_.end(), e.token) != silent_.end() ||
                                       (!ignore_eos_ && tokenizer_->is_eog(e.token)));
  if (e.token >= 0 && !silent) {
    e.text = detokenizer_->push(e.token);
    e.text = stop_.push(e.text, unmatched_ <= 0);
    if (unmatched_ > 0) --unmatched_;
  }
  if (stop_.stopped()) {
    e.finish = FinishReason::kStop;
  } else if (e.finish != FinishReason::kNone) {
    // An incomplete character becomes U+FFFD; a stop text may still be completed by it.
    e.text += stop_.push(detokenizer_->flush());
    e.text += stop_.flush();
  }
  if (e.finish == FinishReason::kStop) e.stop = stop_.stop_index();
  if (stop_.stopped() && !shown_stops_.empty()) e.text += shown_stops_[static_cast<size_t>(stop_.stop_index())];
  return e;
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

void Delivery::push(std::shared_ptr<Stream> stream, TokenEvent e) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.size() < kMostQueued; });
    queue_.push_back({std::move(stream), std::move(e)});
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

// Where there is no memory for an event, its request ends with an error of its own.
void Delivery::deliver(Item& item) {
  Stream& s = *item.stream;
  if (s.ended_) return;
  if (!reserve) reserve.reset(new (std::nothrow) char[kReserve]);
  const bool running = item.event.finish == FinishReason::kNone;
  bool ended = false;
  const auto tell = [&](const TokenEvent& e) {
    if (s.listener_) s.listener_(e);
    ended = e.finish != FinishReason::kNone;
  };
  if (!within_memory([&] { tell(s.event(std::move(item.event))); })) {
    reserve = nullptr;
    TokenEvent failed = out_of_memory();
    failed.request = s.id_;
    // Another thread may have what was freed first: then it has it for a short time.
    for (int attempt = 0; attempt < kAttempts && !within_memory([&] { tell(failed); }); ++attempt)
      std::this_thread::sleep_for(kPause);
    ended = true;
  }
  if (!ended) return;
  s.ended_ = true;
  s.listener_ = nullptr;  // lets go of what it holds
  ended_(s.id_, running);
}

}  // namespace quire
