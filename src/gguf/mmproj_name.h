// Files of vision towers by their names: "mmproj-F16.gguf", "Qwen3.5-4B.mmproj-BF16.gguf".
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace quire::gguf {

// Whether a file's name says that it is a vision tower.
bool is_mmproj(std::string_view path);

// Of several towers, which differ in how their weights are kept, the one to take: BF16, as operators compute, then F16,
// F32 and Q8_0, then any other; of equal ones the first by path. Nothing: none of the paths is a tower's.
std::optional<size_t> best_mmproj(std::span<const std::string> paths);

}  // namespace quire::gguf
