// From tokens to what listeners hear, on a thread of its own: detokenising, stop texts and the listeners take time that
// no step should wait for. Internal to the engine.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/answer_stops.h"
#include "engine/loaded_model.h"
#include "engine/request.h"
#include "tokenizer/detokenizer.h"

namespace quire {

class Delivery {
 public:
  // A request's way out. Its events are delivered in order; after the end nothing comes.
  class Stream {
   public:
    Stream(const Request& r, Listener listener, const Tokenizer* tokenizer, StopMatcher stop);
    void set_id(RequestId id) { id_ = id; }  // before anything is pushed

   private:
    friend class Delivery;
    // What only the stream knows: a token's text, and whether a stop text ends the generation.
    void fill_in(TokenEvent::What& what);
    void fill_in(TokenEvent::Token& token);
    TokenEvent::Ended end_by_text() const {
      return {.finish = FinishReason::kStop, .stop = stop_.stop_index(), .admitted = admitted_};
    }

    RequestId id_;
    Listener listener_;
    std::optional<StreamDetokenizer> detokenizer_;
    AnswerStops stop_;
    std::vector<TokenId> silent_;           // tokens that end the text and are no part of it
    std::vector<std::string> shown_stops_;  // stop texts where they are part of the output; else none
    const Tokenizer* tokenizer_;
    bool ignore_eos_;
    int64_t unmatched_;  // tokens still to come in whose text no stop text is looked for
    std::optional<std::chrono::steady_clock::time_point> admitted_;
    bool stopped_ = false;  // by a stop text within a token
    bool ended_ = false;
  };

  // `ended` is called (on the delivering thread) when a stream has ended: `by_text` if a stop text ended it, which the
  // engine learns here.
  using Ended = std::function<void(RequestId id, bool by_text)>;
  explicit Delivery(Ended ended);
  // Delivers what was pushed before, then ends its thread.
  ~Delivery();

  // Texts are filled in here. Waits while kMostQueued events have yet to be delivered, so that listeners that are
  // slower than the steps hold these up and not the memory. One thread; never from a listener.
  void push(std::shared_ptr<Stream> stream, TokenEvent::What what);
  // Waits until everything that was pushed before has been heard. Not on the delivering thread.
  void drain();

 private:
  struct Item {
    std::shared_ptr<Stream> stream;
    TokenEvent::What what;
  };
  static constexpr size_t kMostQueued = 8192;
  void work();
  void deliver(Item& item);

  Ended ended_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Item> queue_, items_;  // what waits; what is being delivered
  bool delivering_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace quire
