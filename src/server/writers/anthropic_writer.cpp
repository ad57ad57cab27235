#include "server/writers/anthropic_writer.h"

#include "server/random_id.h"

namespace quire::server {
namespace {

using Kind = AnswerEvent::Kind;

// Thinking carries a signature that clients send back. Nobody checks it here.
constexpr std::string_view kSignature = "unsigned";

// Arguments as a value: what a model wrote is an object, or there is none.
Json input_of(const std::string& arguments) {
  ApiResult<JsonDocument> parsed = parse_json(arguments);
  return parsed.ok() && (*parsed)->is_object() ? std::move(**parsed) : Json::object();
}

// As this API counts: what was found in the cache is not among the input tokens.
Json usage_json(const Usage& u, int64_t output_tokens) {
  return {{"input_tokens", u.prompt_tokens - u.cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", u.cached_tokens},
          {"output_tokens", output_tokens}};
}

std::string event(std::string_view type, Json data) {
  Json all = {{"type", std::string(type)}};
  for (auto& [key, value] : data.items()) all[key] = std::move(value);
  return fmt::format("event: {}\ndata: {}\n\n", type, dump(all));
}

class AnthropicWriter : public AnswerWriter {
 public:
  explicit AnthropicWriter(AnthropicEnvelope envelope) : envelope_(std::move(envelope)), id_("msg_" + random_hex()) {}

  StreamKind stream_kind() const override {
    return {kEventStream.content_type, "event: ping\ndata: {\"type\":\"ping\"}\n\n"};
  }

  std::string whole(std::span<const WholeAnswer> answers, const Usage& usage) override {
    const AnswerPart& part = *answers.front().part;
    Json message = message_json(blocks_of(part.events), usage, usage.generated_tokens);
    message["stop_reason"] = stop_reason(part);
    message["stop_sequence"] = stop_sequence(part);
    return dump(message);
  }

  std::string opening(int, const PromptReport*, const UsageNow& usage) override {
    return event("message_start", {{"message", message_json(Json::array(), usage(), 0)}}) +
           event("ping", Json::object());
  }

  std::string piece(const AnswerPart& part, const UsageNow&) override {
    std::string out;
    for (const AnswerEvent& e : part.events) out += delta(e);
    if (part.finish.empty()) return out;
    stop_reason_ = stop_reason(part);
    stop_sequence_ = stop_sequence(part);
    return out + close();
  }

  std::string end(const UsageNow& usage) override {
    const Usage u = usage();
    return event("message_delta", {{"delta", {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}}},
                                   {"usage", usage_json(u, u.generated_tokens)}}) +
           event("message_stop", Json::object());
  }

  std::string failure(const ApiError& error) override {
    return fmt::format("event: error\ndata: {}\n\n", error.body(ErrorShape::kAnthropic));
  }

 private:
  enum class Block { kNone, kText, kThinking, kCall };

  Json message_json(Json content, const Usage& usage, int64_t output_tokens) const {
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", envelope_.model},
            {"content", std::move(content)},
            {"stop_reason", nullptr},
            {"stop_sequence", nullptr},
            {"usage", usage_json(usage, output_tokens)}};
  }

  static Json stop_reason(const AnswerPart& part) {
    if (part.finish == "length") return "max_tokens";
    if (part.finish == "tool_calls") return "tool_use";
    return part.stop.is_string() ? "stop_sequence" : "end_turn";
  }
  static Json stop_sequence(const AnswerPart& part) {
    return part.finish == "stop" && part.stop.is_string() ? part.stop : Json();
  }

  // The content of a whole answer, in the order in which it was written.
  static Json blocks_of(const std::vector<AnswerEvent>& events) {
    Json blocks = Json::array();
    const std::vector<ToolCall> calls = whole_calls(events);
    size_t next = 0;
    for (const AnswerEvent& e : events) {
      if (e.kind == Kind::kReasoning)
        blocks.push_back({{"type", "thinking"}, {"thinking", e.text}, {"signature", std::string(kSignature)}});
      if (e.kind == Kind::kText || e.kind == Kind::kCallCut) add_text(blocks, e.text);
      if (e.kind != Kind::kCallEnd) continue;
      const ToolCall& c = calls.at(next++);
      blocks.push_back({{"type", "tool_use"}, {"id", c.id}, {"name", c.name}, {"input", input_of(c.arguments)}});
    }
    return blocks;
  }
  static void add_text(Json& blocks, const std::string& text) {
    if (!blocks.empty() && blocks.back()["type"] == "text")
      blocks.back()["text"].get_ref<std::string&>() += text;
    else
      blocks.push_back({{"type", "text"}, {"text", text}});
  }

  std::string start(Block kind, Json block) {
    std::string out = open_ == kind && kind != Block::kCall ? "" : close();
    if (open_ == kind) return out;
    open_ = kind;
    return out + event("content_block_start", {{"index", index_}, {"content_block", std::move(block)}});
  }
  std::string change(std::string_view type, std::string_view member, const std::string& text) const {
    return event("content_block_delta",
                 {{"index", index_}, {"delta", {{"type", std::string(type)}, {std::string(member), text}}}});
  }
  std::string close() {
    if (open_ == Block::kNone) return {};
    std::string out;
    if (open_ == Block::kThinking) out += change("signature_delta", "signature", std::string(kSignature));
    open_ = Block::kNone;
    return out + event("content_block_stop", {{"index", index_++}});
  }

  std::string delta(const AnswerEvent& e) {
    switch (e.kind) {
      case Kind::kText: {
        const std::string begin = start(Block::kText, {{"type", "text"}, {"text", ""}});
        return begin + change("text_delta", "text", e.text);
      }
      case Kind::kReasoning: {
        const std::string begin = start(Block::kThinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
        return begin + change("thinking_delta", "thinking", e.text);
      }
      case Kind::kCallBegin:
        return start(Block::kCall, {{"type", "tool_use"}, {"id", e.id}, {"name", e.text}, {"input", Json::object()}});
      case Kind::kCallArguments:
        return change("input_json_delta", "partial_json", e.text);
      case Kind::kCallEnd:
      case Kind::kCallCut:
        return close();
    }
    return {};
  }

  AnthropicEnvelope envelope_;
  std::string id_;
  Block open_ = Block::kNone;
  int index_ = 0;  // of the block that is open, or comes next
  Json stop_reason_, stop_sequence_;
};

}  // namespace

std::unique_ptr<AnswerWriter> anthropic_writer(AnthropicEnvelope envelope) {
  return std::make_unique<AnthropicWriter>(std::move(envelope));
}

}  // namespace quire::server
