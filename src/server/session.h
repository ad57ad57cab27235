// One connection: reads requests one after the other, has them answered, and guards against clients that are slow,
// silent, greedy or gone.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/access_log.h"
#include "server/api.h"
#include "server/connection.h"
#include "server/responder.h"

namespace quire::server {

struct SessionOptions {
  HttpLimits limits;
  std::chrono::milliseconds header_timeout{10'000};  // from a request's first byte to the end of its headers
  std::chrono::milliseconds body_timeout{60'000};    // from there to the end of its body
  std::chrono::milliseconds idle_timeout{75'000};    // between requests
  std::chrono::milliseconds write_timeout{60'000};   // for the client to take what was written
  std::chrono::milliseconds keep_alive{15'000};      // between comments in a silent stream
};

// What sessions share. Outlives them.
struct SessionShared {
  SessionOptions options;
  Api& api;
  Registry& registry;
  AccessLog& log;
  std::shared_ptr<BodyBudget> bodies;                 // of all of them together
  Gauge& open;                                        // connections, for the metrics
  Counter& lost_clients;                              // who went away before their answer's end
  std::atomic<int64_t> connections{0}, exchanges{0};  // open; being answered
  std::atomic<int64_t> usual{0}, evicted{0};          // of them: of that kind; about to close to make room
  std::atomic<bool> draining{false};
};

class Session : public std::enable_shared_from_this<Session> {
 public:
  enum class Kind {
    kUsual,
    kReserved,  // one of those that are kept for asking how the server is: one such request, soon, and nothing else
  };
  Session(std::unique_ptr<Connection> connection, SessionShared& shared, std::string peer, Kind kind);
  ~Session();
  void start();
  // Any thread: closes the connection as soon as no request is being answered.
  void drain();
  // Any thread: closes it now.
  void abort();
  Kind kind() const { return kind_; }
  // Any thread: since when no request has been under way, in nanoseconds of a steady clock; nothing while one is, or
  // when it is closing.
  std::optional<int64_t> idle_since() const {
    const int64_t since = idle_since_.load();
    return since > 0 ? std::optional(since) : std::nullopt;
  }
  // Any thread: closes it to make room for others if it is still idle. From then on it does not count as open. False: a
  // request came before.
  bool evict();

 private:
  class Exchange;
  enum class Phase {
    kHandshake,
    kIdle,       // no byte of a request yet
    kHeader,     // within request line and headers
    kBody,       // within the body
    kAnswering,  // a request is with the Api; reads only find out whether the client is still there
    kLingering,  // everything is said: reads what the client still sends, so that it sees the answer
    kClosed,
  };
  using Clock = std::chrono::steady_clock;
  using Milliseconds = std::chrono::milliseconds;

  Milliseconds patience(Milliseconds usual) const;
  void arm(asio::steady_timer& timer, Milliseconds after, void (Session::*then)());
  static void disarm(asio::steady_timer& timer) { timer.expires_at(Clock::time_point::max()); }

  void be_idle();
  void begin_request();
  void read_more();
  void on_read(const boost::system::error_code& error, size_t bytes);
  void on_input();
  template <class Work>
  void within_memory(const Work& work);
  void parse_input();
  void on_end_of_input();
  void on_timeout();

  bool judge_head();
  void begin_exchange(const HttpRequest& request);
  // Answers what is no request, or not admitted. `keep`: the connection can serve another one.
  void refuse(const ApiError& error, bool keep = false) {
    answer_at_once([&](Responder& r) { r.send(error); }, keep);
  }
  // `say` gives the response to the exchange that this begins.
  void answer_at_once(const std::function<void(Responder& exchange)>& say, bool keep);
  void dispatch();
  void send(HttpResponse response);
  void start_stream(const StreamKind& kind);
  void write_events(std::string_view events);
  void finish_stream();
  void keep_alive();
  void deadline();
  void flush();
  void on_written(const boost::system::error_code& error);
  void answered();
  void lose_client(std::string_view why);
  void linger();
  void close();
  void log_exchange(std::string_view note);
  Headers common_headers() const;

  std::unique_ptr<Connection> connection_;
  SessionShared& shared_;
  std::string peer_;
  const Kind kind_;
  static constexpr int64_t kBusy = 0, kEvicted = -1;
  std::atomic<int64_t> idle_since_;  // or one of these
  Phase phase_ = Phase::kHandshake;
  bool reading_ = false, writing_ = false;

  std::array<char, 16384> read_buffer_;
  std::string input_;  // not parsed yet
  HttpParser parser_;
  Api::Admission admitted_;  // once the headers are complete
  bool continued_ = false;   // "100 Continue" was sent
  asio::steady_timer timer_, keep_alive_timer_, deadline_timer_;

  // The request being answered.
  std::shared_ptr<Exchange> exchange_;
  std::string method_, path_;
  Headers origin_headers_;  // who may read the answer: of OriginPolicy
  bool http_1_0_ = false;
  Clock::time_point began_;
  int status_ = 0;
  int64_t body_bytes_ = 0;
  bool keep_connection_ = true, streaming_ = false, complete_ = false;
  std::string_view keep_alive_;     // of StreamKind
  std::string output_, in_flight_;  // to be written, being written
};

}  // namespace quire::server
