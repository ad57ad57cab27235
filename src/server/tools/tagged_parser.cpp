#include <optional>

#include "server/tools/call_parser.h"
#include "server/tools/call_parts.h"

namespace quire::server {
namespace {

using Kind = AnswerEvent::Kind;
using Events = std::vector<AnswerEvent>;

constexpr std::string_view kFunctionTag = "<function=", kArgumentsTag = "[ARGS]", kCallId = "[CALL_ID]";
constexpr CallTrigger kBare = {"", "", {.object = true, .known_only = true}};

bool is_name(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-' ||
         c == '.' || c == ':';
}

class TaggedParser : public CallParser {
 public:
  TaggedParser(const ToolFormat& format, const ToolSet& tools, CallLimits limits)
      : format_(format), tools_(tools), limits_(limits) {}

  void feed(char c, Events& events) override {
    call_.attach(events);
    take(c, events);
  }
  void finish(bool ended, Events& events) override;
  bool after_call() const override { return state_ == State::kText && after_call_ && held_.empty(); }

 private:
  enum class State {
    kText,
    kContainer,  // within what begins and ends calls, but not within a call
    kFunction,   // the name after <function=
    kName,       // a name after [TOOL_CALLS]
    kNameEnd,    // between it and its arguments
    kObject,     // {"name": ...}
    kArguments,  // {...} after a name
    kParameters  // <parameter=...>
  };

  void take(char c, Events& events);
  void text(char c, Events& events);
  void emit(char c, Events& events);
  void open(const CallTrigger& trigger);
  void container(char c, Events& events);
  bool skipped(char c) const;
  void container_marker(Events& events);
  void function_name(char c, Events& events);
  void name(char c, Events& events);
  void name_end(char c, Events& events);
  void object(char c, Events& events);
  void arguments(char c, Events& events);
  void parameters(char c, Events& events);
  void end_call();
  void leave();
  void give_up(Events& events);
  void give_up_and_retake(std::string_view bytes, Events& events);

