// What is judged before a body is read, and what bodies may take of memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "server/client.h"
#include "server/demo_server.h"

namespace quire::test {
namespace {

using testing::HasSubstr;
using testing::Not;

// A request that announces a body and sends nothing of it. It asks for "100 Continue", as careful clients do.
std::string announce(std::string_view path, size_t length, std::string_view headers = "",
                     std::string_view method = "POST") {
  return fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\nExpect: 100-continue\r\n{}\r\n",
                     method, path, length, headers);
}

constexpr char kJson[] = "Content-Type: application/json\r\n";

DemoServer::Options two_keys() {
  DemoServer::Options o;
  o.api.keys = std::move(server::KeyRing::parse("correct-key\n")).value();
  return o;
}
const std::string kKey = "Authorization: Bearer correct-key\r\n";

int64_t resident_bytes() {
  long pages = 0;
  std::FILE* f = std::fopen("/proc/self/statm", "re");
  if (f == nullptr || std::fscanf(f, "%*d %ld", &pages) != 1) ADD_FAILURE() << "no /proc/self/statm";
  if (f != nullptr) std::fclose(f);
  return pages * sysconf(_SC_PAGESIZE);
}

TEST(Admission, JudgesByHeadersAlone) {
  DemoServer s(two_keys());
  struct Case {
    int status;
    std::string request, code;
  };
  const std::string json = kJson, both = kKey + kJson;
  for (const Case& c : {
           Case{401, announce("/v1/completions", 1000, json), "invalid_api_key"},
           {401, announce("/nothing", 1000, json), "invalid_api_key"},
           {401, announce("/v1/completions", 99'999'999'999, json), "invalid_api_key"},
           {401, announce("/v1/completions", 1000, "Authorization: Bearer guess\r\n"), "invalid_api_key"},
           {404, announce("/nothing", 1000, both), "unknown_url"},
           {405, announce("/v1/completions", 1000, both, "PUT"), "method_not_allowed"},
           {405, announce("/health", 1000, both), "method_not_allowed"},
           {411, "POST /v1/completions HTTP/1.1\r\nHost: t\r\n" + both + "\r\n", "length_required"},
           {413, announce("/v1/completions", 99'999'999'999, both), "request_too_large"},
           {415, announce("/v1/completions", 1000, kKey + "Origin: null\r\nContent-Type: text/plain\r\n"),
            "unsupported_media_type"},
           {415, announce("/v1/completions", 1000, both + "Content-Encoding: gzip\r\n"), "unsupported_media_type"},
       }) {
    Client client(s.port());
    client.send(c.request);
    client.receive_until([](const std::string& r) { return r.find("\r\n\r\n") != std::string::npos; }, 20);
    EXPECT_THAT(client.received(), Not(HasSubstr("100 Continue"))) << c.request;
    const Reply r = client.receive(20);
    EXPECT_EQ(r.status, c.status) << c.request;
    EXPECT_EQ(r.json()["error"]["code"], c.code) << c.request;
    // Without a body there is nothing in the way of another request.
    EXPECT_EQ(r.header("Connection"), c.status == 411 ? "" : "close") << c.request;
  }
}

TEST(Admission, ModelsThatAreNotThereYetReadNoBodies) {
  DemoServer::Options o;
  o.load = false;
  DemoServer s(o);
  const Reply r = ask(s.port(), announce("/v1/completions", 1000, kJson), 20);
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(r.json()["error"]["code"], "loading");
}

// Some clients send a body with GET. It is answered, and what comes is not taken for another request.
TEST(Admission, GetHasNoBody) {
  DemoServer& s = demo_server();
  for (const std::string body :
       {"Content-Length: 28\r\n\r\nGET /nothing HTTP/1.1\r\nA: b", "Transfer-Encoding: chunked\r\n\r\n"}) {
    Client client(s.port());
    client.send("GET /health HTTP/1.1\r\nHost: localhost\r\n" + body);
    EXPECT_EQ(client.receive(20).status, 200);
    EXPECT_TRUE(client.closes(20));
    EXPECT_EQ(client.received(), "");
  }
  Client empty(s.port());
  for (int i = 0; i < 2; ++i) {
    empty.send("GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
    EXPECT_EQ(empty.receive(20).status, 200);
  }
}

TEST(Admission, RefusedConnectionsServeOn) {
  DemoServer s(two_keys());
  Client client(s.port());
  client.send(get("/v1/models"));
  EXPECT_EQ(client.receive(20).status, 401);
  client.send(get("/nothing", kKey));
  EXPECT_EQ(client.receive(20).status, 404);
  client.send(get("/v1/models", kKey));
  EXPECT_EQ(client.receive(20).status, 200);
}

// Who has no key announces as much as it likes and sends it, too: nothing of it is kept.
TEST(Admission, BodiesWithoutKeysTakeNoMemory) {
  DemoServer s(two_keys());
  constexpr int kClients = 200;
  const std::string piece(size_t{1} << 20, ' ');
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kClients; ++i) clients.push_back(std::make_unique<Client>(s.port()));
  ASSERT_EQ(ask(s.port(), get("/health")).status, 200);
  const int64_t before = resident_bytes();
  for (const auto& c : clients) {
    c->send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16777216\r\n\r\n");
    c->send(piece);
  }
  EXPECT_LT(resident_bytes() - before, int64_t{32} << 20);
  for (const auto& c : clients) ASSERT_EQ(c->receive(20, true).status, 401);
  EXPECT_EQ(s.http().held_body_bytes(), 0u);
}

TEST(Admission, BodiesShareABudget) {
  DemoServer::Options o;
  o.http.session.limits.max_body_bytes = 4000;
  o.http.max_total_body_bytes = 10000;
  DemoServer s(o);
  const auto part = [](size_t declared) { return announce("/tokenize", declared, kJson) + std::string(3900, ' '); };
  std::vector<std::unique_ptr<Client>> held;
  for (int i = 0; i < 2; ++i) {
    held.push_back(std::make_unique<Client>(s.port()));
    held.back()->send(part(4000));
  }
  const auto wait_for = [&](size_t bytes) {
    for (int i = 0; i < 2000 && s.http().held_body_bytes() != bytes; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(s.http().held_body_bytes(), bytes);
  };
  wait_for(7800);
  const Reply third = ask(s.port(), announce("/tokenize", 2201, kJson), 20);
  EXPECT_EQ(third.status, 503);
  EXPECT_EQ(third.header("Retry-After"), "1");
  EXPECT_EQ(third.json()["error"]["code"], "overloaded");
  // In chunks nobody knows how much it will be.
  Client chunked(s.port());
  chunked.send("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n898\r\n" +
               std::string(0x898, ' ') + "\r\n");
  wait_for(10000);
  chunked.send("1\r\n \r\n");
  EXPECT_EQ(chunked.receive(20).status, 503);
  wait_for(7800);
  EXPECT_EQ(ask(s.port(), get("/health")).status, 200);
  held.clear();
  wait_for(0);
  EXPECT_EQ(ask(s.port(), post("/tokenize", Json{{"prompt", std::string(3900, 'a')}})).status, 200);
  wait_for(0);
}

}  // namespace
}  // namespace quire::test
