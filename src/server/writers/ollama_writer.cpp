#include "server/writers/ollama_writer.h"

#include <chrono>
#include <cmath>
#include <ctime>

#include "server/writers/openai_writer.h"

namespace quire::server {
namespace {

using Kind = AnswerEvent::Kind;

int64_t nanoseconds(double seconds) {
  return std::llround(std::max(seconds, 0.0) * 1e9);
}

// Arguments as a value, as this API has them.
Json call_json(const ToolCall& c) {
  ApiResult<JsonDocument> parsed = parse_json(c.arguments);
  Json arguments = parsed.ok() && (*parsed)->is_object() ? std::move(**parsed) : Json::object();
  return {{"id", c.id}, {"function", {{"name", c.name}, {"arguments", std::move(arguments)}}}};
}

class OllamaWriter : public AnswerWriter {
 public:
  OllamaWriter(OllamaAnswer kind, std::string model, const Tokenizer* tokenizer)
      : kind_(kind), model_(std::move(model)), tokenizer_(tokenizer) {}
  StreamKind stream_kind() const override { return kLineStream; }

  std::string whole(std::span<const WholeAnswer> answers, const Usage& usage) override {
    const AnswerPart& part = *answers.front().part;
    Json calls = Json::array();
    for (const ToolCall& c : whole_calls(part.events)) calls.push_back(call_json(c));
    finish_ = part.finish;
    Json all = object(whole_text(part.events), text_of(part.events, Kind::kReasoning), std::move(calls));
    add_logprobs(all, part.tokens);
    add_end(all, usage);
    return dump(all);
  }

  std::string opening(int, const PromptReport*, const UsageNow&) override { return {}; }

  // Calls are told whole, as clients expect them.
  std::string piece(const AnswerPart& part, const UsageNow&) override {
    if (!part.finish.empty()) finish_ = part.finish;
    Json calls = Json::array();
    for (const AnswerEvent& e : part.events) {
      if (e.kind == Kind::kCallBegin) call_ = {.id = e.id, .name = e.text, .arguments = {}};
      if (e.kind == Kind::kCallArguments) call_.arguments += e.text;
      if (e.kind == Kind::kCallEnd) calls.push_back(call_json(call_));
    }
    std::string text = whole_text(part.events), reasoning = text_of(part.events, Kind::kReasoning);
    if (text.empty() && reasoning.empty() && calls.empty() && part.tokens.empty()) return {};
    Json line = object(std::move(text), std::move(reasoning), std::move(calls));
    add_logprobs(line, part.tokens);
    line["done"] = false;
    return dump(line) + '\n';
  }

  std::string end(const UsageNow& usage) override {
    Json line = object("", "", Json::array());
    add_end(line, usage());
    return dump(line) + '\n';
  }

  std::string failure(const ApiError& error) override { return error.body(ErrorShape::kOllama) + '\n'; }

 private:
  Json object(std::string text, std::string reasoning, Json calls) const {
    Json all = {{"model", model_}, {"created_at", timestamp_now()}};
    if (kind_ == OllamaAnswer::kGenerate) {
      all["response"] = std::move(text);
      if (!reasoning.empty()) all["thinking"] = std::move(reasoning);
      return all;
    }
    Json& message = all["message"] = {{"role", "assistant"}, {"content", std::move(text)}};
    if (!reasoning.empty()) message["thinking"] = std::move(reasoning);
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    return all;
  }
  void add_logprobs(Json& to, const std::vector<TokenReport>& tokens) const {
    if (tokenizer_ != nullptr && !tokens.empty())
      to["logprobs"] = std::move(chat_logprobs(*tokenizer_, tokens)["content"]);
  }
  void add_end(Json& to, const Usage& u) const {
    const double first = u.first_token_seconds < 0 ? u.total_seconds : u.first_token_seconds;
    to["done"] = true;
    to["done_reason"] = finish_ == "length" ? "length" : "stop";
    to["total_duration"] = nanoseconds(u.total_seconds);
    to["load_duration"] = 0;
    to["prompt_eval_count"] = u.prompt_tokens;
    to["prompt_eval_duration"] = nanoseconds(first);
    to["eval_count"] = u.generated_tokens;
    to["eval_duration"] = nanoseconds(u.total_seconds - first);
  }

  OllamaAnswer kind_;
  std::string model_, finish_;
  const Tokenizer* tokenizer_;
  ToolCall call_;  // that is being written
};

}  // namespace

std::string timestamp_now() {
  using namespace std::chrono;
  const auto now = system_clock::now().time_since_epoch();
  const std::time_t seconds = duration_cast<std::chrono::seconds>(now).count();
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                     utc.tm_hour, utc.tm_min, utc.tm_sec, duration_cast<microseconds>(now).count() % 1'000'000);
}

Json ollama_loaded(OllamaAnswer kind, const std::string& model) {
  Json all = {{"model", model}, {"created_at", timestamp_now()}};
  if (kind == OllamaAnswer::kChat)
    all["message"] = {{"role", "assistant"}, {"content", ""}};
  else
    all["response"] = "";
  all["done_reason"] = "load";
  all["done"] = true;
  return all;
}

std::unique_ptr<AnswerWriter> ollama_writer(OllamaAnswer kind, std::string model, const Tokenizer* tokenizer) {
  return std::make_unique<OllamaWriter>(kind, std::move(model), tokenizer);
}

}  // namespace quire::server
