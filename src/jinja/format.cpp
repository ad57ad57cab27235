// "%s" % x and "{}".format(x): the parts of Python's two formatting languages that text templates use.
#include <cmath>

#include "jinja/interpreter.h"
#include "jinja/utf8.h"
#include "jinja/value_ops.h"

namespace quire::jinja {
namespace {

struct Spec {
  char32_t fill = ' ';
  Origin fill_origin = Origin::kOwn;
  char align = 0;  // < > ^ =
  char sign = '-';
  bool alternate = false;
  bool comma = false;
  std::int64_t width = 0;
  int precision = -1;
  char type = 0;
};

constexpr std::int64_t kMaxPrecision = 400;

std::string grouped(const std::string& digits) {
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

// `body`: a part of `text`.
void pad(StringBuilder& out, const Spec& spec, std::string_view prefix, const Text& text, std::string_view body,
         char default_align) {
  const auto size = static_cast<std::int64_t>(utf8::length(prefix) + utf8::length(body));
  const std::int64_t missing = spec.width > size ? spec.width - size : 0;
  const char align = spec.align ? spec.align : default_align;
  std::string character;
  utf8::append(character, spec.fill);
  const Text fill = Text::of(spec.fill_origin, std::move(character));
  const std::int64_t before = align == '>' ? missing : align == '^' ? missing / 2 : 0;
  out.repeat(fill, static_cast<std::uint64_t>(before));
  out.add(prefix);
  if (align == '=') out.repeat(fill, static_cast<std::uint64_t>(missing));
  out.add(text, body);
  if (align == '<' || align == '^') out.repeat(fill, static_cast<std::uint64_t>(missing - before));
}

std::string sign_of(bool negative, char sign) {
  if (negative) return "-";
  return sign == '-' ? "" : std::string(1, sign);
}

void add_integer(StringBuilder& out, const Spec& spec, std::int64_t i) {
  const auto magnitude = i < 0 ? ~static_cast<std::uint64_t>(i) + 1 : static_cast<std::uint64_t>(i);
  std::string digits, prefix = sign_of(i < 0, spec.sign);
  switch (spec.type) {
    case 'x':
      digits = fmt::format("{:x}", magnitude);
      break;
    case 'X':
      digits = fmt::format("{:X}", magnitude);
      break;
    case 'o':
      digits = fmt::format("{:o}", magnitude);
      break;
    case 'b':
      digits = fmt::format("{:b}", magnitude);
      break;
    default:
      digits = fmt::format("{}", magnitude);
  }
  if (spec.alternate && std::string_view("xXob").find(spec.type) != std::string_view::npos && spec.type != 0) {
    prefix += '0';
    prefix += spec.type;
  }
  if (spec.precision > static_cast<int>(digits.size())) {
    digits.insert(0, static_cast<std::size_t>(spec.precision) - digits.size(), '0');
  }
  const Text body(spec.comma ? grouped(digits) : digits);
  pad(out, spec, prefix, body, body.bytes, '>');
}

void add_float(StringBuilder& out, const Spec& spec, double d) {
  std::string body;
  if (spec.type == 0 && spec.precision < 0) {
    body = float_repr(std::fabs(d));
  } else {
    body = format_float(std::fabs(d), spec.type == 0 ? 'g' : spec.type, spec.precision < 0 ? 6 : spec.precision);
  }
  if (spec.comma) {
    const std::size_t point = body.find_first_not_of("0123456789");
    body = grouped(body.substr(0, point)) + (point == std::string::npos ? "" : body.substr(point));
  }
  const Text text(std::move(body));
  pad(out, spec, sign_of(std::signbit(d) && !std::isnan(d), spec.sign), text, text.bytes, '>');
}

void add_clipped(StringBuilder& out, const Spec& spec, const Text& text, char default_align) {
  std::string_view body = text.bytes;
  if (spec.precision >= 0) body = body.substr(0, utf8::offset(body, static_cast<std::size_t>(spec.precision)));
  pad(out, spec, "", text, body, default_align);
}

std::int64_t read_number(std::string_view text, std::size_t& at) {
  std::int64_t n = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    n = n * 10 + (text[at] - '0');
    if (n > INT32_MAX) fail("format: a width is too large");
  }
  return n;
}

// --- "%..."
// ---------------------------------------------------------------------------------------------------

class PercentFormatter {
 public:
  PercentFormatter(Budget& budget, const Text& format, const Value& arguments)
      : budget_(budget), text_(format), format_(format.bytes), arguments_(arguments), out_(budget) {}

