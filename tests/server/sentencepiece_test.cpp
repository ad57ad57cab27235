// Models with SentencePiece's tokenizers over HTTP: random ones whose answers are full of byte tokens, of which some
// make characters and others none. What must hold: text is valid UTF-8 and the same streamed and whole, it loses the
// space that encoding puts in front where it does, and constraints hold over byte tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "server/client.h"
#include "server/demo_server.h"
#include "support/sentencepiece_gguf.h"

namespace quire::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// Texts with single characters, merges, characters of bytes alone, spaces and lines.
const std::vector<std::string> kPieces = {"the hand", " the", "  two", "trailing ", "tété 中文 and \xF0\x9F\x98\x80",
                                          "\n\nx\n",  "",     " ",     "a<think>"};

class SentencePieceServer : public testing::TestWithParam<SmallVocabulary> {
 protected:
  // A server of its own for each vocabulary, with a file in place of a demo model.
  struct Shared {
    explicit Shared(SmallVocabulary which) : file(which), model(load_or_die(file.path())), server({.load = false}) {
      EngineOptions e;
      e.context = 512;
      e.max_sequences = 4;
      e.prefix_cache = true;
      e.threads = 1;
      auto engine = std::move(Engine::create(model, e, make_backend)).value();
      server::ModelContext::Options m;
      m.names = {"demo"};
      m.path = file.path();
      m.context = e.context;
      m.sequences = engine->plan().max_sequences;
      m.kv_tokens = engine->plan().kv_tokens;
      m.fingerprint = engine->fingerprint();
      auto metrics = std::make_shared<server::EngineMetrics>(server.registry(), "demo", e.context, engine->pools());
      server.api().serve(
          std::move(server::ModelContext::create(model, std::move(m))).value(),
          std::make_shared<server::EngineService>(std::move(engine), server::EngineService::Options{64}, metrics));
    }
    SentencePieceModelFile file;
    ModelPtr model;
    DemoServer server;
  };
  static Shared& shared() {
    static std::map<SmallVocabulary, std::unique_ptr<Shared>> all;
    auto& s = all[GetParam()];
    if (s == nullptr) s = std::make_unique<Shared>(GetParam());
    return *s;
  }
  static const Tokenizer& tokenizer() { return *shared().model->tokenizer; }
  static bool llama() { return GetParam() == SmallVocabulary::kLlama; }

  static Json asked(std::string_view path, const Json& body) {
    const Reply r = ask(shared().server.port(), post(path, body));
    EXPECT_EQ(r.status, 200) << r.body;
    EXPECT_FALSE(r.json().is_discarded()) << "no JSON, or not UTF-8";
    return r.json();
  }
  static Json body_of(const Json& more) {
    Json b = {{"model", "demo"}, {"max_tokens", 40}, {"ignore_eos", true}};
    b.update(more);
    return b;
  }
  static Json complete(const Json& prompt, Json more = Json::object()) {
    more["prompt"] = prompt;
    return asked("/v1/completions", body_of(more));
  }
  static Json chat(const std::string& text, Json more = Json::object()) {
    more["messages"] = {{{"role", "user"}, {"content", text}}};
    return asked("/v1/chat/completions", body_of(more));
  }
  // The text of an answer that comes in events; each one is JSON, and so valid UTF-8.
  static std::string streamed(std::string_view path, Json more) {
    more["stream"] = true;
    const Reply r = ask(shared().server.port(), post(path, body_of(more)));
    EXPECT_EQ(r.status, 200) << r.body;
    std::string text;
    for (const std::string& e : r.events()) {
      if (e == "[DONE]") continue;
      const Json j = Json::parse(e);
      const Json& c = j["choices"][0];
      text += c.contains("text") ? c["text"].get<std::string>() : c["delta"].value("content", "");
    }
    return text;
  }
};

INSTANTIATE_TEST_SUITE_P(Vocabularies, SentencePieceServer,
                         testing::Values(SmallVocabulary::kLlama, SmallVocabulary::kGemma4),
                         [](const auto& p) { return p.param == SmallVocabulary::kLlama ? "llama" : "gemma4"; });

