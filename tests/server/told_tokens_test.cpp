// What answers tell of tokens (`return_token_ids`), and prompts that are made and not computed (/render).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/client.h"
#include "server/demo_server.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

const Json kSumPrompt = {{{"role", "user"}, {"content", "77+94"}}};

Json told(const char* path, const Json& body) {
  const Reply r = ask(demo_server().port(), post(path, body));
  EXPECT_EQ(r.status, 200) << r.body;
  return r.json();
}
Json tokens_of(const Json& body) {
  return told("/tokenize", body)["tokens"];
}
// The chunks of a stream.
std::vector<Json> chunks(const char* path, Json body) {
  body["stream"] = true;
  const Reply r = ask(demo_server().port(), post(path, body));
  std::vector<Json> all;
  for (size_t at = 0; (at = r.body.find("data: {", at)) != std::string::npos; ++at)
    all.push_back(Json::parse(r.body.substr(at + 6, r.body.find('\n', at) - at - 6), nullptr, false));
  return all;
}

TEST(TokenIds, OfChatsAndTheirPrompts) {
  const Json body = {{"messages", kSumPrompt}, {"temperature", 0}, {"return_token_ids", true}, {"n", 2}};
  const Json whole = told("/v1/chat/completions", body);
  EXPECT_EQ(whole["prompt_token_ids"], tokens_of({{"messages", kSumPrompt}}));
  for (const Json& choice : whole["choices"]) {
    ASSERT_TRUE(choice["token_ids"].is_array());
    // The token that ends the answer is among them.
    EXPECT_EQ(choice["token_ids"].size(), whole["usage"]["completion_tokens"].get<size_t>() / 2);
    EXPECT_THAT(told("/detokenize", {{"tokens", choice["token_ids"]}})["prompt"].get<std::string>(), HasSubstr("171"));
  }
  Json streamed = Json::array({Json::array(), Json::array()}), prompt;
  int prompts = 0;
  for (const Json& chunk : chunks("/v1/chat/completions", body)) {
    if (chunk.contains("prompt_token_ids")) prompt = chunk["prompt_token_ids"], ++prompts;
    for (const Json& choice : chunk["choices"])
      for (const Json& id : choice.value("token_ids", Json::array()))
        streamed[choice["index"].get<size_t>()].push_back(id);
  }
  EXPECT_EQ(prompts, 1);
  EXPECT_EQ(prompt, whole["prompt_token_ids"]);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(streamed[i], whole["choices"][i]["token_ids"]);
  EXPECT_EQ(
      ask(demo_server().port(), post("/v1/chat/completions", Json{{"messages", kSumPrompt}})).body.find("token_ids"),
      std::string::npos);
}

TEST(TokenIds, OfCompletions) {
  const Json body = {
      {"prompt", {"Once", "The cat"}}, {"max_tokens", 4}, {"temperature", 0}, {"return_token_ids", true}, {"n", 2}};
  const Json whole = told("/v1/completions", body);
  ASSERT_EQ(whole["choices"].size(), 4u);
  Json streamed = Json::array({Json::array(), Json::array(), Json::array(), Json::array()});
  for (const Json& chunk : chunks("/v1/completions", body))
    for (const Json& choice : chunk["choices"]) {
      const size_t i = choice["index"].get<size_t>();
      if (choice.contains("prompt_token_ids")) {
        EXPECT_EQ(choice["prompt_token_ids"], whole["choices"][i]["prompt_token_ids"]);
      }
      for (const Json& id : choice["token_ids"]) streamed[i].push_back(id);
    }
  for (size_t i = 0; i < 4; ++i) {
    const Json& choice = whole["choices"][i];
    EXPECT_EQ(choice["prompt_token_ids"], tokens_of({{"prompt", i < 2 ? "Once" : "The cat"}}));
    EXPECT_EQ(choice["token_ids"].size(), 4u);
    EXPECT_EQ(streamed[i], choice["token_ids"]);
    EXPECT_EQ(told("/detokenize", {{"tokens", choice["token_ids"]}})["prompt"], choice["text"]);
  }
}

