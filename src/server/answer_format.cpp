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

  Json whole(const AnswerPart& p) const override {
    Json message = {{"role", "assistant"}, {"content", p.content}};
    if (!p.reasoning.empty()) message["reasoning_content"] = p.reasoning;
    message["refusal"] = nullptr;
    return {{"index", p.index},
            {"message", std::move(message)},
            {"logprobs", logprobs(p)},
            {"finish_reason", or_null(p.finish)}};
  }

  Json opening(int index) const override {
    return {{"index", index},
            {"delta", {{"role", "assistant"}, {"content", ""}}},
            {"logprobs", nullptr},
            {"finish_reason", nullptr}};
  }

  Json piece(const AnswerPart& p) const override {
    Json delta = Json::object();
    if (!p.reasoning.empty()) delta["reasoning_content"] = p.reasoning;
    if (!p.content.empty()) delta["content"] = p.content;
    return {{"index", p.index},
            {"delta", std::move(delta)},
            {"logprobs", logprobs(p)},
            {"finish_reason", or_null(p.finish)}};
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

  Json whole(const AnswerPart& p) const override { return entry(p, echo(p.index) + p.content); }
  Json opening(int index) const override {
    if (echo(index).empty()) return nullptr;
    return entry({.index = index}, echo(index));
  }
  Json piece(const AnswerPart& p) const override { return entry(p, p.content); }

 private:
  std::string echo(int index) const {
    return echoes_.empty() ? std::string() : echoes_.at(static_cast<size_t>(index));
  }
  Json entry(const AnswerPart& p, std::string text) const {
    return {{"index", p.index},
            {"text", std::move(text)},
            {"logprobs", logprobs(p)},
            {"finish_reason", or_null(p.finish)}};
  }
  // The older form: parallel lists. Of two alternatives with the same text (parts of characters) the likelier one is
  // shown.
  Json logprobs(const AnswerPart& p) const {
    if (!logprobs_) return nullptr;
    Json texts = Json::array(), values = Json::array(), top = Json::array(), offsets = Json::array();
    size_t offset = p.text_offset;
    const auto text_of = [&](TokenId t) { return unicode::replace_invalid(tokenizer_.token_bytes(t, true)); };
    for (const TokenReport& r : p.tokens) {
      texts.push_back(text_of(r.token));
      values.push_back(r.logprob);
      Json alternatives = Json::object();
      for (const TokenLogprob& a : r.top)
        if (std::string text = text_of(a.token); !alternatives.contains(text)) alternatives[text] = a.logprob;
      top.push_back(std::move(alternatives));
      offsets.push_back(offset);
      offset += tokenizer_.token_bytes(r.token, true).size();
    }
    return {{"tokens", std::move(texts)},
            {"token_logprobs", std::move(values)},
            {"top_logprobs", std::move(top)},
            {"text_offset", std::move(offsets)}};
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
