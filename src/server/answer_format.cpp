#include "server/answer_format.h"

#include "tokenizer/unicode.h"

namespace quire::server {
namespace {

Json or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

// A token as text and bytes. Part of a character has bytes that no text shows.
Json token_json(const Tokenizer& t, TokenId token, float logprob) {
  const std::string_view bytes = t.token_bytes(token, true);
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return {{"token", unicode::replace_invalid(bytes)}, {"logprob", logprob}, {"bytes", std::move(list)}};
}

class ChatFormat : public AnswerFormat {
 public:
  ChatFormat(const Tokenizer& tokenizer, bool logprobs) : tokenizer_(tokenizer), logprobs_(logprobs) {}
  std::string_view id_prefix() const override { return "chatcmpl-"; }
  std::string_view object() const override { return "chat.completion"; }
  std::string_view chunk_object() const override { return "chat.completion.chunk"; }

  std::string whole(const AnswerPart& p, const PromptReport*) const override {
    Json message = {{"role", "assistant"}, {"content", p.content}};
    if (!p.reasoning.empty()) message["reasoning_content"] = p.reasoning;
    message["refusal"] = nullptr;
    return dump({{"index", p.index},
                 {"message", std::move(message)},
                 {"logprobs", logprobs(p)},
                 {"finish_reason", or_null(p.finish)}});
  }

  std::string opening(int index, const PromptReport*) const override {
    return dump({{"index", index},
                 {"delta", {{"role", "assistant"}, {"content", ""}}},
                 {"logprobs", nullptr},
                 {"finish_reason", nullptr}});
  }

  std::string piece(const AnswerPart& p) const override {
    Json delta = Json::object();
    if (!p.reasoning.empty()) delta["reasoning_content"] = p.reasoning;
    if (!p.content.empty()) delta["content"] = p.content;
    return dump({{"index", p.index},
                 {"delta", std::move(delta)},
                 {"logprobs", logprobs(p)},
                 {"finish_reason", or_null(p.finish)}});
  }

  std::string beside(const PromptReport* prompt) const override {
    if (prompt == nullptr || prompt->prompt_logprobs().empty()) return {};
    return R"(,"prompt_logprobs":)" + prompt->prompt_logprobs();
  }

 private:
  Json logprobs(const AnswerPart& p) const {
    if (!logprobs_) return nullptr;
    Json content = Json::array();
    for (const TokenReport& r : p.tokens) {
      Json entry = token_json(tokenizer_, r.token, r.logprob);
      Json& top = entry["top_logprobs"] = Json::array();
      for (const TokenLogprob& a : r.top) top.push_back(token_json(tokenizer_, a.token, a.logprob));
      content.push_back(std::move(entry));
    }
    return {{"content", std::move(content)}, {"refusal", nullptr}};
  }

  const Tokenizer& tokenizer_;
  bool logprobs_;
};

class CompletionFormat : public AnswerFormat {
 public:
  CompletionFormat(const Tokenizer& tokenizer, bool logprobs, std::vector<std::string> echoes)
      : tokenizer_(tokenizer), logprobs_(logprobs), echoes_(std::move(echoes)) {}
  std::string_view id_prefix() const override { return "cmpl-"; }
  std::string_view object() const override { return "text_completion"; }
  std::string_view chunk_object() const override { return "text_completion"; }

  std::string whole(const AnswerPart& p, const PromptReport* prompt) const override {
    const std::string_view echoed = echo(p.index);
    return entry(p, std::string(echoed) + p.content, logprobs(p, lists_of(prompt)), prompt);
  }
  std::string opening(int index, const PromptReport* prompt) const override {
    if (echo(index).empty()) return {};
    return entry({.index = index}, std::string(echo(index)), logprobs({.index = index}, lists_of(prompt)), prompt);
  }
  std::string piece(const AnswerPart& p) const override { return entry(p, p.content, logprobs(p, nullptr), nullptr); }

 private:
  std::string_view echo(int index) const {
    return echoes_.empty() ? std::string_view() : echoes_.at(static_cast<size_t>(index));
  }
  static const LogprobLists* lists_of(const PromptReport* prompt) {
    return prompt == nullptr ? nullptr : prompt->lists();
  }
  static std::string entry(const AnswerPart& p, std::string text, const std::string& logprobs,
                           const PromptReport* prompt) {
    std::string all = fmt::format(R"({{"index":{},"text":{},"logprobs":)", p.index, dump(std::move(text)));
    all += logprobs;
    all += R"(,"finish_reason":)" + dump(or_null(p.finish));
    if (prompt != nullptr && !prompt->prompt_logprobs().empty())
      all += R"(,"prompt_logprobs":)" + prompt->prompt_logprobs();
    return all + '}';
  }
  // The older form: parallel lists, those of the prompt first.
  std::string logprobs(const AnswerPart& p, const LogprobLists* prompt) const {
    if (!logprobs_) return "null";
    LogprobLists lists(tokenizer_, characters(echo(p.index)) + p.text_offset);
    for (const TokenReport& r : p.tokens) lists.add(r.token, r.logprob, r.top);
    return lists.json(prompt);
  }

  const Tokenizer& tokenizer_;
  bool logprobs_;
  std::vector<std::string> echoes_;
};

}  // namespace

Json Usage::json() const {
  Json details = {{"cached_tokens", cached_tokens}};
  if (!cache.is_null()) details["cache"] = cache;
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", generated_tokens},
          {"total_tokens", prompt_tokens + generated_tokens},
          {"prompt_tokens_details", std::move(details)}};
}

std::unique_ptr<AnswerFormat> chat_format(const Tokenizer& tokenizer, bool logprobs) {
  return std::make_unique<ChatFormat>(tokenizer, logprobs);
}
std::unique_ptr<AnswerFormat> completion_format(const Tokenizer& tokenizer, bool logprobs,
                                                std::vector<std::string> echoes) {
  return std::make_unique<CompletionFormat>(tokenizer, logprobs, std::move(echoes));
}

}  // namespace quire::server
