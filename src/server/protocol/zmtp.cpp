#include "server/protocol/zmtp.h"

#include <algorithm>
#include <cstring>

namespace quire::server {
namespace {

constexpr size_t kGreetingBytes = 64, kMechanismAt = 12, kMechanismBytes = 20;
constexpr uint8_t kMore = 1, kLong = 2, kCommand = 4;

void append_big_endian(std::string& to, uint64_t value, int bytes) {
  while (bytes-- > 0) to += static_cast<char>(value >> (8 * bytes) & 0xff);
}

uint64_t big_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (const char c : bytes) value = value << 8 | static_cast<uint8_t>(c);
  return value;
}

void append_head(std::string& to, uint8_t flags, size_t bytes) {
  const bool is_long = bytes > 255;
  to += static_cast<char>(flags | (is_long ? kLong : 0));
  append_big_endian(to, bytes, is_long ? 8 : 1);
}

std::string command(std::string_view name, std::string_view body) {
  std::string all;
  append_head(all, kCommand, 1 + name.size() + body.size());
  append_big_endian(all, name.size(), 1);
  return all.append(name).append(body);
}

// What follows a length of so many bytes; error: it is longer than what is there.
Result<std::string_view> take_counted(std::string_view& from, size_t length_bytes) {
  if (from.size() < length_bytes) return request_error("a command ends too soon");
  const uint64_t length = big_endian(from.substr(0, length_bytes));
  from.remove_prefix(length_bytes);
  if (length > from.size()) return request_error("a command ends too soon");
  const std::string_view taken = from.substr(0, static_cast<size_t>(length));
  from.remove_prefix(taken.size());
  return taken;
}

}  // namespace

std::string zmtp_greeting() {
  std::string g("\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL", 16);
  g.resize(kGreetingBytes);
  return g;
}

std::string zmtp_ready(std::string_view socket_type) {
  std::string body;
  append_big_endian(body, std::strlen("Socket-Type"), 1);
  body += "Socket-Type";
  append_big_endian(body, socket_type.size(), 4);
  return command("READY", body.append(socket_type));
}

std::string zmtp_pong(std::string_view ping) {
  return command("PONG", ping.substr(std::min<size_t>(2, ping.size())));  // behind the time to live
}

std::string zmtp_frame_head(size_t body_bytes, bool more) {
  std::string head;
  append_head(head, more ? kMore : 0, body_bytes);
  return head;
}

void append_zmtp_frame(std::string& to, std::string_view body, bool more) {
  append_head(to, more ? kMore : 0, body.size());
  to += body;
}

Status ZmtpReader::feed(std::string_view bytes, std::vector<ZmtpItem>& items) {
  input_ += bytes;
  if (!greeted_) QUIRE_CHECKED(read_greeting());
  for (bool whole = greeted_; whole;) QUIRE_CHECKED(read_frame(whole, items));
  input_.erase(0, std::exchange(read_, 0));
  return {};
}

// What is wrong is told by the first byte that is.
Status ZmtpReader::read_greeting() {
  const auto byte = [&](size_t at) { return static_cast<uint8_t>(input_[at]); };
  const size_t has = input_.size();
  if ((has > 0 && byte(0) != 0xff) || (has > 9 && (byte(9) & 1) == 0))
    return request_error("what came is no greeting of ZeroMQ's");
  if (has > 10 && byte(10) < 3) return request_error("it speaks version {} of ZMTP, and 3 is needed", byte(10));
  if (has < kGreetingBytes) return {};
  std::string mechanism = input_.substr(kMechanismAt, kMechanismBytes);
  mechanism.resize(std::min(mechanism.find('\0'), mechanism.size()));
  if (mechanism != "NULL") return request_error("it wants the mechanism '{}', and there is NULL alone", mechanism);
  greeted_ = true;
  read_ = kGreetingBytes;
  return {};
}

Status ZmtpReader::read_frame(bool& whole, std::vector<ZmtpItem>& items) {
  const std::string_view left = std::string_view(input_).substr(read_);
  whole = false;
  if (left.empty()) return {};
  const auto flags = static_cast<uint8_t>(left[0]);
  if ((flags & ~(kMore | kLong | kCommand)) != 0 || (flags & (kMore | kCommand)) == (kMore | kCommand))
    return request_error("a frame has the flags {:#04x}, which ZMTP 3 does not know", flags);
  const size_t head = (flags & kLong) != 0 ? 9 : 2;
  if (left.size() < head) return {};
  const uint64_t bytes = big_endian(left.substr(1, head - 1));
  if (bytes > kMostFrameBytes)
    return request_error("a frame of {} bytes: at most {} are taken here", bytes, kMostFrameBytes);
  if (left.size() < head + bytes) return {};
  whole = true;
  read_ += head + static_cast<size_t>(bytes);
  const std::string_view body = left.substr(head, static_cast<size_t>(bytes));
  if ((flags & kCommand) != 0) return take_command(body, items);
  if (frames_.size() == kMostFrames) return request_error("a message of more than {} frames", kMostFrames);
  frames_.emplace_back(body);
  if ((flags & kMore) == 0) items.push_back({.command = {}, .frames = std::exchange(frames_, {})});
  return {};
}

Status ZmtpReader::take_command(std::string_view body, std::vector<ZmtpItem>& items) {
  if (!frames_.empty()) return request_error("a command within a message");
  QUIRE_TRY(const std::string_view name, take_counted(body, 1));
  if (name.empty()) return request_error("a command without a name");
  items.push_back({.command = std::string(name), .frames = {std::string(body)}});
  return {};
}

Result<std::string> zmtp_socket_type(std::string_view body) {
  std::string type;
  while (!body.empty()) {
    QUIRE_TRY(const std::string_view name, take_counted(body, 1));
    QUIRE_TRY(const std::string_view value, take_counted(body, 4));
    const auto same = [](char a, char b) { return std::tolower(static_cast<uint8_t>(a)) == b; };
    constexpr std::string_view kWanted = "socket-type";
    if (name.size() == kWanted.size() && std::ranges::equal(name, kWanted, same)) type = value;
  }
  if (type.empty()) return request_error("READY does not say which type of socket it is");
  return type;
}

}  // namespace quire::server
