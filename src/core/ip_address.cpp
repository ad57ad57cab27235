#include "core/ip_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace quire {
namespace {

constexpr std::array<uint8_t, 12> kMappedPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr std::array<uint8_t, 12> kTranslated = {0, 0x64, 0xff, 0x9b};  // RFC 6052

// Addresses whose first `bits` are those of `bytes`.
struct Block {
  std::array<uint8_t, 4> bytes;
  int bits;
};

constexpr Block kSpecialV4[] = {
    {{0, 0, 0, 0}, 8},        // this host
    {{10, 0, 0, 0}, 8},       // private
    {{100, 64, 0, 0}, 10},    // shared by customers of a provider
    {{127, 0, 0, 0}, 8},      // loopback
    {{169, 254, 0, 0}, 16},   // link-local, where clouds have their metadata
    {{172, 16, 0, 0}, 12},    // private
    {{192, 0, 0, 0}, 24},     // of protocols
    {{192, 0, 2, 0}, 24},     // documentation
    {{192, 88, 99, 0}, 24},   // 6to4 relays
    {{192, 168, 0, 0}, 16},   // private
    {{198, 18, 0, 0}, 15},    // benchmarks
    {{198, 51, 100, 0}, 24},  // documentation
    {{203, 0, 113, 0}, 24},   // documentation
    {{224, 0, 0, 0}, 3},      // groups, reserved, broadcast
};

// Within 2000::/3. All others are special.
constexpr Block kSpecialV6[] = {
    {{0x20, 0x01, 0x00, 0x00}, 23},  // of protocols, Teredo among them
    {{0x20, 0x01, 0x0d, 0xb8}, 32},  // documentation
    {{0x20, 0x02, 0x00, 0x00}, 16},  // 6to4, which has an address of version 4 in it
    {{0x3f, 0xff, 0x00, 0x00}, 20},  // documentation
};

bool in_block(const uint8_t* address, const Block& block) {
  for (int bit = 0; bit < block.bits; ++bit) {
    const int byte = bit / 8, mask = 0x80 >> (bit % 8);
    if ((address[byte] & mask) != (block.bytes[static_cast<size_t>(byte)] & mask)) return false;
  }
  return true;
}

template <size_t N>
bool in_any(const uint8_t* address, const Block (&blocks)[N]) {
  return std::any_of(std::begin(blocks), std::end(blocks), [&](const Block& b) { return in_block(address, b); });
}

bool begins_with(const IpAddress::Bytes& bytes, const std::array<uint8_t, 12>& prefix) {
  return std::equal(prefix.begin(), prefix.end(), bytes.begin());
}

IpAddress::Bytes mapped(const in_addr& v4) {
  IpAddress::Bytes bytes;
  std::copy(kMappedPrefix.begin(), kMappedPrefix.end(), bytes.begin());
  std::memcpy(bytes.data() + kMappedPrefix.size(), &v4, sizeof v4);
  return bytes;
}

}  // namespace

std::optional<IpAddress> IpAddress::parse(const std::string& text) {
  in_addr v4{};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return IpAddress(mapped(v4));
  Bytes bytes;
  if (inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1) return IpAddress(bytes);
  return std::nullopt;
}

std::optional<IpAddress> IpAddress::of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) return IpAddress(mapped(reinterpret_cast<const sockaddr_in&>(address).sin_addr));
  if (address.ss_family != AF_INET6) return std::nullopt;
  Bytes bytes;
  std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, bytes.size());
  return IpAddress(bytes);
}

bool IpAddress::is_v4() const {
  return begins_with(bytes_, kMappedPrefix);
}

bool IpAddress::is_loopback() const {
  if (is_v4()) return bytes_[12] == 127;
  return bytes_.back() == 1 && std::all_of(bytes_.begin(), bytes_.end() - 1, [](uint8_t b) { return b == 0; });
}

bool IpAddress::is_public() const {
  if (is_v4() || begins_with(bytes_, kTranslated)) return !in_any(bytes_.data() + kMappedPrefix.size(), kSpecialV4);
  return (bytes_[0] & 0xe0) == 0x20 && !in_any(bytes_.data(), kSpecialV6);
}

}  // namespace quire
