#include "server/answer_parser.h"

#include "server/random_id.h"

namespace quire::server {
namespace {

using Kind = AnswerEvent::Kind;

std::string call_id(const AnswerSyntax& syntax) {
  return syntax.format->short_ids ? random_hex().substr(0, 9) : syntax.call_prefix + random_hex();
}

}  // namespace

AnswerParser::AnswerParser(AnswerSyntax syntax)
    : syntax_(std::move(syntax)), splitter_(syntax_.inside_reasoning), splits_(syntax_.split_reasoning) {
  if (syntax_.format == nullptr) return;
  calls_ = make_call_parser(*syntax_.format, *syntax_.tools, syntax_.limits);
  splits_ = splits_ && !calls_->finds_reasoning();
}

void AnswerParser::push(std::string_view text, std::vector<AnswerEvent>& events) {
  if (calls_ == nullptr) return split(text, events);
  std::vector<AnswerEvent> found;
  // Byte by byte: after a call reasoning may begin anew, wherever the text is cut.
  for (const char c : text) {
    split({&c, 1}, found);
    if (splits_ && calls_->after_call() && splitter_.in_content()) splitter_ = ReasoningSplitter();
  }
  number(found, events);
}

bool AnswerParser::in_reasoning() const {
  if (splits_) return splitter_.in_reasoning();
  return calls_ != nullptr && calls_->in_reasoning();
}

void AnswerParser::split(std::string_view text, std::vector<AnswerEvent>& events) {
  if (!splits_) return content(text, events);
  const ReasoningSplitter::Output out = splitter_.push(text);
  append(events, Kind::kReasoning, out.reasoning);
  content(out.content, events);
}

void AnswerParser::content(std::string_view text, std::vector<AnswerEvent>& events) {
  if (calls_ == nullptr) return append(events, Kind::kText, text);
  for (const char c : text) calls_->feed(c, events);
}

void AnswerParser::finish(bool ended, std::vector<AnswerEvent>& events) {
  std::vector<AnswerEvent> found;
  if (splits_) {
    const ReasoningSplitter::Output out = splitter_.flush();
    append(found, Kind::kReasoning, out.reasoning);
    content(out.content, found);
  }
  if (calls_ != nullptr) calls_->finish(ended, found);
  number(found, events);
}

// Counts the calls, and gives each its id.
void AnswerParser::number(std::vector<AnswerEvent>& from, std::vector<AnswerEvent>& to) {
  for (AnswerEvent& e : from) {
    const bool of_call = e.kind != Kind::kText && e.kind != Kind::kReasoning;
    if (e.kind == Kind::kReasoning && !syntax_.split_reasoning) e.kind = Kind::kText;
    if (e.kind == Kind::kCallBegin) ++begun_;
    if (of_call && begun_ > 1 && !syntax_.parallel) continue;
    if (e.kind == Kind::kCallBegin) e.id = call_id(syntax_);
    if (e.kind == Kind::kCallEnd) ++complete_;
    if (e.kind == Kind::kCallCut) ++cut_;
    if (of_call && e.kind != Kind::kCallArguments)
      to.push_back(std::move(e));
    else
      append(to, e.kind, e.text);
  }
}

}  // namespace quire::server
