// What programs that stand before servers ask: routers, and Open WebUI's requests as it sends them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "server/client.h"
#include "server/demo_server.h"

namespace quire::test {
namespace {

Json ask_for(const char* path) {
  const Reply r = ask(demo_server().port(), get(path));
  EXPECT_EQ(r.status, 200) << path << ": " << r.body;
  return r.json();
}

TEST(Routers, AskForHealthLoadAndNames) {
  EXPECT_EQ(ask_for("/ping"), ask_for("/health"));
  EXPECT_GE(ask_for("/load")["server_load"].get<int>(), 0);
  const Json load = ask_for("/get_load");
  ASSERT_EQ(load.size(), 1u);
  for (const char* key : {"dp_rank", "num_reqs", "num_waiting_reqs", "num_tokens"})
    EXPECT_TRUE(load[0][key].is_number_integer()) << key;
  for (const char* path : {"/server_info", "/get_server_info"}) {
    const Json info = ask_for(path);
    EXPECT_EQ(info["served_model_name"], "demo");
    EXPECT_EQ(info["context_length"], 2048);
    EXPECT_EQ(info.dump().find(".gguf"), std::string::npos) << "no path of a file";
  }
  for (const char* path : {"/model_info", "/get_model_info"}) {
    const Json info = ask_for(path);
    EXPECT_EQ(info["model_path"], "demo");
    EXPECT_EQ(info["is_generation"], true);
    EXPECT_EQ(info.dump().find(".gguf"), std::string::npos);
  }
}

TEST(Routers, NeedAKeyForAllButHealth) {
  DemoServer::Options options;
  options.api.keys = std::move(server::KeyRing::parse("a-key-of-this-test\n")).value();
  DemoServer server(std::move(options));
  EXPECT_EQ(ask(server.port(), get("/ping")).status, 200);
  for (const char* path : {"/load", "/get_load", "/server_info", "/get_model_info"}) {
    EXPECT_EQ(ask(server.port(), get(path)).status, 401) << path;
    EXPECT_EQ(ask(server.port(), get(path, "Authorization: Bearer a-key-of-this-test\r\n")).status, 200) << path;
  }
}

// The load is that of answers under way: a stream that is held open counts, and no longer when it is over.
TEST(Routers, LoadCountsWhatIsUnderWay) {
  DemoServer server({.max_sequences = 1});
  const auto load = [&] { return ask(server.port(), get("/load")).json()["server_load"].get<int>(); };
  EXPECT_EQ(load(), 0);
  Client a(server.port()), b(server.port());
  const Json body = {{"prompt", "Once"}, {"max_tokens", 1500}, {"ignore_eos", true}, {"stream", true}};
  ASSERT_TRUE(a.send(post("/v1/completions", body)) && b.send(post("/v1/completions", body)));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  int most = 0;
  while (most < 2 && std::chrono::steady_clock::now() < end) most = std::max(most, load());
  EXPECT_EQ(most, 2);
  a.disconnect();
  b.disconnect();
  while (load() > 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(load(), 0);
}

// The bodies that sglang-router 0.3.2 and vllm-router 0.1.17 make of a client's: every field with its default.
TEST(Routers, TheirRequestsAreServed) {
  const Json chat = Json::parse(R"({"messages": [{"role": "user", "content": "77+94"}], "model": "demo",
    "logprobs": false, "max_completion_tokens": 8, "stream": false, "temperature": 0, "no_stop_trim": false,
    "ignore_eos": false, "continue_final_message": false, "skip_special_tokens": true, "separate_reasoning": true,
    "stream_reasoning": true, "return_hidden_states": false, "include_reasoning": true})");
  const Reply r = ask(demo_server().port(), post("/v1/chat/completions", chat));
  EXPECT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(r.json()["choices"][0]["message"]["content"], "171");
  EXPECT_EQ(r.header("X-Ignored-Parameters"), "") << "defaults are what this server does";
  const Json completion = Json::parse(R"({"model": "demo", "prompt": "Once", "max_tokens": 3, "stream": false,
    "echo": false, "no_stop_trim": false, "ignore_eos": false, "skip_special_tokens": true,
    "return_hidden_states": false})");
  EXPECT_EQ(ask(demo_server().port(), post("/v1/completions", completion)).status, 200);
  EXPECT_EQ(ask(demo_server().port(), post("/v1/embeddings", Json{{"model", "demo"}, {"input", "a"}})).status, 200);
}

// Open WebUI: a conversation with all of its sliders moved, its title and tag tasks, and a continued answer.
TEST(OpenWebUi, ItsRequestsAreServed) {
  const auto send = [](const char* body) {
    const Reply r = ask(demo_server().port(), post("/v1/chat/completions", std::string_view(body)));
    EXPECT_EQ(r.status, 200) << r.body;
    return r.header("X-Ignored-Parameters");
  };
  EXPECT_EQ(send(R"({"stream": true, "model": "demo", "messages": [{"role": "user", "content": "Hello"}],
                     "stream_options": {"include_usage": true}, "max_tokens": 4})"),
            "");
  EXPECT_EQ(send(R"({"stream": true, "model": "demo",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content":
      [{"type": "text", "text": "Hello", "id": "x"}]}, {"role": "assistant", "content": "Hi"},
      {"role": "user", "content": "Go on"}],
    "temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 7, "stop": ["###"], "max_tokens": 4,
    "frequency_penalty": 1.1, "presence_penalty": 0.5, "repeat_penalty": 1.1, "reasoning_effort": "low",
    "logit_bias": {"5": -100}, "num_ctx": 4096, "num_predict": 4, "repeat_last_n": 64, "tfs_z": 1, "mirostat": 0,
    "mirostat_eta": 0.1, "mirostat_tau": 5, "num_keep": 24, "num_batch": 512, "num_thread": 4, "num_gpu": 1,
    "use_mmap": true, "keep_alive": "5m", "think": null, "tools": [], "metadata": {"chat_id": "c"}})"),
            "messages[1].content[0].id, num_ctx, num_predict, repeat_last_n, tfs_z, mirostat_eta, mirostat_tau, "
            "num_keep, num_batch, num_thread, num_gpu, use_mmap, keep_alive");
  EXPECT_EQ(send(R"({"model": "demo", "messages": [{"role": "user", "content": "### Task:\nA title."}],
                     "stream": false, "max_completion_tokens": 4, "chat_id": "c", "session_id": "s", "id": "m",
                     "features": {"web_search": false}, "variables": {"{{USER_NAME}}": "x"}})"),
            "chat_id, session_id, id, features, variables");
}

TEST(Embeddings, ManyInputsAreOneRequest) {
  DemoServer server({.max_queue = 4});
  const auto embed = [&](size_t count) {
    Json inputs = Json::array();
    for (size_t i = 0; i < count; ++i) inputs.push_back(fmt::format("text {}", i));
    return ask(server.port(), post("/v1/embeddings", Json{{"input", inputs}, {"encoding_format", "base64"}}));
  };
  const Reply r = embed(300);
  EXPECT_EQ(r.status, 200) << r.body.substr(0, 300);
  EXPECT_EQ(r.json()["data"].size(), 300u);
  const Reply many = embed(2049);
  EXPECT_EQ(many.status, 400);
  EXPECT_EQ(many.error(), "'input' has 2049 entries; at most 2048 are allowed (limit max_inputs)");
}

}  // namespace
}  // namespace quire::test
