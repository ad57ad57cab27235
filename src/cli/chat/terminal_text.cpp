#include "cli/chat/terminal_text.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "command/help.h"
#include "core/output.h"
#include "tokenizer/unicode.h"

namespace quire::cli {

std::string harmless(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const unicode::Decoded d = unicode::decode(text);
    const char32_t c = d.code_point;
    const bool control = (c < 0x20 && c != U'\n' && c != U'\t') || (c >= 0x7f && c < 0xa0);
    if (control)
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    else
      unicode::append_utf8(c, out);
    text.remove_prefix(d.length);
  }
  return out;
}

TerminalText::TerminalText(bool wraps) : terminal_(isatty(STDOUT_FILENO) != 0), wraps_(wraps) {
  const char* const kind = std::getenv("TERM");  // a dumb one has no cursor that could be moved
  steers_ = kind != nullptr && std::string_view(kind) != "dumb";
}

void TerminalText::write(std::string_view text) {
  if (!terminal_) {
    write_out(text);
  } else {
    wrap_.set_columns(wraps_ && steers_ ? terminal_columns() : 0);  // the window may have another size by now
    write_out(wrap_.push(harmless(text)));
  }
  (void)flush_output();
}

}  // namespace quire::cli
