// Publishes what the engines' prefix caches hold, for routers that send a prompt where most of it was computed: as vLLM
// does over ZeroMQ, so that those who read vLLM's events read these.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cache/kv_event.h"
#include "core/result.h"
#include "server/kv_event_batch.h"
#include "server/metrics.h"

namespace quire::server {

struct KvEventOptions {
  std::string endpoint;         // where; empty: nowhere
  std::string replay_endpoint;  // where subscribers ask for what they have missed; empty: nowhere
  std::string topic;            // empty: kv@HOST@MODEL
  KvEventFormat format = KvEventFormat::kTagged;
  int64_t buffer_steps = 10000;  // batches that can be asked for
  bool token_ids = false;        // tokens are published, and not hashes alone
};

// Where the options are wrong as far as that is known before a model is loaded.
Status check_kv_events(const KvEventOptions& options);

class KvEventPublisher {
 public:
  // Listens for each of so many engines: at the port that `options` says, the next one, and so on.
  static Result<std::shared_ptr<KvEventPublisher>> create(const KvEventOptions& options, int engines,
                                                          const std::string& model, Registry& registry);
  // Sinks that are left keep nothing from ending.
  ~KvEventPublisher();
  KvEventPublisher(const KvEventPublisher&) = delete;

  // What the engine of this number tells is published from now on. It keeps the publisher.
  static std::shared_ptr<KvEventSink> sink(const std::shared_ptr<KvEventPublisher>& publisher, int engine);
  // "tcp://0.0.0.0:5557, tcp://0.0.0.0:5558"
  std::string text() const;

 private:
  struct Impl;
  class Sink;
  explicit KvEventPublisher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::server
