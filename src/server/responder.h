// How a handler answers one request: at once, or as a stream. Handlers know this interface, not
// sockets, so that tests can listen in.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "server/protocol/http.h"

namespace quire::server {

// What the access log says of a request besides its outcome. Filled in by whoever knows.
struct RequestRecord {
  std::string peer;                         // the client's address, without its port
  std::string id;                           // of this request, in the header X-Request-Id
  std::string trace;                        // W3C trace context (traceparent) of the client, or empty
  std::string route;                        // "/v1/chat/completions", or "other"
  ErrorShape errors = ErrorShape::kOpenAi;  // of the API that the route belongs to
  // What of a schema is not enforced, in the header X-Unenforced; empty: all of it is, or there is none.
  std::string unenforced;
  std::string ignored;          // fields that had no effect, in the header X-Ignored-Parameters; empty: there were none
  std::string left_out;         // parts of messages in whose place words stand, in the header X-Left-Out
  size_t dropped_messages = 0;  // of a conversation that was too long, in the header X-Dropped-Messages
  std::string model;
  std::string finish;  // "stop", "length", ...; of several answers the first one's
  int key = 0;         // number of the API key in its file; 0: none was needed
  int64_t prompt_tokens = -1, cached_tokens = -1, generated_tokens = -1;  // -1: no such thing
  std::string prefix_miss;   // why no more of the (first) prompt was found in the prefix cache; empty: all was
  int64_t diverged_at = -1;  // the token from which on others went another way
  double first_token_seconds = -1.0;
};

// What a stream is made of: its type, and what keeps the connection alive while there is nothing to say.
struct StreamKind {
  std::string_view content_type, keep_alive;  // keep_alive may be empty: nothing is sent
};
inline constexpr StreamKind kEventStream = {"text/event-stream; charset=utf-8", ": keep-alive\n\n"};
inline constexpr StreamKind kLineStream = {"application/x-ndjson", ""};  // a JSON object a line, and no comments

// One request's way back. One of send() and start_stream() is called; what is said after the answer's end is dropped.
// All functions but post() only on the connection's executor: in work given to post(), and in handlers without a body.
class Responder {
 public:
  virtual ~Responder() = default;

  virtual void send(HttpResponse response) = 0;
  virtual void send(const ApiError& error) { send(to_response(error, record_.errors)); }

  // 200 and the head of a stream; events may follow any time later. While none do, what `kind` says keeps the
  // connection alive.
  virtual void start_stream(const StreamKind& kind) = 0;
  // What a stream says when it has been silent for a while, in place of what its kind says; empty: that.
  virtual void on_silence(std::function<std::string()> /*say*/) {}
  virtual void write(std::string events) = 0;
  virtual void finish_stream() = 0;

  // Called at most once, if the client goes away before the answer is complete. Nothing can be sent any more.
  virtual void on_disconnect(std::function<void()> then) = 0;
  // Called once if the answer is not complete by then.
  virtual void on_deadline(std::chrono::milliseconds after, std::function<void()> then) = 0;

  // Any thread: runs the work on the connection's executor, in order.
  virtual void post(std::function<void()> work) = 0;

  RequestRecord& record() { return record_; }

 private:
  RequestRecord record_;
};

}  // namespace quire::server