// The same numbers as in the other form, and of every token, the one that ends the answer too.
TEST(AnswerLogprobs, AreToldByTokens) {
  const Json usual = {{"messages", kSumPrompt}, {"temperature", 0}, {"logprobs", true}, {"top_logprobs", 2}};
  const Json lists = told("/v1/chat/completions", usual)["choices"][0]["logprobs"]["content"];
  const Json body = {{"messages", kSumPrompt}, {"temperature", 0}, {"answer_logprobs", 2}, {"return_token_ids", true}};
  const Json choice = told("/v1/chat/completions", body)["choices"][0];
  EXPECT_TRUE(choice["logprobs"].is_null());
  const Json& entries = choice["answer_logprobs"];
  ASSERT_EQ(entries.size(), choice["token_ids"].size());
  ASSERT_EQ(entries.size(), lists.size() + 1);
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto own = entries[i].begin();
    EXPECT_EQ(own.key(), std::to_string(choice["token_ids"][i].get<int>()));
    EXPECT_EQ(own.value()["rank"], 1);
    EXPECT_EQ(entries[i].size(), 2u);
    if (i == lists.size()) break;
    EXPECT_EQ(own.value()["decoded_token"], lists[i]["token"]);
    // One form writes floats and the other doubles.
    EXPECT_EQ(own.value()["logprob"].get<float>(), lists[i]["logprob"].get<float>());
    EXPECT_EQ(std::next(own).value()["logprob"].get<float>(), lists[i]["top_logprobs"][1]["logprob"].get<float>());
  }
  Json streamed = Json::array();
  for (const Json& chunk : chunks("/v1/chat/completions", body))
    for (const Json& c : chunk["choices"])
      for (const Json& entry : c.value("answer_logprobs", Json::array())) streamed.push_back(entry);
  EXPECT_EQ(streamed, entries);
}

TEST(AnswerLogprobs, OfCompletions) {
  const Json body = {{"prompt", "The cat"}, {"max_tokens", 5}, {"temperature", 1}, {"seed", 9}};
  Json usual = body, asked = body;
  usual["logprobs"] = 0;
  asked["answer_logprobs"] = 0;
  asked["echo"] = true;
  const Json lists = told("/v1/completions", usual)["choices"][0]["logprobs"]["token_logprobs"];
  const Json entries = told("/v1/completions", asked)["choices"][0]["answer_logprobs"];
  ASSERT_EQ(entries.size(), lists.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(entries[i].size(), 1u);
    EXPECT_EQ(entries[i].begin().value()["logprob"], lists[i]);
    EXPECT_TRUE(entries[i].begin().value()["rank"].is_null()) << "nobody asked for alternatives";
  }
  for (const auto& [path, both] : {std::pair{"/v1/completions", Json{{"prompt", "a"}, {"logprobs", 1}}},
                                   {"/v1/chat/completions", {{"messages", kSumPrompt}, {"logprobs", true}}}}) {
    Json wrong = both;
    wrong["answer_logprobs"] = 1;
    const Reply r = ask(demo_server().port(), post(path, wrong));
    EXPECT_EQ(r.status, 400);
    EXPECT_EQ(r.error(), "'answer_logprobs' does not go with 'logprobs'");
  }
}

TEST(Render, MakesPromptsAndComputesNothing) {
  const Json chat =
      told("/v1/chat/completions/render", {{"messages", kSumPrompt}, {"max_tokens", 5}, {"temperature", 0.25}});
  EXPECT_EQ(chat["token_ids"], tokens_of({{"messages", kSumPrompt}}));
  EXPECT_EQ(chat["sampling_params"]["max_tokens"], 5);
  EXPECT_EQ(chat["sampling_params"]["temperature"], 0.25);
  EXPECT_EQ(chat["model"], "demo");
  const Json texts = told("/v1/completions/render", {{"prompt", {"Once", "The cat"}}, {"model", "also-demo"}});
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_EQ(texts[1]["token_ids"], tokens_of({{"prompt", "The cat"}}));
  EXPECT_EQ(texts[1]["sampling_params"]["max_tokens"], 16);
  EXPECT_EQ(texts[1]["model"], "also-demo");
  for (const auto& [status, body] : {std::pair{404, Json{{"messages", kSumPrompt}, {"model", "other"}}},
                                     {400, {{"messages", kSumPrompt}, {"max_tokens", 5000}}},
                                     {400, {{"messages", Json::array()}}}})
    EXPECT_EQ(ask(demo_server().port(), post("/v1/chat/completions/render", body)).status, status) << body;
}

