// Texts and token ids that a command is given: in files, on standard input, on the command line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/id.h"
#include "core/result.h"

namespace quire::cli {

inline constexpr int64_t kMaxTextBytes = int64_t{1} << 30;

// All bytes of a file, or of standard input for "-". A device that has no end is refused unread, and so is more than
// `most` bytes, `why` saying what that is too much for.
Result<std::string> read_text(const std::string& path, int64_t most = kMaxTextBytes,
                              std::string_view why = "that is too long for a text");

// "1,2,3" to token ids.
Result<std::vector<TokenId>> parse_tokens(std::string_view text);
// Token ids as `quire tokenize` prints them: its table, or its JSON; also numbers between spaces, commas or line
// breaks.
Result<std::vector<TokenId>> parse_token_list(std::string_view text);

}  // namespace quire::cli
