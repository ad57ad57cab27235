#include <algorithm>

#include "server/tools/call_parts.h"

namespace quire::server {
namespace {

bool is_literal(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == 'E' || c == '+' || c == '-' || c == '.';
}

// The text between two quotes.
std::string unquoted(const std::string& text) {
  const ApiResult<JsonDocument> value = parse_json('"' + text + '"', {.max_bytes = SIZE_MAX});
  return value.ok() && (*value)->is_string() ? (*value)->get<std::string>() : text;
}

// Whether it is JSON as it is read later.
bool is_json(std::string_view text) {
  const std::optional<std::string> mended = without_half_pairs(text);
  return Json::accept(mended ? std::string_view(*mended) : text);
}

bool is_object_text(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  // A NUL would end the text for the parser.
  if (begin == std::string_view::npos || text.find('\0') != std::string_view::npos) return false;
  return text[begin] == '{' && is_json(text);
}

}  // namespace

void CallEvents::begin(std::string_view name) {
  events_->push_back({.kind = AnswerEvent::Kind::kCallBegin, .text = std::string(name)});
  begun_ = true;
}
void CallEvents::end() {
  events_->push_back({.kind = AnswerEvent::Kind::kCallEnd, .text = {}});
  begun_ = false;
}
void CallEvents::cut(std::string raw) {
  events_->push_back({.kind = AnswerEvent::Kind::kCallCut, .text = std::move(raw)});
  begun_ = false;
}

bool ObjectReader::feed_string(char c, std::string& out) {
  const size_t from = all_.size();
  if (escape_) {
    escape_ = false;
    if (std::string_view("\"\\/bfnrtu").find(c) == std::string_view::npos) {
      all_ += "\\\\";
      append_escaped(all_, c);
    } else {
      all_ += '\\';
      all_ += c;
    }
  } else if (c == '\\') {
    escape_ = true;
  } else if (c == '"') {
    string_ = false;
    all_ += c;
  } else {
    append_escaped(all_, c);
  }
  out.append(all_, from);
  return true;
}

bool ObjectReader::close(char c) {
  if (open_.empty() || open_.back() != (c == '}' ? '{' : '[')) return false;
  open_.pop_back();
  return true;
}

Progress ObjectReader::feed(char c, std::string& out) {
  if (string_) {
    feed_string(c, out);
    return Progress::kMore;
  }
  if (open_.empty() && c != '{') return Progress::kBad;
  if (c == '"')
    string_ = true;
  else if (c == '{' || c == '[')
    open_ += c;
  else if (c == '}' || c == ']') {
    if (!close(c)) return Progress::kBad;
    if (open_.empty() && !is_json(all_ + c)) return Progress::kBad;
  } else if (!is_white(c) && !is_literal(c) && c != ',' && c != ':') {
    return Progress::kBad;
  }
  all_ += c;
  out += c;
  return open_.empty() ? Progress::kDone : Progress::kMore;
}

// A string's bytes up to its quote; true at its end.
bool CallObjectReader::read_text(char c) {
  if (!escape_ && c == '"') return true;
  if (!escape_ && c != '\\' && static_cast<unsigned char>(c) < 0x20)
    append_escaped(text_, c);
  else
    text_ += c;
  escape_ = !escape_ && c == '\\';
  return false;
}

bool CallObjectReader::begin(CallEvents& events) {
  if (name_.empty() || name_.size() > kMaxName) return false;
  if (known_only_ && tools_->find(name_) == nullptr) return false;
  if (!events.begun()) events.begin(name_);
  return true;
}

// The arguments, or a part of them: kept until the name is known.
bool CallObjectReader::tell(CallEvents& events, std::string_view arguments) {
  if (name_.empty()) {
    early_ += arguments;
    return true;
  }
  if (!begin(events)) return false;
  events.arguments(arguments);
  return true;
}

Progress CallObjectReader::begin_value(char c, CallEvents& events) {
  text_.clear();
  if (key_ == "function" && c == '{' && depth_ == 0) {
    ++depth_;
    state_ = State::kKey;
    return Progress::kMore;
  }
  if ((key_ == "name" || key_ == "function") && c == '"' && name_.empty()) {
    state_ = State::kName;
    return Progress::kMore;
  }
  if ((key_ == "arguments" || key_ == "parameters") && !has_arguments_) {
    if (c == '"') {
      state_ = State::kText;
      return Progress::kMore;
    }
    if (c == '{') {
      state_ = State::kArguments;
      return feed(c, events);
    }
    if (c != 'n') return Progress::kBad;  // null: none
  }
  if (c != '"' && c != '{' && c != '[' && !is_literal(c)) return Progress::kBad;
  state_ = State::kSkipped;
  skipping_text_ = false;
  skipped_open_.clear();
  return skip(c);
}

// A value that nobody needs: only where it ends matters.
Progress CallObjectReader::skip(char c) {
  if (skipping_text_) {
    if (!read_text(c)) return Progress::kMore;
    text_.clear();
    skipping_text_ = false;
    if (skipped_open_.empty()) state_ = State::kAfter;
    return Progress::kMore;
  }
  if (c == '"') {
    skipping_text_ = true;
  } else if (c == '{' || c == '[') {
    skipped_open_ += c;
  } else if (c == '}' || c == ']') {
    if (skipped_open_.empty() || skipped_open_.back() != (c == '}' ? '{' : '[')) return Progress::kBad;
    skipped_open_.pop_back();
    if (skipped_open_.empty()) state_ = State::kAfter;
  }
  return Progress::kMore;
}

Progress CallObjectReader::end_text(CallEvents& events) {
  if (state_ == State::kKeyText) {
    key_ = unquoted(text_);
    const bool usual = key_ == "name" || key_ == "arguments" || key_ == "parameters" || key_ == "function" ||
                       key_ == "type" || key_ == "id";
    if (known_only_ && !usual) return Progress::kBad;
    state_ = State::kColon;
    return Progress::kMore;
  }
  const bool name = state_ == State::kName;
  state_ = State::kAfter;
  if (!name) {
    const std::string arguments = unquoted(text_);
    if (!arguments.empty() && !is_object_text(arguments)) return Progress::kBad;
    has_arguments_ = true;
    return tell(events, arguments.empty() ? "{}" : arguments) ? Progress::kMore : Progress::kBad;
  }
  name_ = unquoted(text_);
  if (!early_.empty()) {
    if (!begin(events)) return Progress::kBad;
    events.arguments(std::exchange(early_, {}));
  }
  return !name_.empty() && (!known_only_ || tools_->find(name_) != nullptr) ? Progress::kMore : Progress::kBad;
}

Progress CallObjectReader::close(CallEvents& events) {
  if (depth_ > 0) {
    --depth_;
    state_ = State::kAfter;
    return Progress::kMore;
  }
  if (!begin(events)) return Progress::kBad;
  if (!std::exchange(has_arguments_, true)) events.arguments("{}");
  return Progress::kDone;
}

// What stands between keys and values.
Progress CallObjectReader::feed_structure(char c, CallEvents& events) {
  if (is_white(c)) return Progress::kMore;
  if (state_ == State::kOpen || state_ == State::kColon) {
    if (c != (state_ == State::kOpen ? '{' : ':')) return Progress::kBad;
    state_ = state_ == State::kOpen ? State::kKey : State::kValue;
    return Progress::kMore;
  }
  if (state_ == State::kValue) return begin_value(c, events);
  if (c == '}') return close(events);
  if (state_ == State::kAfter) {
    if (c != ',') return Progress::kBad;
    state_ = State::kKey;
    return Progress::kMore;
  }
  if (c != '"') return Progress::kBad;
  text_.clear();
  state_ = State::kKeyText;
  return Progress::kMore;
}

Progress CallObjectReader::feed(char c, CallEvents& events) {
  switch (state_) {
    case State::kKeyText:
      if (text_.size() > kMaxKey) return Progress::kBad;
      [[fallthrough]];
    case State::kName:
    case State::kText:
      return read_text(c) ? end_text(events) : Progress::kMore;
    case State::kSkipped:
      // A literal ends with what follows it.
      if (!skipping_text_ && skipped_open_.empty() && !is_literal(c)) {
        state_ = State::kAfter;
        return feed_structure(c, events);
      }
      return skip(c);
    case State::kArguments: {
      std::string out;
      const Progress p = object_.feed(c, out);
      if (p == Progress::kBad || !tell(events, out)) return Progress::kBad;
      if (p == Progress::kDone) {
        has_arguments_ = true;
        state_ = State::kAfter;
      }
      return Progress::kMore;
    }
    default:
      return feed_structure(c, events);
  }
}

}  // namespace quire::server
