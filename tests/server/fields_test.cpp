// Fields that requests have besides those that are served: ignored, named, counted, or refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/client.h"
#include "server/demo_server.h"
#include "server/protocol/chat_request.h"
#include "server/protocol/embedding_request.h"

namespace quire::test {
namespace {

using server::IgnoredFields;
using server::RequestLimits;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

RequestLimits limits(bool strict = false, const char* effort_variable = "") {
  RequestLimits l;
  l.vocab = 100;
  l.context = 64;
  l.strict_parameters = strict;
  l.effort_variable = effort_variable;
  return l;
}

Json chat(const char* members) {
  return Json::parse(R"({"messages": [{"role": "user", "content": "a"}], )" + std::string(members) + "}");
}
server::ApiResult<server::ChatRequest> parse(const char* members, const RequestLimits& l = limits()) {
  return parse_chat_request(chat(members), l);
}
std::vector<std::string> ignored(const char* members, const RequestLimits& l = limits()) {
  const auto r = parse(members, l);
  return r.ok() ? r->ignored.names : std::vector<std::string>{r.error().message};
}

TEST(UnknownFields, AreNamed) {
  EXPECT_THAT(ignored(R"("n": 1)"), IsEmpty());
  EXPECT_THAT(ignored(R"("num_ctx": 4096, "tfs_z": 1, "n": 1)"), ElementsAre("num_ctx", "tfs_z"));
  EXPECT_THAT(ignored(R"("stream": true, "stream_options": {"x": 1})"), ElementsAre("stream_options.x"));
  const auto parts = parse_chat_request(
      Json::parse(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "id": 5,
                     "cache_control": {"type": "ephemeral", "x": 1}}]}]})"),
      limits());
  ASSERT_TRUE(parts.ok());
  EXPECT_THAT(parts->ignored.names, ElementsAre("messages[0].content[0].cache_control.x", "messages[0].content[0].id"));
  const auto tokenize = parse_tokenize_request(Json::parse(R"({"prompt": "a", "x": 1})"), limits());
  EXPECT_THAT(tokenize->ignored.names, ElementsAre("x"));
  const auto detokenize = parse_detokenize_request(Json::parse(R"({"tokens": [1], "x": 1})"), limits());
  EXPECT_THAT(detokenize->ignored.names, ElementsAre("x"));
  const auto embed = parse_embedding_request(Json::parse(R"({"input": "a", "x": 1})"), limits());
  EXPECT_THAT(embed->ignored.names, ElementsAre("x"));
}

TEST(UnknownFields, AreRefusedWhereTheOperatorSaysSo) {
  const auto refusal = [](const char* members) { return parse(members, limits(true)).error(); };
  EXPECT_EQ(refusal(R"("num_ctx": 1)").code, "unknown_parameter");
  EXPECT_EQ(refusal(R"("stream": true, "stream_options": {"x": 1})").param, "stream_options.x");
  EXPECT_EQ(refusal("\"n\\u0000x\": 1").message, "unknown parameter 'n\\x00x'");
  for (const char* members :
       {R"("mirostat": 2)", R"("store": true)", R"("reasoning_effort": "low")", R"("stream_reasoning": false)"})
    EXPECT_EQ(refusal(members).code, "unsupported_parameter") << members;
  EXPECT_TRUE(parse(R"("mirostat": 0, "store": false, "stream_reasoning": true)", limits(true)).ok());
}

TEST(UnknownFields, OnlySoMuchOfThemIsKept) {
  Json body = chat(R"("n": 1)");
  for (int i = 0; i < 1000; ++i) body[fmt::format("x{}", i)] = i;
  body["messages"][0]["content"] = "b";
  const auto many = parse_chat_request(body, limits());
  ASSERT_TRUE(many.ok());
  EXPECT_EQ(many->ignored.count, 1000u);
  EXPECT_EQ(many->ignored.names.size(), IgnoredFields::kMostNames);
  EXPECT_THAT(many->ignored.header(), testing::StartsWith("x0, x1, "));
  EXPECT_THAT(many->ignored.header(), testing::EndsWith("x15, ..."));
  Json odd = chat(R"("n": 1)");
  odd["a\r\nSet-Cookie: \xc3\xa9,%"] = 1;
  odd[std::string(100000, 'y')] = 1;
  EXPECT_EQ(parse_chat_request(odd, limits())->ignored.header(),
            "a%0D%0ASet-Cookie%3A%20%C3%A9%2C%25, " + std::string(64, 'y') + "...");
}