  Text run() {
    while (at_ < format_.size()) {
      const std::size_t percent = format_.find('%', at_);
      out_.add(text_, format_.substr(at_, percent == std::string_view::npos ? percent : percent - at_));
      if (percent == std::string_view::npos) break;
      at_ = percent + 1;
      one();
    }
    if (arguments_.is(Kind::kTuple) && !used_mapping_ && next_ < arguments_.items().size()) unconverted();
    // As Python: a value that can be indexed may be left unused.
    const bool indexable = is_sized(arguments_) && !arguments_.is_string() && !arguments_.is(Kind::kDictView);
    if (!indexable && next_ == 0) unconverted();
    return out_.take();
  }

 private:
  [[noreturn]] static void unconverted() { fail("not all arguments are used by the format"); }

  Value next_argument() {
    if (arguments_.is(Kind::kTuple)) {
      if (next_ >= arguments_.items().size()) fail("the format needs more arguments");
      return arguments_.items()[next_++];
    }
    if (next_++ > 0) fail("the format needs more arguments");
    return arguments_;
  }

  std::int64_t size_argument() {
    if (at_ >= format_.size() || format_[at_] != '*') return read_number(format_, at_);
    ++at_;
    const Value v = next_argument();
    if (!v.is_integral() || std::abs(v.as_int()) > INT32_MAX) fail("format: * needs an integer");
    return v.as_int();
  }

  void one() {
    Spec spec;
    std::optional<Value> named;
    bool left = false, zero = false;
    if (at_ < format_.size() && format_[at_] == '(') {
      const std::size_t end = format_.find(')', at_);
      if (end == std::string_view::npos) fail("the format has an unclosed name");
      if (!arguments_.is_dict()) fail("a format with names needs a mapping");
      const std::string_view name = format_.substr(at_ + 1, end - at_ - 1);
      const Value* v = arguments_.as_dict().find(name);
      if (!v) fail("the format names '{}', which is not given", name);
      named = *v;
      used_mapping_ = true;
      at_ = end + 1;
    }
    for (; at_ < format_.size(); ++at_) {
      const char c = format_[at_];
      if (c == '-')
        left = true;
      else if (c == '0')
        zero = true;
      else if (c == '+' || (c == ' ' && spec.sign != '+'))
        spec.sign = c;
      else if (c == '#')
        spec.alternate = true;
      else if (c != ' ')
        break;
    }
    spec.width = size_argument();
    if (spec.width < 0) {
      left = true;
      spec.width = -spec.width;
    }
    if (at_ < format_.size() && format_[at_] == '.') {
      ++at_;
      const std::int64_t precision = size_argument();
      if (precision > kMaxPrecision) fail("format: the precision is too large");
      spec.precision = static_cast<int>(std::max<std::int64_t>(precision, 0));
    }
    while (at_ < format_.size() && (format_[at_] == 'l' || format_[at_] == 'h' || format_[at_] == 'L')) ++at_;
    if (at_ >= format_.size()) fail("the format is incomplete");
    const char type = format_[at_++];
    if (type == '%') return out_.add('%');
    spec.align = left ? '<' : '>';
    convert(spec, type, zero && !left, named ? *named : next_argument());
  }

  void convert(Spec& spec, char type, bool zero, const Value& v) {
    switch (type) {
      case 's':
        return add_clipped(out_, spec, to_text(budget_, v), '>');
      case 'r':
      case 'a':
        return add_clipped(out_, spec, repr(budget_, v), '>');
      case 'c': {
        Text text;
        if (v.is_integral() && v.as_int() >= 0 && v.as_int() <= 0x10FFFF) {
          utf8::append(text.bytes, static_cast<char32_t>(v.as_int()));
        } else if (v.is_string() && length(v) == 1) {
          text = v.as_text();
        } else {
          fail("%c needs an integer or one character");
        }
        return add_clipped(out_, spec, text, '>');
      }
      default:
        break;
    }
    if (zero) {
      spec.fill = '0';
      spec.align = '=';
    }
    spec.type = type;
    if (std::string_view("diu").find(type) != std::string_view::npos) {
      spec.type = 0;
      return add_integer(out_, spec, integer(v, true));
    }
    if (std::string_view("xXo").find(type) != std::string_view::npos) return add_integer(out_, spec, integer(v, false));
    if (std::string_view("eEfFgG").find(type) == std::string_view::npos)
      fail("unsupported format character '{}'", type);
    if (!v.is_number()) fail("%{} needs a number, not {}", type, type_name(v));
    add_float(out_, spec, v.as_float());
  }

