// Numbers as commands show them.
#pragma once

#include <cstdint>
#include <string>

namespace quire::cli {

std::string human_bytes(uint64_t bytes);  // "512 B", "25.9 MB" (decimal units)
std::string human_count(int64_t count);   // "512", "12.9 M"

}  // namespace quire::cli
