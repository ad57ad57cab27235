// Numbers and foreign text as commands show them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire::cli {

// Text of a file on one line of a terminal: control characters as \n or \u001b, invalid UTF-8 as U+FFFD, cut
// with "..." after about `max_bytes` (0: never).
std::string displayable(std::string_view text, size_t max_bytes = 0);

std::string human_bytes(uint64_t bytes);  // "512 B", "25.9 MB" (decimal units)
std::string human_count(int64_t count);   // "512", "12.9 M"

}  // namespace quire::cli