  static std::int64_t integer(const Value& v, bool allow_float) {
    if (v.is_integral()) return v.as_int();
    if (!allow_float || !v.is(Kind::kFloat)) fail("the format needs a number, not {}", type_name(v));
    if (!(std::fabs(v.as_float()) < 0x1p63)) fail("an integer does not fit 64 bits");
    return static_cast<std::int64_t>(v.as_float());
  }

  Budget& budget_;
  const Text& text_;
  std::string_view format_;  // its bytes
  const Value& arguments_;
  StringBuilder out_;
  std::size_t at_ = 0;
  std::size_t next_ = 0;
  bool used_mapping_ = false;
};

// --- "{...}".format
// -------------------------------------------------------------------------------------------

Spec parse_spec(std::string_view text) {
  Spec spec;
  std::size_t at = 0;
  const auto is_align = [&](std::size_t i) {
    return i < text.size() && std::string_view("<>^=").find(text[i]) != std::string_view::npos;
  };
  if (!text.empty()) {
    const utf8::Char first = utf8::decode(text, 0);
    if (is_align(first.size)) {
      spec.fill = first.code;
      spec.align = text[first.size];
      at = first.size + 1;
    } else if (is_align(0)) {
      spec.align = text[at++];
    }
  }
  if (at < text.size() && std::string_view("+- ").find(text[at]) != std::string_view::npos) spec.sign = text[at++];
  if (at < text.size() && text[at] == '#') {
    spec.alternate = true;
    ++at;
  }
  if (at < text.size() && text[at] == '0' && !spec.align) {
    spec.fill = '0';
    spec.align = '=';
    ++at;
  }
  spec.width = read_number(text, at);
  if (at < text.size() && text[at] == ',') {
    spec.comma = true;
    ++at;
  }
  if (at < text.size() && text[at] == '.') {
    const std::size_t begin = ++at;
    const std::int64_t precision = read_number(text, at);
    if (at == begin || precision > kMaxPrecision) fail("format: invalid precision");
    spec.precision = static_cast<int>(precision);
  }
  if (at < text.size()) spec.type = text[at++];
  if (at < text.size()) fail("format: invalid format specifier '{}'", text);
  return spec;
}

class BraceFormatter {
 public:
  BraceFormatter(Interpreter& in, const Text& format, const Arguments& arguments)
      : in_(in), text_(format), format_(format.bytes), arguments_(arguments), out_(in.budget()) {}

  Value run() {
    std::size_t at = 0;
    while (at < format_.size()) {
      const char c = format_[at];
      if ((c == '{' || c == '}') && at + 1 < format_.size() && format_[at + 1] == c) {
        out_.add(text_, format_.substr(at, 1));
        at += 2;
      } else if (c == '{') {
        const std::size_t end = format_.find_first_of("{}", at + 1);
        if (end == std::string_view::npos || format_[end] == '{') fail("format: '{{' without a simple '}}'");
        field(format_.substr(at + 1, end - at - 1));
        at = end + 1;
      } else if (c == '}') {
        fail("format: single '}}'");
      } else {
        out_.add(text_, format_.substr(at, 1));
        ++at;
      }
    }
    return Value::string(in_.budget(), out_.take());
  }

 private:
  void field(std::string_view text) {
    std::string_view spec, conversion;
    if (const auto colon = text.find(':'); colon != std::string_view::npos) {
      spec = text.substr(colon + 1);
      text = text.substr(0, colon);
    }
    if (const auto mark = text.find('!'); mark != std::string_view::npos) {
      conversion = text.substr(mark + 1);
      text = text.substr(0, mark);
    }
    Value v = look_up(text);
    if (conversion == "r") {
      v = Value::string(repr(in_.budget(), v));
    } else if (conversion == "s") {
      v = Value::string(to_text(in_.budget(), v));
    } else if (!conversion.empty()) {
      fail("format: unknown conversion '{}'", conversion);
    }
    write(v, spec);
  }

