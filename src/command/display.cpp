#include "command/display.h"

#include <fmt/format.h>

#include <iterator>

namespace quire::cli {
namespace {

// 1234567 -> "1.23 M": three digits and the largest unit that leaves at least one before the point.
std::string scaled(double x, const char* const (&units)[6]) {
  size_t unit = 0;
  for (; x >= 999.5 && unit + 1 < std::size(units); ++unit) x /= 1000;
  if (unit == 0) return fmt::format("{:.0f}{}", x, units[0]);
  return fmt::format("{:.{}f}{}", x, x >= 99.95 ? 0 : x >= 9.995 ? 1 : 2, units[unit]);
}

}  // namespace

std::string human_bytes(uint64_t bytes) {
  return scaled(static_cast<double>(bytes), {" B", " kB", " MB", " GB", " TB", " PB"});
}

std::string human_count(int64_t count) {
  return scaled(static_cast<double>(count), {"", " k", " M", " G", " T", " P"});
}

}  // namespace quire::cli
