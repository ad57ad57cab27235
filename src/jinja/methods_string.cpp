// Methods of strings that make new strings.
#include <algorithm>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/utf8.h"
#include "jinja/value_ops.h"

namespace quire::jinja {
namespace {

// A piece of a string.
Value text_value(Interpreter& in, const Value& of, std::string_view piece) {
  return Value::string(in.budget(), of.as_text().piece(piece));
}

Text required_text(Parameters& p, std::string_view name) {
  const Value v = p.required(name);
  if (!v.is_string()) fail("{}: argument '{}' must be a string, not {}", p.function(), name, type_name(v));
  return v.as_text();
}

template <std::string (*Change)(std::string_view)>
Value change(Interpreter& in, const Value& self, Parameters& p) {
  p.done();
  return Value::string(in.budget(), change_letters(self.as_text(), Change), self.is_markup());
}

template <bool kLeft, bool kRight>
Value strip(Interpreter& in, const Value& self, Parameters& p) {
  const auto chars = p.text("chars");
  p.done();
  std::string_view text = self.as_string();
  in.budget().step(text.size() / 32);
  if (kLeft) text = chars ? utf8::strip_left(text, chars->bytes) : utf8::strip_left(text);
  if (kRight) text = chars ? utf8::strip_right(text, chars->bytes) : utf8::strip_right(text);
  return Value::string(in.budget(), self.as_text().piece(text), self.is_markup());
}

Value replace(Interpreter& in, const Value& self, Parameters& p) {
  const std::string from = required_text(p, "old").bytes;
  const Text to = required_text(p, "new");
  std::int64_t left = p.integer("count", -1);
  p.done();
  const std::string_view text = self.as_string();
  StringBuilder out(in.budget());
  std::size_t at = 0;
  if (from.empty()) {  // between all characters, and at both ends
    for (; left != 0 && at < text.size(); --left) {
      const std::size_t size = utf8::decode(text, at).size;
      out.add(to);
      out.add(self.as_text(), text.substr(at, size));
      at += size;
    }
    out.add(self.as_text(), text.substr(at));
    if (left != 0) out.add(to);
    return Value::string(in.budget(), out.take());
  }
  for (; left != 0; --left) {
    const std::size_t found = text.find(from, at);
    if (found == std::string_view::npos) break;
    out.add(self.as_text(), text.substr(at, found - at));
    out.add(to);
    at = found + from.size();
  }
  out.add(self.as_text(), text.substr(at));
  return Value::string(in.budget(), out.take());
}

class Pieces {
 public:
  Pieces(Interpreter& in, const Value& of) : in_(in), of_(of) {}
  void add(std::string_view piece) {
    in_.budget().allocate(sizeof(Value));
    pieces_.push_back(text_value(in_, of_, piece));
  }
  Value take(bool reversed = false) {
    if (reversed) std::reverse(pieces_.begin(), pieces_.end());
    return Value::list(in_.budget(), std::move(pieces_));
  }

 private:
  Interpreter& in_;
  const Value& of_;
  std::vector<Value> pieces_;
};

// From the left; text.split() without a separator cuts at runs of white space.
Value split_space(Interpreter& in, const Value& self, std::int64_t left) {
  Pieces pieces(in, self);
  std::string_view text = utf8::strip_left(self.as_string());
  while (!text.empty()) {
    if (left-- == 0) {
      pieces.add(text);
      break;
    }
    std::size_t end = 0;
    while (end < text.size() && !utf8::is_space(utf8::decode(text, end).code)) end += utf8::decode(text, end).size;
    pieces.add(text.substr(0, end));
    text = utf8::strip_left(text.substr(end));
  }
  return pieces.take();
}

Value rsplit_space(Interpreter& in, const Value& self, std::int64_t left) {
  Pieces pieces(in, self);
  std::string_view text = utf8::strip_right(self.as_string());
  while (!text.empty()) {
    if (left-- == 0) {
      pieces.add(text);
      break;
    }
    std::size_t begin = 0;  // of the last word
    for (std::size_t at = 0; at < text.size();) {
      const utf8::Char c = utf8::decode(text, at);
      at += c.size;
      if (utf8::is_space(c.code)) begin = at;
    }
    in.budget().step(text.size() / 8);
    pieces.add(text.substr(begin));
    text = utf8::strip_right(text.substr(0, begin));
  }
  return pieces.take(true);
}

template <bool kFromRight>
Value split(Interpreter& in, const Value& self, Parameters& p) {
  const auto given = p.text("sep");
  std::int64_t left = p.integer("maxsplit", -1);
  p.done();
  if (!given) return kFromRight ? rsplit_space(in, self, left) : split_space(in, self, left);
  const std::string& separator = given->bytes;
  if (separator.empty()) fail("split: the separator is empty");
  std::string_view text = self.as_string();
  Pieces pieces(in, self);
  for (; left != 0; --left) {
    const std::size_t at = kFromRight ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) break;
    if (kFromRight) {
      pieces.add(text.substr(at + separator.size()));
      text = text.substr(0, at);
    } else {
      pieces.add(text.substr(0, at));
      text = text.substr(at + separator.size());
    }
  }
  pieces.add(text);
  return pieces.take(kFromRight);
}

template <bool kFromRight>
Value partition(Interpreter& in, const Value& self, Parameters& p) {
  const std::string separator = required_text(p, "sep").bytes;
  p.done();
  if (separator.empty()) fail("partition: the separator is empty");
  const std::string_view text = self.as_string();
  const std::size_t at = kFromRight ? text.rfind(separator) : text.find(separator);
  if (at == std::string_view::npos) {
    const Value empty = Value::string(Text());
    return Value::tuple(in.budget(), kFromRight ? std::vector{empty, empty, self} : std::vector{self, empty, empty});
  }
  return Value::tuple(
      in.budget(), {text_value(in, self, text.substr(0, at)), text_value(in, self, text.substr(at, separator.size())),
                    text_value(in, self, text.substr(at + separator.size()))});
}

Value splitlines(Interpreter& in, const Value& self, Parameters& p) {
  const bool keep_ends = p.flag("keepends", false);
  p.done();
  const std::string_view text = self.as_string();
  Pieces pieces(in, self);
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const utf8::Char c = utf8::decode(text, at);
    std::size_t end = at + c.size;
    if (!utf8::is_line_break(c.code)) {
      at = end;
      continue;
    }
    if (c.code == '\r' && end < text.size() && text[end] == '\n') ++end;
    pieces.add(text.substr(begin, (keep_ends ? end : at) - begin));
    begin = at = end;
  }
  if (begin < text.size()) pieces.add(text.substr(begin));
  return pieces.take();
}

