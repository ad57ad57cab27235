#include "server/writers/openai_writer.h"

#include <fmt/ranges.h>

#include <ctime>

#include "server/random_id.h"
#include "tokenizer/unicode.h"

namespace quire::server {
namespace {

using Kind = AnswerEvent::Kind;

Json or_null(const std::string& text) {
  return text.empty() ? Json() : Json(text);
}

// What both kinds of completions have in common: an object around a list of choices, alone or as a chunk of a stream.
class OpenAiWriter : public AnswerWriter {
 public:
  std::string whole(std::span<const WholeAnswer> answers, const Usage& usage) override {
    std::string body = envelope(names_.object);
    for (const WholeAnswer& a : answers) {
      if (a.part->index > 0) body += ',';
      body += whole_choice(*a.part, a.prompt);
    }
    return body + R"(],"usage":)" + dump(usage.json()) + beside(answers.front().prompt) + '}';
  }
  std::string opening(int index, const PromptReport* prompt, const UsageNow& usage) override {
    const std::string choice = opening_choice(index, prompt);
    return choice.empty() ? "" : event(choice, usage, opening_beside(index));
  }
  std::string piece(const AnswerPart& part, const UsageNow& usage) override { return event(piece_choice(part), usage); }
  std::string end(const UsageNow& usage) override {
    return (options_.include_usage ? event({}, usage, {}, true) : "") + "data: [DONE]\n\n";
  }
  std::string failure(const ApiError& error) override {
    return "data: " + error.body(ErrorShape::kOpenAi) + "\n\ndata: [DONE]\n\n";
  }

 protected:
  struct Names {
    std::string_view id_prefix, object, chunk_object;  // "chatcmpl-"; of a whole answer; of a stream's chunk
  };
  OpenAiWriter(OpenAiEnvelope options, Names names, const Tokenizer& tokenizer)
      : tokenizer_(tokenizer),
        options_(std::move(options)),
        names_(names),
        id_(std::string(names.id_prefix) + random_hex()),
        created_(std::time(nullptr)) {}

  // JSON text, each of them. An entry of "choices" in a whole answer.
  virtual std::string whole_choice(const AnswerPart& part, const PromptReport* prompt) const = 0;
  // The entry of the chunk that opens an answer's stream, or empty for none.
  virtual std::string opening_choice(int index, const PromptReport* prompt) const = 0;
  virtual std::string piece_choice(const AnswerPart& part) = 0;
  // Members of a whole answer, and of the chunk that opens an answer's stream, beside "choices", each after a comma.
  virtual std::string beside(const PromptReport*) const { return {}; }
  virtual std::string opening_beside(int) const { return {}; }

  // Where they are told: the tokens of the prompt of an answer, and new ones of the answer, each after a comma.
  std::string prompt_ids(int index) const {
    if (!options_.token_ids) return {};
    const SharedTokens& ids = options_.prompt_ids.at(static_cast<size_t>(index) / options_.answers_each);
    return fmt::format(R"(,"prompt_token_ids":[{}])", fmt::join(ids, ","));
  }
  // And their log-probabilities by these.
  std::string token_ids(const AnswerPart& p) const {
    std::string text;
    if (options_.token_ids) text = fmt::format(R"(,"token_ids":[{}])", fmt::join(p.token_ids, ","));
    if (options_.answer_logprobs) text += R"(,"answer_logprobs":)" + logprobs_by_id(tokenizer_, p.tokens);
    return text;
  }
  bool answer_logprobs() const { return options_.answer_logprobs; }
  const Tokenizer& tokenizer_;

 private:
  // The beginning of an object, up to its choices.
  std::string envelope(std::string_view object) const {
    std::string text = dump({{"id", id_},
                             {"object", std::string(object)},
                             {"created", created_},
                             {"model", options_.model},
                             {"system_fingerprint", options_.fingerprint}});
    text.back() = ',';
    return text + R"("choices":[)";
  }
  // `choice`: JSON text of the only one, or empty.
  std::string event(std::string_view choice, const UsageNow& usage, std::string_view beside_it = {},
                    bool last = false) const {
    std::string text = "data: " + envelope(names_.chunk_object);
    text += choice;
    text += ']';
    text += beside_it;
    if (last || options_.continuous_usage)
      text += R"(,"usage":)" + dump(usage().json());
    else if (options_.include_usage)
      text += R"(,"usage":null)";
    return text + "}\n\n";
  }