  Value look_up(std::string_view text) {
    std::size_t end = std::min(text.find_first_of(".["), text.size());
    Value v = argument(text.substr(0, end));
    while (end < text.size()) {
      const bool item = text[end] == '[';
      const std::size_t begin = end + 1;
      end = item ? text.find(']', begin) : std::min(text.find_first_of(".[", begin), text.size());
      if (end == std::string_view::npos || end == begin) fail("format: malformed field '{}'", text);
      const std::string_view name = text.substr(begin, end - begin);
      if (item) {
        std::size_t digits = 0;
        const std::int64_t index = read_number(name, digits);
        v = in_.get_item(v, digits == name.size() ? Value::integer(index) : Value::string(Text(std::string(name))));
        ++end;
      } else {
        v = in_.item_without_lookup(v, name);
      }
      if (v.is_undefined()) fail("format: {}", v.why_undefined());
    }
    return v;
  }

  Value argument(std::string_view name) {
    std::size_t digits = 0;
    std::int64_t index = name.empty() ? automatic_++ : read_number(name, digits);
    if (name.empty() || digits == name.size()) {
      if (!name.empty()) manual_ = true;
      if (manual_ && automatic_ > 0) fail("format: numbered and unnumbered fields cannot be mixed");
      if (index >= static_cast<std::int64_t>(arguments_.positional.size()))
        fail("format: argument {} is missing", index);
      return arguments_.positional[static_cast<std::size_t>(index)];
    }
    for (const auto& [known, value] : arguments_.named) {
      if (known == name) return value;
    }
    fail("format: argument '{}' is missing", name);
  }

  void write(const Value& v, std::string_view spec_text) {
    if (spec_text.empty()) return add_text(out_, in_.budget(), v);
    Spec spec = parse_spec(spec_text);
    if (!text_.foreign.empty()) spec.fill_origin = Origin::kOutside;
    const auto is_type = [&](std::string_view types) {
      return spec.type == 0 || types.find(spec.type) != std::string_view::npos;
    };
    if (v.is_string()) {
      if (!is_type("s") || spec.align == '=' || spec.comma || spec.sign != '-')
        fail("format: '{}' does not fit a string", spec_text);
      return add_clipped(out_, spec, v.as_text(), '<');
    }
    if (v.is_integral() && is_type("dxXob")) {
      if (spec.precision >= 0) fail("format: an integer takes no precision");
      return add_integer(out_, spec, v.as_int());
    }
    if (v.is_number() && spec.type == '%') {
      Spec percent = spec;
      percent.type = 'f';
      percent.width = spec.width > 0 ? spec.width - 1 : 0;
      add_float(out_, percent, v.as_float() * 100);
      return out_.add('%');
    }
    if (v.is_number() && is_type("eEfFgG")) return add_float(out_, spec, v.as_float());
    fail("format: '{}' does not fit a value of type {}", spec_text, type_name(v));
  }

  Interpreter& in_;
  const Text& text_;
  std::string_view format_;  // its bytes
  const Arguments& arguments_;
  StringBuilder out_;
  std::int64_t automatic_ = 0;
  bool manual_ = false;
};

}  // namespace

std::string format_float(double d, char type, int precision) {
  if (!std::isfinite(d)) {
    const bool upper = type == 'E' || type == 'F' || type == 'G';
    if (std::isnan(d)) return upper ? "NAN" : "nan";
    return std::string(d < 0 ? "-" : "") + (upper ? "INF" : "inf");
  }
  switch (type) {
    case 'e':
      return fmt::format("{:.{}e}", d, precision);
    case 'E':
      return fmt::format("{:.{}E}", d, precision);
    case 'g':
      return fmt::format("{:.{}g}", d, precision);
    case 'G':
      return fmt::format("{:.{}G}", d, precision);
    default:
      return fmt::format("{:.{}f}", d, precision);
  }
}

Text percent_format(Budget& budget, const Text& format, const Value& arguments) {
  return PercentFormatter(budget, format, arguments).run();
}

Value string_format(Interpreter& interpreter, const Text& format, const Arguments& arguments) {
  return BraceFormatter(interpreter, format, arguments).run();
}

}  // namespace quire::jinja
