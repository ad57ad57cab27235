// Log-probabilities of prompts over loopback: in the form of `echo` with `logprobs` and in vLLM's, whole and streamed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <limits>

#include "server/client.h"
#include "server/demo_server.h"
#include "server/prompt_report.h"

namespace quire::test {
namespace {

using server::LogprobLists;
using server::PromptReport;
using testing::HasSubstr;

const std::string kPrompt = "Once upon a time, there was a little girl na\u00efve enough to follow a fox.";

Json body_of(const Json& prompt, const Json& more) {
  Json b = {{"model", "demo"}, {"prompt", prompt}, {"temperature", 0}, {"max_tokens", 5}};
  b.update(more);
  return b;
}
Json asked(std::string_view path, const Json& body) {
  const Reply r = ask(demo_server().port(), post(path, body));
  EXPECT_EQ(r.status, 200) << r.body;
  return r.json();
}
Json complete(const Json& prompt, const Json& more) {
  return asked("/v1/completions", body_of(prompt, more));
}
Json tokens_of(const std::string& text) {
  return asked("/tokenize", {{"prompt", text}})["tokens"];
}

// The text from the character at `offset` on.
std::string from_character(const std::string& text, size_t offset) {
  size_t at = 0;
  for (size_t seen = 0; at < text.size(); ++at)
    if ((static_cast<unsigned char>(text[at]) & 0xc0) != 0x80 && seen++ == offset) break;
  return text.substr(at);
}

TEST(PromptLogprobs, EchoTellsThePromptBeforeTheAnswer) {
  const Json echoed = complete(kPrompt, {{"echo", true}, {"logprobs", 2}});
  const Json plain = complete(kPrompt, {{"logprobs", 2}})["choices"][0];
  const Json& c = echoed["choices"][0];
  const std::string text = c["text"];
  EXPECT_EQ(text, kPrompt + plain["text"].get<std::string>());
  const Json& l = c["logprobs"];
  const size_t prompt = echoed["usage"]["prompt_tokens"], all = prompt + 5;
  EXPECT_EQ(echoed["usage"]["completion_tokens"], 5);
  std::string joined;
  for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
    ASSERT_EQ(l[list].size(), all) << list;
  EXPECT_TRUE(l["token_logprobs"][0].is_null());
  EXPECT_TRUE(l["top_logprobs"][0].is_null());
  for (size_t i = 0; i < all; ++i) {
    const std::string token = l["tokens"][i];
    // A character of two tokens is shown as two replacement characters.
    const bool whole = token.find("\ufffd") == std::string::npos;
    if (whole) {
      EXPECT_TRUE(from_character(text, l["text_offset"][i]).starts_with(token)) << i << ": " << token;
      joined += token;
    }
    if (i == 0) continue;
    EXPECT_LE(l["token_logprobs"][i], 0.0);
    ASSERT_EQ(l["top_logprobs"][i].size(), 2u);
    if (l["top_logprobs"][i].contains(token)) {
      EXPECT_EQ(l["top_logprobs"][i][token], l["token_logprobs"][i]);
    }
  }
  std::string without = text;
  without.erase(text.find("\u00ef"), std::string_view("\u00ef").size());
  EXPECT_EQ(joined, without);
  for (const char* list : {"tokens", "token_logprobs", "top_logprobs"})
    for (size_t i = 0; i < 5; ++i) EXPECT_EQ(l[list][prompt + i], plain["logprobs"][list][i]) << list;
  EXPECT_FALSE(c.contains("prompt_logprobs")) << "nobody asked";
}

// A token list may end within a character, and has its text from its tokens.
TEST(PromptLogprobs, PromptsMayBeTokens) {
  const Json more = {{"echo", true}, {"logprobs", 1}, {"prompt_logprobs", 1}};
  const Json text = complete(kPrompt, more)["choices"], tokens = complete(tokens_of(kPrompt), more)["choices"];
  EXPECT_EQ(text, tokens);
}

TEST(PromptLogprobs, AreTheOnesThatVllmWrites) {
  const Json ids = tokens_of(kPrompt);
  const Json c = complete(kPrompt, {{"prompt_logprobs", 3}, {"echo", true}, {"logprobs", 0}})["choices"][0];
  const Json& list = c["prompt_logprobs"];
  ASSERT_EQ(list.size(), ids.size());
  EXPECT_TRUE(list[0].is_null());
  for (size_t i = 1; i < ids.size(); ++i) {
    const std::string id = std::to_string(ids[i].get<int>());
    ASSERT_TRUE(list[i].contains(id)) << list[i];
    EXPECT_EQ(list[i].begin().key(), id) << "the token itself comes first";
    const Json& own = list[i][id];
    EXPECT_EQ(own["logprob"], c["logprobs"]["token_logprobs"][i]);
    EXPECT_EQ(own["decoded_token"], c["logprobs"]["tokens"][i]);
    EXPECT_EQ(list[i].size(), own["rank"] <= 3 ? 3u : 4u);
    std::map<int, double> by_rank;
    for (const Json& entry : list[i]) by_rank[entry["rank"]] = entry["logprob"];
    EXPECT_EQ(by_rank.size(), list[i].size());
    for (auto a = by_rank.begin(), b = std::next(a); b != by_rank.end(); ++a, ++b) EXPECT_GE(a->second, b->second);
  }
  const Json plain = complete(kPrompt, {{"prompt_logprobs", 3}})["choices"][0];
  EXPECT_EQ(plain["prompt_logprobs"], list);
  EXPECT_TRUE(plain["logprobs"].is_null());
  const Json own = complete(kPrompt, {{"prompt_logprobs", 0}})["choices"][0]["prompt_logprobs"];
  for (size_t i = 1; i < ids.size(); ++i) EXPECT_EQ(own[i].size(), 1u);
}

TEST(PromptLogprobs, ChatsHaveThemBesideTheirChoices) {
  Json body = {{"model", "demo"},
               {"messages", {{{"role", "user"}, {"content", "Tell me a story."}}}},
               {"temperature", 0},
               {"n", 2},
               {"max_tokens", 4}};
  const Json plain = asked("/v1/chat/completions", body);
  body["prompt_logprobs"] = 1;
  const Json j = asked("/v1/chat/completions", body);
  EXPECT_EQ(j["choices"], plain["choices"]);
  EXPECT_EQ(j["prompt_logprobs"].size(), j["usage"]["prompt_tokens"]);
  EXPECT_TRUE(j["prompt_logprobs"][0].is_null());
  EXPECT_EQ(j["prompt_logprobs"][1].begin().value()["decoded_token"], "user");
  EXPECT_FALSE(plain.contains("prompt_logprobs"));
}

TEST(PromptLogprobs, NothingNeedBeGenerated) {
  const Json five = complete(kPrompt, {{"echo", true}, {"logprobs", 1}})["choices"][0]["logprobs"];
  const Json j = complete({kPrompt, "The cat"}, {{"echo", true}, {"logprobs", 1}, {"max_tokens", 0}});
  EXPECT_EQ(j["usage"]["completion_tokens"], 0);
  for (const Json& c : j["choices"]) {
    EXPECT_EQ(c["finish_reason"], "length");
    EXPECT_EQ(c["logprobs"]["tokens"].size(), tokens_of(c["text"]).size());
  }
  EXPECT_EQ(j["choices"][0]["text"], kPrompt);
  EXPECT_EQ(j["choices"][1]["text"], "The cat");
  const Json& zero = j["choices"][0]["logprobs"];
  for (size_t i = 0; i < zero["tokens"].size(); ++i) EXPECT_EQ(zero["token_logprobs"][i], five["token_logprobs"][i]);

  const Json silent = complete(kPrompt, {{"max_tokens", 0}})["choices"][0];
  EXPECT_EQ(silent["text"], "");
  EXPECT_EQ(silent["finish_reason"], "length");
  const Json messages = {{{"role", "user"}, {"content", "Hello"}}};
  const Json chat = asked("/v1/chat/completions", {{"messages", messages}, {"max_tokens", 0}})["choices"][0];
  EXPECT_EQ(chat["message"]["content"], "");
  EXPECT_EQ(chat["finish_reason"], "length");
}

// Of the longest prompt all of the context is prompt.
TEST(PromptLogprobs, APromptMayFillTheContext) {
  const Json prompt(std::vector<int>(2048, 42));
  const Json j = complete(prompt, {{"echo", true}, {"logprobs", 0}, {"max_tokens", 0}});
  EXPECT_EQ(j["choices"][0]["logprobs"]["tokens"].size(), 2048u);
  const Reply r = ask(demo_server().port(), post("/v1/completions", body_of(prompt, {{"max_tokens", 1}})));
  EXPECT_EQ(r.status, 400);
  EXPECT_THAT(r.body, HasSubstr("context_length_exceeded"));
}

TEST(PromptLogprobs, AStreamBeginsWithThem) {
  const Json more = {{"echo", true}, {"logprobs", 2}, {"n", 2}, {"seed", 3}, {"temperature", 0.8}};
  for (const int max_tokens : {0, 5}) {
    Json body = body_of({kPrompt, "The cat"}, more);
    body["max_tokens"] = max_tokens;
    const Json whole = asked("/v1/completions", body)["choices"];
    ASSERT_EQ(whole.size(), 4u);
    body["stream"] = true;
    const Reply r = ask(demo_server().port(), post("/v1/completions", body));
    std::map<int, Json> choices;
    for (const std::string& e : r.events()) {
      if (e == "[DONE]") continue;
      const Json chunk = Json::parse(e);
      for (const Json& c : chunk["choices"]) {
        const auto [at, first] = choices.emplace(c["index"], c);
        if (first) {
          EXPECT_EQ(c["text"], c["index"] < 2 ? kPrompt : "The cat") << "the first chunk is the prompt";
          EXPECT_TRUE(c["logprobs"]["token_logprobs"][0].is_null());
          continue;
        }
        at->second["text"] = at->second["text"].get<std::string>() + c["text"].get<std::string>();
        at->second["finish_reason"] = c["finish_reason"];
        if (c.contains("stop_reason")) at->second["stop_reason"] = c["stop_reason"];
        for (const auto& [name, list] : c["logprobs"].items())
          for (const Json& x : list) at->second["logprobs"][name].push_back(x);
      }
    }
    ASSERT_EQ(choices.size(), 4u);
    for (const Json& c : whole) EXPECT_EQ(choices[c["index"]], c);
  }
}

// Alone, in company, and after others have brought the prompt into the cache.
TEST(PromptLogprobs, CachesAndCompanyLeaveNoTrace) {
  std::string prompt;
  for (int i = 0; i < 12; ++i) prompt += "There is the number " + std::to_string(i * 77) + ". " + kPrompt + " ";
  const Json more = {{"echo", true}, {"logprobs", 2}, {"prompt_logprobs", 1}};
  const Json body = body_of(prompt, more);
  const Json want = asked("/v1/completions", body);
  EXPECT_GT(want["usage"]["prompt_tokens"], 256);
  complete(prompt, Json::object());
  EXPECT_GT(complete(prompt, Json::object())["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  std::vector<std::future<Json>> together;
  for (int i = 0; i < 8; ++i)
    together.push_back(std::async(std::launch::async, [&, i] {
      return i % 2 == 0 ? asked("/v1/completions", body) : complete(prompt.substr(0, 100u * i), {{"max_tokens", 40}});
    }));
  for (size_t i = 0; i < together.size(); ++i) {
    const Json got = together[i].get();
    if (i % 2 == 1) continue;
    EXPECT_EQ(got["choices"].dump(), want["choices"].dump());
    EXPECT_EQ(got["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  }
}

TEST(PromptLogprobs, TooMuchIsRefused) {
  const auto refused = [](const Json& prompt, const Json& more) {
    const Reply r = ask(demo_server().port(), post("/v1/completions", body_of(prompt, more)));
    EXPECT_EQ(r.status, 400);
    return r.json()["error"]["message"].get<std::string>();
  };
  EXPECT_THAT(refused("a", {{"prompt_logprobs", 21}}), HasSubstr("'prompt_logprobs' is 21: must be between 0 and 20"));
  EXPECT_THAT(refused("a", {{"prompt_logprobs", -1}}), HasSubstr("'prompt_logprobs' is -1"));
  EXPECT_THAT(refused("a", {{"prompt_logprobs", 1}, {"stream", true}}), HasSubstr("not in a stream"));
  const Json prompt(std::vector<int>(2000, 42));
  const Json more = {{"echo", true}, {"logprobs", 20}, {"n", 16}};
  Json both = more;
  both["prompt_logprobs"] = 20;
  EXPECT_EQ(refused(prompt, both),
            "the answer would tell 1344000 log-probabilities of the prompts; at most 1048576 are told");
  Json streamed = more;
  streamed["stream"] = true;
  EXPECT_EQ(refused(prompt, streamed),
            "the answer would tell 672000 log-probabilities of the prompts; at most 131072 are told in a stream");
}

PromptLogprobs scores(size_t count, size_t tops) {
  PromptLogprobs p{.tops = tops};
  for (size_t i = 0; i < count; ++i) {
    p.logprobs.push_back(-0.25f * static_cast<float>(i));
    p.ranks.push_back(static_cast<int32_t>(i));
    for (size_t k = 0; k < tops; ++k) p.top.push_back({static_cast<int32_t>(i * 7 + k), -0.5f * static_cast<float>(k)});
  }
  return p;
}

TEST(PromptReport, IsTheSameHoweverItIsCut) {
  const Tokenizer& t = *demo_model("moe")->tokenizer;
  std::vector<TokenId> tokens(300);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i * 13 % 4000);
  const auto shared = std::make_shared<const PromptLogprobs>(scores(299, 4));
  std::string lists, map;
  for (const size_t slice : {size_t{1} << 20, size_t{1}, size_t{100}}) {
    PromptReport r(t, tokens, "", {.lists = 2, .prompt_logprobs = 4});
    EXPECT_FALSE(r.begun());
    r.begin(shared);
    size_t slices = 0;
    for (; !r.done(); ++slices) r.write(slice);
    EXPECT_EQ(slices, slice == 1 ? 300u : slice == 100 ? 15u : 1u) << "each of them is bounded";
    if (lists.empty()) lists = r.lists()->json(), map = r.prompt_logprobs();
    EXPECT_EQ(r.lists()->json(), lists);
    EXPECT_EQ(r.prompt_logprobs(), map);
  }
  EXPECT_EQ(Json::parse(lists)["top_logprobs"][5].size(), 2u);
  EXPECT_EQ(Json::parse(map).size(), 300u);
}

TEST(LogprobLists, WritesWhatJsonKnows) {
  const Tokenizer& t = *demo_model("moe")->tokenizer;
  std::vector<TokenId> partial;  // tokens that are single bytes of longer characters have the same text
  for (TokenId id = 0; id < t.size() && partial.size() < 2; ++id)
    if (t.token_bytes(id, true).size() == 1 && static_cast<uint8_t>(t.token_bytes(id, true)[0]) >= 0xc3)
      partial.push_back(id);
  ASSERT_EQ(partial.size(), 2u);
  LogprobLists l(t, 7);
  l.add(partial[0], std::nullopt, {});
  const TokenLogprob top[] = {{partial[0], -1.0f}, {partial[1], -2.0f}, {t.encode("a", {})[0], -3.0f}, {-1, 0.0f}};
  l.add(partial[1], -std::numeric_limits<float>::infinity(), top);
  l.add(t.encode("a", {})[0], -1e-9f, {}, false);
  l.add(t.encode("a", {})[0], -2.0f, {});
  EXPECT_EQ(l.json(),
            "{\"tokens\":[\"\ufffd\",\"\ufffd\",\"a\",\"a\"],\"token_logprobs\":[null,-9999.0,-1e-09,-2.0],"
            "\"top_logprobs\":[null,{\"\ufffd\":-1.0,\"a\":-3.0},{},{}],\"text_offset\":[7,8,9,9]}");
  EXPECT_EQ(LogprobLists(t).json(&l), l.json());
}

}  // namespace
}  // namespace quire::test