// Names that routers fill in where a client said nothing.
TEST(ModelNames, ThatSayNothing) {
  for (const char* name : {"unknown", "default"}) {
    const Json rerank = {{"model", name}, {"query", "cat"}, {"documents", {"a cat", "a dog"}}};
    for (const char* path : {"/v1/rerank", "/rerank", "/v2/rerank"})
      EXPECT_EQ(told(path, rerank)["model"], "demo") << path << name;
    for (const char* path : {"/v1/score", "/score"})
      EXPECT_EQ(told(path, {{"model", name}, {"text_1", "a"}, {"text_2", "b"}})["model"], "demo") << path << name;
    EXPECT_EQ(told("/v1/embeddings", {{"model", name}, {"input", "a"}})["model"], "demo");
    EXPECT_EQ(told("/v1/chat/completions", {{"model", name}, {"messages", kSumPrompt}, {"max_tokens", 1}})["model"],
              "demo");
  }
  EXPECT_EQ(
      ask(demo_server().port(), post("/v1/rerank", Json{{"model", "Unknown"}, {"query", "a"}, {"documents", {"b"}}}))
          .status,
      404);
}

TEST(ModelNames, AnyIsTakenWhereTheOperatorSaysSo) {
  DemoServer::Options o;
  o.limits.any_model = true;
  DemoServer s(o);
  const auto named = [&](const char* path, Json body, const char* name) {
    body["model"] = name;
    return ask(s.port(), post(path, body)).json();
  };
  EXPECT_EQ(named("/v1/chat/completions", {{"messages", kSumPrompt}, {"max_tokens", 1}}, "gpt-4o")["model"], "gpt-4o");
  EXPECT_EQ(named("/v1/messages", {{"messages", kSumPrompt}, {"max_tokens", 1}}, "claude-sonnet-4-5")["model"],
            "claude-sonnet-4-5");
  EXPECT_EQ(named("/api/show", Json::object(), "llama3:8b")["details"]["format"], "gguf");
  EXPECT_EQ(ask(s.port(), get("/v1/models/gpt-4o")).json()["id"], "gpt-4o");
  EXPECT_EQ(ask(s.port(), get("/v1/models")).json()["data"][0]["id"], "demo") << "it is served under its own";
}

TEST(MaxTokens, OfRequestsThatDoNotSay) {
  DemoServer::Options o;
  o.limits.max_output_tokens = 3;
  DemoServer s(o);
  const auto tokens = [&](const char* path, Json body) {
    body["ignore_eos"] = true;
    const Json j = ask(s.port(), post(path, body)).json();
    return j["usage"].value("completion_tokens", j["usage"].value("output_tokens", -1));
  };
  const Json chat = {{"messages", kSumPrompt}};
  EXPECT_EQ(tokens("/v1/chat/completions", chat), 3);
  EXPECT_EQ(tokens("/v1/chat/completions", {{"messages", kSumPrompt}, {"max_tokens", 5}}), 5)
      << "a default is no limit";
  EXPECT_EQ(tokens("/v1/chat/completions", {{"messages", kSumPrompt}, {"max_tokens", -1}}), 3);
  EXPECT_EQ(tokens("/v1/completions", {{"prompt", "Once"}}), 3);
  EXPECT_EQ(tokens("/v1/responses", {{"input", "77+94"}}), 3);
}

TEST(MaxTokens, MinusOneIsWhatTheContextHasRoomFor) {
  DemoServer s({.context = 128});
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    const Json body = {{"prompt", "Once"}, {name, -1}, {"ignore_eos", true}};
    const Json usage = ask(s.port(), post("/v1/completions", body)).json()["usage"];
    EXPECT_EQ(usage["total_tokens"], 128) << name;
  }
}

TEST(Seeds, AreAny64Bits) {
  const auto text = [](const std::string& seed) {
    const std::string body =
        R"({"prompt": "Once", "max_tokens": 12, "temperature": 1.5, "ignore_eos": true, "seed": )" + seed + "}";
    const Reply r = ask(demo_server().port(), post("/v1/completions", std::string_view(body)));
    EXPECT_EQ(r.status, 200) << r.body;
    return r.json()["choices"][0]["text"].get<std::string>();
  };
  EXPECT_EQ(text("18446744073709551615"), text("-1")) << "the same bits";
  EXPECT_EQ(text("9223372036854775808"), text("-9223372036854775808"));
  EXPECT_NE(text("-1"), text("-2"));
  EXPECT_EQ(text("7.0"), text("7"));
  for (const char* wrong : {"18446744073709551616", "-9223372036854775809", "1.5", "\"7\"", "true"}) {
    const std::string body = R"({"prompt": "a", "seed": )" + std::string(wrong) + "}";
    EXPECT_EQ(ask(demo_server().port(), post("/v1/completions", std::string_view(body))).status, 400) << wrong;
  }
}

}  // namespace
}  // namespace quire::test
