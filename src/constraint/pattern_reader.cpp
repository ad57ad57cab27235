#include "constraint/pattern_reader.h"

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "constraint/character_set.h"
#include "core/utf8.h"

namespace quire {
namespace {

constexpr size_t kMostGroupDepth = 250;  // groups within groups: the library recurses over them
constexpr int64_t kMostRepetitions = 1'000'000;
constexpr size_t kMostBytes = size_t{4} << 20;  // of a canonical form: a class of letters takes 10 kB
constexpr size_t kMostRanges = 2'000'000;  // that are looked at, of all classes together: a class of letters has 650
constexpr int64_t kNoEnd = -1;

bool is_letter(char32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_number_character(char32_t c) {
  return c >= '0' && c <= '9';
}
int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 32);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

void write_character(std::string& out, char32_t c, std::string_view specials) {
  if (c < 0x20 || c > 0x7e) {
    out += fmt::format("\\u{{{:x}}}", static_cast<uint32_t>(c));
    return;
  }
  const char as_char = static_cast<char>(c);
  if (specials.find(as_char) != std::string_view::npos) out += '\\';
  out += as_char;
}

CharacterSet digits() {
  return {{'0', '9'}};
}
CharacterSet word_characters() {
  return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
}
CharacterSet spaces() {
  return {{'\t', '\r'}, {' ', ' '}};
}

class Reader {
 public:
  explicit Reader(std::string_view pattern) : p_(pattern) {}

  std::string read() {
    while (at_ < p_.size()) {
      begin_ = at_;
      step();
      if (out_.size() > kMostBytes || ranges_ > kMostRanges)
        unsupported("the classes of characters up to here are too large together");
    }
    if (frames_.size() > 1) wrong("a '(' is not closed");
    return (begins_ ? "^" : "") + out_ + (ends_ ? "$" : "");
  }

 private:
  struct Flags {
    bool any_case = false, dot_takes_all = false;
  };
  // A group that is open; the first one is the whole expression.
  struct Frame {
    Flags flags;
    size_t begin = 0;          // in out_
    bool may_begin = true;     // a '^' may stand at the beginning of its alternatives
    bool empty = true;         // nothing stands in this alternative yet
    bool ended = false;        // a '$' ended this alternative
    bool some_ended = false;   // a '$' ended one of them
    bool has_anchors = false;  // in any alternative, at any depth
  };
  enum class Last { kNothing, kAtom, kAnchoredGroup, kQuantified };
  // What an escape stands for: characters, or a place.
  struct Escape {
    CharacterSet set;
    std::optional<char32_t> single;
    enum class Place { kNone, kBegin, kEnd } place = Place::kNone;
  };

  [[noreturn]] void wrong(std::string_view what) const {
    throw PatternProblem{fmt::format("{} (at position {})", what, begin_ + 1)};
  }
  [[noreturn]] void unsupported(std::string_view what) const {
    throw PatternProblem{fmt::format("{} (at position {})", what, begin_ + 1), true};
  }