TEST_P(SentencePieceServer, TokensOfATextAreThatText) {
  for (const std::string& text : kPieces) {
    const Json t = asked("/tokenize", {{"prompt", text}, {"return_token_strs", true}});
    EXPECT_EQ(t["tokens"].get<std::vector<TokenId>>(), tokenizer().encode(text, {.parse_special = false}));
    EXPECT_EQ(t["count"], t["tokens"].size());
    EXPECT_EQ(t["token_strs"].size(), t["tokens"].size());
    EXPECT_EQ(t["tokens"][0], *tokenizer().bos());
    // BOS is shown, and then the space behind it is as well.
    EXPECT_EQ(asked("/detokenize", {{"tokens", t["tokens"]}})["prompt"],
              (llama() && !text.empty() ? "<s> " : "<s>") + text);
    const Json bare = asked("/tokenize", {{"prompt", text}, {"add_special_tokens", false}})["tokens"];
    EXPECT_EQ(bare.size() + 1, t["tokens"].size());
    EXPECT_EQ(asked("/detokenize", {{"tokens", bare}})["prompt"], text);
  }
  // "the" is one token behind the space that llama's tokenizers put in front, and two without one.
  EXPECT_EQ(asked("/tokenize", {{"prompt", "the"}})["count"], llama() ? 2 : 3);
}

TEST_P(SentencePieceServer, StreamsTheSameText) {
  size_t ascii = 0, broken = 0, whole = 0;
  for (int seed = 0; seed < 12; ++seed) {
    const Json more = {{"temperature", 1.0}, {"seed", seed}};
    Json request = more;
    request["prompt"] = kPieces[static_cast<size_t>(seed) % 5];
    const std::string text = complete(request["prompt"], more)["choices"][0]["text"];
    EXPECT_EQ(streamed("/v1/completions", request), text) << seed;
    request.erase("prompt");
    request["messages"] = {{{"role", "user"}, {"content", kPieces[static_cast<size_t>(seed) % 5]}}};
    const std::string said = chat(request["messages"][0]["content"], more)["choices"][0]["message"]["content"];
    EXPECT_EQ(streamed("/v1/chat/completions", request), said) << seed;
    for (const std::string& t : {text, said}) {
      broken += t.find("\uFFFD") != std::string::npos;
      ascii += std::any_of(t.begin(), t.end(), [](char c) { return c >= '!' && c <= '~'; });
      whole += t.find("中") != std::string::npos || t.find("é") != std::string::npos;
    }
  }
  // Otherwise nothing was tried.
  EXPECT_GE(broken, 12u);
  EXPECT_GE(ascii, 12u);
  EXPECT_GE(whole, 1u);
}

// Behind [/INST] encoding puts a space before a text, so an answer there loses one; behind a word it keeps it.
TEST_P(SentencePieceServer, ASpaceInFrontIsWhatEncodingPutsThere) {
  const TokenId the = *tokenizer().find_token("▁the");
  const Json only = {{"allowed_token_ids", {the}}, {"max_tokens", 3}};
  EXPECT_EQ(chat("a", only)["choices"][0]["message"]["content"], llama() ? "the the the" : " the the the");
  EXPECT_EQ(complete("a", only)["choices"][0]["text"], " the the the");
  EXPECT_EQ(complete("a", {{"allowed_token_ids", {the}}, {"max_tokens", 3}, {"echo", true}})["choices"][0]["text"],
            "a the the the");
  Json request = only;
  request["messages"] = {{{"role", "user"}, {"content", "a"}}};
  EXPECT_EQ(streamed("/v1/chat/completions", request), llama() ? "the the the" : " the the the");
  const Json form = {{"guided_choice", {" the the the"}}, {"max_tokens", 30}};
  if (has_grammars()) {
    EXPECT_EQ(chat("a", form)["choices"][0]["message"]["content"], " the the the");
  }
}

