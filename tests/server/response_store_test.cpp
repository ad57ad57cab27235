// Responses that are kept: for how long, how many, for whom; and conversations that go on from them.
#include "server/response_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "constraint/grammar.h"
#include "server/client.h"
#include "server/demo_server.h"
#include "server/scripted_service.h"

namespace quire::test {
namespace {

using server::ResponseStore;
using server::StoredResponse;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

StoredResponse response(const std::string& id, const std::string& previous = "", size_t bytes = 10) {
  return {.id = id,
          .previous = previous,
          .input = {{"i" + id, "{\"id\":\"i" + id + "\"}"}},
          .output = {"{}"},
          .body = std::string(bytes, 'x')};
}

void put(ResponseStore& store, int key, StoredResponse r) {
  const std::string id = r.id;
  std::vector<std::string> output = std::move(r.output);
  std::string body = std::move(r.body);
  r.output.clear();
  r.body.clear();
  store.begin(key, std::move(r));
  store.finish(key, id, std::move(output), std::move(body));
}

TEST(ResponseStore, KeepsAsManyBytesAsItMay) {
  server::Registry registry;
  ResponseStore store({.max_bytes = 100'000}, registry);
  const auto held = [&] { return registry.gauge("quire:response_store_bytes", "").value(); };
  for (int i = 0; i < 50; ++i) {
    put(store, 0, response(fmt::format("r{}", i), "", 10'000));
    EXPECT_LE(held(), 100'000);
  }
  EXPECT_GT(held(), 80'000);
  EXPECT_EQ(store.find(0, "r0"), nullptr);
  EXPECT_NE(store.find(0, "r49"), nullptr);
  put(store, 0, response("huge", "", 200'000));
  EXPECT_EQ(store.find(0, "huge"), nullptr);
  EXPECT_NE(store.find(0, "r49"), nullptr) << "what has no room takes none";
}

// What requests that are under way hold counts, and clients do not see it.
TEST(ResponseStore, CountsWhatIsUnderWay) {
  server::Registry registry;
  ResponseStore store({.max_bytes = 100'000}, registry);
  StoredResponse large = response("a");
  large.body.clear();
  large.input[0].text = std::string(60'000, 'x');
  store.begin(0, large);
  EXPECT_GT(registry.gauge("quire:response_store_bytes", "").value(), 60'000);
  EXPECT_EQ(store.find(0, "a"), nullptr);
  EXPECT_FALSE(store.erase(0, "a"));
  EXPECT_FALSE(store.history(0, "a", SIZE_MAX).ok());
  large.id = "b";
  store.begin(0, large);  // takes the place of the first
  store.finish(0, "a", {"{}"}, "body");
  EXPECT_EQ(store.find(0, "a"), nullptr);
  store.finish(0, "b", {"{}"}, "body");
  ASSERT_NE(store.find(0, "b"), nullptr);
  EXPECT_EQ(store.find(0, "b")->body, "body");
  EXPECT_EQ(registry.gauge("quire:response_store_entries", "").value(), 1);
}

TEST(ResponseStore, WhatWasUsedLastStays) {
  server::Registry registry;
  ResponseStore store({.max_count = 3}, registry);
  for (const char* id : {"a", "b", "c"}) put(store, 0, response(id));
  EXPECT_NE(store.find(0, "a"), nullptr);
  put(store, 0, response("d"));
  EXPECT_NE(store.find(0, "a"), nullptr);
  EXPECT_EQ(store.find(0, "b"), nullptr);
  EXPECT_EQ(registry.gauge("quire:response_store_entries", "").value(), 3);
}

TEST(ResponseStore, ForgetsInTime) {
  server::Registry registry;
  ResponseStore store({.keep = std::chrono::milliseconds(30)}, registry);
  put(store, 0, response("a"));
  ASSERT_TRUE(eventually([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    return store.find(0, "a") == nullptr;
  }));
  EXPECT_EQ(registry.gauge("quire:response_store_bytes", "").value(), 0);
}

TEST(ResponseStore, EachKeyHasItsOwn) {
  server::Registry registry;
  ResponseStore store({}, registry);
  put(store, 1, response("a"));
  EXPECT_EQ(store.find(2, "a"), nullptr);
  EXPECT_EQ(store.find(0, "a"), nullptr);
  EXPECT_FALSE(store.erase(2, "a"));
  EXPECT_FALSE(store.history(2, "a", SIZE_MAX).ok());
  EXPECT_TRUE(store.erase(1, "a"));
  EXPECT_EQ(store.find(1, "a"), nullptr);
}

TEST(ResponseStore, ToldFromTheBeginning) {
  server::Registry registry;
  ResponseStore store({}, registry);
  put(store, 0, response("a"));
  put(store, 0, response("b", "a"));
  put(store, 0, response("c", "b"));
  const auto all = store.history(0, "c", SIZE_MAX);
  ASSERT_TRUE(all.ok());
  ASSERT_EQ(all->size(), 3u);
  EXPECT_EQ((*all)[0]->id, "a");
  EXPECT_EQ((*all)[2]->id, "c");
  EXPECT_THAT(store.history(0, "c", 1).error().message, HasSubstr("more than 1 bytes"));
  store.erase(0, "a");
  EXPECT_EQ(store.history(0, "c", SIZE_MAX).error().code, "previous_response_not_found");
}

class KeptResponses : public testing::Test {
 protected:
  KeptResponses() { serve({}); }
  void serve(DemoServer::Options o) {
    o.service = service_;
    server_.emplace(std::move(o));
  }
  Reply respond(const Json& more, const std::string& text = "Hello", std::string_view headers = "") {
    service_->will_answer({.texts = {text}});
    Json body = {{"model", "demo"}, {"input", "hi"}};
    body.update(more);
    return ask(server_->port(), post("/v1/responses", body, headers));
  }
  Reply at(const std::string& path, const char* method = "GET", const std::string& headers = "") {
    return ask(server_->port(),
               fmt::format("{} /v1/responses/{} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", method, path, headers));
  }
  std::string prompt() const {
    const std::vector<Request> all = service_->requests();
    const SharedTokens& tokens = all.back().prompt;
    return demo_model("moe")->tokenizer->decode(std::vector<TokenId>(tokens.begin(), tokens.end()), true);
  }

  std::shared_ptr<ScriptedService> service_ = std::make_shared<ScriptedService>();
  std::optional<DemoServer> server_;
};

TEST_F(KeptResponses, AConversationGoesOn) {
  const Json first =
      respond({{"input", "first question"}, {"instructions", "Be brief."}}, "<think>hm</think>first answer").json();
  EXPECT_EQ(first["store"], true);
  EXPECT_TRUE(first["previous_response_id"].is_null());
  const Reply second = respond({{"input", Json::array({{{"role", "user"}, {"content", "second question"}}})},
                                {"previous_response_id", first["id"]}},
                               "second answer");
  ASSERT_EQ(second.status, 200) << second.body;
  EXPECT_EQ(second.json()["previous_response_id"], first["id"]);
  const Reply third = respond({{"input", "third question"}, {"previous_response_id", second.json()["id"]}});
  ASSERT_EQ(third.status, 200) << third.body;
  const std::string continued = prompt();
  const Json whole = {{"messages",
                       {{{"role", "user"}, {"content", "first question"}},
                        {{"role", "assistant"}, {"reasoning_content", "hm"}, {"content", "first answer"}},
                        {{"role", "user"}, {"content", "second question"}},
                        {{"role", "assistant"}, {"content", "second answer"}},
                        {{"role", "user"}, {"content", "third question"}}}}};
  service_->will_answer({.texts = {"x"}});
  ASSERT_EQ(ask(server_->port(), post("/v1/chat/completions", whole)).status, 200);
  EXPECT_EQ(continued, prompt());
  EXPECT_THAT(continued, Not(HasSubstr("Be brief."))) << "instructions are of one request";
  // Another branch from the first.
  EXPECT_EQ(respond({{"input", "other"}, {"previous_response_id", first["id"]}}).status, 200);
  EXPECT_THAT(prompt(), Not(HasSubstr("second")));
}

TEST_F(KeptResponses, CallsAndTheirResults) {
  const Json tools = Json::parse(R"([{"type": "function", "name": "f", "parameters": {"type": "object"}}])");
  const Json first =
      respond({{"tools", tools}}, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>").json();
  ASSERT_EQ(first["output"][0]["type"], "function_call") << first;
  const Json result = {{"type", "function_call_output"}, {"call_id", first["output"][0]["call_id"]}, {"output", "42"}};
  EXPECT_EQ(respond({{"tools", tools}, {"input", {result}}, {"previous_response_id", first["id"]}}).status, 200);
  EXPECT_THAT(prompt(), HasSubstr("\"name\": \"f\""));
  EXPECT_THAT(prompt(), HasSubstr("42"));
}

TEST_F(KeptResponses, StreamsAreKeptToo) {
  const Reply streamed = respond({{"stream", true}, {"input", "streamed question"}}, "streamed answer");
  const size_t at_id = streamed.body.find("\"id\":\"resp_");
  ASSERT_NE(at_id, std::string::npos);
  const std::string id = streamed.body.substr(at_id + 6, streamed.body.find('"', at_id + 6) - at_id - 6);
  const Reply kept = at(id);
  ASSERT_EQ(kept.status, 200);
  EXPECT_EQ(kept.json()["status"], "completed");
  EXPECT_EQ(kept.json()["output"][0]["content"][0]["text"], "streamed answer");
  EXPECT_EQ(respond({{"previous_response_id", id}}).status, 200);
  EXPECT_THAT(prompt(), HasSubstr("streamed answer"));
}

TEST_F(KeptResponses, AreFetchedAndForgotten) {
  const Json made = respond(Json::object()).json();
  const std::string id = made["id"];
  EXPECT_EQ(at(id).json(), made);
  EXPECT_EQ(at(id, "HEAD").status, 200);
  const Json items = at(id + "/input_items").json();
  EXPECT_EQ(items["object"], "list");
  ASSERT_EQ(items["data"].size(), 1u);
  EXPECT_EQ(items["data"][0]["type"], "message");
  EXPECT_EQ(items["data"][0]["content"], Json::parse(R"([{"type": "input_text", "text": "hi"}])"));
  EXPECT_EQ(items["first_id"], items["data"][0]["id"]);
  EXPECT_EQ(items["has_more"], false);
  EXPECT_EQ(at(id + "/other").status, 404);
  const Json gone = at(id, "DELETE").json();
  EXPECT_EQ(gone, (Json{{"id", id}, {"object", "response"}, {"deleted", true}}));
  for (const char* method : {"GET", "DELETE"}) {
    const Reply r = at(id, method);
    EXPECT_EQ(r.status, 404) << method;
    EXPECT_EQ(r.error(), fmt::format("Response with id '{}' not found.", id));
  }
  EXPECT_EQ(at(id + "/input_items").status, 404);
  EXPECT_EQ(respond({{"previous_response_id", id}}).json()["error"]["code"], "previous_response_not_found");
  const Reply wrong = ask(server_->port(), post("/v1/responses/" + id, Json::object()));
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.header("Allow"), "GET, HEAD, DELETE");
}

TEST_F(KeptResponses, ItemsComeByPages) {
  Json input = Json::array();
  for (int i = 0; i < 5; ++i)
    input.push_back({{"id", fmt::format("m{}", i)}, {"role", "user"}, {"content", fmt::format("item {}", i)}});
  const std::string id = respond({{"input", input}}).json()["id"];
  const auto ids = [&](const std::string& query) {
    std::string all;
    const Json list = at(id + "/input_items" + query).json();
    for (const Json& item : list["data"]) all += item["id"].get<std::string>() + " ";
    return all + (list["has_more"].get<bool>() ? "and more" : "");
  };
  EXPECT_EQ(ids(""), "m4 m3 m2 m1 m0 ");
  EXPECT_EQ(ids("?order=asc&limit=2"), "m0 m1 and more");
  EXPECT_EQ(ids("?order=asc&limit=2&after=m3"), "m4 ");
  EXPECT_EQ(ids("?after=m0"), "");
  for (const char* wrong : {"?limit=0", "?limit=101", "?limit=x", "?after=m9"})
    EXPECT_EQ(at(id + "/input_items" + wrong).status, 400) << wrong;
}

TEST_F(KeptResponses, WhoSaysSoHasNoneKept) {
  const Json made = respond({{"store", false}}).json();
  EXPECT_EQ(made["store"], false);
  EXPECT_EQ(at(made["id"]).status, 404);
  EXPECT_EQ(respond({{"store", "no"}}).status, 400);
  DemoServer::Options o;
  o.api.responses.max_bytes = 0;
  serve(std::move(o));
  const Json unkept = respond(Json::object()).json();
  EXPECT_EQ(unkept["store"], false);
  EXPECT_EQ(at(unkept["id"]).status, 404);
  EXPECT_THAT(respond({{"previous_response_id", unkept["id"]}}).error(), HasSubstr("--responses-store-bytes"));
}

TEST_F(KeptResponses, OneKeyNeverSeesAnothers) {
  DemoServer::Options o;
  o.api.keys = std::move(server::KeyRing::parse("first-key-1\nsecond-key-2\n")).value();
  serve(std::move(o));
  const std::string mine = "Authorization: Bearer first-key-1\r\n", theirs = "Authorization: Bearer second-key-2\r\n";
  const std::string id = respond({{"input", "my secret"}}, "mine", mine).json()["id"];
  EXPECT_EQ(at(id, "GET", mine).status, 200);
  EXPECT_EQ(at(id, "GET", theirs).status, 404);
  EXPECT_EQ(at(id + "/input_items", "GET", theirs).status, 404);
  EXPECT_EQ(at(id, "DELETE", theirs).status, 404);
  EXPECT_EQ(at(id, "GET").status, 401);
  EXPECT_EQ(respond({{"previous_response_id", id}}, "x", theirs).status, 400);
  EXPECT_EQ(respond({{"previous_response_id", id}}, "x", mine).status, 200);
  EXPECT_THAT(prompt(), HasSubstr("my secret"));
}

// While a prompt is computed, which takes minutes on a CPU, there are events.
TEST_F(KeptResponses, AStreamSaysAtOnceThatItIsUnderWay) {
  DemoServer::Options o;
  o.http.session.keep_alive = std::chrono::milliseconds(50);
  serve(std::move(o));
  service_->will_answer({.texts = {}, .finish = FinishReason::kNone});
  Client c(server_->port());
  ASSERT_TRUE(c.send(post("/v1/responses", Json{{"input", "hi"}, {"stream", true}})));
  const auto count = [](const std::string& s) {
    int n = 0;
    for (size_t at = s.find("event: response.in_progress"); at != s.npos;
         at = s.find("event: response.in_progress", at + 1))
      ++n;
    return n;
  };
  c.receive_until([&](const std::string& s) { return count(s) >= 3; }, 60);
  EXPECT_GE(count(c.received()), 3);
  EXPECT_THAT(c.received(), HasSubstr("event: response.created\n"));
  for (int i = 0; i < 4; ++i) EXPECT_THAT(c.received(), HasSubstr(fmt::format("\"sequence_number\":{},", i)));
}

TEST(ResponseLogprobs, AreThoseOfTheText) {
  const uint16_t port = demo_server().port();
  Json body = {{"input", "77+94"},
               {"temperature", 0},
               {"include", {"message.output_text.logprobs", "reasoning.encrypted_content"}},
               {"top_logprobs", 2}};
  const Json part = ask(port, post("/v1/responses", body)).json()["output"][0]["content"][0];
  std::string text;
  for (const Json& t : part["logprobs"]) {
    text += t["token"].get<std::string>();
    EXPECT_LE(t["logprob"], 0);
    EXPECT_EQ(t["top_logprobs"].size(), 2u);
  }
  EXPECT_EQ(text, "171");
  EXPECT_EQ(part["text"], "171");
  body["stream"] = true;
  const Reply streamed = ask(port, post("/v1/responses", body));
  Json told = Json::array(), done;
  for (size_t at = streamed.body.find("\ndata: "); at != std::string::npos;
       at = streamed.body.find("\ndata: ", at + 1)) {
    const Json e = Json::parse(streamed.body.substr(at + 7, streamed.body.find('\n', at + 7) - at - 7));
    if (e["type"] == "response.output_text.delta")
      for (const Json& t : e["logprobs"]) told.push_back(t);
    if (e["type"] == "response.output_text.done") done = e["logprobs"];
  }
  EXPECT_EQ(told, part["logprobs"]);
  EXPECT_EQ(done, part["logprobs"]);
  body["stream"] = false;
  body.erase("include");
  const Reply without = ask(port, post("/v1/responses", body));
  EXPECT_EQ(without.json()["output"][0]["content"][0]["logprobs"], Json::array());
  EXPECT_EQ(without.header("X-Ignored-Parameters"), "top_logprobs");
}

// The model is told of the tools that it may use.
TEST_F(KeptResponses, AllowedTools) {
  if (!has_grammars()) GTEST_SKIP() << "built without XGrammar";
  const Json tools = Json::parse(R"([
    {"type": "function", "name": "look", "description": "d", "parameters": {"type": "object"}},
    {"type": "function", "name": "jump", "description": "d", "parameters": {"type": "object"}}])");
  Json chat_tools = Json::array();
  for (const Json& t : tools)
    chat_tools.push_back({{"type", "function"}, {"function", {{"name", t["name"]}, {"parameters", t["parameters"]}}}});
  const auto choice = [](const char* mode, const Json& names, bool chat) {
    Json listed = Json::array();
    for (const Json& name : names)
      listed.push_back(chat ? Json{{"type", "function"}, {"function", {{"name", name}}}}
                            : Json{{"type", "function"}, {"name", name}});
    const Json said = {{"mode", mode}, {"tools", listed}};
    Json all = {{"type", "allowed_tools"}};
    if (chat)
      all["allowed_tools"] = said;
    else
      all.update(said);
    return all;
  };
  for (const bool chat : {false, true}) {
    const auto send = [&](const char* mode, const Json& names) {
      service_->will_answer({.texts = {"x"}});
      Json body = {{"tools", chat ? chat_tools : tools}, {"tool_choice", choice(mode, names, chat)}};
      body[chat ? "messages" : "input"] = Json::array({{{"role", "user"}, {"content", "hi"}}});
      return ask(server_->port(), post(chat ? "/v1/chat/completions" : "/v1/responses", body));
    };
    ASSERT_EQ(send("auto", {"look"}).status, 200);
    EXPECT_THAT(prompt(), HasSubstr("look"));
    EXPECT_THAT(prompt(), Not(HasSubstr("jump")));
    EXPECT_EQ(service_->requests().back().constraint, nullptr);
    const Reply required = send("required", {"jump"});
    ASSERT_EQ(required.status, 200) << required.body;
    EXPECT_THAT(prompt(), Not(HasSubstr("look")));
    EXPECT_NE(service_->requests().back().constraint, nullptr);
    EXPECT_EQ(send("auto", {"look", "jump"}).status, 200);
    EXPECT_THAT(prompt(), HasSubstr("jump"));
    EXPECT_EQ(send("auto", Json::array()).status, 200);
    EXPECT_THAT(prompt(), Not(HasSubstr("jump"))) << "none is allowed";
    EXPECT_EQ(send("required", Json::array()).status, 400);
    EXPECT_THAT(send("auto", {"look", "fly"}).error(), HasSubstr("'tool_choice' allows 'fly', which is no tool"));
    EXPECT_THAT(send("never", {"look"}).error(), HasSubstr("'tool_choice' of the type \"allowed_tools\" must have"));
  }
  for (const char* wrong : {R"({"type": "allowed_tools"})", R"({"type": "allowed_tools", "mode": "auto", "tools": 7})",
                            R"({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function"}]})",
                            R"({"type": "allowed_tools", "allowed_tools": 7})"})
    EXPECT_EQ(respond({{"tools", tools}, {"tool_choice", Json::parse(wrong)}}).status, 400) << wrong;
}

}  // namespace
}  // namespace quire::test
