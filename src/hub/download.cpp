#include "hub/download.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "hub/hash.h"
#include "hub/part_file.h"

namespace quire::hub {
namespace {

constexpr size_t kBuffer = 256 << 10;
constexpr auto kTick = std::chrono::milliseconds(100);
// Pieces that one request asks for: fewer towards the end, so that all connections end together.
constexpr size_t kFewest = 2, kMost = 64;

enum class End { kDone, kNoRanges, kFailed };

class Transfer {
 public:
  Transfer(const Download& file, const HttpOptions& options, PartFile& part,
           const std::function<void(uint64_t)>& progress)
      : file_(file), options_(options), part_(part), progress_(progress), state_(part.pieces(), State::kMissing) {
    for (size_t i = 0; i < state_.size(); ++i)
      if (part.was_complete(i)) {
        state_[i] = State::kComplete;
        here_ += part.end_of(i) - part.begin_of(i);
      } else {
        ++missing_;
      }
  }

  // The content's hash once all of it is here.
  Result<std::string> run() {
    BlobHash hash(file_.hash, file_.bytes);
    size_t hashed = 0;
    if (round(hash, hashed, true) == End::kNoRanges) {
      stop_ = false;
      round(hash, hashed, false);
    }
    progress_(here_);
    if (error_) return *error_;
    QUIRE_CHECK(hashed == state_.size(), "{}: {} of {} pieces", file_.shown, hashed, state_.size());
    return hash.hex();
  }

 private:
  enum class State : uint8_t { kMissing, kClaimed, kComplete };
  struct Claim {
    size_t begin, end;  // pieces
  };

  // Until everything is here and hashed, or it cannot go on.
  End round(BlobHash& hash, size_t& hashed, bool ranges) {
    end_ = End::kDone;
    const size_t requests = (missing_ + kFewest - 1) / kFewest;
    const size_t count = ranges ? std::min(requests, static_cast<size_t>(file_.connections)) : 1;
    std::vector<std::thread> threads;
    running_ = count;
    for (size_t i = 0; i < count; ++i)
      threads.emplace_back([this, ranges] {
        ranges ? fetch_ranges() : fetch_whole();
        const std::lock_guard lock(mutex_);
        --running_;
        changed_.notify_all();
      });
    follow(hash, hashed);
    for (std::thread& t : threads) t.join();
    return end_;
  }

  // Hashes pieces in order, as they become complete, while others are fetched.
  void follow(BlobHash& hash, size_t& hashed) {
    std::vector<std::byte> buffer(kBuffer);
    std::unique_lock lock(mutex_);
    for (;;) {
      const auto next_is_there = [&] { return hashed < state_.size() && state_[hashed] == State::kComplete; };
      changed_.wait_for(lock, kTick, [&] { return next_is_there() || running_ == 0; });
      const bool there = next_is_there();
      if (!there && running_ == 0) return;
      lock.unlock();
      progress_(here_);
      if (there && !stop_) {
        const uint64_t end = part_.end_of(hashed);
        for (uint64_t at = part_.begin_of(hashed); at < end; at += buffer.size()) {
          const auto bytes = std::span(buffer).first(std::min<uint64_t>(kBuffer, end - at));
          if (Status read = part_.read(at, bytes); !read.ok()) fail(read.take_error());
          hash.add(bytes);
        }
        ++hashed;
      }
      lock.lock();
      if (stop_) changed_.wait(lock, [&] { return running_ == 0; });
      if (stop_) return;
    }
  }

  std::optional<Claim> next_claim() {
    const std::lock_guard lock(mutex_);
    if (stop_) return {};
    const size_t begin = std::find(state_.begin(), state_.end(), State::kMissing) - state_.begin();
    if (begin == state_.size()) return {};
    const size_t most = std::clamp(missing_ / (2 * static_cast<size_t>(file_.connections)), kFewest, kMost);
    Claim claim{begin, begin};
    while (claim.end < state_.size() && claim.end - begin < most && state_[claim.end] == State::kMissing)
      state_[claim.end++] = State::kClaimed;
    missing_ -= claim.end - begin;
    return claim;
  }

  void fail(Error error) {
    const std::lock_guard lock(mutex_);
    if (!error_ && end_ != End::kNoRanges) {
      error_ = std::move(error);
      end_ = End::kFailed;
    }
    stop_ = true;
  }

  void ranges_are_ignored(const Claim& claim) {
    const std::lock_guard lock(mutex_);
    for (size_t i = claim.begin; i < claim.end; ++i)
      if (state_[i] == State::kClaimed) state_[i] = State::kMissing;
    if (end_ == End::kDone) end_ = End::kNoRanges;
    stop_ = true;
  }

  void note_complete(size_t piece) {
    if (Status noted = part_.note_complete(piece); !noted.ok()) return fail(noted.take_error());
    const std::lock_guard lock(mutex_);
    state_[piece] = State::kComplete;
    changed_.notify_all();
  }
  bool is_complete(size_t piece) {
    const std::lock_guard lock(mutex_);
    return state_[piece] == State::kComplete;
  }

  void fetch_ranges() {
    HttpClient client(options_, &stop_);
    while (const auto claim = next_claim())
      if (!fetch_claim(client, *claim)) return;
  }