  OpenAiEnvelope options_;
  Names names_;
  std::string id_;
  int64_t created_;
};

// A token as text and bytes. Part of a character has bytes that no text shows.
Json token_json(const Tokenizer& t, TokenId token, float logprob) {
  const std::string_view bytes = t.token_bytes(token, true);
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return {{"token", unicode::replace_invalid(bytes)}, {"logprob", logprob}, {"bytes", std::move(list)}};
}

class ChatWriter : public OpenAiWriter {
 public:
  ChatWriter(OpenAiEnvelope options, const Tokenizer& tokenizer, bool logprobs)
      : OpenAiWriter(std::move(options), {"chatcmpl-", "chat.completion", "chat.completion.chunk"}, tokenizer),
        logprobs_(logprobs && !answer_logprobs()) {}

 private:
  std::string whole_choice(const AnswerPart& p, const PromptReport*) const override {
    const std::string reasoning = text_of(p.events, Kind::kReasoning);
    const std::vector<ToolCall> calls = whole_calls(p.events);
    std::string text = whole_text(p.events);
    // As the API has it: an answer that only calls has no content.
    Json message = {{"role", "assistant"},
                    {"content", text.empty() && !calls.empty() ? Json() : Json(std::move(text))}};
    if (!reasoning.empty()) message["reasoning_content"] = reasoning;
    for (const ToolCall& c : calls)
      message["tool_calls"].push_back(
          {{"id", c.id}, {"type", "function"}, {"function", {{"name", c.name}, {"arguments", c.arguments}}}});
    message["refusal"] = nullptr;
    return with_ids(dump({{"index", p.index},
                          {"message", std::move(message)},
                          {"logprobs", logprobs(p)},
                          {"finish_reason", or_null(p.finish)},
                          {"stop_reason", p.stop}}),
                    p);
  }

  std::string opening_choice(int index, const PromptReport*) const override {
    return dump({{"index", index},
                 {"delta", {{"role", "assistant"}, {"content", ""}}},
                 {"logprobs", nullptr},
                 {"finish_reason", nullptr}});
  }

  std::string piece_choice(const AnswerPart& p) override {
    Json delta = Json::object();
    const std::string reasoning = text_of(p.events, Kind::kReasoning), content = text_of(p.events, Kind::kText);
    if (!reasoning.empty()) delta["reasoning_content"] = reasoning;
    if (!content.empty()) delta["content"] = content;
    if (Json calls = call_deltas(p); !calls.empty()) delta["tool_calls"] = std::move(calls);
    Json choice = {{"index", p.index},
                   {"delta", std::move(delta)},
                   {"logprobs", logprobs(p)},
                   {"finish_reason", or_null(p.finish)}};
    if (!p.finish.empty()) choice["stop_reason"] = p.stop;
    return with_ids(dump(choice), p);
  }

  // What a part has of each call, as one entry: clients put the arguments of entries with the same index together.
  Json call_deltas(const AnswerPart& p) {
    const auto at = static_cast<size_t>(p.index);
    if (calls_.size() <= at) calls_.resize(at + 1, 0);
    int& begun = calls_[at];
    Json deltas = Json::array();
    for (const AnswerEvent& e : p.events) {
      if (e.kind == Kind::kCallBegin) {
        deltas.push_back({{"index", begun++},
                          {"id", e.id},
                          {"type", "function"},
                          {"function", {{"name", e.text}, {"arguments", ""}}}});
      } else if (e.kind == Kind::kCallArguments) {
        if (deltas.empty()) deltas.push_back({{"index", begun - 1}, {"function", {{"arguments", ""}}}});
        deltas.back()["function"]["arguments"].get_ref<std::string&>() += e.text;
      }
    }
    return deltas;
  }

  std::string with_ids(std::string choice, const AnswerPart& p) const {
    choice.pop_back();
    return choice + token_ids(p) + '}';
  }