TEST(UnknownFields, NullLeavesOut) {
  EXPECT_THAT(ignored(R"("nonsense": null, "tools": null, "stop": null, "top_logprobs": null, "model": null,
                        "stream_options": null, "chat_template_kwargs": null, "n": null)"),
              IsEmpty());
  EXPECT_TRUE(parse(R"("nonsense": null)", limits(true)).ok());
  EXPECT_TRUE(parse_tokenize_request(Json::parse(R"({"prompt": "a", "messages": null})"), limits()).ok());
  EXPECT_FALSE(parse_tokenize_request(Json::parse(R"({"prompt": null})"), limits()).ok());
  EXPECT_EQ(parse_detokenize_request(Json::parse(R"({"tokens": null})"), limits()).error().message,
            "'tokens' is missing");
  const auto r = parse_chat_request(
      Json::parse(R"({"messages": [{"role": "assistant", "content": null, "tool_calls": null, "name": "n"}]})"),
      limits());
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->conversation.messages->at(0), (Json{{"role", "assistant"}, {"content", nullptr}, {"name", "n"}}));
}

// A field that would change the text is not ignored.
TEST(KnownFields, KeepTheirRefusalUnlessNeutral) {
  for (const char* members : {R"("best_of": 2)", R"("xtc_probability": 0.5)", R"("tools": [{"type": "web_search"}])",
                              R"("functions": [{"name": "f"}])"})
    EXPECT_EQ(parse(members).error().code, "unsupported_parameter") << members;
  EXPECT_THAT(ignored(R"("best_of": 1, "no_stop_trim": false, "xtc_probability": 0, "bad_words": [],
                        "continue_final_message": false, "tools": [], "tool_choice": "auto", "mirostat": 0,
                        "separate_reasoning": true, "stream_reasoning": true, "return_hidden_states": false,
                        "include_reasoning": true, "store": false)"),
              IsEmpty());
  EXPECT_THAT(ignored(R"("verbosity": "medium")"), IsEmpty());
  for (const char* value : {"{}", R"({"search_context_size": "low"})"})
    EXPECT_THAT(ignored(fmt::format(R"("verbosity": "low", "web_search_options": {})", value).c_str()),
                ElementsAre("web_search_options", "verbosity"));
  EXPECT_THAT(ignored(R"("mirostat": 2, "include_reasoning": false, "return_hidden_states": true)"),
              ElementsAre("mirostat", "return_hidden_states", "include_reasoning"));
}

TEST(KnownFields, ToolsThatAreRuledOut) {
  EXPECT_THAT(ignored(R"("tools": [{"type": "function"}], "tool_choice": "none")"), ElementsAre("tools"));
  EXPECT_THAT(ignored(R"("functions": [{}], "function_call": "none")"), ElementsAre("functions"));
  EXPECT_THAT(ignored(R"("tools": [], "tool_choice": "none", "parallel_tool_calls": false)"), IsEmpty());
  EXPECT_FALSE(parse(R"("functions": [{}], "tool_choice": "none")").ok());
}

TEST(KnownFields, OtherNames) {
  EXPECT_FLOAT_EQ(parse(R"("repeat_penalty": 1.3)")->params.request.sampling.repetition_penalty, 1.3f);
  EXPECT_FLOAT_EQ(
      parse(R"("repeat_penalty": 1.3, "repetition_penalty": 1.1)")->params.request.sampling.repetition_penalty, 1.1f);
  EXPECT_FALSE(parse(R"("separate_reasoning": false)")->separate_reasoning);
  EXPECT_EQ(parse(R"("min_tokens": 5, "max_tokens": 5)")->params.request.min_tokens, 5);
  const auto completion = [](const char* members) {
    return parse_completion_request(Json::parse(R"({"prompt": "a", )" + std::string(members) + "}"), limits());
  };
  EXPECT_THAT(completion(R"("metadata": {"a": "b"}, "user": "u", "prompt_cache_key": "k")")->ignored.names, IsEmpty());
}

