// Addresses of the internet protocols, and which of them anybody may reach.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace quire {

// One of version 4 is kept as the one of version 6 that it is mapped to (::ffff:1.2.3.4), so that the same address is
// equal however it was written.
class IpAddress {
 public:
  using Bytes = std::array<uint8_t, 16>;

  // "192.0.2.1" in four decimal parts, or one of version 6 without brackets and zone; nothing for any other text.
  static std::optional<IpAddress> parse(const std::string& text);
  // Nothing for addresses of other families.
  static std::optional<IpAddress> of(const sockaddr_storage& address);

  const Bytes& bytes() const { return bytes_; }
  bool is_v4() const;
  bool is_loopback() const;
  // Whether it belongs to the internet at large: no address of this machine, of a private network, of one link, of a
  // group, or that is kept for a purpose of its own (IANA's registries of special-purpose addresses). What stands for
  // an address of version 4 by translation (64:ff9b::/96) is as public as that one.
  bool is_public() const;

  friend bool operator==(const IpAddress&, const IpAddress&) = default;

 private:
  explicit IpAddress(const Bytes& bytes) : bytes_(bytes) {}
  Bytes bytes_;
};

}  // namespace quire
