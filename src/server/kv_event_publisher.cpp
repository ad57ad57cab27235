#include "server/kv_event_publisher.h"

#include <unistd.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <new>
#include <thread>

#include "server/kv_event_stream.h"

namespace quire::server {
namespace {

constexpr int64_t kMostWaiting = 65536;  // events of an engine

std::string host_name() {
  char name[256] = "";
  if (gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

Result<KvEventStream::Options> stream_options(const KvEventOptions& o, int engine) {
  KvEventStream::Options s{.format = o.format, .rank = engine, .buffer_steps = static_cast<size_t>(o.buffer_steps)};
  QUIRE_TRY(s.endpoint, parse_zmtp_endpoint(o.endpoint, engine, false).context("--kv-events-endpoint"));
  if (o.replay_endpoint.empty()) return s;
  QUIRE_TRY(s.replay, parse_zmtp_endpoint(o.replay_endpoint, engine, true).context("--kv-events-replay-endpoint"));
  return s;
}

}  // namespace

struct KvEventPublisher::Impl {
  boost::asio::io_context io{1};
  std::vector<std::unique_ptr<KvEventStream>> streams;
  std::vector<Counter*> lost;
  std::thread thread;

  void run() {
    const auto work = boost::asio::make_work_guard(io);
    for (bool ended = false; !ended;) {
      try {
        io.run();
        ended = true;
      } catch (const std::bad_alloc&) {  // what was being done is not; subscribers see a gap
      }
    }
  }
};

class KvEventPublisher::Sink : public KvEventSink {
 public:
  Sink(std::shared_ptr<KvEventPublisher> publisher, size_t engine)
      : publisher_(std::move(publisher)), engine_(engine) {}

  bool put(std::vector<KvEvent> events) override {
    const auto count = static_cast<int64_t>(events.size());
    if (const int64_t waiting = waiting_->load(); waiting > 0 && waiting + count > kMostWaiting) {
      publisher_->impl_->lost[engine_]->add(static_cast<double>(count));
      return false;
    }
    *waiting_ += count;
    // It keeps no sink alive: who ends the publisher joins its thread.
    boost::asio::post(publisher_->impl_->io, [stream = publisher_->impl_->streams[engine_].get(), waiting = waiting_,
                                              events = std::move(events), count]() mutable {
      *waiting -= count;
      stream->publish(std::move(events));
    });
    return true;
  }
  bool none_waits() const override { return waiting_->load() == 0; }

 private:
  std::shared_ptr<KvEventPublisher> publisher_;
  size_t engine_;
  std::shared_ptr<std::atomic<int64_t>> waiting_ = std::make_shared<std::atomic<int64_t>>(0);
};

Status check_kv_events(const KvEventOptions& o) {
  if (o.endpoint.empty()) {
    if (o.replay_endpoint.empty() && o.topic.empty() && !o.token_ids) return {};
    return request_error("--kv-events-endpoint is missing: without it nothing is published");
  }
  if (o.topic.size() > ZmtpReader::kMostFrameBytes) return request_error("--kv-events-topic: at most 4096 bytes");
  const Result<KvEventStream::Options> s = stream_options(o, 0);
  return s.ok() ? Status() : s.error();
}

KvEventPublisher::KvEventPublisher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::shared_ptr<KvEventPublisher>> KvEventPublisher::create(const KvEventOptions& options, int engines,
                                                                   const std::string& model, Registry& registry) {
  auto impl = std::make_unique<Impl>();
  for (int i = 0; i < engines; ++i) {
    QUIRE_TRY(KvEventStream::Options s, stream_options(options, i));
    s.topic = options.topic.empty() ? fmt::format("kv@{}@{}", host_name(), model) : options.topic;
    const Labels labels = {{"model_name", model}, {"engine", std::to_string(i)}};
    impl->lost.push_back(&registry.counter(
        "quire:kv_events_lost_total", "Events that were not published in time; all is published anew then.", labels));
    const KvEventStream::Counts counts{
        .subscribers = registry.gauge("quire:kv_event_subscribers", "Who is sent KV events.", labels),
        .batches =
            registry.counter("quire:kv_event_batches_total", "Batches of KV events that were published.", labels),
        .missed = registry.counter("quire:kv_event_batches_missed_total",
                                   "Batches that a subscriber was not sent, because it did not read.", labels)};
    QUIRE_TRY(std::unique_ptr<KvEventStream> stream, KvEventStream::create(impl->io, std::move(s), counts));
    impl->streams.push_back(std::move(stream));
  }
  for (const auto& stream : impl->streams) stream->start();
  impl->thread = std::thread([i = impl.get()] { i->run(); });
  return std::shared_ptr<KvEventPublisher>(new KvEventPublisher(std::move(impl)));
}

KvEventPublisher::~KvEventPublisher() {
  impl_->io.stop();
  impl_->thread.join();
}

std::shared_ptr<KvEventSink> KvEventPublisher::sink(const std::shared_ptr<KvEventPublisher>& publisher, int engine) {
  return std::make_shared<Sink>(publisher, static_cast<size_t>(engine));
}

std::string KvEventPublisher::text() const {
  std::string all;
  for (const auto& stream : impl_->streams) all += fmt::format("{}{}", all.empty() ? "" : "; ", stream->text());
  return all;
}

}  // namespace quire::server