// A character of three byte tokens: nothing is shown before the last of them.
TEST_P(SentencePieceServer, ACharacterInPartsComesWhole) {
  std::vector<TokenId> euro;
  for (const char* b : {"<0xE2>", "<0x82>", "<0xAC>"}) euro.push_back(*tokenizer().find_token(b));
  // Its first bytes stand in the prompt: what is behind them alone is no character.
  std::vector<TokenId> prompt = tokenizer().encode("a", {});
  const Json last = {{"allowed_token_ids", {euro[2]}}, {"max_tokens", 1}};
  EXPECT_EQ(complete(prompt, last)["choices"][0]["text"], "\uFFFD");
  for (const TokenId id : euro) prompt.push_back(id);
  const Json echoed = complete(prompt, {{"allowed_token_ids", {euro[2]}}, {"max_tokens", 1}, {"echo", true}});
  EXPECT_EQ(echoed["choices"][0]["text"], llama() ? "<s> a€\uFFFD" : "<s>a€\uFFFD");
  const Json choice = {{"structured_outputs", {{"choice", {"€", "€€"}}}}, {"temperature", 1.0}};
  if (!has_grammars()) return;
  for (int seed = 0; seed < 4; ++seed) {
    Json request = choice;
    request["seed"] = seed;
    request["messages"] = {{{"role", "user"}, {"content", "a"}}};
    EXPECT_THAT(streamed("/v1/chat/completions", request), testing::AnyOf("€", "€€"));
  }
}

TEST_P(SentencePieceServer, StopsWithinCharactersOfManyTokens) {
  const Json more = {{"temperature", 1.0}, {"seed", 3}, {"max_tokens", 60}};
  const std::string text = complete("the", more)["choices"][0]["text"];
  // Where characters begin, from the third on.
  std::vector<size_t> at;
  for (size_t i = 0; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) at.push_back(i);
  ASSERT_GT(at.size(), 14u);
  for (const size_t first : {3u, 7u})
    for (const size_t length : {1u, 2u, 4u}) {
      const std::string stop = text.substr(at[first], at[first + length] - at[first]);
      Json request = more;
      request["stop"] = {"never occurs", stop};
      const Json c = complete("the", request)["choices"][0];
      EXPECT_EQ(c["text"], text.substr(0, text.find(stop))) << stop;
      EXPECT_EQ(c["finish_reason"], "stop");
      request["prompt"] = "the";
      EXPECT_EQ(streamed("/v1/completions", request), c["text"]);
    }
}

TEST_P(SentencePieceServer, LogprobsHaveTheBytesOfEachToken) {
  for (int seed = 0; seed < 4; ++seed) {
    const Json c =
        chat("the", {{"temperature", 1.0}, {"seed", seed}, {"logprobs", true}, {"top_logprobs", 5}})["choices"][0];
    const Json& content = c["logprobs"]["content"];
    ASSERT_EQ(content.size(), 40u);
    std::string bytes;
    size_t single = 0;
    for (const Json& t : content) {
      EXPECT_EQ(t["top_logprobs"].size(), 5u);
      const auto id = tokenizer().find_token(t["token"].get<std::string>());
      if (t["bytes"].is_null() || (id && tokenizer().is_control(*id))) continue;  // no part of the text
      single += t["bytes"].size() == 1 && t["bytes"][0].get<int>() >= 0x80;
      for (const Json& b : t["bytes"]) bytes += static_cast<char>(b.get<int>());
    }
    EXPECT_GT(single, 5u) << "no byte tokens were tried";
    std::string text = tokenizer().repaired(bytes);
    if (llama()) text.erase(0, text.starts_with(' ') ? 1 : 0);
    EXPECT_EQ(c["message"]["content"], text);
  }
}

TEST_P(SentencePieceServer, EchoTellsThePromptAndItsLogprobs) {
  const std::string prompt = "the Å 中文 hand";
  const Json plain = complete(prompt, {{"temperature", 0}, {"logprobs", 2}})["choices"][0];
  const Json c = complete(prompt, {{"temperature", 0}, {"logprobs", 2}, {"echo", true}})["choices"][0];
  EXPECT_EQ(c["text"], prompt + plain["text"].get<std::string>());
  const Json tokens = asked("/tokenize", {{"prompt", prompt}})["tokens"];
  // Of a list of tokens BOS is shown, too.
  const Json of_tokens = complete(tokens, {{"temperature", 0}, {"logprobs", 2}, {"echo", true}})["choices"][0];
  EXPECT_EQ(of_tokens["text"], (llama() ? "<s> " : "<s>") + c["text"].get<std::string>());
  const Json& l = c["logprobs"];
  for (const char* list : {"tokens", "token_logprobs", "top_logprobs"}) EXPECT_EQ(of_tokens["logprobs"][list], l[list]);
  ASSERT_EQ(l["tokens"].size(), tokens.size() + 40);
  EXPECT_TRUE(l["token_logprobs"][0].is_null());
  for (size_t i = 1; i < l["tokens"].size(); ++i) {
    EXPECT_LE(l["token_logprobs"][i], 0.0);
    EXPECT_GE(l["text_offset"][i], l["text_offset"][i - 1]);
  }
}

