// The page at "/": who gets it, and what it may do. What it does is tested in a browser (page_test.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/client.h"
#include "server/demo_server.h"

namespace quire::test {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// What browsers send.
const std::string kHtml = "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n";

TEST(Page, IsForBrowsersAndNeedsNoKeyAndNoModel) {
  DemoServer::Options o;
  o.api.keys = std::move(server::KeyRing::parse("correct-key\n")).value();
  o.load = false;
  DemoServer s(std::move(o));
  const Reply page = ask(s.port(), get("/", kHtml));
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.header("Content-Type"), "text/html; charset=utf-8");
  EXPECT_EQ(page.header("Vary"), "Accept");
  EXPECT_THAT(page.body, StartsWith("<!doctype html>"));
  EXPECT_THAT(page.body, HasSubstr("</html>"));
  for (const char* other : {"", "Accept: */*\r\n", "Accept: application/json\r\n"})
    EXPECT_EQ(ask(s.port(), get("/", other)).body, "Ollama is running") << other;
  EXPECT_EQ(ask(s.port(), get("/")).header("Vary"), "Accept");
  const Reply head = ask(s.port(), "HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + kHtml + "\r\n");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.header("Content-Length"), std::to_string(page.body.size()));
}

TEST(Page, MayRunItselfAndNothingElse) {
  const Reply page = ask(demo_server().port(), get("/", kHtml));
  const std::string policy = page.header("Content-Security-Policy");
  for (const char* rule : {"default-src 'none'", "script-src 'sha256-", "style-src 'sha256-", "connect-src 'self'",
                           "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"})
    EXPECT_THAT(policy, HasSubstr(rule));
  EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
  EXPECT_EQ(page.header("Referrer-Policy"), "no-referrer");
  EXPECT_EQ(page.header("X-Content-Type-Options"), "nosniff");
  // The hashes are those of all that there is to run.
  EXPECT_EQ(page.body.find("<script"), page.body.rfind("<script"));
  EXPECT_EQ(page.body.find("<style"), page.body.rfind("<style"));
  for (const char* never : {"innerHTML", "insertAdjacentHTML", "document.write", "eval(", "outerHTML"})
    EXPECT_THAT(page.body, Not(HasSubstr(never)));
}

// What the page, and whoever writes a client, may want to know beforehand.
TEST(Props, TellTheLimitsOfTools) {
  const Json props = ask(demo_server().port(), get("/props")).json();
  EXPECT_EQ(props["limits"]["tools"], 512);
  EXPECT_EQ(props["limits"]["schema_bytes"], 1 << 20);
  EXPECT_EQ(props["limits"]["call_bytes"], 1 << 20);
  EXPECT_EQ(props["tools"], true);
  EXPECT_EQ(props["tool_call_parser"], "hermes");
}

TEST(Page, IsNotThereWhereItIsTurnedOff) {
  DemoServer::Options o;
  o.api.page = false;
  DemoServer s(std::move(o));
  EXPECT_EQ(ask(s.port(), get("/", kHtml)).body, "Ollama is running");
}

}  // namespace
}  // namespace quire::test
