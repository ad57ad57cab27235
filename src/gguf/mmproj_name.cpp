#include "gguf/mmproj_name.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace quire::gguf {
namespace {

std::string upper_name(std::string_view path) {
  std::string name(path.substr(path.rfind('/') + 1));
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

// The smaller, the better.
size_t rank_of(std::string_view path) {
  constexpr std::string_view kOrder[] = {"BF16", "F16", "F32", "Q8_0"};  // "BF16" has "F16" in it
  const std::string name = upper_name(path);
  const auto* const found =
      std::ranges::find_if(kOrder, [&](std::string_view kind) { return name.find(kind) != std::string::npos; });
  return static_cast<size_t>(found - std::begin(kOrder));
}

}  // namespace

bool is_mmproj(std::string_view path) {
  const std::string name = upper_name(path);
  return name.ends_with(".GGUF") && name.find("MMPROJ") != std::string::npos;
}

std::optional<size_t> best_mmproj(std::span<const std::string> paths) {
  std::optional<size_t> best;
  const auto key = [&](size_t i) { return std::pair(rank_of(paths[i]), std::string_view(paths[i])); };
  for (size_t i = 0; i < paths.size(); ++i)
    if (is_mmproj(paths[i]) && (!best || key(i) < key(*best))) best = i;
  return best;
}

}  // namespace quire::gguf
