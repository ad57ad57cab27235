// /v1/embeddings over loopback: the forms of input and output, what is refused, and what is counted.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "server/client.h"
#include "server/demo_server.h"
#include "server/protocol/base64.h"

namespace quire::test {
namespace {

Json embed(const Json& body, uint16_t port = demo_server().port()) {
  const Reply r = ask(port, post("/v1/embeddings", body));
  EXPECT_EQ(r.status, 200) << r.body;
  return r.json();
}
Json vector_of(const Json& input, uint16_t port = demo_server().port()) {
  return embed({{"input", input}}, port)["data"][0]["embedding"];
}
Json tokens_of(const std::string& text) {
  return ask(demo_server().port(), post("/tokenize", Json{{"prompt", text}})).json()["tokens"];
}

std::string bytes_of(const std::string& text) {
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    const std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    bits = bits << 6 | static_cast<uint32_t>(digits.find(c));
    if ((count += 6) < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> count & 255);
  }
  return out;
}

TEST(ServerEmbeddings, TakesTextsTokensAndLists) {
  const Json tokens = tokens_of("Once upon a time"), cat = tokens_of("The cat");
  const Json one = embed({{"input", "Once upon a time"}, {"model", "demo"}, {"user", "somebody"}});
  EXPECT_EQ(one["object"], "list");
  EXPECT_EQ(one["model"], "demo");
  EXPECT_EQ(one["usage"], (Json{{"prompt_tokens", tokens.size()}, {"total_tokens", tokens.size()}}));
  ASSERT_EQ(one["data"].size(), 1u);
  EXPECT_EQ(one["data"][0]["object"], "embedding");
  EXPECT_EQ(one["data"][0]["index"], 0);
  const Json& v = one["data"][0]["embedding"];
  double squares = 0;
  for (const Json& x : v) squares += std::pow(x.get<double>(), 2);
  EXPECT_NEAR(squares, 1.0, 1e-5);
  EXPECT_EQ(vector_of(tokens), v);
  const Json other = vector_of("The cat");
  EXPECT_NE(other, v);
  const Json list = Json::array({"The cat", "Once upon a time", "The cat"}), lists = {cat, tokens, cat};
  for (const Json& input : {list, lists}) {
    const Json j = embed({{"input", input}});
    ASSERT_EQ(j["data"].size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(j["data"][i]["index"], i);
      EXPECT_EQ(j["data"][i]["embedding"], i == 1 ? v : other);
    }
    EXPECT_EQ(j["usage"]["prompt_tokens"], tokens.size() + 2 * cat.size());
  }
  EXPECT_EQ(vector_of(Json::array({Json("The cat"), tokens})), other) << "mixed";
  EXPECT_EQ(embed({{"input", "The cat"}, {"dimensions", v.size()}})["data"][0]["embedding"], other);
}

// The first numbers, at length 1 again.
TEST(ServerEmbeddings, AreShortenedOnDemand) {
  const Json whole = vector_of("The cat");
  for (const size_t n : {size_t{1}, size_t{7}, whole.size() - 1, whole.size()}) {
    const Json cut = embed({{"input", {"a", "The cat"}}, {"dimensions", n}})["data"][1]["embedding"];
    ASSERT_EQ(cut.size(), n);
    double squares = 0, kept = 0;
    for (size_t i = 0; i < n; ++i)
      squares += std::pow(cut[i].get<double>(), 2), kept += std::pow(whole[i].get<double>(), 2);
    EXPECT_NEAR(squares, 1.0, 1e-5) << n;
    for (size_t i = 0; i < n; ++i)
      EXPECT_NEAR(cut[i].get<double>() * std::sqrt(kept), whole[i].get<double>(), 1e-6) << n << " " << i;
  }
  const Json coded = embed({{"input", "The cat"}, {"dimensions", 5}, {"encoding_format", "base64"}});
  EXPECT_EQ(bytes_of(coded["data"][0]["embedding"].get<std::string>()).size(), 20u);
}

TEST(ServerEmbeddings, Base64HoldsTheSameFloats) {
  const Json plain = vector_of("The cat");
  const Json j = embed({{"input", "The cat"}, {"encoding_format", "base64"}});
  const std::string bytes = bytes_of(j["data"][0]["embedding"].get<std::string>());
  ASSERT_EQ(bytes.size(), 4 * plain.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    float x = 0;
    std::memcpy(&x, bytes.data() + 4 * i, sizeof x);
    EXPECT_EQ(x, plain[i].get<float>());
  }
  const auto text = [](std::string_view s) { return server::base64(std::as_bytes(std::span(s))); };
  EXPECT_EQ(text(""), "");
  EXPECT_EQ(text("f"), "Zg==");
  EXPECT_EQ(text("fo"), "Zm8=");
  EXPECT_EQ(text("foo"), "Zm9v");
  EXPECT_EQ(text("\xff\xfe\xfd\xfc"), "//79/A==");
}

TEST(ServerEmbeddings, PoolsAsTheOperatorSays) {
  DemoServer mean({.pooling = Pooling::kMean});
  EXPECT_EQ(vector_of("cat", mean.port()).size(), vector_of("cat").size());
  EXPECT_NE(vector_of("Once upon a time", mean.port()), vector_of("Once upon a time"));
  const Json tokens = tokens_of("Once upon a time");
  const Json first = Json::array({tokens[0]});
  EXPECT_EQ(vector_of(first, mean.port()), vector_of(first)) << "the mean of one";
}

TEST(ServerEmbeddings, Refusals) {
  const struct {
    int status;
    const char *body, *param, *code, *message;
  } cases[] = {
      {400, R"({})", "input", "missing_parameter", "'input' is missing"},
      {400, R"({"input": 5})", "input", "invalid_type", "'input' must be a string or an array, not a number"},
      {400, R"({"input": []})", "input", "invalid_value", "'input' is an empty array"},
      {400, R"({"input": ["a", 5]})", "input", "invalid_type",
       "'input' must hold strings or arrays of token ids, not a number"},
      {400, R"({"input": [1, -1]})", "input", "invalid_value", nullptr},
      {400, R"({"input": [[]]})", "input", "invalid_value", "an input is empty: there is nothing to embed"},
      {404, R"({"input": "a", "model": "gpt-4"})", "model", "model_not_found", nullptr},
      {400, R"({"input": "a", "encoding_format": "int8"})", "encoding_format", "invalid_value",
       "'encoding_format' must be \"float\" or \"base64\""},
      {400, R"({"input": "a", "dimensions": 1000000})", "dimensions", "invalid_value", nullptr},
      {400, R"({"input": "a", "dimensions": 0})", "dimensions", "invalid_value",
       "'dimensions' is 0: must be at least 1"},
      {400, R"({"input": "a", "truncate_prompt_tokens": 5})", "truncate_prompt_tokens", "unsupported_parameter",
       "'truncate_prompt_tokens' is not supported: inputs are never cut"},
  };
  for (const auto& c : cases) {
    const Reply r = ask(demo_server().port(), post("/v1/embeddings", std::string_view(c.body)));
    EXPECT_EQ(r.status, c.status) << c.body;
    const Json error = r.json()["error"];
    EXPECT_EQ(error["param"], c.param) << c.body;
    EXPECT_EQ(error["code"], c.code) << c.body;
    EXPECT_EQ(r.error(), c.message != nullptr ? c.message : r.error());
  }
  const uint16_t port = demo_server().port();
  const Json full(std::vector<int>(2048, 40));
  EXPECT_EQ(ask(port, post("/v1/embeddings", Json{{"input", full}})).status, 200) << "the context is full";
  const Reply r = ask(port, post("/v1/embeddings", Json{{"input", std::vector<int>(2049, 40)}}));
  EXPECT_EQ(r.error(),
            "This model's maximum context length is 2048 tokens. However, your input resulted in 2049 tokens. Please "
            "reduce the length of the input.");
  EXPECT_EQ(r.json()["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(ask(port, get("/v1/embeddings")).status, 405);
}

TEST(ServerEmbeddings, AreCounted) {
  DemoServer s({});
  const auto metric = [&](const std::string& name, const std::string& more = "") {
    return s.metric(name + "{model_name=\"demo\",engine=\"0\"" + more + "}");
  };
  embed({{"input", Json::array({{1, 2, 3}, {4, 5}})}}, s.port());
  EXPECT_EQ(metric("vllm:prompt_tokens_total"), 5);
  EXPECT_EQ(metric("vllm:generation_tokens_total"), 0);
  EXPECT_EQ(metric("vllm:request_success_total", ",finished_reason=\"stop\""), 2);
  EXPECT_EQ(metric("vllm:e2e_request_latency_seconds_count"), 2);
  EXPECT_EQ(metric("vllm:request_params_max_tokens_count"), 0);
}

// Inputs that take a while: seconds, where an answer is a matter of milliseconds.
Json long_inputs() {
  Json all = Json::array();
  for (int i = 0; i < 8; ++i) all.push_back(std::vector<int>(2000, 40 + i));
  return {{"input", all}};
}

const char* const kAborted = "vllm:request_success_total{model_name=\"demo\",engine=\"0\",finished_reason=\"abort\"}";

TEST(ServerEmbeddings, EndWithTheTime) {
  DemoServer::Options o;
  o.api.request_timeout = std::chrono::milliseconds(50);
  DemoServer s(o);
  const Reply r = ask(s.port(), post("/v1/embeddings", long_inputs()));
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(r.json()["error"]["code"], "deadline_exceeded");
}

TEST(ServerEmbeddings, EndWithTheClient) {
  DemoServer s({});
  {
    Client c(s.port());
    c.send(post("/v1/embeddings", long_inputs()));
    ASSERT_TRUE(
        eventually([&] { return s.metric("vllm:num_requests_running{model_name=\"demo\",engine=\"0\"}") >= 1; }));
  }
  EXPECT_TRUE(eventually([&] { return s.metric(kAborted) >= 1; }));
}

TEST(ServerEmbeddings, WaitInTheQueue) {
  DemoServer::Options o;
  o.max_sequences = 1;
  o.max_queue = 1;
  DemoServer s(o);
  const Json input = {{"input", "The cat"}};
  Client busy(s.port()), waiting(s.port());
  const Json endless = {{"prompt", "a"}, {"max_tokens", 1900}, {"ignore_eos", true}, {"stream", true}};
  busy.send(post("/v1/completions", endless));
  // A stream's head is written before its request runs: until then the request itself is what waits in the queue.
  busy.receive_until([](const std::string& r) { return r.find("data: ") != std::string::npos; }, 60);
  waiting.send(post("/v1/embeddings", input));
  ASSERT_TRUE(eventually([&] { return s.metric("vllm:num_requests_waiting{model_name=\"demo\",engine=\"0\"}") >= 1; }));
  EXPECT_EQ(ask(s.port(), post("/v1/embeddings", input)).status, 429);
  busy.disconnect();
  EXPECT_EQ(waiting.receive(60).status, 200);
  s.api().drain();
  const Reply r = ask(s.port(), post("/v1/embeddings", input));
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(r.error(), "the server is shutting down");
}

}  // namespace
}  // namespace quire::test
