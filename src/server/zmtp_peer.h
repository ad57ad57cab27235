// One connection of a ZeroMQ socket of ours: what came over it, and what waits to be written.
#pragma once

#include <array>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/protocol/zmtp.h"

namespace quire::server {

// Every function on the thread of its io_context, which is one.
class ZmtpPeer : public std::enable_shared_from_this<ZmtpPeer> {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;
  using Bytes = std::shared_ptr<const std::string>;
  struct Role {
    std::string_view type;                       // of our socket
    std::span<const std::string_view> partners;  // types of sockets that it speaks with
    size_t most_waiting = 0;                     // bytes that wait to be written
    // What the peer says once both are ready. An error closes the connection.
    std::function<Status(ZmtpPeer&, ZmtpItem)> on_item;
    // All that waited has been written.
    std::function<void(ZmtpPeer&)> on_written;
    // Once, whatever ended it. `why`: empty where the other side went.
    std::function<void(ZmtpPeer&, const std::string& why)> on_end;
  };

  // `name`: whom messages call it. `role` outlives the io_context.
  ZmtpPeer(Socket socket, std::string name, const Role& role);
  void start();
  void close(const std::string& why);

  const std::string& name() const { return name_; }
  bool ready() const { return ready_; }
  // Writes frames as they are on the wire, behind what waits already. False, and nothing is written, if too much does.
  bool write(std::vector<Bytes> parts);
  size_t waiting() const { return waiting_bytes_; }

  // What its owner knows of it.
  std::vector<std::string> topics;  // that it has subscribed to
  std::deque<uint64_t> wanted;      // replays that it has asked for: their first sequence numbers
  bool delimited = true;            // an empty frame comes before what it asks for
  uint64_t end = 0;                 // of the replay that is under way, which `wanted` begins with
  bool replaying = false;

 private:
  void read();
  Status take(std::string_view bytes);
  Status take_item(ZmtpItem item);
  void write_next();

  Socket socket_;
  boost::asio::steady_timer patience_;
  std::string name_;
  const Role& role_;
  ZmtpReader reader_;
  std::array<char, 4096> input_{};
  std::deque<Bytes> waiting_;
  size_t waiting_bytes_ = 0;
  bool ready_ = false, writing_ = false, closed_ = false;
};

}  // namespace quire::server
