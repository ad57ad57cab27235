#include "server/media/host_lookup.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <thread>

namespace quire::server {
namespace {

constexpr std::chrono::milliseconds kSlice{50};  // how late a stop may be noticed

// Outlives whoever asks.
struct Question {
  std::mutex mutex;
  std::condition_variable answered;
  std::optional<hub::Lookup> answer;
};

}  // namespace

Result<std::vector<hub::SocketAddress>> HostLookup::find(const hub::Url& url, Clock::time_point deadline,
                                                         const std::function<bool()>& stopped) const {
  const auto question = std::make_shared<Question>();
  if (under_way_->fetch_add(1) >= kMostUnderWay) {
    under_way_->fetch_sub(1);
    return request_error("its address cannot be asked for: too many names are being looked up");
  }
  try {
    std::thread([question, ask = ask_, under_way = under_way_, host = url.host, port = url.port] {
      hub::Lookup answer;
      try {
        answer = ask(host, port);
      } catch (const std::bad_alloc&) {
        answer.failure.emplace(hub::Stream::Failure{request_error("there is no memory")});
      }
      {
        const std::lock_guard lock(question->mutex);
        question->answer = std::move(answer);
      }
      question->answered.notify_one();
      under_way->fetch_sub(1);
    }).detach();
  } catch (const std::system_error&) {
    under_way_->fetch_sub(1);
    return request_error("its address cannot be asked for: the system has no more threads");
  }
  std::unique_lock lock(question->mutex);
  while (!question->answer) {
    const auto now = Clock::now();
    if (stopped()) return request_error("nobody waits any more");
    if (now >= deadline) return request_error("its address was not found in time");
    question->answered.wait_until(lock, std::min<Clock::time_point>(now + kSlice, deadline));
  }
  if (question->answer->failure || question->answer->addresses.empty())
    return request_error("there is no address of this name");
  return std::move(question->answer->addresses);
}

}  // namespace quire::server