  char peek(size_t ahead = 0) const { return at_ + ahead < p_.size() ? p_[at_ + ahead] : '\0'; }
  bool take(std::string_view text) {
    if (!p_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  char32_t next() {
    if (at_ >= p_.size()) wrong("it ends too early");
    const unicode::Decoded d = unicode::decode(p_.substr(at_));
    if (d.status != unicode::Utf8::kValid) wrong("it is not valid UTF-8");
    at_ += d.length;
    return d.code_point;
  }

  void step() {
    switch (peek()) {
      case '^':
        ++at_;
        return begin_anchor("'^'");
      case '$':
        ++at_;
        return end_anchor("'$'");
      case '(':
        return open();
      case ')':
        return close();
      case '|':
        ++at_;
        out_ += '|';
        top().empty = true;
        top().ended = false;
        last_ = Last::kNothing;
        return;
      case '[':
        return character_class();
      case '.':
        ++at_;
        return atom(top().flags.dot_takes_all ? CharacterSet{{0, kLastCharacter}} : CharacterSet{{'\n', '\n'}},
                    !top().flags.dot_takes_all);
      case '*':
      case '+':
      case '?':
        return quantifier();
      case '{':
        if (quantifier_in_braces()) return;
        break;
      case '\\': {
        Escape e = escape(false);
        if (e.place == Escape::Place::kBegin) return begin_anchor("\\A");
        if (e.place == Escape::Place::kEnd) return end_anchor("\\Z");
        if (e.single) return literal(*e.single);
        return atom(std::move(e.set), false);
      }
      default:
        break;
    }
    literal(next());
  }

  Frame& top() { return frames_.back(); }

  // An anchor where nothing comes before it, or behind it, says what holds anyway: the whole text is matched.
  void begin_anchor(std::string_view name) {
    if (!top().may_begin || !top().empty)
      unsupported(fmt::format("{} stands in the middle, where nothing can match it", name));
    if (frames_.size() == 1 && out_.empty()) begins_ = true;
    top().has_anchors = true;
    last_ = Last::kNothing;
  }
  void end_anchor(std::string_view name) {
    top().ended = top().some_ended = top().has_anchors = true;
    end_name_ = name;
    if (at_ == p_.size() && frames_.size() == 1) ends_ = true;
    last_ = Last::kNothing;
  }

  // Something that takes characters begins here.
  void consume() {
    if (top().ended) unsupported(fmt::format("something follows {}, and nothing can match it", end_name_));
    top().empty = false;
  }

  void literal(char32_t c) {
    if (top().flags.any_case) {
      CharacterSet set{{c, c}};
      set.add_other_case();
      if (set.ranges().size() > 1 || set.ranges().front().first != set.ranges().front().second)
        return atom(std::move(set), false);
    }
    consume();
    write_character(out_, c, "\\^$.|?*+()[]{}");
    last_ = Last::kAtom;
  }

  void atom(CharacterSet set, bool negated) {
    consume();
    ranges_ += set.size();
    const auto& ranges = set.ranges();
    if (ranges.empty()) {  // nothing matches: all but everything
      set = CharacterSet{{0, kLastCharacter}};
      negated = !negated;
    }
    constexpr std::string_view kSpecials = "\\^-[]";
    out_ += negated ? "[^" : "[";
    for (const auto& [first, last] : set.ranges()) {
      write_character(out_, first, kSpecials);
      if (last > first + 1) out_ += '-';
      if (last > first) write_character(out_, last, kSpecials);
    }
    out_ += ']';
    last_ = Last::kAtom;
  }

  // -- groups

  void open() {
    ++at_;
    const bool may_begin = top().may_begin && top().empty;
    Frame inner{top().flags, out_.size(), may_begin};
    if (take("?") && !modifier(inner.flags)) return;
    consume();
    if (frames_.size() > kMostGroupDepth) wrong(fmt::format("groups are nested more than {} deep", kMostGroupDepth));
    out_ += '(';
    frames_.push_back(inner);
    last_ = Last::kNothing;
  }

  // Behind "(?". False: that was no group.
  bool modifier(Flags& flags) {
    if (take(":")) return true;
    if (take("=") || take("!")) unsupported("lookahead is not supported");
    if (take("<=") || take("<!")) unsupported("lookbehind is not supported");
    if (take("P=")) unsupported("backreferences are not supported");
    if (take(">")) unsupported("atomic groups are not supported");
    if (take("(")) unsupported("conditions are not supported");
    if (take("P<") || take("<")) {
      const size_t end = p_.find('>', at_);
      if (end == std::string_view::npos || end == at_) wrong("the name of a group is not closed");
      at_ = end + 1;
      return true;
    }
    if (take("#")) {
      const size_t end = p_.find(')', at_);
      if (end == std::string_view::npos) wrong("a comment is not closed");
      at_ = end + 1;
      return false;
    }
    return flags_of_group(flags);
  }

  // i: both cases of letters; s: '.' takes line breaks too; u, a: nothing here.
  bool flags_of_group(Flags& flags) {
    bool on = true;
    for (;; ++at_) {
      const char c = peek();
      if (c == '-' && on)
        on = false;
      else if (c == 'i')
        flags.any_case = on;
      else if (c == 's')
        flags.dot_takes_all = on;
      else if (c == ')' || c == ':')
        break;
      else if (is_letter(static_cast<unsigned char>(c)) && c != 'u' && c != 'a')
        unsupported(fmt::format("the flag '{}' is not supported", c));
      else if (c != 'u' && c != 'a')
        wrong("there is no such kind of group");
    }
    if (take(":")) return true;
    ++at_;
    if (!top().empty) wrong("flags of the whole expression stand at its beginning");
    top().flags = flags;
    return false;
  }

  void close() {
    ++at_;
    if (frames_.size() == 1) wrong("a ')' closes nothing");
    const Frame closed = top();
    frames_.pop_back();
    out_ += ')';
    top().has_anchors |= closed.has_anchors;
    if (closed.some_ended) top().ended = top().some_ended = true;
    last_ = closed.has_anchors ? Last::kAnchoredGroup : Last::kAtom;
  }

  // -- quantifiers

  void quantifier() {
    const char c = peek();
    ++at_;
    repeat(c == '+' ? 1 : 0, c == '?' ? 1 : kNoEnd, std::string(1, c));
  }

  std::optional<int64_t> number() {
    if (!is_number_character(static_cast<unsigned char>(peek()))) return std::nullopt;
    int64_t n = 0;
    for (; is_number_character(static_cast<unsigned char>(peek())); ++at_)
      n = std::min(n * 10 + (peek() - '0'), int64_t{1} << 40);
    if (n > kMostRepetitions) wrong(fmt::format("at most {} repetitions are allowed", kMostRepetitions));
    return n;
  }

  // {n}, {n,}, {n,m} or {,m}; anything else is text.
  bool quantifier_in_braces() {
    const size_t brace = at_;
    ++at_;
    const std::optional<int64_t> least = number();
    const bool comma = take(",");
    const std::optional<int64_t> most = comma ? number() : least;
    if ((!least && !most) || !take("}")) {
      at_ = brace;
      return false;
    }
    const int64_t low = least.value_or(0);
    if (most && *most < low) wrong("a repetition ends below its beginning");
    if (!comma)
      repeat(low, low, fmt::format("{{{}}}", low));
    else
      repeat(low, most.value_or(kNoEnd), most ? fmt::format("{{{},{}}}", low, *most) : fmt::format("{{{},}}", low));
    return true;
  }

  void repeat(int64_t least, int64_t most, const std::string& text) {
    if (last_ == Last::kNothing) wrong("there is nothing to repeat");
    if (last_ == Last::kQuantified) wrong("one repetition follows another");
    if (last_ == Last::kAnchoredGroup && (most == kNoEnd || most > 1 || least > 1))
      unsupported("a group with '^' or '$' is repeated");
    out_ += text;
    if (peek() == '+') unsupported("possessive repetitions are not supported");
    take("?");  // as few as possible: of the same texts
    last_ = Last::kQuantified;
  }

  // -- classes

  void character_class() {
    ++at_;
    const bool negated = take("^");
    if (peek() == ']') wrong("a class of characters is empty (a ']' in it is written \\])");
    CharacterSet set;
    while (!take("]")) {
      if (peek() == '[' && (peek(1) == ':' || peek(1) == '.' || peek(1) == '='))
        unsupported("classes within classes are not supported");
      Escape first = class_member();
      if (!first.single) {
        set.add(first.set);
        continue;
      }
      char32_t last = *first.single;
      if (peek() == '-' && peek(1) != ']' && at_ + 1 < p_.size()) {
        ++at_;
        const Escape end = class_member();
        if (!end.single || *end.single < last) wrong("a range of characters ends below its beginning");
        last = *end.single;
      }
      set.add(*first.single, last);
    }
    if (top().flags.any_case) {
      constexpr size_t kCases = 3000;  // letters that have another case
      ranges_ += kCases;
      set.add_other_case();
    }
    atom(std::move(set), negated);
  }

  Escape class_member() {
    if (at_ >= p_.size()) wrong("a class of characters is not closed");
    if (peek() == '\\') return escape(true);
    Escape e;
    e.single = next();
    return e;
  }

  // -- escapes

  Escape escape(bool in_class) {
    ++at_;
    if (at_ >= p_.size()) wrong("a '\\' stands at the end");
    const char32_t c = next();
    Escape e;
    if (in_class ? c == 'b' : false) {
      e.single = 0x08;
    } else if (!in_class && (c == 'A' || c == 'Z' || c == 'z')) {
      e.place = c == 'A' ? Escape::Place::kBegin : Escape::Place::kEnd;
    } else if (const std::optional<char32_t> control = control_character(c)) {
      e.single = control;
    } else if (c == 'd' || c == 'D' || c == 'w' || c == 'W' || c == 's' || c == 'S') {
      const char lower = static_cast<char>(c | 32);
      e.set = lower == 'd' ? digits() : lower == 'w' ? word_characters() : spaces();
      if (c < 'a') e.set = e.set.complement();
    } else if (c == 'p' || c == 'P') {
      e.set = category();
      if (c == 'P') e.set = e.set.complement();
    } else if (c == 'x' || c == 'u' || c == 'U') {
      e.single = by_number(c);
    } else if (c == 'b' || c == 'B') {
      unsupported("word boundaries are not supported");
    } else if ((c >= '1' && c <= '9') || c == 'k' || c == 'g') {
      unsupported("backreferences are not supported");
    } else if (is_letter(c)) {
      wrong(fmt::format("there is no escape \\{}", static_cast<char>(c)));
    } else {
      e.single = c;
    }
    return e;
  }

  std::optional<char32_t> control_character(char32_t c) {
    constexpr std::string_view kNames = "tnrfvae", kValues = "\t\n\r\f\v\a\x1b";
    if (c < 0x80)
      if (const size_t i = kNames.find(static_cast<char>(c)); i != std::string_view::npos)
        return static_cast<unsigned char>(kValues[i]);
    if (c == 'c') {
      const char letter = peek();
      if (!is_letter(static_cast<unsigned char>(letter))) wrong("\\c must be followed by a letter");
      ++at_;
      return letter & 0x1f;
    }
    if (c != '0') return std::nullopt;
    char32_t value = 0;  // of up to two octal digits more
    for (int i = 0; i < 2 && peek() >= '0' && peek() <= '7'; ++i, ++at_)
      value = value * 8 + static_cast<char32_t>(peek() - '0');
    return value;
  }

  // \xHH, \uHHHH, \UHHHHHHHH, \u{H...}; two halves of a pair are one character.
  char32_t by_number(char32_t kind) {
    if (kind == 'u' && take("{")) {
      const size_t end = p_.find('}', at_);
      if (end == std::string_view::npos || end == at_ || end > at_ + 6) wrong("\\u{...} holds one to six digits");
      const char32_t c = hexadecimal(static_cast<int>(end - at_), "\\u{...} holds one to six digits");
      ++at_;
      return checked(c);
    }
    if (kind == 'x') return hexadecimal(2, "\\x must be followed by two hexadecimal digits");
    if (kind == 'U') return checked(hexadecimal(8, "\\U must be followed by eight hexadecimal digits"));
    const char32_t c = hexadecimal(4, "\\u must be followed by four hexadecimal digits");
    if (c >= 0xd800 && c < 0xdc00 && take("\\u")) {
      const char32_t low = hexadecimal(4, "\\u must be followed by four hexadecimal digits");
      if (low < 0xdc00 || low > 0xdfff) wrong("half of a surrogate pair is no character");
      return 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    return checked(c);
  }
  char32_t hexadecimal(int count, std::string_view expected) {
    char32_t value = 0;
    for (int i = 0; i < count; ++i, ++at_) {
      const int digit = at_ < p_.size() ? hex_value(p_[at_]) : -1;
      if (digit < 0) wrong(expected);
      value = value * 16 + static_cast<char32_t>(digit);
    }
    return value;
  }
  char32_t checked(char32_t c) const {
    if (c > kLastCharacter) wrong("an escape is beyond the characters of Unicode");
    if (c >= 0xd800 && c <= 0xdfff) wrong("half of a surrogate pair is no character");
    return c;
  }

  CharacterSet category() {
    std::string_view name;
    if (take("{")) {
      const size_t end = p_.find('}', at_);
      if (end == std::string_view::npos) wrong("a \\p{ is not closed");
      name = p_.substr(at_, end - at_);
      at_ = end + 1;
    } else {
      name = p_.substr(at_, 1);
      next();
    }
    CharacterSet set;
    if (!CharacterSet::of_category(name, set))
      unsupported(fmt::format("\\p{{{}}} is not supported: only general categories are, as \\p{{L}} or \\p{{Lu}}",
                              name.substr(0, 40)));
    return set;
  }

  std::string_view p_;
  size_t at_ = 0, begin_ = 0, ranges_ = 0;
  std::string out_;
  std::vector<Frame> frames_ = std::vector<Frame>(1);
  Last last_ = Last::kNothing;
  bool begins_ = false, ends_ = false;
  std::string end_name_;
};

}  // namespace

std::variant<std::string, PatternProblem> canonical_pattern(std::string_view pattern) {
  try {
    return Reader(pattern).read();
  } catch (PatternProblem& problem) {
    return std::move(problem);
  }
}

}  // namespace quire
