// How positions are scaled when a command says so, in place of what the model's file says.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "gguf/reader.h"

namespace quire {

// What is given replaces the file's; everything else stays as the file has it.
struct RopeOverride {
  std::optional<std::string> scaling;                                  // "none", "linear" or "yarn"
  std::optional<float> factor;                                         // how many times longer contexts become
  std::optional<int64_t> original_context;                             // that the model was trained for
  std::optional<float> attn_factor, ext_factor, beta_fast, beta_slow;  // of YaRN (parts/attention/rope.h)

  bool any() const;
  // An error names the value that is out of range, or that stands beside a scaling that does not take it.
  Status check() const;
};

// Replaces the keys in the file's metadata, and makes its context as long as the scaling allows, if that is longer.
// What is returned holds the new values: the file needs it as long as it lives. Errors: those of check(), and a file
// whose own keys are damaged.
Result<std::shared_ptr<const void>> replace_rope(const RopeOverride& rope, gguf::File& file);

}  // namespace quire
