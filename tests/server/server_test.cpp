// The server over loopback with the demo model: what the API promises its clients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "server/client.h"
#include "server/demo_server.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

Json chat_body(const std::string& text, const Json& more = Json::object()) {
  Json b = {{"model", "demo"}, {"messages", {{{"role", "user"}, {"content", text}}}}, {"temperature", 0}};
  b.update(more);
  return b;
}
Json completion_body(const Json& prompt, const Json& more = Json::object()) {
  Json b = {{"model", "demo"}, {"prompt", prompt}, {"temperature", 0}};
  b.update(more);
  return b;
}
Json asked(std::string_view path, const Json& body) {
  const Reply r = ask(demo_server().port(), post(path, body));
  EXPECT_EQ(r.status, 200) << r.body;
  return r.json();
}
Json chat(const std::string& text, const Json& more = Json::object()) {
  return asked("/v1/chat/completions", chat_body(text, more));
}
Json complete(const Json& prompt, const Json& more = Json::object()) {
  return asked("/v1/completions", completion_body(prompt, more));
}
std::vector<Json> stream(std::string_view path, Json body) {
  body["stream"] = true;
  const Reply r = ask(demo_server().port(), post(path, body));
  EXPECT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(r.header("Content-Type"), "text/event-stream; charset=utf-8");
  std::vector<Json> chunks;
  const std::vector<std::string> events = r.events();
  EXPECT_FALSE(events.empty());
  for (const std::string& e : events)
    if (e != "[DONE]") chunks.push_back(Json::parse(e));
  EXPECT_EQ(events.back(), "[DONE]");
  return chunks;
}

