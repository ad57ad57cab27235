#include "server/session.h"

#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <new>
#include <stdexcept>

#include "server/random_id.h"

namespace quire::server {
namespace {

constexpr size_t kMaxPipelined = size_t{64} << 10;  // of further requests while one is being answered
constexpr size_t kCopied = size_t{64} << 10;        // of an answer's body, to go out with its head
constexpr size_t kMaxUnsent = size_t{8} << 20;      // of an answer that the client does not read
constexpr std::chrono::milliseconds kLinger{2000};
constexpr std::chrono::milliseconds kReservedPatience{2000};  // for a request on a reserved connection

// Request ids and trace contexts come from clients and go into headers and logs.
bool is_token(std::string_view s, size_t max) {
  if (s.empty() || s.size() > max) return false;
  for (const char c : s)
    if (c <= ' ' || c >= 0x7f || c == '"' || c == '\\') return false;
  return true;
}

// Methods are labels of metrics: a client must not make up as many as it likes.
std::string method_label(const std::string& method) {
  for (const char* known : {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
    if (method == known) return method;
  return "other";
}

}  // namespace

// One request's Responder. It may outlive its request, and says nothing then.
class Session::Exchange : public Responder {
 public:
  explicit Exchange(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  using Responder::send;
  void send(HttpResponse r) override {
    if (current()) session_->send(std::move(r));
  }
  void start_stream(const StreamKind& kind) override {
    if (current()) session_->start_stream(kind);
  }
  void write(std::string events) override {
    if (current()) session_->write_events(events);
  }
  void finish_stream() override {
    if (current()) session_->finish_stream();
  }
  void on_silence(std::function<std::string()> say) override { silent = std::move(say); }
  void on_disconnect(std::function<void()> then) override { disconnected = std::move(then); }
  void on_deadline(std::chrono::milliseconds after, std::function<void()> then) override {
    expired = std::move(then);
    if (current()) session_->arm(session_->deadline_timer_, after, &Session::deadline);
  }
  void post(std::function<void()> work) override {
    asio::post(session_->connection_->executor(),
               [work = std::move(work), keep = session_] { keep->within_memory([&] { work(); }); });
  }

  std::function<void()> disconnected, expired;
  std::function<std::string()> silent;

 private:
  bool current() const { return session_->exchange_.get() == this; }
  std::shared_ptr<Session> session_;
};

Session::Session(std::unique_ptr<Connection> connection, SessionShared& shared, std::string peer, Kind kind)
    : connection_(std::move(connection)),
      shared_(shared),
      peer_(std::move(peer)),
      kind_(kind),
      idle_since_(Clock::now().time_since_epoch().count()),
      parser_(shared.options.limits, shared.bodies),
      timer_(connection_->executor()),
      keep_alive_timer_(connection_->executor()),
      deadline_timer_(connection_->executor()) {
  ++shared_.connections;
  if (kind_ == Kind::kUsual) ++shared_.usual;
  shared_.open.add(1);
}

Session::~Session() {
  --shared_.connections;
  if (idle_since_ == kEvicted)
    --shared_.evicted;
  else if (kind_ == Kind::kUsual)
    --shared_.usual;
  shared_.open.add(-1);
}

Session::Milliseconds Session::patience(Milliseconds usual) const {
  return kind_ == Kind::kReserved ? std::min(usual, kReservedPatience) : usual;
}

// A timer that was armed again or disarmed may have a handler under way: the expiry tells.
void Session::arm(asio::steady_timer& timer, Milliseconds after, void (Session::*then)()) {
  timer.expires_after(after);
  timer.async_wait([self = shared_from_this(), &timer, then](const boost::system::error_code& ec) {
    if (ec || timer.expiry() > Clock::now() || self->phase_ == Phase::kClosed) return;
    (self.get()->*then)();
  });
}

void Session::start() {
  asio::post(connection_->executor(), [self = shared_from_this()] {
    self->arm(self->timer_, self->patience(self->shared_.options.header_timeout), &Session::on_timeout);
    self->connection_->handshake([self](const boost::system::error_code& ec, size_t) {
      if (ec || self->phase_ == Phase::kClosed) return self->close();
      self->begin_request();
    });
  });
}

void Session::drain() {
  asio::post(connection_->executor(), [self = shared_from_this()] {
    if (self->phase_ == Phase::kIdle || self->phase_ == Phase::kHandshake) self->close();
  });
}

void Session::abort() {
  asio::post(connection_->executor(), [self = shared_from_this()] { self->close(); });
}

bool Session::evict() {
  int64_t since = idle_since_.load();
  if (since <= kBusy || !idle_since_.compare_exchange_strong(since, kEvicted)) return false;
  ++shared_.evicted;
  if (kind_ == Kind::kUsual) --shared_.usual;
  abort();
  return true;
}

// It may have been evicted, which lasts.
void Session::be_idle() {
  int64_t before = idle_since_.load();
  if (before != kEvicted) idle_since_.compare_exchange_strong(before, Clock::now().time_since_epoch().count());
}

void Session::begin_request() {
  phase_ = Phase::kIdle;
  be_idle();
  parser_ = HttpParser(shared_.options.limits, shared_.bodies);
  admitted_ = {};
  continued_ = false;
  arm(timer_, patience(shared_.options.idle_timeout), &Session::on_timeout);
  if (!input_.empty()) return on_input();
  read_more();
}

void Session::read_more() {
  if (reading_ || phase_ == Phase::kClosed) return;
  reading_ = true;
  connection_->read(asio::buffer(read_buffer_), [self = shared_from_this()](const boost::system::error_code& ec,
                                                                            size_t n) { self->on_read(ec, n); });
}

void Session::on_read(const boost::system::error_code& error, size_t bytes) {
  reading_ = false;
  switch (phase_) {
    case Phase::kClosed:
    case Phase::kHandshake:
      return;
    case Phase::kLingering:
      return error ? close() : read_more();
    case Phase::kAnswering:
      if (error) return lose_client("disconnected");
      input_.append(read_buffer_.data(), bytes);
      if (input_.size() < kMaxPipelined) read_more();
      return;
    case Phase::kIdle:
    case Phase::kHeader:
    case Phase::kBody:
      if (error) return on_end_of_input();
      return within_memory([&] {
        input_.append(read_buffer_.data(), bytes);
        on_input();
      });
  }
}

// Where memory runs out, this connection ends and no other: with 503 if nothing was said of an answer yet.
template <class Work>
void Session::within_memory(const Work& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
  }
  std::string().swap(input_);
  try {
    const ApiError error = out_of_memory();
    if (phase_ == Phase::kHeader || phase_ == Phase::kBody) return refuse(error);  // frees the body
    if (phase_ == Phase::kAnswering && exchange_ && !streaming_ && !complete_) return exchange_->send(error);
  } catch (const std::bad_alloc&) {
  }
  close();
}

void Session::on_input() {
  if (phase_ == Phase::kIdle) {
    int64_t since = idle_since_.load();
    if (since == kEvicted || !idle_since_.compare_exchange_strong(since, kBusy)) return close();
    phase_ = Phase::kHeader;
    arm(timer_, patience(shared_.options.header_timeout), &Session::on_timeout);
  }
  parse_input();
}

void Session::parse_input() {
  size_t used = 0;
  do {
    ApiResult<size_t> fed = parser_.feed(input_);
    if (!fed.ok()) return refuse(fed.error());
    used = *fed;
    input_.erase(0, used);
    if (phase_ == Phase::kHeader && parser_.header_done() && !judge_head()) return;
    if (parser_.done()) return dispatch();
  } while (used > 0 && !input_.empty());
  if (phase_ == Phase::kBody && parser_.expects_continue() && input_.empty() && !std::exchange(continued_, true)) {
    output_ += "HTTP/1.1 100 Continue\r\n\r\n";
    flush();
  }
  read_more();
}

// The headers are complete: nothing of a body is read, nor asked for with "100 Continue", unless its request is
// admitted. False if the request is answered without one.
bool Session::judge_head() {
  if (std::optional<HttpResponse> preflight = shared_.api.origins().preflight(parser_.head())) {
    answer_at_once([&](Responder& r) { r.send(*std::move(preflight)); }, parser_.done());
    return false;
  }
  ApiResult<Api::Admission> admitted = shared_.api.admit(parser_.head());
  if (!admitted.ok()) {
    refuse(admitted.error(), parser_.done());
    return false;
  }
  if (kind_ == Kind::kReserved && !admitted->route->has(Api::Route::kProbe)) {
    refuse({.status = 503,
            .message = "the server has as many connections as it may (limit max_connections)",
            .code = "overloaded",
            .retry_after = 1});
    return false;
  }
  admitted_ = *admitted;
  if (!admitted_.reads_body) {
    dispatch();
    return false;
  }
  if (const ApiStatus length = parser_.check_length(); !length.ok()) {
    refuse(length.error());
    return false;
  }
  phase_ = Phase::kBody;
  arm(timer_, shared_.options.body_timeout, &Session::on_timeout);
  return true;
}

// The client sends no more. Within a request this is worth an answer: it may still be reading.
void Session::on_end_of_input() {
  if (phase_ == Phase::kIdle) return close();
  refuse(bad_field("", "malformed_request", "malformed HTTP request: the connection ended within it"));
}

void Session::on_timeout() {
  switch (phase_) {
    case Phase::kHeader:
      return refuse({408, "the request line and headers took too long to arrive", "", ""});
    case Phase::kBody:
      return refuse({408, "the body took too long to arrive", "", ""});
    case Phase::kAnswering:
      return lose_client("write timeout");
    default:
      return close();
  }
}

void Session::begin_exchange(const HttpRequest& request) {
  method_ = request.method;
  path_ = request.path;
  origin_headers_ = shared_.api.origins().headers(request);
  http_1_0_ = request.http_1_0;
  phase_ = Phase::kAnswering;
  disarm(timer_);
  began_ = Clock::now();
  status_ = 0;
  body_bytes_ = 0;
  streaming_ = complete_ = false;
  keep_connection_ =
      request.keep_alive && kind_ == Kind::kUsual && parser_.done();  // a body that nobody reads may follow
  exchange_ = std::make_shared<Exchange>(shared_from_this());
  RequestRecord& r = exchange_->record();
  r.route = Api::route_name(path_);
  r.errors = Api::error_shape(path_);
  r.key = admitted_.key;
  r.peer = peer_.substr(0, peer_.rfind(':'));
  const std::string_view id = request.header("x-request-id");
  r.id = is_token(id, 128) ? std::string(id) : "req-" + random_hex();
  if (const std::string_view trace = request.header("traceparent"); is_token(trace, 128)) r.trace = trace;
  ++shared_.exchanges;
}

void Session::answer_at_once(const std::function<void(Responder& exchange)>& say, bool keep) {
  HttpRequest known;
  if (parser_.header_done()) known = parser_.take();
  known.drop_body();
  begin_exchange(known);
  keep_connection_ = keep_connection_ && keep;
  const std::shared_ptr<Exchange> exchange = exchange_;
  say(*exchange);
}

void Session::dispatch() {
  HttpRequest request = parser_.take();
  begin_exchange(request);
  const std::shared_ptr<Exchange> exchange = exchange_;
  shared_.api.handle(std::move(request), admitted_, exchange);
  if (phase_ == Phase::kAnswering && exchange_ == exchange && input_.size() < kMaxPipelined) read_more();
}

Headers Session::common_headers() const {
  Headers h = {{"X-Request-Id", exchange_->record().id}};
  h.insert(h.end(), origin_headers_.begin(), origin_headers_.end());
  if (!exchange_->record().trace.empty()) h.emplace_back("traceparent", exchange_->record().trace);
  if (!exchange_->record().unenforced.empty()) h.emplace_back("X-Unenforced", exchange_->record().unenforced);
  if (!exchange_->record().ignored.empty()) h.emplace_back("X-Ignored-Parameters", exchange_->record().ignored);
  if (!exchange_->record().left_out.empty()) h.emplace_back("X-Left-Out", exchange_->record().left_out);
  if (const size_t n = exchange_->record().dropped_messages; n > 0)
    h.emplace_back("X-Dropped-Messages", std::to_string(n));
  return h;
}

void Session::send(HttpResponse response) {
  if (complete_ || streaming_) return;
  if (shared_.draining) keep_connection_ = false;
  status_ = response.status;
  body_bytes_ = static_cast<int64_t>(response.body.size());
  for (auto& h : common_headers()) response.headers.push_back(std::move(h));
  output_ += response_head(response, body_bytes_, keep_connection_, http_1_0_);
  if (method_ == "HEAD") response.body.clear();
  if (response.body.size() > kCopied) flush();  // what is written next need not be copied behind the head
  if (output_.empty())
    output_ = std::move(response.body);
  else
    output_ += response.body;
  complete_ = true;
  flush();
}

void Session::start_stream(const StreamKind& kind) {
  if (complete_ || streaming_) return;
  if (shared_.draining || http_1_0_) keep_connection_ = false;
  streaming_ = true;
  status_ = 200;
  keep_alive_ = kind.keep_alive;
  HttpResponse head{.content_type = std::string(kind.content_type), .headers = common_headers()};
  head.headers.emplace_back("Cache-Control", "no-cache");
  head.headers.emplace_back("X-Accel-Buffering", "no");  // nginx passes events on as they come
  output_ += response_head(head, -1, keep_connection_, http_1_0_);
  flush();
  arm(keep_alive_timer_, shared_.options.keep_alive, &Session::keep_alive);
}

void Session::write_events(std::string_view events) {
  if (!streaming_ || complete_ || events.empty()) return;
  body_bytes_ += static_cast<int64_t>(events.size());
  if (output_.size() > kMaxUnsent) return lose_client("too slow");  // one event may be larger by itself
  output_ += http_1_0_ ? std::string(events) : chunk(events);
  flush();
  arm(keep_alive_timer_, shared_.options.keep_alive, &Session::keep_alive);
}

void Session::finish_stream() {
  if (!streaming_ || complete_) return;
  if (!http_1_0_) output_ += chunk("");
  complete_ = true;
  flush();
}

void Session::keep_alive() {
  if (phase_ != Phase::kAnswering || !streaming_ || complete_) return;
  const std::string said = exchange_->silent ? exchange_->silent() : "";
  write_events(said.empty() ? keep_alive_ : std::string_view(said));
}

void Session::deadline() {
  if (phase_ != Phase::kAnswering || !exchange_ || complete_) return;
  if (const auto then = std::exchange(exchange_->expired, nullptr)) then();
}

void Session::flush() {
  if (writing_ || output_.empty() || phase_ == Phase::kClosed) return;
  writing_ = true;
  in_flight_.swap(output_);
  output_.clear();
  if (phase_ == Phase::kAnswering) arm(timer_, shared_.options.write_timeout, &Session::on_timeout);
  connection_->write(asio::buffer(in_flight_), [self = shared_from_this()](const boost::system::error_code& ec,
                                                                           size_t) { self->on_written(ec); });
}

void Session::on_written(const boost::system::error_code& error) {
  writing_ = false;
  if (phase_ == Phase::kClosed) return;
  if (error) return phase_ == Phase::kAnswering ? lose_client("disconnected") : close();
  in_flight_.clear();
  if (!output_.empty()) return flush();
  if (phase_ != Phase::kAnswering) return;  // that was "100 Continue"
  disarm(timer_);
  if (complete_) answered();
}

void Session::answered() {
  log_exchange("");
  for (std::string* const sent : {&output_, &in_flight_})
    if (sent->capacity() > kCopied) std::string().swap(*sent);
  disarm(keep_alive_timer_);
  disarm(deadline_timer_);
  exchange_.reset();
  --shared_.exchanges;
  if (keep_connection_ && !shared_.draining) return begin_request();
  linger();
}

void Session::lose_client(std::string_view why) {
  complete_ = true;  // nothing is sent any more
  if (const auto then = std::exchange(exchange_->disconnected, nullptr)) then();
  shared_.lost_clients.add();
  log_exchange(why);
  exchange_.reset();
  --shared_.exchanges;
  close();
}

// Closing at once could reset the connection and take the answer away from a client that is still sending.
void Session::linger() {
  phase_ = Phase::kLingering;
  input_.clear();
  arm(timer_, kLinger, &Session::on_timeout);
  connection_->shutdown([self = shared_from_this()](const boost::system::error_code& ec, size_t) {
    return ec ? self->close() : self->read_more();
  });
}

void Session::close() {
  if (phase_ == Phase::kAnswering && exchange_) return lose_client("aborted");
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  timer_.cancel();
  keep_alive_timer_.cancel();
  deadline_timer_.cancel();
  connection_->close();
}

void Session::log_exchange(std::string_view note) {
  const RequestRecord& r = exchange_->record();
  const double seconds = std::chrono::duration<double>(Clock::now() - began_).count();
  shared_.registry
      .counter("http_requests_total", "Requests by route, method and status.",
               {{"handler", r.route},
                {"method", method_label(method_)},
                {"status", status_ == 0 ? "none" : std::to_string(status_)}})
      .add();
  static const std::vector<double> kBuckets = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300};
  shared_.registry
      .histogram("http_request_duration_seconds", "From a request's last byte to its answer's last byte.", kBuckets,
                 {{"handler", r.route}})
      .observe(seconds);
  shared_.log.write({.peer = peer_,
                     .method = method_,
                     .path = path_,
                     .status = status_,
                     .bytes = body_bytes_,
                     .seconds = seconds,
                     .note = note,
                     .record = r});
}

}  // namespace quire::server
