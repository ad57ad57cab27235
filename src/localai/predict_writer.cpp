#include "localai/predict_writer.h"

#include "localai/frames.h"
#include "server/writers/openai_writer.h"

namespace quire::localai {
namespace {

using Kind = server::AnswerEvent::Kind;
using server::AnswerPart;
using server::Usage;

class PredictWriter final : public server::AnswerWriter {
 public:
  PredictWriter(const Tokenizer& tokenizer, bool logprobs, std::shared_ptr<LastAnswer> last)
      : tokenizer_(tokenizer), logprobs_(logprobs), last_(std::move(last)) {}

  std::string whole(std::span<const server::WholeAnswer> answers, const Usage& usage) override {
    const AnswerPart& part = *answers.front().part;
    backend::Reply reply;
    reply.set_message(server::whole_text(part.events));
    backend::ChatDelta& delta = *reply.add_chat_deltas();
    delta.set_content(reply.message());
    delta.set_reasoning_content(server::text_of(part.events, Kind::kReasoning));
    int index = 0;
    for (const server::ToolCall& call : server::whole_calls(part.events)) {
      backend::ToolCallDelta& made = *delta.add_tool_calls();
      made.set_index(index++);
      made.set_id(call.id);
      made.set_name(call.name);
      made.set_arguments(call.arguments);
    }
    add_logprobs(part, reply);
    add_totals(usage, reply);
    return reply.SerializeAsString();
  }

  std::string opening(int, const server::PromptReport*, const server::UsageNow&) override { return {}; }

  std::string piece(const AnswerPart& part, const server::UsageNow& usage) override {
    if (part.events.empty() && part.tokens.empty()) return {};  // end() tells how it ended
    backend::Reply reply;
    reply.set_message(server::text_of(part.events, Kind::kText));
    add_deltas(part, reply);
    add_logprobs(part, reply);
    const Usage now = usage();
    reply.set_tokens(static_cast<int32_t>(now.generated_tokens));
    reply.set_prompt_tokens(static_cast<int32_t>(now.prompt_tokens));
    return frame_of(reply);
  }

  std::string end(const server::UsageNow& usage) override {
    backend::Reply reply;
    add_totals(usage(), reply);
    return frame_of(reply);
  }

  std::string failure(const server::ApiError& error) override { return frame_of(error); }

 private:
  // A delta for what the part has, of each call one.
  void add_deltas(const AnswerPart& part, backend::Reply& reply) {
    const std::string reasoning = server::text_of(part.events, Kind::kReasoning);
    backend::ChatDelta delta;
    delta.set_content(reply.message());
    delta.set_reasoning_content(reasoning);
    for (const server::AnswerEvent& e : part.events) {
      if (e.kind == Kind::kCallBegin) {
        backend::ToolCallDelta& begun = *delta.add_tool_calls();
        begun.set_index(begun_++);
        begun.set_id(e.id);
        begun.set_name(e.text);
      } else if (e.kind == Kind::kCallArguments) {
        if (delta.tool_calls().empty()) delta.add_tool_calls()->set_index(begun_ - 1);
        backend::ToolCallDelta& last = *delta.mutable_tool_calls(delta.tool_calls_size() - 1);
        last.mutable_arguments()->append(e.text);
      }
    }
    if (!delta.content().empty() || !reasoning.empty() || !delta.tool_calls().empty())
      *reply.add_chat_deltas() = std::move(delta);
  }

  void add_logprobs(const AnswerPart& part, backend::Reply& reply) const {
    if (logprobs_ && !part.tokens.empty())
      reply.set_logprobs(server::dump(server::chat_logprobs(tokenizer_, part.tokens)));
  }

  void add_totals(const Usage& usage, backend::Reply& reply) {
    const double first = std::max(usage.first_token_seconds, 0.0), rest = std::max(usage.total_seconds - first, 0.0);
    reply.set_tokens(static_cast<int32_t>(usage.generated_tokens));
    reply.set_prompt_tokens(static_cast<int32_t>(usage.prompt_tokens));
    reply.set_timing_prompt_processing(first * 1000);
    reply.set_timing_token_generation(rest * 1000);
    last_->generated_tokens = reply.tokens();
    last_->prompt_tokens = reply.prompt_tokens();
    last_->tokens_per_second = rest > 0 ? static_cast<float>(static_cast<double>(usage.generated_tokens) / rest) : 0.0f;
  }

  const Tokenizer& tokenizer_;
  bool logprobs_;
  std::shared_ptr<LastAnswer> last_;
  int begun_ = 0;  // calls
};

}  // namespace

std::unique_ptr<server::AnswerWriter> predict_writer(const Tokenizer& tokenizer, bool logprobs,
                                                     std::shared_ptr<LastAnswer> last) {
  return std::make_unique<PredictWriter>(tokenizer, logprobs, std::move(last));
}

}  // namespace quire::localai