  // The conversation is one prompt, whose tokens all answers have.
  std::string beside(const PromptReport* prompt) const override {
    if (prompt == nullptr || prompt->prompt_logprobs().empty()) return prompt_ids(0);
    return R"(,"prompt_logprobs":)" + prompt->prompt_logprobs() + prompt_ids(0);
  }
  std::string opening_beside(int index) const override { return index == 0 ? prompt_ids(0) : ""; }

  Json logprobs(const AnswerPart& p) const { return logprobs_ ? chat_logprobs(tokenizer_, p.tokens) : Json(); }

  bool logprobs_;
  std::vector<int> calls_;  // of each answer: how many have begun
};

class CompletionWriter : public OpenAiWriter {
 public:
  CompletionWriter(OpenAiEnvelope options, const Tokenizer& tokenizer, bool logprobs, std::vector<std::string> echoes)
      : OpenAiWriter(std::move(options), {"cmpl-", "text_completion", "text_completion"}, tokenizer),
        logprobs_(logprobs && !answer_logprobs()),
        echoes_(std::move(echoes)) {}

 private:
  std::string whole_choice(const AnswerPart& p, const PromptReport* prompt) const override {
    return entry(p, std::string(echo(p.index)) + text_of(p.events, Kind::kText), logprobs(p, lists_of(prompt)), prompt,
                 true);
  }
  std::string opening_choice(int index, const PromptReport* prompt) const override {
    if (echo(index).empty() && prompt_ids(index).empty()) return {};
    const AnswerPart nothing{.index = index};
    return entry(nothing, std::string(echo(index)), logprobs(nothing, lists_of(prompt)), prompt, true);
  }
  std::string piece_choice(const AnswerPart& p) override {
    return entry(p, text_of(p.events, Kind::kText), logprobs(p, nullptr), nullptr, false);
  }

  std::string_view echo(int index) const {
    return echoes_.empty() ? std::string_view() : echoes_.at(static_cast<size_t>(index));
  }
  static const LogprobLists* lists_of(const PromptReport* prompt) {
    return prompt == nullptr ? nullptr : prompt->lists();
  }
  // `first`: it tells of the prompt.
  std::string entry(const AnswerPart& p, std::string text, const std::string& logprobs, const PromptReport* prompt,
                    bool first) const {
    std::string all = fmt::format(R"({{"index":{},"text":{},"logprobs":)", p.index, dump(std::move(text)));
    all += logprobs;
    all += R"(,"finish_reason":)" + dump(or_null(p.finish));
    if (!p.finish.empty()) all += R"(,"stop_reason":)" + dump(p.stop);
    if (prompt != nullptr && !prompt->prompt_logprobs().empty())
      all += R"(,"prompt_logprobs":)" + prompt->prompt_logprobs();
    if (first) all += prompt_ids(p.index);
    return all + token_ids(p) + '}';
  }
  // The older form: parallel lists, those of the prompt first.
  std::string logprobs(const AnswerPart& p, const LogprobLists* prompt) const {
    if (!logprobs_) return "null";
    LogprobLists lists(tokenizer_, characters(echo(p.index)) + p.text_offset);
    for (const TokenReport& r : p.tokens) lists.add(r.token, r.logprob, r.top);
    return lists.json(prompt);
  }

  bool logprobs_;
  std::vector<std::string> echoes_;
};

}  // namespace

Json chat_logprobs(const Tokenizer& tokenizer, const std::vector<TokenReport>& tokens) {
  Json content = Json::array();
  for (const TokenReport& r : tokens) {
    Json entry = token_json(tokenizer, r.token, r.logprob);
    Json& top = entry["top_logprobs"] = Json::array();
    for (const TokenLogprob& a : r.top) top.push_back(token_json(tokenizer, a.token, a.logprob));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

std::unique_ptr<AnswerWriter> chat_writer(OpenAiEnvelope envelope, const Tokenizer& tokenizer, bool logprobs) {
  return std::make_unique<ChatWriter>(std::move(envelope), tokenizer, logprobs);
}
std::unique_ptr<AnswerWriter> completion_writer(OpenAiEnvelope envelope, const Tokenizer& tokenizer, bool logprobs,
                                                std::vector<std::string> echoes) {
  return std::make_unique<CompletionWriter>(std::move(envelope), tokenizer, logprobs, std::move(echoes));
}

}  // namespace quire::server
