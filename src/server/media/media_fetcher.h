// Fetches the pictures that requests name by URL, on threads of its own: hosts that answer late, or never, hold up
// neither those who read requests nor the engine.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/media/fetch_url.h"
#include "server/media/media_options.h"
#include "server/metrics.h"
#include "server/protocol/picture.h"

namespace quire::server {

class MediaFetcher {
 public:
  using Clock = HostLookup::Clock;
  using Fetched = ApiResult<std::vector<PicturePtr>>;

  struct Request {
    std::string client;                // who takes turns with others
    size_t body_bytes = 0;             // that the request holds meanwhile
    MediaPolicy policy;                // which each URL is judged by
    size_t max_bytes = 0;              // of one picture
    std::vector<PicturePtr> pictures;  // each with a URL
    std::function<bool()> gone;        // whether nobody waits any more. Any thread
    // Gets the pictures, in the same order, or the first error. On a thread of the fetcher, once, unless `gone` says so
    // before. Must be quick.
    std::function<void(Fetched)> done;
  };

  // `registry` must outlive this.
  MediaFetcher(MediaOptions options, Registry& registry);
  ~MediaFetcher();  // stop()
  MediaFetcher(const MediaFetcher&) = delete;

  // Any thread. Errors, with which nothing is kept of the request: 429 too many of this client's wait, 503 too many of
  // all, or stop() was called.
  ApiStatus fetch(Request request);
  // Ends what is under way, and refuses what waits and whatever comes.
  void stop();

 private:
  struct Batch;
  using BatchPtr = std::shared_ptr<Batch>;
  struct Client {
    std::deque<BatchPtr> to_begin;  // those with pictures that nobody fetches yet
    size_t requests = 0, bytes = 0;
    int running = 0;    // pictures
    uint64_t turn = 0;  // when one was begun last, as a number that grows
  };
  using Clients = std::map<std::string, Client>;

  ApiStatus check_room(const Client& client, const Request& request) const;
  void add_threads(size_t pictures);
  Clients::iterator next();
  void work();
  void watch();
  void skip_rest(Batch& batch);
  ApiResult<PicturePtr> fetch_one(Batch& batch, const PictureFile& picture) const;
  ApiResult<std::vector<uint8_t>> bytes_of(Batch& batch, const PictureFile& picture, BodyShare& share) const;
  bool is_over(const Batch& batch) const;
  void forget(const BatchPtr& batch, std::unique_lock<std::mutex>& lock);
  static void tell(Batch& batch);

  const MediaOptions options_;
  const HostLookup lookup_;
  const std::shared_ptr<BodyBudget> budget_;
  Gauge& waiting_gauge_;
  Counter &fetched_, &failed_, &given_up_, &bytes_counter_;
  Histogram& seconds_;

  std::mutex mutex_;
  std::condition_variable wake_, watcher_wake_;
  std::atomic<bool> stop_{false};
  Clients clients_;  // those that wait for pictures
  size_t waiting_ = 0, body_bytes_ = 0, to_begin_ = 0;
  int idle_ = 0;
  uint64_t turns_ = 0;
  std::vector<std::thread> threads_;
  std::thread watcher_;
};

}  // namespace quire::server
