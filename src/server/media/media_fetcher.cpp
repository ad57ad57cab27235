#include "server/media/media_fetcher.h"

#include <algorithm>
#include <new>
#include <system_error>

namespace quire::server {
namespace {

constexpr std::chrono::milliseconds kLook{50};  // between looks at what waits too long

ApiError stopping() {
  return {503, "the server is shutting down", "", "shutting_down"};
}

ApiError overloaded(std::string message) {
  return {.status = 503, .message = std::move(message), .code = "overloaded", .retry_after = 1};
}

}  // namespace

struct MediaFetcher::Batch {
  explicit Batch(Request r, std::chrono::milliseconds timeout)
      : request(std::move(r)), deadline(Clock::now() + timeout), fetched(request.pictures.size()) {}

  Request request;
  const Clock::time_point deadline;
  std::vector<PicturePtr> fetched;
  size_t begun = 0, running = 0;  // of its pictures
  std::optional<ApiError> error;  // the first one
  bool over = false;              // told, or about to be
  std::atomic<bool> failed{false};
  std::atomic<size_t> bytes{0};

  bool all_begun() const { return begun == fetched.size(); }
  void fail(ApiError e) {
    if (!error) error = std::move(e);
    failed = true;
  }
};

MediaFetcher::MediaFetcher(MediaOptions options, Registry& registry)
    : options_(std::move(options)),
      lookup_(options_.look_up ? options_.look_up : hub::look_up),
      budget_(std::make_shared<BodyBudget>(options_.max_total_bytes)),
      waiting_gauge_(registry.gauge("quire:media_waiting_requests", "Requests whose pictures are being fetched.")),
      fetched_(registry.counter("quire:media_fetches_total",
                                "Pictures that requests named by URL, by what became of fetching them.",
                                {{"outcome", "fetched"}})),
      failed_(registry.counter("quire:media_fetches_total", "", {{"outcome", "failed"}})),
      given_up_(registry.counter("quire:media_fetches_total", "", {{"outcome", "given_up"}})),
      bytes_counter_(registry.counter("quire:media_fetched_bytes_total", "Bytes of pictures that were fetched.")),
      seconds_(registry.histogram("quire:media_fetch_seconds", "How long fetching a picture took.",
                                  {0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60})) {}

MediaFetcher::~MediaFetcher() {
  stop();
}

ApiStatus MediaFetcher::check_room(const Client& client, const Request& request) const {
  const auto full = [&](size_t requests, size_t bytes, size_t part) {
    // A body always fits where there is no other.
    return requests >= std::max<size_t>(options_.max_waiting / part, 1) ||
           (bytes > 0 && bytes + request.body_bytes > options_.max_waiting_bytes / part);
  };
  if (full(waiting_, body_bytes_, 1))
    return overloaded(fmt::format("pictures of {} requests are being fetched; try again later", waiting_));
  if (full(client.requests, client.bytes, 2))
    return ApiError{.status = 429,
                    .message = fmt::format("pictures of {} requests of this client are being fetched; try again later",
                                           client.requests),
                    .retry_after = 1};
  return {};
}

// Threads are made when they are needed first, and stay.
void MediaFetcher::add_threads(size_t pictures) {
  if (!watcher_.joinable()) watcher_ = std::thread([this] { watch(); });
  const size_t wanted = to_begin_ + pictures, most = static_cast<size_t>(options_.threads);
  for (auto free = static_cast<size_t>(idle_); free < wanted && threads_.size() < most; ++free)
    threads_.emplace_back([this] { work(); });
}

ApiStatus MediaFetcher::fetch(Request request) {
  const auto batch = std::make_shared<Batch>(std::move(request), options_.timeout);
  const Request& r = batch->request;
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return stopping();
    const auto known = clients_.find(r.client);
    QUIRE_CHECKED(check_room(known == clients_.end() ? Client() : known->second, r));
    try {
      add_threads(r.pictures.size());
    } catch (const std::system_error&) {  // those that there are do it
      if (threads_.empty() || !watcher_.joinable()) return overloaded("the system has no more threads");
    }
    Client& client = clients_[r.client];
    client.to_begin.push_back(batch);
    ++client.requests;
    client.bytes += r.body_bytes;
    body_bytes_ += r.body_bytes;
    to_begin_ += r.pictures.size();
    waiting_gauge_.set(static_cast<double>(++waiting_));
  }
  wake_.notify_all();
  watcher_wake_.notify_one();
  return {};
}

// Whose picture is begun next: of those who may have another thread, who has the fewest; the end if there is nobody.
MediaFetcher::Clients::iterator MediaFetcher::next() {
  const int share = std::max(options_.threads / 2, 1);
  auto best = clients_.end();
  const auto rank = [](const Client& c) { return std::pair(c.running, c.turn); };
  for (auto c = clients_.begin(); c != clients_.end(); ++c) {
    if (c->second.to_begin.empty() || c->second.running >= share) continue;
    if (best == clients_.end() || rank(c->second) < rank(best->second)) best = c;
  }
  return best;
}

void MediaFetcher::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    auto client = clients_.end();
    ++idle_;
    wake_.wait(lock, [&] { return stop_ || (client = next()) != clients_.end(); });
    --idle_;
    if (stop_) return;
    Client& its = client->second;  // which stays as long as it has a request
    const BatchPtr batch = its.to_begin.front();
    const size_t i = batch->begun++;
    --to_begin_;
    if (batch->all_begun()) its.to_begin.pop_front();
    ++batch->running;
    ++its.running;
    its.turn = ++turns_;
    lock.unlock();
    ApiResult<PicturePtr> got = [&]() -> ApiResult<PicturePtr> {
      try {
        return fetch_one(*batch, *batch->request.pictures[i]);
      } catch (const std::bad_alloc&) {
        return out_of_memory();
      }
    }();
    lock.lock();
    --its.running;
    --batch->running;
    if (got.ok())
      batch->fetched[i] = std::move(*got);
    else
      batch->fail(got.take_error());
    if (batch->failed) skip_rest(*batch);
    forget(batch, lock);
    wake_.notify_all();
  }
}

