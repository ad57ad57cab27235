// What keeps the server up: slow and silent clients, limits, the queue, keys, TLS, and ending without losing an answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "server/client.h"
#include "server/demo_server.h"
#include "server/serve_program.h"

namespace quire::test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

Json completion(int tokens, bool streamed = false) {
  return {{"prompt", "Once upon a time"},
          {"max_tokens", tokens},
          {"temperature", 0},
          {"ignore_eos", true},
          {"stream", streamed}};
}

TEST(Operations, SlowClientsAreLetGo) {
  DemoServer::Options o;
  o.http.session.header_timeout = o.http.session.body_timeout = milliseconds(300);
  o.http.session.idle_timeout = milliseconds(600);
  DemoServer s(o);
  Client headers(s.port()), body(s.port()), silent(s.port());
  headers.send("GET /health HTTP/1.1\r\nHo");
  body.send("POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\n{");
  // Byte by byte does not extend the time.
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 20 && std::chrono::steady_clock::now() - start < milliseconds(250); ++i) {
    headers.send("s");
    std::this_thread::sleep_for(milliseconds(20));
  }
  const Reply h = headers.receive(), b = body.receive();
  EXPECT_EQ(h.status, 408);
  EXPECT_EQ(h.error(), "the request line and headers took too long to arrive");
  EXPECT_EQ(h.header("Connection"), "close");
  EXPECT_EQ(b.status, 408);
  EXPECT_EQ(b.error(), "the body took too long to arrive");
  EXPECT_TRUE(silent.closes(60));
  EXPECT_EQ(silent.received(), "");
}

TEST(Operations, HalfClosedConnectionsAreAnswered) {
  DemoServer& s = demo_server();
  Client whole(s.port()), cut(s.port()), early(s.port());
  whole.send(get("/health"));
  whole.end_of_input();
  EXPECT_EQ(whole.receive().status, 200);
  EXPECT_TRUE(whole.closes(60));
  cut.send("POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\n{");
  cut.end_of_input();
  EXPECT_EQ(cut.receive().error(), "malformed HTTP request: the connection ended within it");
  // A generation whose client has stopped sending counts as given up: a closed connection looks the same.
  early.send(post("/v1/completions", completion(1500)));
  early.end_of_input();
  EXPECT_EQ(early.receive(20).status, 0);
}

