// What the HTTP side needs of an engine, and nothing else. EngineService (engine_service.h) is the real one; that of
// tests answers what they say (tests/server/scripted_service.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/request.h"
#include "server/protocol/api_error.h"

namespace quire::server {

using JobId = int64_t;

// One answer to compute. Request::client is whose it is, from 1 on; 0: nobody's in particular, so that the jobs of one
// submit() are a client's.
struct Job {
  Request request;
  // Whether it counts where the queue is measured: of a request for many embeddings, which waits as one, only the
  // last does.
  bool counts = true;
};

// Hears the events of a group of jobs; `index` counts within the group. Each job's last event is its end, which comes
// exactly once, whatever happens. Called on a thread of the service, one event after the other: must be quick, and may
// call submit() and cancel().
using EventSink = std::function<void(size_t index, const TokenEvent& event)>;

// What a client is told whose answer is not there in time.
ApiError deadline_exceeded();
// What a client is told where a job ends without an answer; nothing where it has one.
std::optional<ApiError> failure_of(const TokenEvent::Ended& end);

class Service {
 public:
  virtual ~Service() = default;

  // Any thread. Takes all of the jobs or none; all of them are of one client. Errors: 400 what of a request is
  // impossible, 429 the queue, or the client's part of it, is full, 503 the service is stopping or has lost its device.
  virtual ApiResult<std::vector<JobId>> submit(std::vector<Job> jobs, EventSink sink) = 0;
  // Any thread. Jobs that have not ended end soon with FinishReason::kCancelled.
  virtual void cancel(std::span<const JobId> jobs) = 0;
  // Any thread. Nothing wrong, or why this service answers nothing any more: the end of the device (503).
  virtual ApiStatus health() const = 0;
  // Any thread. Of several engines, those that answer nothing any more while others do.
  virtual std::vector<int> lost_engines() const { return {}; }
  // Not from a sink. Jobs that have not ended end with kCancelled before this returns; submit() fails from now on.
  virtual void stop() = 0;
};

}  // namespace quire::server
