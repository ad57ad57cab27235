#include "server/kv_event_stream.h"

#include <algorithm>
#include <chrono>

#include "core/log.h"

namespace quire::server {
namespace {

constexpr std::string_view kSubscribers[] = {"SUB", "XSUB"}, kAskers[] = {"REQ", "DEALER", "ROUTER"};
constexpr uint64_t kEndOfReplay = UINT64_MAX;  // -1
// What is read again while a replay is written.
constexpr size_t kAhead = size_t{1} << 20;

std::string number_frame(uint64_t number) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift & 0xff);
  return bytes;
}

}  // namespace

KvEventStream::KvEventStream(Options options, Counts counts) : options_(std::move(options)), counts_(counts) {
  subscriber_ = {.type = "PUB",
                 .partners = kSubscribers,
                 .most_waiting = kMostWaitingBytes,
                 .on_item = [this](ZmtpPeer& p, ZmtpItem item) { return subscribe(p, std::move(item)); },
                 .on_written = [](ZmtpPeer&) {},
                 .on_end = [this](ZmtpPeer& p, const std::string& why) { end(p, why, *pub_, "subscriber"); }};
  replayed_ = {.type = "ROUTER",
               .partners = kAskers,
               .most_waiting = SIZE_MAX,
               .on_item = [this](ZmtpPeer& p, ZmtpItem item) { return ask(p, std::move(item)); },
               .on_written = [this](ZmtpPeer& p) { replay(p); },
               .on_end = [this](ZmtpPeer& p, const std::string& why) { end(p, why, *router_, "client for replays"); }};
}

Result<std::unique_ptr<KvEventStream>> KvEventStream::create(boost::asio::io_context& io, Options options,
                                                             Counts counts) {
  std::unique_ptr<KvEventStream> s(new KvEventStream(std::move(options), counts));
  QUIRE_TRY(s->pub_, ZmtpPlace::create(io, s->options_.endpoint).context("--kv-events-endpoint"));
  if (s->options_.replay) {
    QUIRE_TRY(s->router_, ZmtpPlace::create(io, *s->options_.replay).context("--kv-events-replay-endpoint"));
  }
  return s;
}

void KvEventStream::start() {
  pub_->start(
      [this](Listener::Socket socket, const std::string& name) { take(std::move(socket), name, subscriber_, *pub_); });
  if (!router_) return;
  router_->start(
      [this](Listener::Socket socket, const std::string& name) { take(std::move(socket), name, replayed_, *router_); });
}

std::string KvEventStream::text() const {
  return router_ ? fmt::format("{}, replays at {}", pub_->text(), router_->text()) : pub_->text();
}

void KvEventStream::take(Listener::Socket socket, const std::string& name, const ZmtpPeer::Role& role,
                         ZmtpPlace& place) {
  if (peers_.size() >= kMostPeers) {  // the socket closes
    const std::string said =
        fmt::format("{}: {} is one too many: there are {} connections", place.text(), name, peers_.size());
    return std::exchange(has_warned_, true) ? log_info(said) : log_warning(said);
  }
  const auto peer = std::make_shared<ZmtpPeer>(std::move(socket), name, role);
  peers_.emplace(peer.get(), peer);
  peer->start();
}

void KvEventStream::end(ZmtpPeer& peer, const std::string& why, ZmtpPlace& place, std::string_view what) {
  const std::string said = fmt::format("{}: the {} {} is gone: {}", place.text(), what, peer.name(), why);
  if (!why.empty()) std::exchange(has_warned_, true) ? log_info(said) : log_warning(said);  // strangers fill no log
  if (!peer.topics.empty()) counts_.subscribers.add(-1);
  peer.topics.clear();
  peers_.erase(&peer);
  place.ended();
}

