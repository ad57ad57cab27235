#include "cli/chat/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "core/output.h"
#include "tokenizer/unicode.h"

namespace quire::cli {
namespace {

constexpr std::string_view kDim = "\033[2m", kRed = "\033[31m", kPlain = "\033[0m";

// https://no-color.org: any value but an empty one means none.
bool colours_wanted() {
  const char* const no = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  return (no == nullptr || no[0] == '\0') && (terminal == nullptr || std::string_view(terminal) != "dumb");
}

void put(std::FILE* to, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), to);
}

}  // namespace

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

Console::Console()
    : output_terminal_(isatty(STDOUT_FILENO) != 0),
      output_colours_(output_terminal_ && colours_wanted()),
      error_colours_(isatty(STDERR_FILENO) != 0 && colours_wanted()) {}

void Console::say(std::string_view line) const {
  put(stderr, fmt::format("{}\n", line));
}
void Console::status(std::string_view line) const {
  put(stderr, error_colours_ ? fmt::format("{}{}{}\n", kDim, line, kPlain) : fmt::format("{}\n", line));
}
void Console::fail(std::string_view message) const {
  put(stderr,
      error_colours_ ? fmt::format("{}quire: {}{}\n", kRed, message, kPlain) : fmt::format("quire: {}\n", message));
}

void Console::begin_answer(bool inside_thinking) {
  splitter_ = server::ReasoningSplitter(inside_thinking);
  thinking_.clear();
  content_.clear();
  part_ = Part::kNothing;
}

void Console::answer(std::string_view text) {
  write(splitter_.push(text));
}

void Console::end_answer() {
  write(splitter_.flush());
  if (part_ == Part::kThinking && output_colours_) write_out(kPlain);
  if (part_ != Part::kNothing) write_out("\n");
  (void)flush_output();
}

void Console::write(const server::ReasoningSplitter::Output& out) {
  const auto show = [&](std::string_view text) { write_out(output_terminal_ ? harmless(text) : std::string(text)); };
  if (!out.reasoning.empty()) {
    turn_to(Part::kThinking);
    show(out.reasoning);
    thinking_ += out.reasoning;
  }
  if (!out.content.empty()) {
    turn_to(Part::kContent);
    show(out.content);
    content_ += out.content;
  }
  (void)flush_output();
}

void Console::turn_to(Part part) {
  if (part == part_) return;
  if (part == Part::kThinking) write_out(output_colours_ ? std::string(kDim) : "(thinking)\n");
  if (part == Part::kContent && part_ == Part::kThinking)
    write_out(output_colours_ ? fmt::format("{}\n\n", kPlain) : "\n(answer)\n");
  part_ = part;
}

}  // namespace quire::cli