  const ToolFormat& format_;
  const ToolSet& tools_;
  CallLimits limits_;
  State state_ = State::kText;
  std::string space_;  // white space that belongs to the text only if text follows
  std::string held_;   // what may be a marker
  std::string raw_;    // of the call that is being read, and what stood before it
  std::string name_;
  bool any_text_ = false, after_call_ = false;
  CallTrigger trigger_;
  size_t calls_ = 0;   // in this container
  bool list_ = false;  // within [ ]
  CallEvents call_;
  std::optional<CallObjectReader> object_;
  std::optional<ParametersReader> parameters_;
  ObjectReader arguments_;
};

void TaggedParser::take(char c, Events& events) {
  if (state_ == State::kText) return text(c, events);
  if (raw_.size() >= limits_.max_call_bytes) return give_up_and_retake({&c, 1}, events);
  switch (state_) {
    case State::kText:
      return;
    case State::kContainer:
      return container(c, events);
    case State::kFunction:
      return function_name(c, events);
    case State::kName:
      return name(c, events);
    case State::kNameEnd:
      return name_end(c, events);
    case State::kObject:
      return object(c, events);
    case State::kArguments:
      return arguments(c, events);
    case State::kParameters:
      return parameters(c, events);
  }
}

void TaggedParser::emit(char c, Events& events) {
  if (is_white(c)) {
    space_ += c;
    return;
  }
  if (after_call_ && !any_text_) space_.clear();
  after_call_ = false;
  append(events, Kind::kText, std::exchange(space_, {}));
  append(events, Kind::kText, {&c, 1});
  any_text_ = true;
}

void TaggedParser::text(char c, Events& events) {
  if (format_.bare && !any_text_ && held_.empty() && (c == '{' || c == '[')) {
    open(kBare);
    return take(c, events);
  }
  held_ += c;
  while (!held_.empty()) {
    bool perhaps = false;
    for (const CallTrigger& t : format_.triggers) {
      if (held_ == t.text) return open(t);
      perhaps = perhaps || t.text.starts_with(held_);
    }
    if (perhaps) return;
    emit(held_.front(), events);
    held_.erase(0, 1);
  }
}

void TaggedParser::open(const CallTrigger& trigger) {
  trigger_ = trigger;
  raw_ = std::exchange(space_, {}) + std::exchange(held_, {});
  calls_ = 0;
  list_ = false;
  name_.clear();
  state_ = trigger.text == kFunctionTag ? State::kFunction : State::kContainer;
}

// What the model wrote since the last call is text, or a call that was cut.
void TaggedParser::give_up(Events& events) {
  state_ = State::kText;
  held_.clear();
  const std::string raw = std::exchange(raw_, {});
  if (call_.begun()) {
    call_.cut(raw);
    any_text_ = true;
    return;
  }
  if (calls_ > 0) after_call_ = true;
  for (const char c : raw) emit(c, events);
}

void TaggedParser::give_up_and_retake(std::string_view bytes, Events& events) {
  const std::string again(bytes);  // it may be of a member
  give_up(events);
  for (const char c : again) take(c, events);
}

void TaggedParser::end_call() {
  call_.end();
  ++calls_;
  raw_.clear();
  state_ = State::kContainer;
}

void TaggedParser::leave() {
  state_ = State::kText;
  held_.clear();
  raw_.clear();
  after_call_ = true;
}

// What may stand around calls without a meaning, among it brackets that models close once too often.
bool TaggedParser::skipped(char c) const {
  if (is_white(c)) return true;
  if (list_ && (c == ',' || c == ']')) return true;
  return calls_ > 0 && (c == ';' || (c == '}' && !trigger_.end.empty()));
}

void TaggedParser::container(char c, Events& events) {
  if (held_.empty()) {
    if (skipped(c)) {
      if (calls_ == 0) raw_ += c;
      if (calls_ > 0 && c != ';') space_ += is_white(c) ? std::string(1, c) : "";
      return;
    }
    if (c == '[' && trigger_.syntax.object && !list_ && calls_ == 0) {
      list_ = true;
      // A marker may begin so, too: [ARGS] does not, for a name stands before it.
      raw_ += c;
      return;
    }
    if (c == '{' && trigger_.syntax.object) {
      raw_ += c;
      object_.emplace(tools_, trigger_.syntax.known_only);
      object_->feed(c, call_);
      state_ = State::kObject;
      space_.clear();
      return;
    }
    if (is_name(c) && trigger_.syntax.name && calls_ == 0) {
      raw_ += c;
      name_ = c;
      state_ = State::kName;
      return;
    }
  }
  held_ += c;
  container_marker(events);
}

void TaggedParser::container_marker(Events& events) {
  const bool may_end = calls_ > 0 && !trigger_.end.empty();
  if (may_end && held_ == trigger_.end) {
    space_.clear();
    return leave();
  }
  if (trigger_.syntax.function && held_ == kFunctionTag) {
    raw_ += std::exchange(held_, {});
    name_.clear();
    state_ = State::kFunction;
    return;
  }
  if (calls_ > 0 && trigger_.syntax.function && held_ == kFunctionEnd) return held_.clear();
  if (may_end && trigger_.end.starts_with(held_)) return;
  if (trigger_.syntax.function && kFunctionTag.starts_with(held_)) return;
  if (calls_ > 0 && trigger_.syntax.function && kFunctionEnd.starts_with(held_)) return;
  give_up_and_retake(held_, events);
}

void TaggedParser::function_name(char c, Events& events) {
  if (c != '>') {
    if (c == '<' || c == '\n' || name_.size() >= kMaxName) return give_up_and_retake({&c, 1}, events);
    raw_ += c;
    name_ += c;
    return;
  }
  const Tool* tool = tools_.find(name_);
  if (name_.empty() || (trigger_.syntax.known_only && tool == nullptr)) return give_up_and_retake({&c, 1}, events);
  raw_ += c;
  space_.clear();
  call_.begin(name_);
  parameters_.emplace(tool);
  state_ = State::kParameters;
}

void TaggedParser::parameters(char c, Events& events) {
  const Progress p = parameters_->feed(c, call_);
  if (p == Progress::kBad) return give_up_and_retake({&c, 1}, events);
  raw_ += c;
  if (p == Progress::kMore) return;
  end_call();
  if (parameters_->closed_outer()) leave();
}

void TaggedParser::name(char c, Events& events) {
  if (is_name(c) && name_.size() < kMaxName) {
    raw_ += c;
    name_ += c;
    return;
  }
  state_ = State::kNameEnd;
  name_end(c, events);
}

// [CALL_ID]..., [ARGS], or the arguments.
void TaggedParser::name_end(char c, Events& events) {
  if (held_.empty() && is_white(c)) {
    raw_ += c;
    return;
  }
  if (held_.empty() && c == '{') {
    call_.begin(name_);
    space_.clear();
    arguments_ = {};
    state_ = State::kArguments;
    return arguments(c, events);
  }
  held_ += c;
  if (held_ == kArgumentsTag) {
    raw_ += std::exchange(held_, {});
    return;
  }
  if (kArgumentsTag.starts_with(held_) || kCallId.starts_with(held_)) return;
  const bool id = held_.starts_with(kCallId) && held_.size() < kCallId.size() + kMaxName;
  if (id && is_name(c)) return;
  if (id && (c == '[' || c == '{')) {
    held_.pop_back();
    raw_ += std::exchange(held_, {});
    return name_end(c, events);
  }
  give_up_and_retake(held_, events);
}

void TaggedParser::object(char c, Events& events) {
  const Progress p = object_->feed(c, call_);
  if (p == Progress::kBad) {
    if (!object_->complete() || !call_.begun()) return give_up_and_retake({&c, 1}, events);
    end_call();
    return take(c, events);
  }
  raw_ += c;
  if (p == Progress::kDone) end_call();
}

void TaggedParser::arguments(char c, Events& events) {
  std::string out;
  const Progress p = arguments_.feed(c, out);
  if (p == Progress::kBad) return give_up_and_retake({&c, 1}, events);
  raw_ += c;
  call_.arguments(out);
  if (p == Progress::kDone) end_call();
}

void TaggedParser::finish(bool ended, Events& events) {
  call_.attach(events);
  const bool whole = ended && ((state_ == State::kParameters && parameters_->finish(call_)) ||
                               (state_ == State::kObject && object_->complete() && call_.begun()));
  if (whole) end_call();
  if (state_ == State::kContainer && calls_ > 0) return;
  if (state_ != State::kText) {
    raw_ += held_;
    give_up(events);
  } else {
    for (const char c : std::exchange(held_, {})) emit(c, events);
  }
  if (!after_call_) append(events, Kind::kText, std::exchange(space_, {}));
}

}  // namespace

std::unique_ptr<CallParser> tagged_call_parser(const ToolFormat& format, const ToolSet& tools, CallLimits limits) {
  return std::make_unique<TaggedParser>(format, tools, limits);
}

std::unique_ptr<CallParser> make_call_parser(const ToolFormat& format, const ToolSet& tools, CallLimits limits) {
  return format.harmony ? harmony_parser(tools, limits) : tagged_call_parser(format, tools, limits);
}

}  // namespace quire::server
