#include "server/tools/call_parser.h"
#include "server/tools/call_parts.h"

namespace quire::server {
namespace {

using Kind = AnswerEvent::Kind;
using Events = std::vector<AnswerEvent>;

constexpr size_t kMaxHeader = 512;
constexpr std::string_view kStart = "<|start|>", kChannel = "<|channel|>", kMessage = "<|message|>",
                           kConstrain = "<|constrain|>", kEnd = "<|end|>", kReturn = "<|return|>", kCall = "<|call|>";
// What is no part of a message's text wherever it stands.
constexpr std::string_view kMarkers[] = {kStart, kChannel, kMessage, kConstrain, kEnd, kReturn, kCall};

// The word after `key` in a header.
std::string word_after(std::string_view header, std::string_view key) {
  const size_t at = header.find(key);
  if (at == std::string_view::npos) return {};
  header.remove_prefix(at + key.size());
  const size_t from = header.find_first_not_of(' ');
  if (from == std::string_view::npos) return {};
  header.remove_prefix(from);
  return std::string(header.substr(0, header.find_first_of(" <\n\t")));
}

// Messages of the form
//   <|start|>assistant<|channel|>CHANNEL to=functions.NAME<|constrain|>json<|message|>TEXT<|end|>
// of which an answer has what follows <|start|>assistant. Headers that make no sense are left out: their message is
// text.
class HarmonyParser : public CallParser {
 public:
  HarmonyParser(const ToolSet& tools, CallLimits limits) : tools_(tools), limits_(limits) {}
  bool finds_reasoning() const override { return true; }
  bool in_reasoning() const override { return state_ == State::kReasoning; }

  void feed(char c, Events& events) override {
    call_.attach(events);
    held_ += c;
    while (!held_.empty()) {
      bool perhaps = false;
      for (const std::string_view m : kMarkers) {
        if (held_ == m) {
          held_.clear();
          return marker(m, events);
        }
        perhaps = perhaps || m.starts_with(held_);
      }
      if (perhaps) return;
      const char first = held_.front();
      held_.erase(0, 1);
      plain(first, events);
    }
  }

  void finish(bool ended, Events& events) override {
    call_.attach(events);
    for (const char c : std::exchange(held_, {})) plain(c, events);
    if (state_ == State::kArguments) end_arguments(ended);
    // A header that was never followed by its message: the model broke off, or wrote a text without one.
    if (state_ == State::kHeader && !header_.starts_with(kChannel) && !header_.starts_with(kStart))
      append(events, Kind::kText, header_);
    header_.clear();
  }

 private:
  enum class State { kText, kReasoning, kArguments, kHeader };

  void marker(std::string_view m, Events& events) {
    if (state_ == State::kHeader) {
      if (m == kMessage) return begin_message();
      header_ += m;
      if (header_.size() <= kMaxHeader) return;
      give_up_header(events);
      return;
    }
    if (m == kMessage || m == kConstrain) return;  // a second one
    if (state_ == State::kArguments) end_arguments(true);
    state_ = State::kHeader;
    header_ = m == kStart || m == kChannel ? m : "";
  }

  void plain(char c, Events& events) {
    switch (state_) {
      case State::kHeader:
        // Between messages nothing is said; a text that follows without a header is one all the same.
        if (header_.empty() && (c == ' ' || c == '\n')) return;
        if (header_.empty()) {
          state_ = State::kText;
          return append(events, Kind::kText, {&c, 1});
        }
        header_ += c;
        if (header_.size() > kMaxHeader) give_up_header(events);
        return;
      case State::kText:
        return append(events, Kind::kText, {&c, 1});
      case State::kReasoning:
        return append(events, Kind::kReasoning, {&c, 1});
      case State::kArguments:
        return argument(c);
    }
  }

  void begin_message() {
    const std::string channel = word_after(header_, kChannel);
    std::string to = word_after(header_, "to=");
    constexpr std::string_view kFunctions = "functions.";
    const bool function = to.starts_with(kFunctions);
    if (function) to.erase(0, kFunctions.size());
    header_.clear();
    if (!to.empty() && !tools_.empty() && (function || tools_.find(to) != nullptr)) {
      call_.begin(to);
      arguments_ = {};
      raw_.clear();
      whole_ = broken_ = false;
      state_ = State::kArguments;
    } else {
      state_ = channel == "analysis" ? State::kReasoning : State::kText;
    }
  }

  void give_up_header(Events& events) {
    append(events, Kind::kText, std::exchange(header_, {}));
    state_ = State::kText;
  }

  void argument(char c) {
    raw_ += c;
    const bool white = c == ' ' || c == '\n' || c == '\r' || c == '\t';
    if (raw_.size() > limits_.max_call_bytes) {
      call_.cut(std::exchange(raw_, {}));
      state_ = State::kText;
      return;
    }
    if (broken_ || whole_) {
      broken_ = broken_ || !white;  // something after the object
      return;
    }
    if (white && raw_.find_first_not_of(" \r\n\t") == std::string::npos) return;
    std::string out;
    const Progress p = arguments_.feed(c, out);
    if (p != Progress::kBad) call_.arguments(out);
    whole_ = p == Progress::kDone;
    broken_ = p == Progress::kBad;
  }

  // `ended`: the message is over, and not merely what was generated.
  void end_arguments(bool ended) {
    const bool none = raw_.find_first_not_of(" \r\n\t") == std::string::npos;
    if (ended && none) call_.arguments("{}");
    if (!broken_ && (whole_ || (ended && none)))
      call_.end();
    else
      call_.cut(raw_);
    raw_.clear();
    state_ = State::kHeader;
    header_.clear();
  }

  const ToolSet& tools_;
  CallLimits limits_;
  State state_ = State::kHeader;
  std::string held_, header_, raw_;
  CallEvents call_;
  ObjectReader arguments_;
  bool whole_ = false, broken_ = false;  // the arguments
};

}  // namespace

std::unique_ptr<CallParser> harmony_parser(const ToolSet& tools, CallLimits limits) {
  return std::make_unique<HarmonyParser>(tools, limits);
}

}  // namespace quire::server
