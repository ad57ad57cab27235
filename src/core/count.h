// Whole numbers as people write counts of tokens and bytes: 8192, 8k, 8K, 1.5m.
#pragma once

#include <cstdint>
#include <string_view>

namespace quire {

enum class CountError { kNone, kNotWhole, kOutOfRange };

// A decimal number with at most one letter behind it, as vLLM reads them: k, m, g and t are powers of 1000, and K, M, G
// and T powers of 1024. With a power of 1000 there may be a fraction, if the whole is a whole number (25.6k is 25600).
// `value` is written only where there is no error.
CountError parse_count(std::string_view text, int64_t& value);
CountError parse_count(std::string_view text, uint64_t& value);

}  // namespace quire
