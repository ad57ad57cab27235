// ZeroMQ's protocol on the wire, ZMTP 3.0 (rfc.zeromq.org/spec/23) without encryption: what two sockets say to each
// other over one connection. Both sides begin with a greeting of 64 bytes and a READY command; then come messages, of
// one frame or several, and commands.
//
// This and not libzmq: Debian's libzmq.a needs Kerberos, which Debian has as a shared library only, and Quire's
// programs are linked statically. What a publisher needs of the protocol is small.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/result.h"

namespace quire::server {

// What this side says.
std::string zmtp_greeting();
std::string zmtp_ready(std::string_view socket_type);  // "PUB", "ROUTER"
std::string zmtp_pong(std::string_view ping);          // the answer to a PING with such a body
// Appends a frame of a message; `more`: others of the same message follow.
void append_zmtp_frame(std::string& to, std::string_view body, bool more);
// The same frame as it stands before its body, which is written behind it.
std::string zmtp_frame_head(size_t body_bytes, bool more);

// A message, or a command, of the other side.
struct ZmtpItem {
  std::string command;              // its name; empty: a message
  std::vector<std::string> frames;  // of a message; of a command its body
};

// Reads what the other side says. It is a stranger: frames and messages are limited.
class ZmtpReader {
 public:
  static constexpr size_t kMostFrameBytes = 4096, kMostFrames = 8;

  // Takes bytes as they come and appends what they complete. Errors: what is wrong; nothing more is to be read then.
  Status feed(std::string_view bytes, std::vector<ZmtpItem>& items);

 private:
  Status read_greeting();
  Status read_frame(bool& whole, std::vector<ZmtpItem>& items);
  Status take_command(std::string_view body, std::vector<ZmtpItem>& items);

  std::string input_;
  size_t read_ = 0;  // bytes of it
  bool greeted_ = false;
  std::vector<std::string> frames_;  // of a message that goes on
};

// What a READY command says of the socket there: "SUB". Errors: it is none.
Result<std::string> zmtp_socket_type(std::string_view ready_body);

}  // namespace quire::server
