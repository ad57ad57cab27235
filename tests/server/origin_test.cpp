// Pages in browsers: which may use a server without keys, and what they are told (CORS).
#include "server/origin_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/client.h"
#include "server/demo_server.h"
#include "server/serve_program.h"

namespace quire::test {
namespace {

using server::OriginPolicy;
using Guard = server::OriginPolicy::Guard;
using testing::HasSubstr;

OriginPolicy policy(std::string_view origins, std::string_view hosts, Guard guard) {
  return std::move(OriginPolicy::create(origins, hosts, guard)).value();
}

server::HttpRequest request(const std::string& host, const std::string& origin = "") {
  server::HttpRequest r;
  r.method = "POST";
  if (!host.empty()) r.headers.emplace_back("host", host);
  if (!origin.empty()) r.headers.emplace_back("origin", origin);
  return r;
}

int judged(const OriginPolicy& p, const std::string& host, const std::string& origin = "") {
  const server::ApiStatus s = p.judge(request(host, origin));
  return s.ok() ? 200 : s.error().status;
}

TEST(OriginPolicy, WithoutKeysOnlyLocalNamesAreAnswered) {
  const OriginPolicy p = policy("", "models.example.org, ::2", Guard::kLoopback);
  for (const char* host : {"localhost", "localhost:8000", "LOCALHOST", "127.0.0.1", "127.0.0.1:8000", "127.1.2.3:1",
                           "[::1]", "[::1]:8000", "models.example.org", "Models.Example.org:443", "[::2]:1"})
    EXPECT_EQ(judged(p, host), 200) << host;
  for (const char* host : {"example.org", "localhost.example.org", "127.0.0.1.example.org", "0.0.0.0:8000", "128.0.0.1",
                           "[::3]", "", "127.0.0.1@example.org", "10.0.0.1", "127.1"})
    EXPECT_EQ(judged(p, host), 403) << host;
  server::HttpRequest old = request("");
  old.http_1_0 = true;
  EXPECT_TRUE(p.judge(old).ok());
  EXPECT_EQ(judged(policy("", "*", Guard::kLoopback), "example.org"), 200);
  EXPECT_EQ(judged(policy("", "", Guard::kOther), "example.org"), 200);
  EXPECT_EQ(judged(policy("", "", Guard::kUnixSocket), "example.org"), 200);
  EXPECT_THAT(p.judge(request("evil.example")).error().message, HasSubstr("--allowed-hosts"));
}

TEST(OriginPolicy, WithoutKeysForeignPagesAreRefused) {
  for (const Guard guard : {Guard::kLoopback, Guard::kUnixSocket}) {
    const OriginPolicy p = policy("https://chat.example.org,http://localhost:3000/", "", guard);
    for (const char* origin : {"https://chat.example.org", "https://chat.example.org:443", "HTTPS://Chat.example.org",
                               "http://localhost:3000", "http://localhost:8000"})
      EXPECT_EQ(judged(p, "localhost:8000", origin), 200) << origin;
    for (const char* origin :
         {"http://chat.example.org", "https://chat.example.org:8443", "https://example.org", "http://localhost:3001",
          "http://localhost", "null", "https://chat.example.org.evil", "x"})
      EXPECT_EQ(judged(p, "localhost:8000", origin), 403) << origin;
    EXPECT_THAT(p.judge(request("localhost", "https://evil.example")).error().message, HasSubstr("--allowed-origins"));
    EXPECT_EQ(judged(policy("*", "", guard), "localhost", "https://evil.example"), 200);
    EXPECT_EQ(judged(policy("null", "", guard), "localhost", "null"), 200);
  }
  EXPECT_EQ(judged(policy("", "", Guard::kOther), "localhost", "https://evil.example"), 200);
}

TEST(OriginPolicy, TakesListsWithCommasAndInJson) {
  const OriginPolicy p = policy(R"(["https://a.example", "https://b.example"])", R"(["a.example"])", Guard::kLoopback);
  EXPECT_EQ(judged(p, "a.example", "https://b.example"), 200);
  for (const char* wrong :
       {"example.org", "https://", "https://a/b", "https://a b", "https://a:x", "['a']", R"(["a", 1])"}) {
    const auto refused = OriginPolicy::create(wrong, "", Guard::kOther);
    ASSERT_FALSE(refused.ok()) << wrong;
    EXPECT_THAT(refused.error().message, HasSubstr("--allowed-origins"));
  }
  EXPECT_THAT(OriginPolicy::create("", "http://a", Guard::kOther).error().message, HasSubstr("--allowed-hosts"));
}

std::string preflight(const std::string& path, const std::string& origin, const std::string& more = "") {
  return "OPTIONS " + path + " HTTP/1.1\r\nHost: localhost\r\nOrigin: " + origin +
         "\r\nAccess-Control-Request-Method: POST\r\n" + more + "\r\n";
}
std::string from(const std::string& origin) {
  return "Origin: " + origin + "\r\n";
}

TEST(Cors, AllowedPagesReadEveryAnswer) {
  DemoServer::Options o;
  o.api.keys = std::move(server::KeyRing::parse("correct-key\n")).value();
  o.api.origins = policy("https://chat.example.org", "", Guard::kOther);
  DemoServer s(o);
  const std::string page = "https://chat.example.org", key = "X-Api-Key: correct-key\r\n";
  Client c(s.port());
  c.send(preflight("/v1/chat/completions", page,
                   "Access-Control-Request-Headers: x-stainless-os, content-type\r\n"
                   "Access-Control-Request-Private-Network: true\r\n"));
  const Reply asked = c.receive(60, true);
  EXPECT_EQ(asked.status, 204);
  EXPECT_EQ(asked.header("Access-Control-Allow-Origin"), page);
  EXPECT_EQ(asked.header("Vary"), "Origin");
  EXPECT_THAT(asked.header("Access-Control-Allow-Methods"), HasSubstr("POST"));
  for (const char* name : {"authorization", "content-type", "x-api-key", "x-stainless-os"})
    EXPECT_THAT(asked.header("Access-Control-Allow-Headers"), HasSubstr(name));
  EXPECT_EQ(asked.header("Access-Control-Allow-Private-Network"), "true");
  EXPECT_NE(asked.header("Access-Control-Max-Age"), "");
  EXPECT_EQ(asked.header("Content-Length"), "");

  // The connection goes on with what was asked for: a stream, an error, an error before the key was found right.
  const Json body = {{"prompt", "a"}, {"max_tokens", 2}, {"stream", true}};
  for (const auto& [status, text] : {std::pair{200, post("/v1/completions", body, key + from(page))},
                                     {404, get("/nothing", key + from(page))},
                                     {401, get("/v1/models", from(page))}}) {
    c.send(text);
    const Reply r = c.receive();
    EXPECT_EQ(r.status, status);
    EXPECT_EQ(r.header("Access-Control-Allow-Origin"), page) << status;
    EXPECT_EQ(r.header("Vary"), "Origin") << status;
    EXPECT_THAT(r.header("Access-Control-Expose-Headers"), HasSubstr("X-Request-Id"));
  }

  const Reply other = ask(s.port(), get("/health", from("https://evil.example")));
  EXPECT_EQ(other.status, 200) << "keys keep strangers out, and the browser keeps the answer from the page";
  EXPECT_EQ(other.header("Access-Control-Allow-Origin"), "");
  EXPECT_EQ(other.header("Vary"), "Origin");
  EXPECT_EQ(ask(s.port(), preflight("/v1/completions", "https://evil.example")).status, 403);
}

TEST(Cors, ByDefaultNoPageIsAllowed) {
  DemoServer& s = demo_server();
  const Reply r = ask(s.port(), get("/health", from("https://chat.example.org")));
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(r.header("Access-Control-Allow-Origin"), "");
  EXPECT_EQ(r.header("Vary"), "");
  EXPECT_THAT(ask(s.port(), preflight("/v1/completions", "https://chat.example.org")).error(),
              HasSubstr("--allowed-origins"));
  EXPECT_EQ(ask(s.port(), "OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 405);
}

TEST(Cors, AllPagesMayBeAllowed) {
  DemoServer::Options o;
  o.api.origins = policy("*", "", Guard::kLoopback);
  DemoServer s(o);
  EXPECT_EQ(ask(s.port(), get("/health", from("https://any.example"))).header("Access-Control-Allow-Origin"), "*");
}

TEST(Browsers, FormsAndTextsOfPagesAreNotRead) {
  DemoServer::Options o;
  o.api.origins = policy("", "", Guard::kLoopback);
  DemoServer s(o);
  const auto typed = [](const std::string& type) {
    return "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n" + type + "Content-Length: 15\r\n\r\n{\"prompt\": \"a\"}";
  };
  const std::string form = "Content-Type: application/x-www-form-urlencoded\r\n";
  // What browsers add to what a page sends, from this server's own page on.
  for (const std::string& page :
       {std::string("Origin: http://localhost\r\n"), std::string("Sec-Fetch-Site: cross-site\r\n"),
        std::string("sec-fetch-site: none\r\nsec-fetch-mode: no-cors\r\n"), std::string("Origin:\r\n")}) {
    for (const std::string& type :
         {std::string(), form, std::string("Content-Type: text/plain\r\n"),
          std::string("Content-Type: application/octet-stream\r\n"),
          std::string("Content-Type: multipart/form-data\r\n"), std::string("Content-Type: application/jsonp\r\n")}) {
      EXPECT_EQ(ask(s.port(), typed(page + type)).status, 415) << page << type;
      EXPECT_THAT(ask(s.port(), typed(page + type)).error(), HasSubstr("must be application/json"));
    }
    EXPECT_EQ(ask(s.port(), typed(page + "Content-Type: application/json; charset=utf-8\r\n")).status, 200) << page;
    EXPECT_EQ(ask(demo_server().port(), typed(page)).status, 200) << "where something else guards the server";
    EXPECT_EQ(ask(demo_server().port(), typed(page + form)).status, 415) << "it is a form";
  }
  // No page sends what has none of these: `curl -d` names a form's type, .NET and Node that of plain text, litellm that
  // of any bytes, and other tools none. Node's fetch says how it fetches, as no browser does without Sec-Fetch-Site.
  for (DemoServer* const any : {&s, &demo_server()})
    for (const std::string& type :
         {std::string(), form, std::string("content-type: Application/X-WWW-Form-URLEncoded;\r\n"),
          std::string("Content-Type: text/plain; charset=utf-8\r\n"),
          std::string("Content-Type: application/octet-stream\r\n"), std::string("Content-Type: x\r\n"),
          std::string("Content-Type: text/plain;charset=UTF-8\r\nSec-Fetch-Mode: cors\r\n")})
      EXPECT_EQ(ask(any->port(), typed(type)).status, 200) << type;
  // A name that leads here makes a page of this server's own origin: its name is refused, whatever else it says.
  for (const char* rebound : {"", "Origin: http://evil.example\r\n", "Content-Type: text/plain\r\n"}) {
    const std::string request = "POST /tokenize HTTP/1.1\r\nHost: evil.example\r\n" + std::string(rebound) +
                                "Content-Length: 15\r\n\r\n{\"prompt\": \"a\"}";
    EXPECT_EQ(ask(s.port(), request).status, 403) << rebound;
  }
  const Reply r = ask(s.port(), "GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n");
  EXPECT_EQ(r.status, 403);
  EXPECT_EQ(r.json()["error"]["code"], "host_not_allowed");
  EXPECT_EQ(r.json()["error"]["type"], "permission_error");
}

class BrowsersAndTheProgram : public ServeProgram {};

TEST_F(BrowsersAndTheProgram, WithoutKeysItGuardsItself) {
  start("-c 512 --no-access-log --allowed-hosts proxy.example --allowed-origins https://chat.example.org");
  const auto named = [&](const std::string& host) {
    return ask(port_, "GET /props HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
  };
  EXPECT_EQ(named("evil.example").status, 403);
  EXPECT_EQ(named("proxy.example").status, 200);
  const Reply props = named("localhost");
  EXPECT_EQ(props.status, 200);
  EXPECT_EQ(props.body.find('/' + std::filesystem::path(demo_model_path()).filename().string()), std::string::npos);
  EXPECT_EQ(ask(port_, get("/health", from("https://evil.example"))).status, 403);
  EXPECT_EQ(ask(port_, get("/health", from("https://chat.example.org"))).status, 200);
}

TEST_F(BrowsersAndTheProgram, WithKeysNamesDoNotMatter) {
  write("keys", "correct-key\n");
  start("-c 512 --no-access-log --api-key-file " + path("keys"));
  EXPECT_EQ(ask(port_, "GET /v1/models HTTP/1.1\r\nHost: any.example\r\nX-Api-Key: correct-key\r\n\r\n").status, 200);
}

}  // namespace
}  // namespace quire::test