// Nothing more of it is begun.
void MediaFetcher::skip_rest(Batch& batch) {
  if (batch.all_begun()) return;
  const size_t left = batch.fetched.size() - batch.begun;
  to_begin_ -= left;
  given_up_.add(static_cast<double>(left));
  batch.begun = batch.fetched.size();
  std::erase_if(clients_.at(batch.request.client).to_begin, [&](const BatchPtr& b) { return b.get() == &batch; });
}

// Where all of it has ended it is no longer counted, and whoever waits for it is told, without the lock.
void MediaFetcher::forget(const BatchPtr& batch, std::unique_lock<std::mutex>& lock) {
  if (batch->over || batch->running > 0 || !batch->all_begun()) return;
  batch->over = true;
  const auto client = clients_.find(batch->request.client);
  const size_t bytes = batch->request.body_bytes;
  body_bytes_ -= bytes;
  client->second.bytes -= bytes;
  if (--client->second.requests == 0) clients_.erase(client);
  waiting_gauge_.set(static_cast<double>(--waiting_));
  lock.unlock();
  tell(*batch);
  lock.lock();
}

void MediaFetcher::tell(Batch& batch) {
  const Fetched fetched = batch.error ? Fetched(*batch.error) : Fetched(std::move(batch.fetched));
  batch.fetched.clear();
  for (bool told = batch.request.gone(); !told;) {
    try {
      batch.request.done(fetched);
      told = true;
    } catch (const std::bad_alloc&) {  // another request may end meanwhile
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  batch.request.done = nullptr;  // and with it what it holds
}

bool MediaFetcher::is_over(const Batch& batch) const {
  return stop_ || batch.failed || batch.request.gone();
}

// Where all threads are busy, what waits is given up in time all the same.
void MediaFetcher::watch() {
  std::unique_lock lock(mutex_);
  for (;;) {
    watcher_wake_.wait(lock, [&] { return stop_ || to_begin_ > 0; });
    watcher_wake_.wait_for(lock, kLook, [&] { return stop_.load(); });
    if (stop_) return;
    std::vector<BatchPtr> late;
    for (const auto& [name, client] : clients_)
      for (const BatchPtr& batch : client.to_begin)
        if (is_over(*batch) || Clock::now() >= batch->deadline) late.push_back(batch);
    for (const BatchPtr& batch : late) {
      batch->fail(overloaded("the request's pictures could not all be fetched in time; try again later"));
      skip_rest(*batch);
    }
    for (const BatchPtr& batch : late) forget(batch, lock);
  }
}

ApiResult<std::vector<uint8_t>> MediaFetcher::bytes_of(Batch& batch, const PictureFile& picture,
                                                       BodyShare& share) const {
  const MediaPolicy& policy = batch.request.policy;
  const FetchBounds bounds{
      .deadline = batch.deadline,
      .stopped = [&] { return is_over(batch); },
      .max_bytes = batch.request.max_bytes,
      .take = [&](size_t bytes) -> ApiStatus {
        if (batch.bytes.fetch_add(bytes) + bytes > options_.max_request_bytes)
          return bad_request("the pictures that the request names have more than {} bytes (limit max_media_bytes)",
                             options_.max_request_bytes);
        if (share.grow(bytes)) return {};
        return overloaded("no memory for more pictures: those of other requests take all that there is for them");
      }};
  ApiResult<MediaSource> source = [&]() -> ApiResult<MediaSource> {
    QUIRE_TRY(MediaSource judged, policy.judge(picture.url));
    return judged;
  }();
  if (!source.ok()) return source.take_error();
  if (const auto* const file = std::get_if<MediaFile>(&*source)) return read_media_file(*file, bounds);
  return fetch_url(std::get<hub::Url>(*source), policy, lookup_, options_.tls, bounds);
}

ApiResult<PicturePtr> MediaFetcher::fetch_one(Batch& batch, const PictureFile& picture) const {
  const Clock::time_point began = Clock::now();
  auto file = std::make_shared<PictureFile>();
  file->where = picture.where;
  file->share = BodyShare(budget_);
  ApiResult<std::vector<uint8_t>> bytes = bytes_of(batch, picture, file->share);
  seconds_.observe(std::chrono::duration<double>(Clock::now() - began).count());
  if (bytes.ok()) {
    fetched_.add();
    bytes_counter_.add(static_cast<double>(bytes->size()));
    file->bytes = std::move(*bytes);
    return PicturePtr(std::move(file));
  }
  (is_over(batch) ? given_up_ : failed_).add();
  if (stop_) return stopping();
  ApiError error = bytes.take_error();
  if (error.status != 400) return error;
  return bad_field(picture.field, "invalid_image_url", "'{}': {}", picture.field, error.message);
}

void MediaFetcher::stop() {
  std::vector<BatchPtr> left;
  {
    std::unique_lock lock(mutex_);
    stop_ = true;
    for (const auto& [name, client] : clients_) left.insert(left.end(), client.to_begin.begin(), client.to_begin.end());
    for (const BatchPtr& batch : left) {
      batch->fail(stopping());
      skip_rest(*batch);
    }
    for (const BatchPtr& batch : left) forget(batch, lock);
  }
  wake_.notify_all();
  watcher_wake_.notify_all();
  for (std::thread& t : threads_) t.join();
  threads_.clear();
  if (watcher_.joinable()) watcher_.join();
}

}  // namespace quire::server