Value join(Interpreter& in, const Value& self, Parameters& p) {
  const Value iterable = p.required("iterable");
  p.done();
  StringBuilder out(in.budget());
  const auto it = iterate(in.budget(), iterable);
  bool first = true;
  for (Value item; it->next(in.budget(), item);) {
    if (!item.is_string()) fail("join: expected strings, found {}", type_name(item));
    if (!first) out.add(self.as_text());
    first = false;
    out.add(item.as_text());
  }
  return Value::string(in.budget(), out.take());
}

Value removeprefix(Interpreter& in, const Value& self, Parameters& p) {
  const std::string prefix = required_text(p, "prefix").bytes;
  p.done();
  const std::string_view text = self.as_string();
  return text_value(in, self, text.starts_with(prefix) ? text.substr(prefix.size()) : text);
}

Value removesuffix(Interpreter& in, const Value& self, Parameters& p) {
  const std::string suffix = required_text(p, "suffix").bytes;
  p.done();
  const std::string_view text = self.as_string();
  return text_value(in, self, text.ends_with(suffix) ? text.substr(0, text.size() - suffix.size()) : text);
}

enum class Side { kLeft, kRight, kCenter };
template <Side kSide>
Value justify(Interpreter& in, const Value& self, Parameters& p) {
  const std::int64_t width = p.integer("width", 0);
  const Text fill = p.text("fillchar").value_or(Text(" "));
  p.done();
  if (utf8::length(fill.bytes) != 1) fail("{}: the fill must be exactly one character", p.function());
  const std::int64_t missing = width - length(self);
  if (missing <= 0) return self;
  std::int64_t before = 0;
  if (kSide == Side::kRight) before = missing;
  if (kSide == Side::kCenter) before = missing / 2 + (missing & width & 1);
  StringBuilder out(in.budget());
  out.repeat(fill, static_cast<std::uint64_t>(before));
  out.add(self.as_text());
  out.repeat(fill, static_cast<std::uint64_t>(missing - before));
  return Value::string(in.budget(), out.take());
}

Value zfill(Interpreter& in, const Value& self, Parameters& p) {
  const std::int64_t missing = p.integer("width", 0) - length(self);
  p.done();
  if (missing <= 0) return self;
  const std::string& text = self.as_string();
  const bool sign = !text.empty() && (text[0] == '-' || text[0] == '+');
  StringBuilder out(in.budget());
  const std::size_t signs = sign ? 1 : 0;
  out.add(self.as_text(), std::string_view(text).substr(0, signs));
  out.repeat("0", static_cast<std::uint64_t>(missing));
  out.add(self.as_text(), std::string_view(text).substr(signs));
  return Value::string(in.budget(), out.take());
}

Value expandtabs(Interpreter& in, const Value& self, Parameters& p) {
  const std::int64_t size = p.integer("tabsize", 8);
  p.done();
  StringBuilder out(in.budget());
  std::int64_t column = 0;
  const std::string_view text = self.as_string();
  for (std::size_t at = 0; at < text.size();) {
    const utf8::Char c = utf8::decode(text, at);
    if (c.code == '\t') {
      const std::int64_t spaces = size > 0 ? size - column % size : 0;
      out.repeat(" ", static_cast<std::uint64_t>(spaces));
      column += spaces;
    } else {
      out.add(self.as_text(), text.substr(at, c.size));
      column = c.code == '\n' || c.code == '\r' ? 0 : column + 1;
    }
    at += c.size;
  }
  return Value::string(in.budget(), out.take());
}

Value format(Interpreter& in, const Value& self, Parameters& p) {
  return string_format(in, self.as_text(), p.rest());
}

constexpr Named<FilterFn> kMethods[] = {
    {"capitalize", change<utf8::capitalize>},
    {"casefold", change<utf8::lower>},
    {"center", justify<Side::kCenter>},
    {"expandtabs", expandtabs},
    {"format", format},
    {"join", join},
    {"ljust", justify<Side::kLeft>},
    {"lower", change<utf8::lower>},
    {"lstrip", strip<true, false>},
    {"partition", partition<false>},
    {"removeprefix", removeprefix},
    {"removesuffix", removesuffix},
    {"replace", replace},
    {"rjust", justify<Side::kRight>},
    {"rpartition", partition<true>},
    {"rsplit", split<true>},
    {"rstrip", strip<false, true>},
    {"split", split<false>},
    {"splitlines", splitlines},
    {"strip", strip<true, true>},
    {"swapcase", change<utf8::swapcase>},
    {"title", change<utf8::title>},
    {"upper", change<utf8::upper>},
    {"zfill", zfill},
};

}  // namespace

std::span<const Named<FilterFn>> string_methods() {
  return kMethods;
}

}  // namespace quire::jinja
