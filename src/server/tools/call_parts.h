// Readers of the parts that calls are made of. Each is fed byte by byte, so that nothing depends on how a text was cut
// into pieces, and tells what it knows as soon as no later byte can change it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/answer_events.h"
#include "server/tools/tool_set.h"

namespace quire::server {

constexpr size_t kMaxName = 256, kMaxKey = 256;  // bytes that the name of a function, or of a parameter, may have
constexpr std::string_view kFunctionEnd = "</function>";

// White space of JSON.
constexpr bool is_white(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

enum class Progress {
  kMore,
  kDone,  // with this byte
  kBad,   // it cannot go on with this byte, which was not taken
};

// Events of the call that is being read.
class CallEvents {
 public:
  void attach(std::vector<AnswerEvent>& events) { events_ = &events; }
  void begin(std::string_view name);
  void arguments(std::string_view text) { append(*events_, AnswerEvent::Kind::kCallArguments, text); }
  void end();
  void cut(std::string raw);
  bool begun() const { return begun_; }

 private:
  std::vector<AnswerEvent>* events_ = nullptr;
  bool begun_ = false;
};

// A JSON object, passed on as it comes. Line breaks and the like within strings, and backslashes that escape nothing,
// become what JSON has for them: models write both. At its end the whole is checked.
class ObjectReader {
 public:
  Progress feed(char c, std::string& out);

 private:
  bool feed_string(char c, std::string& out);
  bool close(char c);

  std::string all_, open_;  // what was passed on; the brackets that are open
  bool string_ = false, escape_ = false;
};

// {"name": NAME, "arguments": {...}}; also "parameters", either order, arguments as a string that holds an object,
// none at all, further members, and the whole within "function".
class CallObjectReader {
 public:
  // `tools` must outlive this. `known_only`: a name that is not among them is bad, and so are first members that no
  // call has.
  CallObjectReader(const ToolSet& tools, bool known_only) : tools_(&tools), known_only_(known_only) {}
  Progress feed(char c, CallEvents& events);
  // The name is known and the arguments are whole: what is missing is at most a bracket.
  bool complete() const { return has_arguments_ && !name_.empty(); }

 private:
  enum class State { kOpen, kKey, kKeyText, kColon, kValue, kName, kArguments, kText, kSkipped, kAfter };
  Progress feed_structure(char c, CallEvents& events);
  Progress begin_value(char c, CallEvents& events);
  Progress end_text(CallEvents& events);
  Progress close(CallEvents& events);
  bool begin(CallEvents& events);
  bool tell(CallEvents& events, std::string_view arguments);
  bool read_text(char c);
  Progress skip(char c);

  const ToolSet* tools_;
  bool known_only_;
  State state_ = State::kOpen;
  std::string key_, name_, text_;  // text_: of a string that is being read, escapes and all
  std::string early_;              // arguments that came before the name
  std::string skipped_open_;       // brackets within a value that nobody needs
  ObjectReader object_;
  int depth_ = 0;  // 1: within "function"
  bool escape_ = false, has_arguments_ = false, skipping_text_ = false;
};

// What follows <function=NAME>: <parameter=KEY>VALUE</parameter>..., </function>. Becomes a JSON object whose values
// have the types that the tool's schema says.
class ParametersReader {
 public:
  // `tool` may be null and must otherwise outlive this.
  explicit ParametersReader(const Tool* tool) : tool_(tool) {}
  Progress feed(char c, CallEvents& events);
  // The end of the text: whether the call is whole. Only its own end may be missing.
  bool finish(CallEvents& events);
  // </tool_call> ended it, which belongs to what stands around it.
  bool closed_outer() const { return closed_outer_; }

 private:
  enum class State { kBetween, kKey, kValue, kObject };
  Progress between(char c, CallEvents& events);
  Progress key(char c);
  Progress value(char c, CallEvents& events);
  void begin_value(CallEvents& events);
  void take_value(char c, CallEvents& events);
  void end_value(CallEvents& events);
  Progress at_marker(std::string_view marker, CallEvents& events);

  const Tool* tool_;
  State state_ = State::kBetween;
  std::string held_;  // what may be a marker, or the line break before one
  std::string key_, text_;
  ValueTypes types_;
  ObjectReader object_;
  int count_ = 0;
  bool first_ = false;    // no byte of the value has come
  bool streams_ = false;  // the value is a string whatever it says
  bool closed_outer_ = false;
};

}  // namespace quire::server