// As ZMTP 3.0 has it, in a message whose first byte says which, and as 3.1 does, in a command.
Status KvEventStream::subscribe(ZmtpPeer& peer, ZmtpItem item) {
  std::string topic = std::move(item.frames[0]);
  bool cancels = item.command == "CANCEL";
  if (item.command.empty()) {
    if (item.frames.size() != 1 || topic.empty() || static_cast<uint8_t>(topic[0]) > 1) return {};  // not for us
    cancels = topic[0] == 0;
    topic.erase(0, 1);
  } else if (!cancels && item.command != "SUBSCRIBE") {
    return {};
  }
  const bool had = !peer.topics.empty();
  if (cancels) {
    if (const auto it = std::ranges::find(peer.topics, topic); it != peer.topics.end()) peer.topics.erase(it);
  } else {
    if (peer.topics.size() == kMostTopics) return request_error("more than {} subscriptions", kMostTopics);
    peer.topics.push_back(std::move(topic));
  }
  counts_.subscribers.add(static_cast<double>(!peer.topics.empty()) - static_cast<double>(had));
  return {};
}

std::vector<KvEventStream::Bytes> KvEventStream::frames(std::string before, uint64_t number,
                                                        const Bytes& payload) const {
  append_zmtp_frame(before, number_frame(number), true);
  before += zmtp_frame_head(payload->size(), false);
  return {std::make_shared<const std::string>(std::move(before)), payload};
}

void KvEventStream::publish(std::vector<KvEvent> events) {
  for (size_t at = 0; at < events.size(); at += kBatchBlocks)
    send(std::span(events).subspan(at, std::min(kBatchBlocks, events.size() - at)));
}

void KvEventStream::send(std::span<const KvEvent> events) {
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  const Batch batch{next_++,
                    std::make_shared<const std::string>(kv_event_batch(events, now, options_.rank, options_.format))};
  std::string topic;
  append_zmtp_frame(topic, options_.topic, true);
  const std::vector<Bytes> parts = frames(std::move(topic), batch.number, batch.payload);
  counts_.batches.add();
  for (const auto& [key, peer] : peers_) {
    const auto wants = [&](const std::string& t) { return options_.topic.starts_with(t); };
    if (std::ranges::any_of(peer->topics, wants) && !peer->write(parts)) counts_.missed.add();
  }
  if (!router_) return;
  buffer_.push_back(batch);
  buffer_bytes_ += batch.payload->size();
  while (buffer_.size() > options_.buffer_steps || buffer_bytes_ > kMostBufferBytes) {
    buffer_bytes_ -= buffer_.front().payload->size();
    buffer_.pop_front();
  }
}

// An empty frame, which some leave out, and the number of the first batch.
Status KvEventStream::ask(ZmtpPeer& peer, ZmtpItem item) {
  if (!item.command.empty()) return {};
  const bool delimited = item.frames.size() == 2 && item.frames[0].empty();
  if (item.frames.back().size() != 8 || (item.frames.size() != 1 && !delimited))
    return request_error("a request for a replay is an empty frame and one of 8 bytes, a sequence number");
  if (peer.wanted.size() == kMostReplays)
    return request_error("it asks for more than {} replays at a time", kMostReplays);
  uint64_t first = 0;
  for (const char c : item.frames.back()) first = first << 8 | static_cast<uint8_t>(c);
  peer.delimited = delimited;
  peer.wanted.push_back(first);
  replay(peer);
  return {};
}

// As much as can be written soon; the rest follows when it has been. What the buffer has lost meanwhile is left out.
void KvEventStream::replay(ZmtpPeer& peer) {
  while (!peer.wanted.empty() && peer.waiting() < kAhead) {
    if (!std::exchange(peer.replaying, true)) peer.end = next_;
    std::string before;
    if (peer.delimited) append_zmtp_frame(before, "", true);
    const bool topics = options_.format != KvEventFormat::kArrays;
    uint64_t& at = peer.wanted.front();
    at = std::max(at, buffer_.empty() ? next_ : buffer_.front().number);
    if (at < peer.end) {
      if (topics) append_zmtp_frame(before, options_.topic, true);
      const Batch& batch = buffer_[static_cast<size_t>(at - buffer_.front().number)];
      (void)peer.write(frames(std::move(before), batch.number, batch.payload));
      ++at;
      continue;
    }
    if (topics) append_zmtp_frame(before, "", true);
    (void)peer.write(frames(std::move(before), kEndOfReplay, std::make_shared<const std::string>()));
    peer.wanted.pop_front();
    peer.replaying = false;
  }
}

}  // namespace quire::server
