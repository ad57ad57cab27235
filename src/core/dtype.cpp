#include "core/dtype.h"

#include <algorithm>
#include <array>
#include <span>

#include "core/result.h"

namespace quire {
namespace {

// Files and options name types by number and by name; what only memory holds is not to be had that way.
constexpr std::span<const DTypeInfo> kFileTypes(kDTypes, std::size(kDTypes) - 2);
static_assert(!is_memory_type(kFileTypes.back().type) && is_memory_type(kDTypes[kFileTypes.size()].type));

}  // namespace

std::optional<DTypeInfo> find_dtype(uint32_t gguf_id) {
  for (const DTypeInfo& i : kFileTypes)
    if (static_cast<uint32_t>(i.type) == gguf_id) return i;
  return std::nullopt;
}

std::optional<DTypeInfo> find_dtype(std::string_view name) {
  const auto same = [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b - 'A' + 'a' : b); };
  for (const DTypeInfo& i : kFileTypes)
    if (std::equal(i.name.begin(), i.name.end(), name.begin(), name.end(), same)) return i;
  return std::nullopt;
}

// Where each id is in the table; a number past its end: nowhere. Kernels ask once for every few rows.
constexpr auto kPlaces = [] {
  std::array<uint8_t, 256> places{};
  places.fill(static_cast<uint8_t>(std::size(kDTypes)));
  for (size_t i = 0; i < std::size(kDTypes); ++i)
    places[static_cast<size_t>(kDTypes[i].type)] = static_cast<uint8_t>(i);
  return places;
}();

const DTypeInfo& dtype_info(DType t) {
  if (const size_t i = kPlaces[static_cast<size_t>(t)]; i < std::size(kDTypes)) return kDTypes[i];
  fatal(__FILE__, __LINE__, fmt::format("no such dtype: {}", static_cast<int>(t)));
}

}  // namespace quire
