#include "server/tools/call_parts.h"

namespace quire::server {
namespace {

constexpr size_t kMaxGap = 64;  // bytes of white space between two tags
constexpr std::string_view kParameter = "<parameter=", kParameterEnd = "</parameter>", kOuterEnd = "</tool_call>";

// What a text that may end a value is.
struct Ending {
  enum Kind { kNone, kPerhaps, kWhole } kind = kNone;
  std::string_view marker = {};  // of kWhole: what comes next
};

// Tags that follow a tag after white space.
Ending followed_by(std::string_view rest, std::initializer_list<std::string_view> markers) {
  size_t gap = 0;
  while (gap < rest.size() && is_white(rest[gap])) ++gap;
  if (gap > kMaxGap) return {};
  rest.remove_prefix(gap);
  for (const std::string_view m : markers) {
    if (rest == m) return {Ending::kWhole, m};
    if (m.starts_with(rest)) return {Ending::kPerhaps};
  }
  return {};
}

// A value is ended by its own tag if what follows goes on as calls do, or by the call's where its own is missing. Else
// a value may hold the tags: models write about them, too.
Ending ending_of(std::string_view held) {
  if (held.starts_with('\n')) held.remove_prefix(1);
  if (kParameterEnd.starts_with(held) || kFunctionEnd.starts_with(held)) return {Ending::kPerhaps};
  if (held.starts_with(kParameterEnd))
    return followed_by(held.substr(kParameterEnd.size()), {kParameter, kFunctionEnd, kOuterEnd});
  if (held.starts_with(kFunctionEnd)) return followed_by(held.substr(kFunctionEnd.size()), {kOuterEnd});
  return {};
}

}  // namespace

Progress ParametersReader::between(char c, CallEvents& events) {
  if (held_.empty() && is_white(c)) return Progress::kMore;
  if (held_.empty() && count_ == 0 && c == '{') {
    state_ = State::kObject;
    return feed(c, events);
  }
  held_ += c;
  for (const std::string_view m : {kParameter, kFunctionEnd, kOuterEnd}) {
    if (held_ == m) return at_marker(m, events);
    if (m.starts_with(held_)) return Progress::kMore;
  }
  return Progress::kBad;
}

Progress ParametersReader::at_marker(std::string_view marker, CallEvents& events) {
  held_.clear();
  if (marker == kParameter) {
    key_.clear();
    state_ = State::kKey;
    return Progress::kMore;
  }
  closed_outer_ = marker == kOuterEnd;
  events.arguments(count_ == 0 ? "{}" : "}");
  return Progress::kDone;
}

Progress ParametersReader::key(char c) {
  if (c == '>') {
    if (key_.empty()) return Progress::kBad;
    state_ = State::kValue;
    types_ = types_of(tool_, key_);
    first_ = true;
    text_.clear();
    return Progress::kMore;
  }
  if (c == '\n' || c == '<' || key_.size() >= kMaxKey) return Progress::kBad;
  key_ += c;
  return Progress::kMore;
}

void ParametersReader::begin_value(CallEvents& events) {
  std::string lead = count_++ == 0 ? "{\"" : ", \"";
  for (const char c : key_) append_escaped(lead, c);
  events.arguments(lead + "\": ");
  const ValueTypes& t = types_;
  streams_ = t.string && !t.integer && !t.number && !t.boolean && !t.null && !t.object && !t.array;
  if (streams_) events.arguments("\"");
}

void ParametersReader::take_value(char c, CallEvents& events) {
  if (!streams_) {
    text_ += c;
    return;
  }
  std::string out;
  append_escaped(out, c);
  events.arguments(out);
}

void ParametersReader::end_value(CallEvents& events) {
  events.arguments(streams_ ? "\"" : typed_value(text_, types_));
  text_.clear();
  state_ = State::kBetween;
}

Progress ParametersReader::value(char c, CallEvents& events) {
  if (first_) {
    first_ = false;
    begin_value(events);
    if (c == '\n') return Progress::kMore;  // the one that stands before every value
  }
  held_ += c;
  for (;;) {
    const Ending e = ending_of(held_);
    if (e.kind == Ending::kPerhaps) return Progress::kMore;
    if (e.kind == Ending::kWhole) {
      end_value(events);
      return at_marker(e.marker, events);
    }
    take_value(held_.front(), events);
    held_.erase(0, 1);
    if (held_.empty()) return Progress::kMore;
  }
}

Progress ParametersReader::feed(char c, CallEvents& events) {
  switch (state_) {
    case State::kBetween:
      return between(c, events);
    case State::kKey:
      return key(c);
    case State::kValue:
      return value(c, events);
    case State::kObject: {
      std::string out;
      const Progress p = object_.feed(c, out);
      if (p == Progress::kBad) return p;
      events.arguments(out);
      if (p == Progress::kDone) return Progress::kDone;
      return Progress::kMore;
    }
  }
  return Progress::kBad;
}

bool ParametersReader::finish(CallEvents& events) {
  if (state_ == State::kValue) {
    std::string_view held = held_;
    if (held.starts_with('\n')) held.remove_prefix(1);
    if (!held.starts_with(kParameterEnd) && !held.starts_with(kFunctionEnd)) return false;
    end_value(events);
  } else if (state_ != State::kBetween) {
    return false;
  }
  events.arguments(count_ == 0 ? "{}" : "}");
  return true;
}

}  // namespace quire::server