TEST_P(SentencePieceServer, SchemasHoldOverByteTokens) {
  if (!has_grammars()) GTEST_SKIP() << "built without XGrammar";
  const Json schema = Json::parse(R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 9},
      "age": {"type": "integer", "minimum": 0, "maximum": 99}, "Kind": {"enum": ["straße", "中文", "Ω"]}},
      "required": ["name", "age", "Kind"], "additionalProperties": false})");
  size_t other = 0;
  for (int seed = 0; seed < 8; ++seed) {
    const Json more = {
        {"guided_json", schema}, {"temperature", 1.0}, {"seed", seed}, {"max_tokens", 300}, {"ignore_eos", false}};
    const Json c = chat("the", more)["choices"][0];
    EXPECT_EQ(c["finish_reason"], "stop");
    const std::string text = c["message"]["content"];
    const Json j = Json::parse(text, nullptr, false);
    ASSERT_TRUE(j.is_object()) << text;
    EXPECT_THAT(j["Kind"].get<std::string>(), testing::AnyOf("straße", "中文", "Ω"));
    EXPECT_LE(j["age"].get<int>(), 99);
    const std::string name = j["name"];
    other += std::any_of(name.begin(), name.end(), [](char b) { return static_cast<unsigned char>(b) >= 0x80; });
    Json request = more;
    request["messages"] = {{{"role", "user"}, {"content", "the"}}};
    EXPECT_EQ(streamed("/v1/chat/completions", request), text);
  }
  EXPECT_GE(other, 1u) << "no string has a character that is more than a byte";
}

TEST_P(SentencePieceServer, TextsOfAFormHaveNoSpaceInFront) {
  if (!has_grammars()) GTEST_SKIP() << "built without XGrammar";
  for (int seed = 0; seed < 6; ++seed) {
    const Json regex = {{"guided_regex", " ?[a-é]{2,6}€ the"}, {"temperature", 1.0}, {"seed", seed}};
    const std::string text = chat("a", regex)["choices"][0]["message"]["content"];
    EXPECT_TRUE(text.ends_with("€ the")) << text;
    EXPECT_THAT(text, Not(HasSubstr("\uFFFD")));
    const Json choice = {{"guided_choice", {" the", "the"}}, {"temperature", 1.0}, {"seed", seed}};
    EXPECT_THAT(complete("a", choice)["choices"][0]["text"].get<std::string>(), testing::AnyOf(" the", "the"));
  }
}

TEST_P(SentencePieceServer, PrefixesAreFoundAgain) {
  std::string prompt;
  for (int i = 0; i < 60; ++i) prompt += "the hand Å ";
  const Json more = {{"temperature", 0}, {"max_tokens", 8}};
  const Json first = complete(prompt, more), second = complete(prompt, more);
  EXPECT_EQ(first["choices"], second["choices"]);
  EXPECT_GT(second["usage"]["prompt_tokens_details"]["cached_tokens"], 64);
}

// What the conversation goes on with: the answer that a client sends back has the tokens that the model wrote.
TEST_P(SentencePieceServer, AnAnswerSentBackHasItsTokens) {
  const TokenId the = *tokenizer().find_token("▁the");
  const Json answer = chat("a", {{"allowed_token_ids", {the}}, {"max_tokens", 3}});
  const Json messages = {{{"role", "user"}, {"content", "a"}},
                         {{"role", "assistant"}, {"content", answer["choices"][0]["message"]["content"]}}};
  const Json all = asked("/tokenize", {{"messages", messages}, {"add_generation_prompt", false}})["tokens"];
  const auto ids = all.get<std::vector<TokenId>>();
  EXPECT_EQ(std::count(ids.begin(), ids.end(), the), 3) << all;
}

}  // namespace
}  // namespace quire::test