TEST(KnownFields, EffortGoesToTheTemplate) {
  const auto variables = [](const char* members, const char* variable) {
    const auto r = parse(members, limits(false, variable));
    return *r->conversation.template_variables;
  };
  constexpr char kLow[] = R"("reasoning_effort": "low")", kNone[] = R"("reasoning_effort": "none")";
  EXPECT_EQ(variables(kLow, "reasoning_effort"), (Json{{"reasoning_effort", "low"}}));
  EXPECT_EQ(variables(kLow, "enable_thinking"), (Json{{"enable_thinking", true}}));
  EXPECT_EQ(variables(kNone, "enable_thinking"), (Json{{"enable_thinking", false}}));
  EXPECT_EQ(variables(R"("reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": false, "x": 1})",
                      "enable_thinking"),
            (Json{{"enable_thinking", false}, {"x", 1}}));
  EXPECT_THAT(ignored(kLow, limits(false, "thinking")), IsEmpty());
  EXPECT_THAT(ignored(kLow), ElementsAre("reasoning_effort"));
}

Json ask_json(const Json& body, const char* path = "/v1/chat/completions") {
  const Reply r = ask(demo_server().port(), post(path, body));
  EXPECT_EQ(r.status, 200) << r.body;
  return r.json();
}

TEST(ServedFields, IgnoredOnesAreInAHeaderAndCounted) {
  const Json messages = {{{"role", "user"}, {"content", "77+94"}}};
  Json body = {{"messages", messages}, {"temperature", 0}, {"max_tokens", 4}};
  const Reply plain = ask(demo_server().port(), post("/v1/chat/completions", body));
  EXPECT_EQ(plain.header("X-Ignored-Parameters"), "");
  body["num_ctx"] = 4096;
  body["my-own field"] = {{"a", 1}};
  const auto count = [](const char* name) {
    return std::max(demo_server().metric(fmt::format("quire:ignored_parameters_total{{parameter=\"{}\"}}", name)), 0.0);
  };
  const double known = count("num_ctx"), others = count("other");
  const Reply r = ask(demo_server().port(), post("/v1/chat/completions", body));
  EXPECT_EQ(r.header("X-Ignored-Parameters"), "num_ctx, my-own%20field");
  EXPECT_EQ(r.json()["choices"], plain.json()["choices"]);
  EXPECT_EQ(count("num_ctx"), known + 1);
  EXPECT_EQ(count("other"), others + 1);
  EXPECT_EQ(count("my-own field"), 0);
  body["stream"] = true;
  EXPECT_EQ(ask(demo_server().port(), post("/v1/chat/completions", body)).header("X-Ignored-Parameters"),
            "num_ctx, my-own%20field");
}

// With "min_tokens" an answer goes on where it would have ended, and stop texts count only from there on.
TEST(ServedFields, MinTokens) {
  const auto answer = [](const Json& more) {
    Json body = {{"messages", {{{"role", "user"}, {"content", "77+94"}}}}, {"temperature", 0}, {"max_tokens", 64}};
    body.update(more);
    const Json r = ask_json(body);
    return std::pair(r["choices"][0]["message"]["content"].get<std::string>(),
                     r["usage"]["completion_tokens"].get<int>());
  };
  const auto [text, tokens] = answer(Json::object());
  ASSERT_EQ(text, "171");
  ASSERT_LT(tokens, 20);
  const auto [longer, more] = answer({{"min_tokens", 20}});
  EXPECT_GE(more, 20);
  EXPECT_THAT(longer, testing::StartsWith("171"));
  EXPECT_EQ(answer({{"min_tokens", tokens}, {"max_tokens", tokens}}).second, tokens);
  EXPECT_EQ(answer({{"stop", "7"}}).first, "1");
  EXPECT_THAT(answer({{"stop", "7"}, {"min_tokens", 20}}).first, testing::StartsWith("171"));
}

}  // namespace
}  // namespace quire::test
