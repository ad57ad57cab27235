#include "cli/chat/local_partner.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "command/display.h"
#include "core/escape.h"
#include "core/output.h"

namespace quire::cli {

std::string LocalPartner::name() const {
  const std::string& name = model_->model->config().name;
  return name.empty() ? "a model without a name" : escaped(name, 80);
}

std::string LocalPartner::about() const {
  const ModelConfig& c = model_->model->config();
  return fmt::format(
      "  model                {}\n"
      "  file                 {}\n"
      "  architecture         {}, {} layers, {} of weights\n"
      "  device               {}\n"
      "  fingerprint          {}\n",
      name(), escaped(options_.model.model, 200), c.architecture, c.layers, human_bytes(model_->file.tensor_bytes()),
      name_of(kDevices, engine_->plan().device), engine_->fingerprint());
}

Result<std::string> LocalPartner::chat_template() const {
  return std::string(model_->tokenizer->chat_template());
}

Result<ChatPrompt> LocalPartner::encoded(const Conversation& conversation, const ChatSettings& settings) const {
  return encode_chat(*model_, conversation.messages(), settings.think);
}

Result<int64_t> LocalPartner::count_tokens(const Conversation& conversation, const ChatSettings& settings) const {
  QUIRE_TRY(const ChatPrompt prompt, encoded(conversation, settings));
  return std::ssize(prompt.tokens);
}

Result<std::variant<ChatAnswer, ChatTooLong>> LocalPartner::answer(const Conversation& conversation,
                                                                   const ChatSettings& settings, Console& console) {
  using Answered = std::variant<ChatAnswer, ChatTooLong>;
  QUIRE_TRY(ChatPrompt encoded_prompt, encoded(conversation, settings));
  std::vector<TokenId>& tokens = encoded_prompt.tokens;
  const int64_t prompt_tokens = std::ssize(tokens);
  if (prompt_tokens >= context()) return Answered(ChatTooLong{prompt_tokens, context()});
  const std::string prompt = model_->tokenizer->decode(tokens, true);
  QUIRE_TRY(Request request, options_.request(std::move(tokens)));
  QUIRE_TRY(request.images, pictures_.decode(encoded_prompt.pictures));
  request.sampling = settings.sampling;
  request.max_tokens = settings.max_tokens < 0 ? std::numeric_limits<int64_t>::max() : settings.max_tokens;
  console.begin_answer(server::ends_in_reasoning(prompt));
  (void)CancelKey::take();  // typed before there was anything to stop
  const Output out = generate(*engine_, std::move(request), [&](const TokenEvent& e) { console.answer(e.text()); });
  console.end_answer();
  if (out.error) return *out.error;
  QUIRE_CHECKED(flush_output());
  const auto generated = static_cast<int64_t>(out.tokens.size());
  return Answered(
      ChatAnswer{.finish = std::string(finish_reason_name(out.finish)),
                 .prompt_tokens = prompt_tokens,
                 .tokens = generated,
                 .rate = out.generation_rate(),
                 .context_full = out.finish == FinishReason::kLength && prompt_tokens + generated >= context()});
}

}  // namespace quire::cli
