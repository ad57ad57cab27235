// Bytes as text (RFC 4648, with padding), and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire::server {

std::string base64(std::span<const std::byte> bytes);
// Nothing if the text is none. Line breaks and spaces count for nothing, padding may be missing, and the two digits of
// URLs ('-' and '_') are taken too.
std::optional<std::vector<uint8_t>> from_base64(std::string_view text);

}  // namespace quire::server
