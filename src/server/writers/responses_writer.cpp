#include "server/writers/responses_writer.h"

#include <ctime>
#include <deque>

#include "server/random_id.h"
#include "server/writers/openai_writer.h"

namespace quire::server {
namespace {

using Kind = AnswerEvent::Kind;

// The text that a custom tool's only argument has.
std::string free_input_of(const std::string& arguments) {
  const ApiResult<JsonDocument> parsed = parse_json(arguments);
  if (!parsed.ok() || !(*parsed)->is_object()) return arguments;
  const auto at = (*parsed)->find("input");
  return at != (*parsed)->end() && at->is_string() ? at->get<std::string>() : arguments;
}

Json usage_json(const Usage& u) {
  return {{"input_tokens", u.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", u.cached_tokens}}},
          {"output_tokens", u.generated_tokens},
          {"output_tokens_details", {{"reasoning_tokens", u.reasoning_tokens.value_or(0)}}},
          {"total_tokens", u.prompt_tokens + u.generated_tokens}};
}

class ResponsesWriter : public AnswerWriter {
 public:
  explicit ResponsesWriter(ResponsesEnvelope envelope) : envelope_(std::move(envelope)), created_(std::time(nullptr)) {}

  std::string whole(std::span<const WholeAnswer> answers, const Usage& usage) override {
    const AnswerPart& part = *answers.front().part;
    hold(part.tokens);
    for (const AnswerEvent& e : part.events) take(e);
    end_item();
    return dump(ended(part.finish == "length", usage));
  }

  // A prompt may be long in computing: clients know at once that it is, and are told so again.
  std::string beginning() override {
    const Json begun = response("in_progress", nullptr);
    std::string out = event("response.created", {{"response", begun}});
    return out += event("response.in_progress", {{"response", begun}});
  }
  std::string still_working() override {
    if (open_ != Item::kNone || !output_.empty()) return {};
    return event("response.in_progress", {{"response", response("in_progress", nullptr)}});
  }
  std::string opening(int, const PromptReport*, const UsageNow&) override { return {}; }

  std::string piece(const AnswerPart& part, const UsageNow&) override {
    hold(part.tokens);
    std::string out;
    for (const AnswerEvent& e : part.events) out += take(e);
    if (part.finish.empty()) return out;
    finish_ = part.finish;
    return out + end_item();
  }

  std::string end(const UsageNow& usage) override {
    const bool cut = finish_ == "length";
    return event(cut ? "response.incomplete" : "response.completed", {{"response", ended(cut, usage())}});
  }

  std::string failure(const ApiError& error) override {
    Json failed = response("failed", nullptr);
    failed["error"] = {{"code", error.code.empty() ? "server_error" : error.code}, {"message", error.message}};
    return event("response.failed", {{"response", std::move(failed)}});
  }

 private:
  enum class Item { kNone, kMessage, kReasoning, kCall };

  Json ended(bool cut, const Usage& usage) const {
    Json r = response(cut ? "incomplete" : "completed", usage_json(usage));
    if (envelope_.keep) envelope_.keep(r);
    return r;
  }

  Json response(std::string_view status, Json usage) const {
    Json r = {{"id", envelope_.id},
              {"object", "response"},
              {"created_at", created_},
              {"completed_at", status == "completed" ? Json(std::time(nullptr)) : Json()},
              {"status", std::string(status)},
              {"background", false},
              {"error", nullptr},
              {"incomplete_details", status == "incomplete" ? Json{{"reason", "max_output_tokens"}} : Json()},
              {"model", envelope_.model},
              {"output", output_},
              {"previous_response_id", nullptr},
              {"service_tier", "default"},
              {"store", false},
              {"top_logprobs", 0},
              {"truncation", "disabled"},
              {"usage", std::move(usage)}};
    for (const auto& [key, value] : envelope_.echo.items()) r[key] = value;
    return r;
  }

  std::string event(std::string_view type, Json members) {
    Json all = {{"type", std::string(type)}, {"sequence_number", sequence_++}};
    for (auto& [key, value] : members.items()) all[key] = std::move(value);
    return fmt::format("event: {}\ndata: {}\n\n", type, dump(all));
  }
  // About the item that is open, or its only part.
  std::string item_event(std::string_view type, Json members) {
    Json all = {{"item_id", item_id_}, {"output_index", output_.size()}};
    for (auto& [key, value] : members.items()) all[key] = std::move(value);
    return event(type, std::move(all));
  }
  std::string part_event(std::string_view type, Json members) {
    Json all = {{"content_index", 0}};
    for (auto& [key, value] : members.items()) all[key] = std::move(value);
    return item_event(type, std::move(all));
  }

  static Json text_part(const std::string& text, Json logprobs = Json::array()) {
    return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", std::move(logprobs)}};
  }

  // Tokens of text, until the text that they became is told.
  void hold(const std::vector<TokenReport>& tokens) {
    if (envelope_.tokenizer == nullptr) return;
    for (const TokenReport& t : tokens)
      if (t.of_text) held_.push_back(t);
  }
  // Of as many tokens as make up the text. White space before a message is none of it.
  Json logprobs_of(const std::string& text) {
    std::vector<TokenReport> taken;
    size_t covered = 0;
    while (!held_.empty() && covered < text.size()) {
      const std::string_view bytes = envelope_.tokenizer->token_bytes(held_.front().token, true);
      const bool white = bytes.find_first_not_of(" \t\r\n") == std::string_view::npos;
      if (!(white && covered == 0 && text_.empty() && !text.starts_with(bytes))) {
        covered += bytes.size();
        taken.push_back(std::move(held_.front()));
      }
      held_.pop_front();
    }
    return taken.empty() ? Json::array() : std::move(chat_logprobs(*envelope_.tokenizer, taken)["content"]);
  }
  Json message_item(std::string_view status, Json content) const {
    return {{"id", item_id_},
            {"type", "message"},
            {"status", std::string(status)},
            {"role", "assistant"},
            {"content", std::move(content)}};
  }
  Json reasoning_item(std::string_view status, Json content) const {
    return {{"id", item_id_},
            {"type", "reasoning"},
            {"status", std::string(status)},
            {"summary", Json::array()},
            {"content", std::move(content)}};
  }
  Json call_item(std::string_view status, const std::string& arguments) const {
    return {{"id", item_id_},
            {"type", custom_ ? "custom_tool_call" : "function_call"},
            {"status", std::string(status)},
            {"call_id", call_id_},
            {"name", name_},
            {custom_ ? "input" : "arguments", custom_ && !arguments.empty() ? free_input_of(arguments) : arguments}};
  }

  std::string take(const AnswerEvent& e) {
    switch (e.kind) {
      case Kind::kText:
        return add_text(e.text);
      case Kind::kReasoning:
        return add_reasoning(e.text);
      case Kind::kCallBegin:
        return begin_call(e);
      case Kind::kCallArguments:
        text_ += e.text;
        return custom_ ? "" : item_event("response.function_call_arguments.delta", {{"delta", e.text}});
      case Kind::kCallEnd:
        return end_item();
      case Kind::kCallCut:
        return cut_call(e.text);
    }
    return {};
  }

  std::string begin_item(Item kind, const char* prefix) {
    std::string out = end_item();
    open_ = kind;
    item_id_ = prefix + random_hex();
    text_.clear();
    logprobs_ = Json::array();
    return out;
  }
  std::string added(Json item) {
    return event("response.output_item.added", {{"output_index", output_.size()}, {"item", std::move(item)}});
  }

  std::string add_text(const std::string& text) {
    std::string out;
    if (open_ != Item::kMessage) {
      out = begin_item(Item::kMessage, "msg_");
      out += added(message_item("in_progress", Json::array()));
      out += part_event("response.content_part.added", {{"part", text_part("")}});
    }
    Json logprobs = logprobs_of(text);
    for (const Json& entry : logprobs) logprobs_.push_back(entry);
    text_ += text;
    return out + part_event("response.output_text.delta", {{"delta", text}, {"logprobs", std::move(logprobs)}});
  }

  std::string add_reasoning(const std::string& text) {
    std::string out;
    if (open_ != Item::kReasoning) {
      out = begin_item(Item::kReasoning, "rs_");
      out += added(reasoning_item("in_progress", Json::array()));
    }
    text_ += text;
    return out + part_event("response.reasoning_text.delta", {{"delta", text}});
  }

  std::string begin_call(const AnswerEvent& e) {
    custom_ = envelope_.custom.contains(e.text);
    std::string out = begin_item(Item::kCall, custom_ ? "ctc_" : "fc_");
    call_id_ = e.id;
    name_ = e.text;
    return out + added(call_item("in_progress", ""));
  }

  std::string end_arguments() {
    if (!custom_) return item_event("response.function_call_arguments.done", {{"name", name_}, {"arguments", text_}});
    std::string out = item_event("response.custom_tool_call_input.delta", {{"delta", free_input_of(text_)}});
    return out += item_event("response.custom_tool_call_input.done", {{"input", free_input_of(text_)}});
  }

  std::string end_item() {
    std::string out;
    Json item;
    switch (std::exchange(open_, Item::kNone)) {
      case Item::kNone:
        return {};
      case Item::kMessage:
        item = message_item("completed", Json::array({text_part(text_, logprobs_)}));
        out = part_event("response.output_text.done", {{"text", text_}, {"logprobs", logprobs_}});
        out += part_event("response.content_part.done", {{"part", text_part(text_, logprobs_)}});
        break;
      case Item::kReasoning:
        item = reasoning_item("completed", Json::array({{{"type", "reasoning_text"}, {"text", text_}}}));
        out = part_event("response.reasoning_text.done", {{"text", text_}});
        break;
      case Item::kCall:
        item = call_item("completed", text_);
        out = end_arguments();
        break;
    }
    out += event("response.output_item.done", {{"output_index", output_.size()}, {"item", item}});
    output_.push_back(std::move(item));
    return out;
  }

  // A call that is never done is one that no client makes. In the response it is the text that the model wrote.
  std::string cut_call(const std::string& raw) {
    open_ = Item::kNone;
    item_id_ = "msg_" + random_hex();
    output_.push_back(message_item("incomplete", Json::array({text_part(raw)})));
    return {};
  }

  ResponsesEnvelope envelope_;
  int64_t created_;
  int64_t sequence_ = 0;
  Json output_ = Json::array();  // items that are done
  Item open_ = Item::kNone;
  std::string item_id_, text_, call_id_, name_;  // of the open item
  bool custom_ = false;
  std::deque<TokenReport> held_;
  Json logprobs_ = Json::array();  // of the open message
  std::string finish_;
};

}  // namespace

std::unique_ptr<AnswerWriter> responses_writer(ResponsesEnvelope envelope) {
  return std::make_unique<ResponsesWriter>(std::move(envelope));
}

}  // namespace quire::server
