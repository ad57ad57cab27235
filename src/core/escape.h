// Text of files, requests and command lines, made fit for a terminal or a log.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace quire {

// What one line of a terminal or a log has at most, in bytes.
inline constexpr size_t kMaxShownLine = 2000;

// `text` on one line: control characters as \n, \t or \u001b, and so what turns the direction of writing or ends a line
// in Unicode; invalid UTF-8 as U+FFFD. What has been escaped stays as it is. Of text that is longer, the beginning and
// the end, about `max_bytes` of them with " ... " in between (0: all of it): an error says what was wrong at its end.
std::string escaped(std::string_view text, size_t max_bytes = kMaxShownLine);

}  // namespace quire
