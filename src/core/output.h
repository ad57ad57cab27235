// Standard output, for results, and the lines of standard error that say what happened. Everything that the program
// prints goes through here: what cannot be written is noticed, and nothing of it throws.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "core/result.h"

namespace quire {

class LineWriter;

// Buffered; written when there is a screenful, at flush_output(), and at once to a terminal. After the first failure
// nothing more is written. Any thread.
void write_out(std::string_view text);

template <class... Args>
void print_out(fmt::format_string<Args...> f, Args&&... args) {
  write_out(fmt::format(f, std::forward<Args>(args)...));
}

// Writes what is buffered. The error of this or any earlier write: a request error that names standard output.
Status flush_output();

// Whether nobody can read standard output any more: a write failed, or it is a pipe or socket whose reader is gone.
// Long work asks before it goes on.
bool output_is_lost();

// One line on standard error, escaped (core/escape.h). Any thread.
void tell_line(std::string_view message);
// "quire: ..." there.
void tell(std::string_view message);
// As it is, for whoever has escaped it; without its end of line.
void put_message(std::string_view line);

// While it lives, all of these lines go through a writer, which must outlive it, so that telling waits for nobody.
// One at a time in a process.
class MessageRedirect {
 public:
  explicit MessageRedirect(LineWriter& to);
  ~MessageRedirect();
  MessageRedirect(const MessageRedirect&) = delete;
  MessageRedirect& operator=(const MessageRedirect&) = delete;
};

}  // namespace quire