  bool fetch_claim(HttpClient& client, const Claim& claim) {
    const uint64_t end = part_.end_of(claim.end - 1);
    uint64_t at = part_.begin_of(claim.begin);
    size_t piece = claim.begin;
    for (int attempt = 0; !stop_;) {
      const size_t before = piece;
      Result<Response> answer = client.fetch({.url = file_.url, .range = {{at, end - 1}}});
      if (!answer.ok()) return fail(answer.take_error().context(file_.shown)), false;
      const bool whole = at == 0 && end == file_.bytes;
      if (answer->status() == 200 && !whole) return ranges_are_ignored(claim), false;
      if (!check_answer(*answer, at, end)) return false;
      Result<size_t> n = size_t{1};
      while (at < end && !stop_ && (n = take(*answer, at, end, piece)).ok() && *n > 0) at += *n;
      if (at == end) return true;
      if (stop_) return false;
      attempt = piece > before ? 1 : attempt + 1;
      if (!client.wait_before(attempt))
        return fail(n.ok() ? request_error("{}: the answer ended after byte {} of {}", file_.shown, at, file_.bytes)
                           : n.take_error().context(fmt::format("{}, at byte {}", file_.shown, at))),
               false;
    }
    return false;
  }

  bool check_answer(const Response& answer, uint64_t at, uint64_t end) {
    const int status = answer.status();
    if (status != 200 && status != 206 && status != 416)
      return fail(refusal(answer, options_, file_.model, file_.shown)), false;
    const auto part = answer.part();
    const bool right = status == 200   ? !answer.length() || *answer.length() == file_.bytes
                       : status == 206 ? part && part->first == at && part->whole == file_.bytes
                                       : false;
    if (right) return true;
    return fail(file_error("{}: asked for bytes {} to {} of {}, {} answers {} with '{}'{}; the file may have changed, "
                           "try again",
                           file_.shown, at, end - 1, file_.bytes, answer.url().origin(), status,
                           answer.header("Content-Range"),
                           answer.length() ? fmt::format(" and {} bytes", *answer.length()) : "")),
           false;
  }

  // Bytes of the body from byte `at` on, noting the pieces that it completes. 0: the body has ended.
  Result<size_t> take(Response& answer, uint64_t at, uint64_t end, size_t& piece) {
    thread_local std::vector<std::byte> buffer(kBuffer);
    const auto room = std::span(buffer).first(std::min<uint64_t>(kBuffer, end - at));
    QUIRE_TRY(const size_t n, answer.read(room));
    if (Status written = part_.write(at, room.first(n)); !written.ok()) {
      fail(written.error());
      return written.take_error();
    }
    here_ += n;
    for (; piece < state_.size() && part_.end_of(piece) <= at + n; ++piece) note_complete(piece);
    return n;
  }

  // From a server that knows no ranges: one answer from the beginning to the end, of which what is here already is
  // passed over.
  void fetch_whole() {
    HttpClient client(options_, &stop_);
    for (int attempt = 0; !stop_;) {
      Result<Response> answer = client.fetch({.url = file_.url});
      if (!answer.ok()) return fail(answer.take_error().context(file_.shown));
      if (!check_answer(*answer, 0, file_.bytes)) return;
      size_t fresh = 0;
      Status status = read_whole(*answer, fresh);
      if (status.ok() || stop_) return;
      attempt = fresh > 0 ? 1 : attempt + 1;
      if (!client.wait_before(attempt)) return fail(status.take_error().context(file_.shown));
    }
  }

  Status read_whole(Response& answer, size_t& fresh) {
    std::vector<std::byte> waste(kBuffer);
    for (size_t i = 0; i < state_.size();) {
      const uint64_t end = part_.end_of(i);
      const bool skip = is_complete(i);
      size_t piece = i;
      for (uint64_t at = part_.begin_of(i); at < end && !stop_;) {
        QUIRE_TRY(const size_t n, skip ? answer.read(std::span(waste).first(std::min<uint64_t>(kBuffer, end - at)))
                                       : take(answer, at, end, piece));
        if (n == 0) return request_error("the answer ended after byte {} of {}", at, file_.bytes);
        at += n;
      }
      if (stop_) return {};
      if (!skip) ++fresh;
      ++i;
    }
    return {};
  }

  const Download& file_;
  const HttpOptions& options_;
  PartFile& part_;
  const std::function<void(uint64_t)>& progress_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> here_{0};  // bytes; some may be fetched twice

  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::vector<State> state_;
  size_t missing_ = 0, running_ = 0;
  End end_ = End::kDone;
  std::optional<Error> error_;
};

}  // namespace

Status download(const Download& file, const HttpOptions& options, const std::function<void(uint64_t)>& progress) {
  for (;;) {
    QUIRE_TRY(PartFile part, PartFile::open(file.blob_path, file.bytes));
    bool resumed = false;
    for (size_t i = 0; i < part.pieces(); ++i) resumed |= part.was_complete(i);
    Transfer transfer(file, options, part, progress);
    QUIRE_TRY(const std::string hash, transfer.run());
    if (hash == file.hash) return part.commit();
    part.discard();
    // What an earlier process left may be what is wrong.
    if (!resumed)
      return file_error(
          "{}: its content has the hash {}, and the hub says {}; nothing of it is kept. Try again; if "
          "that does not help, the file on the hub is damaged",
          file.shown, hash, file.hash);
    if (options.say) options.say(file.shown + ": what was there is damaged; fetching all of it");
  }
}

}  // namespace quire::hub
