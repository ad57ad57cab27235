// The flags of a command as rows: their names, the member that each fills, what it may be, and what the help says of
// it. Help, tables and completions are made from the rows, and cli/parse.h fills the members from a command line.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/result.h"

namespace quire::cli {

// ---- What a flag fills ----

// A value of a list, under the name that people type.
template <class T>
struct Named {
  const char* name;
  T value;
  const char* also = "";  // further names, with blanks between them, which messages leave out
};

template <class T, size_t N>
const char* name_of(const Named<T> (&choices)[N], const T& value) {
  for (const Named<T>& c : choices)
    if (c.value == value) return c.name;
  return "";
}

// A member that is one of a list's values. Upper and lower case are the same.
struct ChosenMember {
  struct Name {
    std::string_view name, also = {};
  };
  std::vector<Name> names;
  std::function<void(size_t)> choose;
  std::string_view unless_given;  // the name of the member's value; empty: it has none
};

// `choices` outlive the flag, as those of a table do.
template <class T, size_t N>
ChosenMember chosen(T* member, const Named<T> (&choices)[N]) {
  ChosenMember m{{}, [member, &choices](size_t i) { *member = choices[i].value; }, name_of(choices, *member)};
  for (const Named<T>& c : choices) m.names.push_back({c.name, c.also});
  return m;
}
// The same for a member that is the name itself, a std::string or an optional one.
template <class Text>
ChosenMember chosen_text(Text* member, std::vector<ChosenMember::Name> names) {
  ChosenMember m{std::move(names), {}, {}};
  for (const ChosenMember::Name& n : m.names)
    if (*member == n.name) m.unless_given = n.name;
  m.choose = [member, names = m.names](size_t i) { *member = std::string(names[i].name); };
  return m;
}

// A bool is a switch, and everything else takes a value. Vectors take several. None: the flag is only asked for, as
// --help is.
using Member = std::variant<std::monostate, bool*, uint16_t*, int32_t*, int64_t*, uint64_t*, float*, double*,
                            std::string*, std::optional<int32_t>*, std::optional<int64_t>*, std::optional<float>*,
                            std::optional<std::string>*, std::vector<int32_t>*, std::vector<float>*,
                            std::vector<double>*, std::vector<std::string>*, ChosenMember>;

// ---- Rows ----

// What a number may be, each number of several.
struct Range {
  double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
  bool above_least = false;  // it must be more than `least`
  std::string unit;
  std::optional<double> other;  // a number outside that is taken too, and what it stands for
  std::string meaning;

  Range or_else(double other_value, std::string what_it_means) const;
  bool has(double value) const;
  // "between 0 and 65536 GiB", "at least 1, or -1 for any".
  std::string text() const;
};

Range between(double least, double most, std::string unit = "");
Range at_least(double least);
Range above(double bound, double most, std::string unit = "");

// What is known of a flag.
struct FlagRow {
  std::vector<std::string> names;  // as they are typed, short ones first: "-m", "--model"
  std::string position;            // its name where it is given by position: "MODEL"; empty: it is not
  std::string takes;               // what the help calls its value: INT, FILE; empty: it is a switch
  std::string default_text;        // empty: there is none, or the help says it
  std::string help, group;
  std::string needed;  // the flag without which this one makes no sense; empty: none
  std::optional<Range> range;
  int least_words = 1, most_words = 1;  // values that it takes at most
  bool required = false;
  bool separated = false;     // a word is several values with commas between them, as several numbers always are
  bool lists = false;         // it takes all words up to the next flag
  bool any_bits = false;      // a number of 64 bits with a sign or without: -1 is the largest
  bool may_be_empty = false;  // an empty text means something

  static constexpr int kAnyNumber = std::numeric_limits<int>::max();
};

class Flag {
 public:
  // `names`: "-m,--model,MODEL FILE" is -m or --model, or stands by position as MODEL. What follows the blank is what
  // the help calls its value; without it that is INT, TEXT and the like. "!--no-page" is a name that switches off.
  Flag(const std::string& names, Member member, std::string help, std::string group);

  // ---- What a command says of it: each sets what FlagRow has under its name ----

  Flag& required(bool is = true);
  Flag& default_text(std::string text);  // in place of the member's value; empty: the help shows none
  Flag& range(Range range);
  Flag& range_in_help();  // behind the text that there is
  Flag& needs(std::string name);
  Flag& words(int least, int most);
  Flag& separated();
  Flag& lists();
  Flag& any_bits();
  Flag& may_be_empty();
  Flag& more_help(std::string_view text);  // behind what there is

  // ---- What it is ----

  const FlagRow& row() const { return row_; }
  bool is_switch() const { return row_.takes.empty(); }
  // Where the member is one of a list's values: their names.
  std::vector<std::string_view> choices() const;
  bool has_name(std::string_view name) const;
  // As messages call it: "--model".
  const std::string& name() const;
  // The names as they were declared, and the member: for the parser.
  const std::string& declared() const { return declared_; }
  const Member& member() const { return member_; }

  // ---- What a command line says ----

  // What is wrong with a value as a word, or nothing. A number that is right loses what only people write: 8k is 8000.
  std::string check(std::string& value) const;
  // Fills the member. An error says what is out of its range or none of its choices.
  Status set(std::vector<std::string> values);
  // Of a switch, which has set its member.
  void set_given() { given_ = true; }
  bool given() const { return given_; }
  // The values that were set; empty: none.
  const std::vector<std::string>& values() const { return values_; }

 private:
  FlagRow row_;
  std::string declared_;
  Member member_;
  std::vector<std::string> values_;
  bool given_ = false;
};

// The rows of a command, or of the program.
class Flags {
 public:
  static constexpr char kHelpNames[] = "-h,--help", kVersionNames[] = "--version", kNoGroup[] = "Options";

  // With a row for --help.
  Flags(std::string name, std::string summary);
  Flags(const Flags&) = delete;  // flags stay where they are
  Flags& operator=(const Flags&) = delete;

  // The member outlives the parsing, but not always the row: after this its value is only written.
  Flag& add(const std::string& names, Member member, std::string help);
  Flag& add(const std::string& names, Member member, Range range, std::string help);
  // Of the rows that follow: where the help shows them.
  void group(std::string name) { group_ = std::move(name); }
  // Stands below the rows.
  void footer(std::string text) { footer_ = std::move(text); }

  const std::string& name() const { return name_; }
  const std::string& summary() const { return summary_; }
  const std::string& footer() const { return footer_; }
  const std::deque<Flag>& rows() const { return rows_; }
  std::deque<Flag>& rows() { return rows_; }
  // By one of its names, or its position's; null: there is none.
  Flag* find(std::string_view name);
  const Flag* find(std::string_view name) const;

 private:
  std::string name_, summary_, footer_, group_ = kNoGroup;
  std::deque<Flag> rows_;
};

// Whether it is a short name of several letters, such as -np, which CLI11 would read as -n with the value p.
constexpr bool is_brief_name(std::string_view name) {
  return name.size() > 2 && name[0] == '-' && name[1] != '-';
}

// "auto, bf16 or fp8".
std::string joined_with_or(std::span<const std::string_view> words);

}  // namespace quire::cli