TEST(Operations, BodiesInAllSizesAndPieces) {
  DemoServer::Options o;
  o.http.session.limits.max_body_bytes = 2000;
  DemoServer s(o);
  const auto padded = [](size_t size) {
    std::string b = R"({"prompt": "a"})";
    return b + std::string(size - b.size(), ' ');
  };
  EXPECT_EQ(ask(s.port(), post("/tokenize", std::string_view(padded(2000)))).status, 200);
  EXPECT_EQ(ask(s.port(), post("/tokenize", std::string_view(padded(2001)))).status, 413);
  Client chunked(s.port());
  chunked.send("POST /tokenize HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 3; ++i) chunked.send("3e8\r\n" + std::string(1000, ' ') + "\r\n");
  EXPECT_EQ(chunked.receive().status, 413);
  Client asking(s.port());
  asking.send("POST /tokenize HTTP/1.1\r\nHost: t\r\nContent-Length: 15\r\nExpect: 100-continue\r\n\r\n");
  asking.receive_until([](const std::string& r) { return r.find("\r\n\r\n") != std::string::npos; }, 60);
  EXPECT_TRUE(asking.received().starts_with("HTTP/1.1 100 Continue\r\n\r\n"));
  asking.send(padded(15));
  EXPECT_EQ(asking.receive().status, 200);
}

TEST(Operations, AFullQueueSays429) {
  DemoServer::Options o;
  o.max_sequences = 1;
  o.max_queue = 2;
  DemoServer s(o);
  std::vector<std::unique_ptr<Client>> busy;
  for (int i = 0; i < 3; ++i) {
    busy.push_back(std::make_unique<Client>(s.port()));
    busy.back()->send(post("/v1/completions", completion(1900, true)));
    busy.back()->receive(60, true);
  }
  const Reply r = ask(s.port(), post("/v1/completions", completion(1)));
  EXPECT_EQ(r.status, 429);
  EXPECT_THAT(r.error(), HasSubstr("the queue is full"));
  EXPECT_GE(std::stoi("0" + r.header("Retry-After")), 1);
  EXPECT_EQ(r.json()["error"]["type"], "rate_limit_error");
  Json many = completion(1);
  many["n"] = 4;
  EXPECT_EQ(ask(s.port(), post("/v1/completions", many)).status, 400);  // can never fit
  busy.clear();
  Reply after;
  EXPECT_TRUE(eventually([&] {
    after = ask(s.port(), post("/v1/completions", completion(1)));
    return after.status == 200;
  })) << after.status;
}

TEST(Operations, PrioritiesGoFirst) {
  DemoServer::Options o;
  o.max_sequences = 1;
  DemoServer s(o);
  Client running(s.port());
  running.send(post("/v1/completions", completion(1900, true)));
  running.receive_until([](const std::string& r) { return r.find("data: ") != std::string::npos; }, 60);
  Client late(s.port()), urgent(s.port());
  for (const auto& [client, priority, tokens] : {std::tuple{&late, 5, 1900}, {&urgent, 0, 20}}) {
    Json body = completion(tokens, client == &late);
    body["priority"] = priority;
    client->send(post("/v1/completions", body));
    const double waiting = client == &late ? 1 : 2;
    ASSERT_TRUE(
        eventually([&] { return s.metric("vllm:num_requests_waiting{model_name=\"demo\",engine=\"0\"}") == waiting; }));
  }
  running.disconnect();
  EXPECT_EQ(urgent.receive().status, 200);
  // The other one has nearly all of its tokens before it when the urgent one is done.
  late.receive_until([](const std::string& r) { return r.find("data: ") != std::string::npos; }, 60);
  EXPECT_EQ(late.received().find("[DONE]"), std::string::npos);
}

TEST(Operations, PrioritiesBeforeThoseOfTheOperatorAreRefused) {
  Json body = completion(1);
  body["priority"] = -1;
  const Reply r = ask(demo_server().port(), post("/v1/completions", body));
  EXPECT_EQ(r.status, 400);
  EXPECT_EQ(r.error(), "'priority' is -1: must be between 0 and 1000000");
  EXPECT_EQ(r.json()["error"]["param"], "priority");
  EXPECT_EQ(ask(demo_server().port(), post("/v1/embeddings", Json{{"input", "a"}, {"priority", -1}})).status, 400);
  DemoServer::Options o;
  o.limits.max_priority = -5;
  DemoServer s(o);
  body["priority"] = -5;
  EXPECT_EQ(ask(s.port(), post("/v1/completions", body)).status, 200);
  body["priority"] = -6;
  EXPECT_EQ(ask(s.port(), post("/v1/completions", body)).status, 400);
}

// With several keys, what one of them has here is never more than what is left for everybody.
TEST(Operations, OneKeyLeavesRoomInTheQueueForOthers) {
  DemoServer::Options o;
  o.api.keys = std::move(server::KeyRing::parse("first-key-1\nsecond-key-2\n")).value();
  o.max_sequences = 1;
  o.max_queue = 9;
  DemoServer s(o);
  const auto key = [](const char* name) { return "Authorization: Bearer " + std::string(name) + "\r\n"; };
  std::vector<std::unique_ptr<Client>> busy;
  const auto begin = [&](const char* name, int answers) {
    Json body = completion(1900, true);
    body["n"] = answers;
    busy.push_back(std::make_unique<Client>(s.port()));
    busy.back()->send(post("/v1/completions", body, key(name)));
    return busy.back()->receive(60, true).status;
  };
  Json many = completion(1);
  many["n"] = 6;
  const Reply never = ask(s.port(), post("/v1/completions", many, key("first-key-1")));
  EXPECT_EQ(never.status, 400);
  EXPECT_EQ(never.error(), "the request asks for 6 answers; this server takes at most 5 of one key");
  EXPECT_EQ(begin("first-key-1", 5), 200);
  const Reply more = ask(s.port(), post("/v1/completions", completion(1), key("first-key-1")));
  EXPECT_EQ(more.status, 429);
  EXPECT_THAT(more.error(), HasSubstr("this key's part of the queue is full: 5 of its answers"));
  EXPECT_EQ(more.json()["error"]["type"], "rate_limit_error");
  EXPECT_EQ(begin("second-key-2", 2), 200);
  EXPECT_EQ(ask(s.port(), post("/v1/completions", completion(1), key("second-key-2"))).status, 429);
}

// One request's many answers take all places only until somebody else comes, with keys and without.
TEST(Operations, ManyAnswersOfOneLeavePlacesToOthers) {
  for (const char* keys : {"", "first-key-1\nsecond-key-2\n"}) {
    DemoServer::Options o;
    if (*keys != '\0') o.api.keys = std::move(server::KeyRing::parse(keys)).value();
    o.max_sequences = 2;
    DemoServer s(o);
    Json many = completion(200, true);
    many["prompt"] = {"One", "Two", "Three"};
    many["n"] = 6;
    Client first(s.port());
    first.send(post("/v1/completions", many, "Authorization: Bearer first-key-1\r\n"));
    first.receive_until([](const std::string& r) { return r.find("data: ") != std::string::npos; }, 60);
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(ask(s.port(), post("/v1/completions", completion(2), "Authorization: Bearer second-key-2\r\n")).status,
                200);
    const auto ended = [](const std::string& text) {
      int n = 0;
      for (size_t at = 0; (at = text.find("\"finish_reason\":\"length\"", at)) != std::string::npos; ++at) ++n;
      return n;
    };
    first.receive_until([](const std::string&) { return false; }, 0.01);
    EXPECT_LT(ended(first.received()), 18) << "the others did not wait for all of it";
  }
}

TEST(Operations, KeysGuardEveryRouteButHealth) {
  DemoServer::Options o;
  o.api.keys = std::move(server::KeyRing::parse("correct-key\nother-key-2\n")).value();
  DemoServer s(o);
  EXPECT_EQ(ask(s.port(), get("/health")).status, 200);
  for (const char* path : {"/metrics", "/version", "/props", "/v1/models", "/v1/models/demo", "/nothing"}) {
    const Reply none = ask(s.port(), get(path));
    EXPECT_EQ(none.status, 401) << path;
    EXPECT_EQ(none.header("WWW-Authenticate"), "Bearer");
    EXPECT_EQ(none.json()["error"]["code"], "invalid_api_key");
    EXPECT_EQ(ask(s.port(), get(path, "Authorization: Bearer wrong-key\r\n")).status, 401) << path;
    EXPECT_NE(ask(s.port(), get(path, "Authorization: Bearer correct-key\r\n")).status, 401) << path;
  }
  EXPECT_EQ(ask(s.port(), post("/v1/completions", completion(1))).status, 401);
  EXPECT_EQ(ask(s.port(), post("/v1/completions", completion(1), "Authorization: bearer other-key-2\r\n")).status, 200);
}

TEST(Operations, WhatOneKeyComputedAnotherDoesNotFind) {
  DemoServer::Options o;
  o.api.keys = std::move(server::KeyRing::parse("correct-key\nother-key-2\n")).value();
  DemoServer s(o);
  Json body = completion(1);
  body["prompt"] = std::vector<int>(200, 60);
  const auto cached = [&](const std::string& key) {
    const Reply r = ask(s.port(), post("/v1/completions", body, "Authorization: Bearer " + key + "\r\n"));
    EXPECT_EQ(r.status, 200) << r.body;
    return r.json()["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  EXPECT_EQ(cached("correct-key"), 0);
  EXPECT_EQ(cached("correct-key"), 192);
  EXPECT_EQ(cached("other-key-2"), 0);
  body["cache_salt"] = "more";
  EXPECT_EQ(cached("correct-key"), 0);
}

TEST(Operations, LoadingAndDrainingSay503) {
  DemoServer::Options o;
  o.load = false;
  DemoServer s(o);
  EXPECT_EQ(ask(s.port(), get("/health")).status, 503);
  EXPECT_EQ(ask(s.port(), get("/health")).json()["error"]["code"], "loading");
  EXPECT_EQ(ask(s.port(), post("/v1/completions", completion(1))).status, 503);
  EXPECT_EQ(ask(s.port(), get("/version")).status, 200);
  s.load();
  EXPECT_EQ(ask(s.port(), get("/health")).status, 200);
  Client accepted(s.port()), stuck(s.port()), streamed(s.port());
  accepted.send(post("/v1/completions", completion(30)));
  stuck.send(post("/v1/completions", completion(1900)));
  streamed.send(post("/v1/completions", completion(1900, true)));
  streamed.receive_until([](const std::string& r) { return r.find("data: ") != std::string::npos; }, 60);
  s.api().drain();
  s.http().drain();
  EXPECT_EQ(ask(s.port(), get("/health")).json()["error"]["code"], "shutting_down");
  EXPECT_EQ(ask(s.port(), post("/v1/completions", completion(1))).status, 503);
  const Reply done = accepted.receive(60);
  EXPECT_EQ(done.status, 200);
  EXPECT_EQ(done.header("Connection"), "close");
  s.api().forget();  // the time is up
  EXPECT_EQ(stuck.receive().json()["error"]["code"], "shutting_down");
  streamed.receive_until([](const std::string& r) { return r.find("[DONE]") != std::string::npos; }, 60);
  EXPECT_THAT(streamed.received(), HasSubstr("\"code\":\"shutting_down\""));
  EXPECT_TRUE(s.http().wait_until_idle(milliseconds(60000)));
}

TEST(Operations, AnswersThatTakeTooLongEnd) {
  DemoServer::Options o;
  o.api.request_timeout = milliseconds(200);
  DemoServer s(o);
  const Reply r = ask(s.port(), post("/v1/completions", completion(1900)));
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(r.json()["error"]["code"], "deadline_exceeded");
}

TEST(Operations, SilentStreamsAreKeptAlive) {
  DemoServer::Options o;
  o.max_sequences = 1;
  o.http.session.keep_alive = milliseconds(50);
  DemoServer s(o);
  Client busy(s.port()), waiting(s.port());
  busy.send(post("/v1/completions", completion(1900, true)));
  busy.receive(60, true);
  waiting.send(post("/v1/completions", completion(2, true)));
  waiting.receive_until([](const std::string& r) { return r.find(": keep-alive\n\n") != std::string::npos; }, 20);
  EXPECT_THAT(waiting.received(), HasSubstr(": keep-alive\n\n"));
}

TEST(Operations, ManyIdleStreamsAndConnections) {
  DemoServer& s = demo_server();
  std::vector<std::unique_ptr<Client>> idle;
  for (int i = 0; i < 300; ++i) {
    idle.push_back(std::make_unique<Client>(s.port()));
    ASSERT_TRUE(idle.back()->connected());
    if (i % 2 == 0) idle.back()->send("GET /hea");
  }
  EXPECT_EQ(ask(s.port(), post("/v1/completions", completion(3))).status, 200);
  idle.clear();
  EXPECT_TRUE(eventually([&] { return s.http().connections() == 0; })) << s.http().connections();
}

TEST_F(ServeProgram, FinishesWhatItAcceptedOnSigterm) {
  write("keys", "a-key-for-this-test\n");
  start("-np 4 -c 512 --api-key-file " + path("keys") + " --access-log " + path("log") +
        " --drain-timeout 120 -a one two");
  const std::string key = "Authorization: Bearer a-key-for-this-test\r\n";
  EXPECT_EQ(ask(port_, get("/v1/models")).status, 401);
  EXPECT_EQ(ask(port_, get("/v1/models", key)).json()["data"][1]["id"], "two");
  EXPECT_EQ(ask(port_, get("/props", key)).json()["total_slots"], 4);
  Client c(port_);
  c.send(post("/v1/completions", completion(150), key));
  ASSERT_TRUE(eventually([&] { return runs_one(key); }));
  kill(pid_, SIGTERM);
  const Reply r = c.receive(120);
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(r.json()["usage"]["completion_tokens"], 150);
  EXPECT_EQ(wait(), 0);
  std::ifstream log(path("log"));
  std::vector<Json> lines;
  for (std::string line; std::getline(log, line);) {
    Json l = Json::parse(line);
    if (l["path"] != "/metrics") lines.push_back(std::move(l));  // asked until the completion ran
  }
  ASSERT_EQ(lines.size(), 4u);
  // Two connections may log in another order than they were answered in.
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(), [](const Json& l) { return l["status"] == 401; }), 1);
  EXPECT_EQ(lines[3]["completion_tokens"], 150);
  EXPECT_EQ(lines[3]["cached_tokens"], 0);
  EXPECT_EQ(lines[3]["prefix_miss"], "below_block");
  EXPECT_EQ(lines[3]["key"], 1);
  EXPECT_EQ(lines[3]["finish"], "length");
}

// What was computed before a restart is found after it, by the same key wherever it stands in its file, and by no
// other.
TEST_F(ServeProgram, KeepsItsPrefixCache) {
  const std::string options =
      "-np 2 -c 1024 --no-access-log --api-key-file " + path("keys") + " --prefix-cache-file " + path("prefixes");
  const auto header = [](const std::string& key) { return "Authorization: Bearer " + key + "\r\n"; };
  Json body = completion(20);
  body["prompt"] = std::vector<int>(300, 60);
  const auto answer = [&](const std::string& key) {
    const Reply r = ask(port_, post("/v1/completions", body, header(key)));
    EXPECT_EQ(r.status, 200) << r.body;
    return r.json();
  };
  const auto cached = [](const Json& j) { return j["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>(); };
  const auto stop = [&] {
    kill(pid_, SIGTERM);
    EXPECT_EQ(wait(), 0);
    port_ = 0;
    return read_whole_file(path("err"));
  };
  write("keys", "first-key-1\nsecond-key-2\n");
  start(options);
  const Json first = answer("first-key-1");
  EXPECT_EQ(cached(first), 0);
  EXPECT_THAT(stop(), HasSubstr("the prefix cache is kept: 256 tokens and 1 recurrent states in "));
  const std::string file = read_whole_file(path("prefixes"));
  EXPECT_EQ(file.find("first-key"), std::string::npos);

  write("keys", "second-key-2\nfirst-key-1\n");  // moved
  write("prefixes.partial-1-0", "as far as a server came that was killed");
  start(options);
  EXPECT_FALSE(std::filesystem::exists(path("prefixes.partial-1-0")));
  EXPECT_THAT(read_whole_file(path("err")), HasSubstr("the prefix cache begins with 256 tokens and 1 recurrent"));
  EXPECT_EQ(cached(answer("second-key-2")), 0);
  const Json again = answer("first-key-1");
  EXPECT_EQ(cached(again), 256);
  EXPECT_EQ(again["choices"], first["choices"]);
  stop();

  // A file that is no use is told in one line, and its place taken.
  write("prefixes", file.substr(0, file.size() / 2));
  start(options);
  EXPECT_THAT(read_whole_file(path("err")),
              HasSubstr("the prefix cache begins empty: " + path("prefixes") + ": it is damaged: it has "));
  EXPECT_EQ(cached(answer("first-key-1")), 0);
  stop();
  EXPECT_EQ(read_whole_file(path("prefixes")).size(), file.size());
}

TEST_F(ServeProgram, GivesUpAfterTheDrainTimeout) {
  start("--no-access-log --drain-timeout 0.3");
  Client c(port_);
  c.send(post("/v1/completions", completion(480)));
  ASSERT_TRUE(eventually([&] { return runs_one(); }));
  kill(pid_, SIGTERM);
  const Reply r = c.receive();
  EXPECT_TRUE(r.status == 503 || r.status == 200) << r.status;
  EXPECT_EQ(wait(), 0);
}

TEST_F(ServeProgram, RefusesBadOptions) {
  const std::string serve = "serve -m " + demo_model_path() + " --port 0 ";
  expect_refused(serve + "--frobnicate", "--frobnicate");
  expect_refused(serve + "--host example.org", "must be a numeric address");
  expect_refused(serve + "--api-key-file " + path("none"), "No such file");
  expect_refused(serve + "--ssl-certfile x", "both --ssl-certfile and --ssl-keyfile");
  expect_refused(serve + "--drain-timeout -1", "--drain-timeout");
  expect_refused(serve + "--reasoning-format maybe", "must be auto or none");
  expect_refused(serve + "--prefix-cache-file " + path("none/prefixes"), "files cannot be created in its folder");
  expect_refused(serve + "--prefix-cache-file " + path("x") + " --no-enable-prefix-caching", "is switched off");
  expect_refused(serve + "--prefix-cache-file " + path(""), "it is no regular file");
  const std::string model = path("model.gguf");
  std::filesystem::copy_file(demo_model_path(), model);
  expect_refused("serve -m " + model + " --port 0 --prefix-cache-file " + model, "it is not replaced");
  EXPECT_EQ(std::filesystem::file_size(model), std::filesystem::file_size(demo_model_path()));
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  expect_refused(serve + "--prefix-cache-file " + path("pipe"), "it is no regular file");
  for (const std::string& endless : {std::string("/dev/zero"), path("pipe"), path("")})
    for (const char* option : {"--chat-template", "--limits", "--generation-config"})
      expect_refused(serve + option + " " + endless,
                     endless == path("") && option[2] == 'g' ? "cannot open" : "is not a regular file");
  std::ofstream(path("large")) << std::string((1 << 20) + 1, ' ');
  expect_refused(serve + "--chat-template " + path("large"), "more than 1048576 bytes");
  expect_refused(serve + "--chat-template /proc/self/mem", "/proc/self/mem");
  expect_refused(serve + "--ssl-certfile /dev/zero --ssl-keyfile /dev/zero", "it is a device; a PEM file is needed");
  expect_refused(serve + "--api-key-file /dev/zero", "more than 1048576 bytes of keys");
  expect_refused(serve + "--prefix-cache-file x --prefix-cache-file-size 0", "must be above 0");
  expect_refused(serve + "--system-headers 'a b'", "--system-headers 'a b'");
  expect_refused(serve + "--pooling cls", "--pooling cls: must be last or mean");
  expect_refused(serve + "--tokenizer-threads 257", "must be between 0 and 256");
  expect_refused(serve + "--limits " + write("limits", R"({"max_unread": 1})"),
                 "'max_unread' must be a whole number from 2");
  expect_refused(serve + "--limits " + write("limits", R"({"max_total_body_bytes": 1024})"),
                 "max_total_body_bytes of the limits is 1024: must be at least --max-body-bytes (16777216)");
  expect_refused("serve -m " + path("none.gguf") + " --port 0", "none.gguf");
}

}  // namespace
}  // namespace quire::test
