// Values of flags: words of a command line into members, and members as the help shows them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "command/flags.h"

namespace quire::cli {

// What the help calls a value: INT, UINT, FLOAT or TEXT; empty for a switch.
std::string kind_of(const Member& member);
bool takes_several(const Member& member);
// The member's value, "[1,8]" of several; empty: it has none, or it is a switch.
std::string shown_value(const Member& member);

// What is wrong with a word as the member's value (one of several), or nothing. Numbers are decimal ones within their
// type's range, and whole ones may end in a letter (core/count.h); texts have a character. What is right becomes a
// plain number.
std::string check_value(const Member& member, std::string& value);
// The same of a number of 64 bits with a sign or without: -1 is the largest.
std::string check_bits(std::string& value);

// Of words that have been checked.
double number_of(std::string_view value);
void fill(const Member& member, const std::vector<std::string>& values);

}  // namespace quire::cli
