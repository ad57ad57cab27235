#include "cli/chat/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "command/help.h"
#include "core/output.h"

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

Console::Console()
    : output_colours_(isatty(STDOUT_FILENO) != 0 && colours_wanted()),
      error_colours_(isatty(STDERR_FILENO) != 0 && colours_wanted()) {}

void Console::say(std::string_view line) const {
  put(stderr, fmt::format("{}\n", line));
}
void Console::status(std::string_view line) const {
  const std::string text = folded(line, 0, terminal_columns());
  put(stderr, error_colours_ ? fmt::format("{}{}{}\n", kDim, text, kPlain) : text + "\n");
}
void Console::fail(std::string_view message) const {
  const std::string text = folded(fmt::format("quire: {}", message), 0, terminal_columns());
  put(stderr, error_colours_ ? fmt::format("{}{}{}\n", kRed, text, kPlain) : text + "\n");
}

void Console::begin_answer(bool inside_thinking) {
  splitter_ = server::ReasoningSplitter(inside_thinking);
  thinking_.clear();
  content_.clear();
  part_ = Part::kNothing;
}

void Console::answer(std::string_view text) {
  const server::ReasoningSplitter::Output parts = splitter_.push(text);
  answer_parts(parts.reasoning, parts.content);
}

void Console::end_answer() {
  const server::ReasoningSplitter::Output parts = splitter_.flush();
  answer_parts(parts.reasoning, parts.content);
  if (part_ == Part::kThinking && output_colours_) write_out(kPlain);
  if (part_ != Part::kNothing) write_out("\n");
  (void)flush_output();
}

void Console::answer_parts(std::string_view thinking, std::string_view content) {
  if (!thinking.empty()) {
    turn_to(Part::kThinking);
    text_.write(thinking);
    thinking_ += thinking;
  }
  if (!content.empty()) {
    turn_to(Part::kContent);
    text_.write(content);
    content_ += content;
  }
}

void Console::turn_to(Part part) {
  if (part == part_) return;
  if (part == Part::kThinking) write_out(output_colours_ ? std::string(kDim) : "(thinking)\n");
  if (part == Part::kContent && part_ == Part::kThinking)
    write_out(output_colours_ ? fmt::format("{}\n\n", kPlain) : "\n(answer)\n");
  text_.begin();
  part_ = part;
}

}  // namespace quire::cli
