// Help for a terminal: two columns, folded between words.
#pragma once

#include <string>
#include <string_view>

#include "command/command.h"

namespace quire::cli {

// Where names and what is said of them begin.
struct HelpColumns {
  int left = 2, right = 30;
};

// A name and what it means, with a line break at the end. The text is folded between words so that no line is longer
// than `width` (0: any length) unless a word is, and begins on a line of its own where the name is too long for its
// column, or the width leaves too little beside it.
std::string help_entry(std::string_view name, std::string_view text, HelpColumns columns, int width);

// The text's lines folded likewise, all but the first of each indented.
std::string folded(std::string_view text, int indent, int width);

// What --help prints of a command: its rows. Of a program (else null) also its commands, and those of its neighbours.
std::string help_text(const Flags& flags, const Program* program, int width);

// Columns of the terminal that standard output is, or else standard error; 0: there is none.
int terminal_columns();
// Its columns, or what one has usually.
int help_width();

}  // namespace quire::cli
