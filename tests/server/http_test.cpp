// HTTP: requests in any pieces, what is refused of them, what bodies hold, and responses.
#include "server/protocol/http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire::server {
namespace {

using testing::HasSubstr;

// All that the parser can use of `input`, which it is taken from: headers and what follows them are fed apart.
ApiStatus feed_all(HttpParser& parser, std::string& input) {
  for (size_t used = 1; used > 0 && !parser.done();) {
    QUIRE_TRY(used, parser.feed(input));
    input.erase(0, used);
  }
  return {};
}

// However a request is cut into pieces, it is read the same.
TEST(Http, ReadsRequestsInAnyPieces) {
  const std::string text =
      "POST /v1/x?a=b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nX-Y: z\r\n\r\n"
      "4;ext=1\r\nabcd\r\n3\r\nefg\r\n0\r\nTrailer: t\r\n\r\nGET /";
  for (size_t step = 1; step < text.size(); ++step) {
    HttpParser parser({});
    std::string input;
    size_t given = 0;
    while (!parser.done()) {
      ASSERT_LT(given, text.size()) << step;
      input += text.substr(given, step);
      given += std::min(step, text.size() - given);
      const ApiStatus fed = feed_all(parser, input);
      ASSERT_TRUE(fed.ok()) << fed.error().message;
    }
    const HttpRequest r = parser.take();
    EXPECT_EQ(r.method, "POST");
    EXPECT_EQ(r.path, "/v1/x");
    EXPECT_EQ(r.query, "a=b");
    EXPECT_EQ(r.header("x-y"), "z");
    EXPECT_EQ(r.body, "abcdefg");
    EXPECT_EQ(input + text.substr(given), "GET /");
  }
}

// Whatever stands behind the body, wherever it is cut: it is no header, and none of those that count twice.
TEST(Http, FieldsBehindTheBodyAreNoHeaders) {
  const std::string text =
      "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
      "Authorization: Bearer x\r\nHost: other\r\nConnection: close\r\n\r\n";
  for (size_t step = 1; step <= text.size(); ++step) {
    HttpParser parser({});
    std::string input;
    for (size_t at = 0; at < text.size(); at += step) {
      input += text.substr(at, step);
      const ApiStatus fed = feed_all(parser, input);
      ASSERT_TRUE(fed.ok()) << fed.error().message;
    }
    ASSERT_TRUE(parser.done()) << step;
    const HttpRequest r = parser.take();
    EXPECT_EQ(r.headers.size(), 2u);
    EXPECT_EQ(r.header("authorization"), "");
    EXPECT_EQ(r.header("host"), "h");
    EXPECT_TRUE(r.keep_alive);
    EXPECT_EQ(r.body, "a");
  }
}

int http_status(std::string text, HttpLimits l = {}) {
  HttpParser parser(l);
  const ApiStatus r = feed_all(parser, text);
  return r.ok() ? (parser.done() ? 200 : 0) : r.error().status;
}

TEST(Http, RefusesWhatIsMalformed) {
  EXPECT_EQ(http_status("GET / HTTP/1.1\r\nHost: h\r\n\r\n"), 200);
  EXPECT_EQ(http_status("GET / HTTP/1.0\r\n\r\n"), 200);
  EXPECT_EQ(http_status("GET / HTTP/1.1\r\n\r\n"), 400);                        // no Host
  EXPECT_EQ(http_status("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 400);  // two of them
  EXPECT_EQ(http_status("GET / HTTP/2.0\r\nHost: h\r\n\r\n"), 400);
  EXPECT_EQ(http_status("GET  / HTTP/1.1\r\nHost: h\r\n\r\n"), 400);
  EXPECT_EQ(http_status("GET / HTTP/1.1\r\nHost h\r\n\r\n"), 400);
  EXPECT_EQ(http_status("\x16\x03\x01\x02\r\n\r\n"), 400);
  EXPECT_EQ(http_status("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n"), 400);
  EXPECT_EQ(http_status("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n"), 400);
  EXPECT_EQ(http_status("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"), 400);
  EXPECT_EQ(http_status("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
  EXPECT_EQ(http_status("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n"), 400);
  EXPECT_EQ(http_status("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), 400);
  EXPECT_EQ(http_status("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 11\r\n\r\na", {.max_body_bytes = 10}), 413);
  EXPECT_EQ(
      http_status("GET / HTTP/1.1\r\nHost: h\r\nA: " + std::string(2000, 'a') + "\r\n\r\n", {.max_header_bytes = 1024}),
      431);
}

// What a request is, is known before its body; a length that is only declared takes no memory.
TEST(Http, StopsBehindTheHeaders) {
  const auto budget = std::make_shared<BodyBudget>(16);
  HttpParser parser({}, budget);
  std::string input = "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 16000000\r\n\r\n";
  const std::string head = input;
  input += "abc";
  const auto used = parser.feed(input);
  ASSERT_TRUE(used.ok());
  EXPECT_EQ(*used, head.size());
  EXPECT_EQ(parser.head().path, "/x");
  EXPECT_EQ(parser.head().content_length, 16000000u);
  EXPECT_TRUE(parser.head().announces_body());
  EXPECT_EQ(parser.check_length().error().status, 503);
  EXPECT_EQ(budget->held(), 0u);
}

TEST(Http, HoldsOfABodyWhatHasCome) {
  const auto budget = std::make_shared<BodyBudget>(size_t{64} << 20);
  HttpParser parser({}, budget);
  std::string input = "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 16000000\r\n\r\n" + std::string(1000, 'a');
  ASSERT_TRUE(feed_all(parser, input).ok());
  EXPECT_EQ(budget->held(), 1000u);
  {
    const HttpRequest r = parser.take();
    EXPECT_EQ(r.body.size(), 1000u);
    EXPECT_LE(r.body.capacity(), 2000u);
    EXPECT_EQ(budget->held(), 1000u) << "as long as somebody keeps the body";
  }
  EXPECT_EQ(budget->held(), 0u);
}

TEST(Http, ABudgetHoldsForAllBodies) {
  const auto budget = std::make_shared<BodyBudget>(10);
  const std::string chunked = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  HttpParser first({}, budget), second({}, budget);
  std::string a = chunked + "6\r\nabcdef\r\n", b = chunked + "4\r\nabcd\r\n";
  EXPECT_TRUE(feed_all(first, a).ok());
  EXPECT_TRUE(feed_all(second, b).ok());
  EXPECT_EQ(budget->held(), 10u);
  // What was not consumed, the end of the chunk before, stands before the next one.
  const ApiStatus more = feed_all(second, b += "1\r\na\r\n");
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.error().status, 503);
  EXPECT_GT(more.error().retry_after, 0);
  second = HttpParser({}, budget);
  EXPECT_EQ(budget->held(), 6u);
  EXPECT_TRUE(feed_all(first, a += "1\r\na\r\n").ok());
}

TEST(Http, WritesResponses) {
  EXPECT_EQ(response_head({.status = 404, .body = "x", .headers = {{"A", "b"}}}, 1, false, false),
            "HTTP/1.1 404 Not Found\r\nServer: quire\r\nContent-Type: application/json\r\nContent-Length: 1\r\n"
            "Connection: close\r\nA: b\r\n\r\n");
  EXPECT_EQ(chunk("0123456789abcdef"), "10\r\n0123456789abcdef\r\n");
  EXPECT_EQ(chunk(""), "0\r\n\r\n");
  EXPECT_EQ(percent_decoded("a%2Fb%zz%4"), "a/b%zz%4");
  EXPECT_EQ((ApiError{401, "no", "", ""}.body(ErrorShape::kOpenAi)),
            R"({"error":{"message":"no","type":"authentication_error","param":null,"code":"invalid_api_key"}})");
}

}  // namespace
}  // namespace quire::server