TEST(Server, AnswersAChat) {
  const Json j = chat("What is 77+94?", {{"max_tokens", 20}});
  EXPECT_EQ(j["object"], "chat.completion");
  EXPECT_TRUE(j["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(j["model"], "demo");
  EXPECT_TRUE(j["system_fingerprint"].get<std::string>().starts_with("quire-"));
  const Json& c = j["choices"][0];
  EXPECT_EQ(c["index"], 0);
  EXPECT_EQ(c["message"]["role"], "assistant");
  EXPECT_EQ(c["finish_reason"], "stop");
  EXPECT_EQ(c["logprobs"], nullptr);
  EXPECT_EQ(j["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_EQ(j["usage"]["total_tokens"],
            j["usage"]["prompt_tokens"].get<int>() + j["usage"]["completion_tokens"].get<int>());
}

TEST(Server, StreamsTheSameText) {
  const Json whole = chat("Tell me a story.", {{"max_tokens", 30}});
  const auto chunks =
      stream("/v1/chat/completions",
             chat_body("Tell me a story.", {{"max_tokens", 30}, {"stream_options", {{"include_usage", true}}}}));
  std::string text;
  EXPECT_EQ(chunks.front()["choices"][0]["delta"]["role"], "assistant");
  for (const Json& c : chunks) {
    EXPECT_EQ(c["object"], "chat.completion.chunk");
    EXPECT_EQ(c["id"], chunks.front()["id"]);
    if (!c["choices"].empty()) {
      EXPECT_EQ(c["usage"], nullptr);
      text += c["choices"][0]["delta"].value("content", "");
    }
  }
  EXPECT_EQ(whole["choices"][0]["message"]["content"], text);
  EXPECT_EQ(chunks.back()["usage"], whole["usage"]);
  EXPECT_EQ(chunks.at(chunks.size() - 2)["choices"][0]["finish_reason"], whole["choices"][0]["finish_reason"]);
}

TEST(Server, SplitsReasoningFromTheAnswer) {
  const Json body = chat_body("12+7", {{"max_tokens", 60}, {"chat_template_kwargs", {{"enable_thinking", true}}}});
  const Json j = asked("/v1/chat/completions", body);
  const Json& m = j["choices"][0]["message"];
  EXPECT_EQ(m["content"].get<std::string>().find("think>"), std::string::npos);
  ASSERT_TRUE(m.contains("reasoning_content")) << j;
  std::string reasoning, content;
  for (const Json& c : stream("/v1/chat/completions", body)) {
    reasoning += c["choices"][0]["delta"].value("reasoning_content", "");
    content += c["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(m["reasoning_content"], reasoning);
  EXPECT_EQ(m["content"], content);
}

TEST(Server, CompletesTextsTokensAndLists) {
  const Json tokens = asked("/tokenize", {{"prompt", "Once upon a time"}})["tokens"];
  const Json one = complete("Once upon a time", {{"max_tokens", 12}});
  const std::string text = one["choices"][0]["text"];
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(one["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(one["usage"]["completion_tokens"], 12);
  EXPECT_EQ(complete(tokens, {{"max_tokens", 12}})["choices"][0]["text"], text);
  const Json list = complete({"Once upon a time", "The cat"}, {{"max_tokens", 12}, {"n", 2}});
  ASSERT_EQ(list["choices"].size(), 4u);
  EXPECT_EQ(list["choices"][0]["text"], text);
  EXPECT_EQ(list["choices"][1]["text"], text);
  EXPECT_EQ(list["choices"][2]["text"], list["choices"][3]["text"]);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(list["choices"][i]["index"], i);
  EXPECT_EQ(complete("Once upon a time", {{"max_tokens", 12}, {"echo", true}})["choices"][0]["text"],
            "Once upon a time" + text);
  EXPECT_EQ(complete("Once upon a time")["usage"]["completion_tokens"], 16);  // the API's default
}

TEST(Server, SamplesSeveralAnswersBySeed) {
  const Json more = {{"max_tokens", 16}, {"n", 3}, {"temperature", 1.0}, {"seed", 7}};
  const Json a = complete("Once upon a time", more), b = complete("Once upon a time", more);
  ASSERT_EQ(a["choices"].size(), 3u);
  EXPECT_EQ(a["choices"], b["choices"]);
  EXPECT_NE(a["choices"][0]["text"], a["choices"][1]["text"]);
  // The second answer is the one that the next seed gives alone.
  const Json next = complete("Once upon a time", {{"max_tokens", 16}, {"temperature", 1.0}, {"seed", 8}});
  EXPECT_EQ(a["choices"][1]["text"], next["choices"][0]["text"]);
  std::map<int, std::string> streamed;
  for (const Json& c : stream("/v1/completions", completion_body("Once upon a time", more)))
    for (const Json& choice : c["choices"]) streamed[choice["index"]] += choice["text"].get<std::string>();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(a["choices"][i]["text"], streamed[i]);
}

TEST(Server, StopsAcrossTheBordersOfTokens) {
  const std::string text = complete("Once upon a time", {{"max_tokens", 24}})["choices"][0]["text"];
  ASSERT_GT(text.size(), 20u);
  // Texts of every length from the middle of the answer, so that they begin and end within tokens.
  for (const size_t length : {1u, 2u, 5u, 9u}) {
    const std::string stop = text.substr(8, length);
    const std::string expected = text.substr(0, text.find(stop));
    const Json j = complete("Once upon a time", {{"max_tokens", 24}, {"stop", {"never occurs", stop}}});
    EXPECT_EQ(j["choices"][0]["text"], expected) << stop;
    EXPECT_EQ(j["choices"][0]["finish_reason"], "stop");
    std::string streamed;
    for (const Json& c :
         stream("/v1/completions", completion_body("Once upon a time", {{"max_tokens", 24}, {"stop", stop}})))
      streamed += c["choices"][0]["text"].get<std::string>();
    EXPECT_EQ(streamed, expected) << stop;
  }
}

TEST(Server, ReportsLogprobs) {
  const Json j = chat("Tell me a story.", {{"max_tokens", 8}, {"logprobs", true}, {"top_logprobs", 3}});
  const Json& content = j["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 8u);
  std::string bytes;
  for (const Json& t : content) {
    EXPECT_LE(t["logprob"], 0.0);
    ASSERT_EQ(t["top_logprobs"].size(), 3u);
    EXPECT_EQ(t["top_logprobs"][0]["token"], t["token"]);  // greedy
    for (const Json& b : t["bytes"]) bytes += static_cast<char>(b.get<int>());
  }
  EXPECT_THAT(bytes, HasSubstr(j["choices"][0]["message"]["content"].get<std::string>()));
  const Json old = complete("Once upon a time", {{"max_tokens", 5}, {"logprobs", 2}})["choices"][0];
  EXPECT_EQ(old["logprobs"]["tokens"].size(), 5u);
  EXPECT_EQ(old["logprobs"]["top_logprobs"][0].size(), 2u);
  EXPECT_EQ(old["logprobs"]["text_offset"][0], 0);
}

TEST(Server, ListsModelsAndTokens) {
  const uint16_t port = demo_server().port();
  const Json models = ask(port, get("/v1/models")).json();
  ASSERT_EQ(models["data"].size(), 2u);
  EXPECT_EQ(models["data"][0]["id"], "demo");
  EXPECT_EQ(ask(port, get("/v1/models/also-demo")).json()["max_model_len"], 2048);
  EXPECT_EQ(ask(port, get("/v1/models/other")).status, 404);
  EXPECT_EQ(ask(port, get("/health")).json()["status"], "ok");
  EXPECT_EQ(ask(port, get("/version")).json()["version"], QUIRE_VERSION);
  EXPECT_EQ(ask(port, get("/props")).json()["n_ctx"], 2048);
  const Json t = asked("/tokenize", {{"prompt", "Once upon"}, {"return_token_strs", true}});
  EXPECT_EQ(t["count"], t["tokens"].size());
  EXPECT_EQ(t["token_strs"].size(), t["tokens"].size());
  EXPECT_EQ(asked("/detokenize", {{"tokens", t["tokens"]}})["prompt"], "Once upon");
  EXPECT_GT(asked("/tokenize", {{"messages", {{{"role", "user"}, {"content", "x"}}}}})["count"], 4);
}

TEST(Server, KeepsConnectionsAndPipelines) {
  Client c(demo_server().port());
  c.send(get("/version") + post("/v1/completions", completion_body("Hi", {{"max_tokens", 2}})) + get("/health"));
  EXPECT_EQ(c.receive().json()["version"], QUIRE_VERSION);
  EXPECT_EQ(c.receive().json()["object"], "text_completion");
  EXPECT_EQ(c.receive().json()["status"], "ok");
  c.send("HEAD /health HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(c.receive(60, true).header("Content-Length"), "15");
  c.send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(c.receive().status, 200);
  EXPECT_TRUE(c.closes(5));
}

TEST(Server, PassesIdsAndTracesOn) {
  const uint16_t port = demo_server().port();
  const std::string trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  const Reply r = ask(port, get("/health", "X-Request-Id: abc-1\r\ntraceparent: " + trace + "\r\n"));
  EXPECT_EQ(r.header("X-Request-Id"), "abc-1");
  EXPECT_EQ(r.header("traceparent"), trace);
  EXPECT_TRUE(ask(port, get("/health", "X-Request-Id: a b\r\n")).header("X-Request-Id").starts_with("req-"));
}

TEST(Server, CancelsWhatNobodyReads) {
  DemoServer& s = demo_server();
  const std::string aborted = R"(vllm:request_success_total{model_name="demo",engine="0",finished_reason="abort"})";
  const double before = std::max(0.0, s.metric(aborted));
  const Json endless = completion_body("Once upon a time", {{"max_tokens", 1900}, {"ignore_eos", true}});
  {
    Client streaming(s.port());
    Json body = endless;
    body["stream"] = true;
    streaming.send(post("/v1/completions", body));
    streaming.receive_until([](const std::string& r) { return r.find("data: ") != std::string::npos; }, 60);
    Client waiting(s.port());
    waiting.send(post("/v1/completions", endless));
    ASSERT_TRUE(
        eventually([&] { return s.metric(R"(vllm:num_requests_running{model_name="demo",engine="0"})") == 2; }));
  }
  EXPECT_TRUE(eventually([&] { return s.metric(aborted) == before + 2; })) << s.metric(aborted);
  EXPECT_EQ(ask(s.port(), post("/v1/completions", completion_body("Hi", {{"max_tokens", 1}}))).status, 200);
}

TEST(Server, GivesTheSameTextsUnderLoad) {
  std::vector<Json> bodies;
  std::vector<std::string> alone;
  for (int i = 0; i < 12; ++i) {
    bodies.push_back(completion_body("Once upon a time there was number " + std::to_string(i % 5),
                                     {{"max_tokens", 10 + i}, {"temperature", 0.8}, {"seed", i}}));
    alone.push_back(asked("/v1/completions", bodies.back())["choices"][0]["text"]);
  }
  std::vector<std::future<std::string>> together;
  for (const Json& b : bodies)
    together.push_back(std::async(
        std::launch::async, [&b] { return asked("/v1/completions", b)["choices"][0]["text"].get<std::string>(); }));
  for (size_t i = 0; i < together.size(); ++i) EXPECT_EQ(together[i].get(), alone[i]) << i;
}

TEST(Server, TellsHowMuchOfAPromptWasFound) {
  DemoServer& s = demo_server();
  Json prompt = Json::array();
  for (int i = 0; i < 200; ++i) prompt.push_back(40 + i * 7 % 150);
  const auto cached = [](const Json& answer) {
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  const std::string labels = R"({model_name="demo",engine="0"})";
  const double queries = s.metric("vllm:prefix_cache_queries_total" + labels),
               hits = s.metric("vllm:prefix_cache_hits_total" + labels);
  const Json first = complete(prompt, {{"max_tokens", 8}});
  EXPECT_EQ(cached(first), 0);
  const Json again = complete(prompt, {{"max_tokens", 8}});
  EXPECT_EQ(cached(again), 192);
  EXPECT_EQ(again["choices"][0]["text"], first["choices"][0]["text"]);
  EXPECT_EQ(cached(complete(prompt, {{"max_tokens", 2}, {"n", 3}})), 192) << "the prompt counts once";
  const Json salted = complete(prompt, {{"max_tokens", 8}, {"cache_salt", "mine"}});
  EXPECT_EQ(cached(salted), 0);
  EXPECT_EQ(salted["choices"][0]["text"], first["choices"][0]["text"]);
  const auto chunks = stream(
      "/v1/completions", completion_body(prompt, {{"max_tokens", 2}, {"stream_options", {{"include_usage", true}}}}));
  EXPECT_EQ(cached(chunks.back()), 192);
  EXPECT_EQ(ask(s.port(), post("/v1/completions", completion_body("Hi", {{"cache_salt", 5}}))).status, 400);
  EXPECT_TRUE(eventually([&] { return s.metric("vllm:num_requests_running" + labels) == 0; }));
  EXPECT_EQ(s.metric("vllm:prefix_cache_queries_total" + labels), queries + 7 * 200);
  EXPECT_EQ(s.metric("vllm:prefix_cache_hits_total" + labels), hits + 5 * 192);
  EXPECT_GE(s.metric(R"(quire:prefix_cache_misses_total{model_name="demo",engine="0",reason="new"})"), 2)
      << "what other salts have is as if it were not there";
  EXPECT_GE(s.metric(R"(quire:prefix_cache_idle_units{model_name="demo",engine="0",pool="kv"})"), 8);
  EXPECT_GE(s.metric(R"(quire:prefix_cache_idle_units{model_name="demo",engine="0",pool="state"})"), 2);
}

TEST(Server, CountsInVllmsWords) {
  DemoServer& s = demo_server();
  complete("Once upon a time", {{"max_tokens", 5}});
  EXPECT_TRUE(eventually([&] { return s.metric(R"(vllm:num_requests_running{model_name="demo",engine="0"})") == 0; }));
  const Reply r = ask(s.port(), get("/metrics"));
  EXPECT_EQ(r.header("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  for (const char* name :
       {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total",
        "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds", "vllm:e2e_request_latency_seconds",
        "vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds",
        "vllm:iteration_tokens_total", "vllm:num_preemptions_total", "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total", "quire:prefix_cache_misses_total", "http_requests_total",
        "process_resident_memory_bytes"})
    EXPECT_THAT(r.body, HasSubstr(std::string("# TYPE ") + name + " ")) << name;
  EXPECT_EQ(s.metric(R"(vllm:num_requests_running{model_name="demo",engine="0"})"), 0);
  EXPECT_GE(s.metric(R"(vllm:generation_tokens_total{model_name="demo",engine="0"})"), 5);
}

}  // namespace
}  // namespace quire::test
