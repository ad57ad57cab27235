// What one engine publishes of its prefix cache: a PUB socket that sends batches to whoever subscribes, and a ROUTER
// socket that sends again what a subscriber has missed.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/kv_event_batch.h"
#include "server/metrics.h"
#include "server/zmtp_peer.h"
#include "server/zmtp_place.h"

namespace quire::server {

// On the thread of its io_context.
class KvEventStream {
 public:
  struct Options {
    ZmtpEndpoint endpoint;
    std::optional<ZmtpEndpoint> replay;
    std::string topic;
    KvEventFormat format = KvEventFormat::kArrays;
    int rank = 0;
    size_t buffer_steps = 0;  // batches that can be sent again
  };
  struct Counts {
    Gauge& subscribers;
    Counter& batches;  // published
    Counter& missed;   // that a subscriber was not sent, because it did not read
  };
  static Result<std::unique_ptr<KvEventStream>> create(boost::asio::io_context& io, Options options, Counts counts);

  // Before the thread runs.
  void start();
  void publish(std::vector<KvEvent> events);
  // "tcp://0.0.0.0:5557", and where replays are asked for.
  std::string text() const;

 private:
  using Bytes = ZmtpPeer::Bytes;
  struct Batch {
    uint64_t number;
    Bytes payload;
  };
  static constexpr size_t kMostPeers = 64, kMostTopics = 64, kMostReplays = 16;
  static constexpr size_t kMostWaitingBytes = size_t{64} << 20, kMostBufferBytes = size_t{256} << 20;
  static constexpr size_t kBatchBlocks = 1024;  // of one batch

  KvEventStream(Options options, Counts counts);
  void take(Listener::Socket socket, const std::string& name, const ZmtpPeer::Role& role, ZmtpPlace& place);
  void end(ZmtpPeer& peer, const std::string& why, ZmtpPlace& place, std::string_view what);
  Status subscribe(ZmtpPeer& peer, ZmtpItem item);
  Status ask(ZmtpPeer& peer, ZmtpItem item);
  void replay(ZmtpPeer& peer);
  void send(std::span<const KvEvent> events);
  // A number and a payload as the last frames of a message, behind `before`.
  std::vector<Bytes> frames(std::string before, uint64_t number, const Bytes& payload) const;

  Options options_;
  Counts counts_;
  std::unique_ptr<ZmtpPlace> pub_, router_;
  ZmtpPeer::Role subscriber_, replayed_;
  std::unordered_map<const ZmtpPeer*, std::shared_ptr<ZmtpPeer>> peers_;
  std::deque<Batch> buffer_;
  size_t buffer_bytes_ = 0;
  uint64_t next_ = 0;
  bool has_warned_ = false;
};

}  // namespace quire::server
