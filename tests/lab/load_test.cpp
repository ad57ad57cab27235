// What bench-serve makes of lengths, traces, events and times.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/read_until.hpp>
#include <boost/asio/streambuf.hpp>
#include <boost/asio/write.hpp>
#include <thread>

#include "lab/load/http_client.h"
#include "lab/load/load_report.h"
#include "lab/load/url.h"
#include "server/protocol/event_reader.h"

namespace quire::cli::load {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(BenchUrl, IsTakenApart) {
  const auto u = Url::parse("http://host:8000/base/v1/");
  ASSERT_TRUE(u.ok());
  EXPECT_EQ(u->host, "host");
  EXPECT_EQ(u->port, "8000");
  EXPECT_EQ(u->base, "/base");
  EXPECT_EQ(Url::parse("http://[::1]:80")->host, "::1");
  EXPECT_EQ(Url::parse("http://h")->port, "80");
  for (const char* bad :
       {"", "host:80", "https://h", "http://", "http://h:x", "http://h:123456", "http://[::1", "http://h h"})
    EXPECT_FALSE(Url::parse(bad).ok()) << bad;
}

TEST(BenchLengths, AreDrawnAsTheySay) {
  std::mt19937_64 random(1);
  const auto mean = [&](const char* text) {
    const auto spec = LengthSpec::parse(text);
    EXPECT_TRUE(spec.ok()) << text;
    double sum = 0;
    for (int i = 0; i < 20000; ++i) sum += static_cast<double>(spec->draw(random));
    return sum / 20000;
  };
  EXPECT_EQ(mean("128"), 128);
  EXPECT_NEAR(mean("uniform:10:20"), 15, 0.1);
  EXPECT_NEAR(mean("normal:100:10"), 100, 0.5);
  EXPECT_NEAR(mean("exponential:50"), 50, 2);
  EXPECT_EQ(mean("0"), 1);
  for (const char* bad : {"", "x", "-1", "uniform:5", "uniform:9:5", "normal:5", "128x", "1e99"})
    EXPECT_FALSE(LengthSpec::parse(bad).ok()) << bad;
}

TEST(BenchWorkload, SharesPrefixesAndNothingElse) {
  const WorkloadOptions o{.prompt_tokens = {.a = 50}, .output_tokens = {.a = 7}, .shared_prefix = 30, .prefixes = 2};
  const auto items = make_workload(o, 4), again = make_workload(o, 4);
  const auto first_words = [](const std::string& s, int n) {
    size_t at = 0;
    for (int i = 0; i < n; ++i) at = s.find(' ', at) + 1;
    return s.substr(0, at);
  };
  EXPECT_EQ(first_words(items[0].prompt, 30), first_words(items[2].prompt, 30));
  EXPECT_NE(first_words(items[0].prompt, 30), first_words(items[1].prompt, 30));
  EXPECT_NE(items[0].prompt, items[2].prompt);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(items[i].prompt, again[i].prompt);
    EXPECT_EQ(std::count(items[i].prompt.begin(), items[i].prompt.end(), ' '), 49);
    EXPECT_EQ(items[i].max_tokens, 7);
  }
}

TEST(BenchTrace, IsReadLineByLine) {
  const auto t = parse_trace("{\"prompt\": \"a\", \"at\": 1.5}\n\n{\"prompt_tokens\": 3, \"output_tokens\": 9}\n", {});
  ASSERT_TRUE(t.ok()) << t.error().message;
  EXPECT_EQ(t->at(0).prompt, "a");
  EXPECT_FLOAT_EQ(static_cast<float>(t->at(0).at), 1.5f);
  EXPECT_EQ(t->at(1).max_tokens, 9);
  EXPECT_LT(t->at(1).at, 0);
  EXPECT_THAT(parse_trace("{\"prompt\": \"a\"}\n{\"x\": 1}", {}).error().message, HasSubstr("trace, line 2: unknown"));
  EXPECT_FALSE(parse_trace("\n", {}).ok());
}

TEST(BenchEvents, AreTheSameInAnyPieces) {
  const std::string text = ": hello\n\ndata: {\"a\": 1}\r\n\r\nevent: x\ndata: b\ndata:c\n\ndata: [DONE]\n\ndata: cut";
  for (size_t step = 1; step <= text.size(); ++step) {
    server::EventReader r;
    std::vector<std::string> all;
    for (size_t at = 0; at < text.size(); at += step)
      for (std::string& e : r.feed(text.substr(at, step))) all.push_back(std::move(e));
    EXPECT_THAT(all, ElementsAre("{\"a\": 1}", "b\nc", "[DONE]")) << step;
  }
}

// A server that says that it keeps connections and closes them: nothing that a client may fail for, but once.
TEST(BenchClient, ConnectsAnewWhereTheServerHasClosed) {
  namespace asio = boost::asio;
  using asio::ip::tcp;
  asio::io_context io;
  tcp::acceptor acceptor(io, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
  constexpr int kAnswered = 3;
  std::thread server([&] {
    for (int i = 0; i < kAnswered + 1; ++i) {
      tcp::socket s(acceptor.get_executor());
      if (boost::system::error_code ec; acceptor.accept(s, ec)) return;
      asio::streambuf request;
      asio::read_until(s, request, "\r\n\r\n{}");
      if (i < kAnswered) asio::write(s, asio::buffer(std::string("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")));
    }
  });
  const auto url = Url::parse(fmt::format("http://127.0.0.1:{}", acceptor.local_endpoint().port()));
  const auto addresses = resolve(io, *url);
  ASSERT_TRUE(addresses.ok());
  HttpClient client(io, *url, *addresses);
  std::vector<int> statuses;
  std::string problem;
  std::function<void()> ask = [&] {
    client.start({.path = "/", .body = "{}", .on_done = [&](int status, std::string error) {
                    statuses.push_back(status);
                    problem = std::move(error);
                    if (problem.empty()) ask();
                  }});
  };
  ask();
  io.run();
  ::shutdown(acceptor.native_handle(), SHUT_RDWR);  // should it wait for more
  server.join();
  // The last is closed without an answer on a connection of its own: that is an error.
  EXPECT_THAT(statuses, ElementsAre(200, 200, 200, 0));
  EXPECT_FALSE(problem.empty());
}

TEST(BenchReport, AddsUpWhatCame) {
  Sample a{.status = 200,
           .sent = 1,
           .first = 1.5,
           .last = 3.5,
           .end = 4,
           .gaps = {0.5, 1.5},
           .prompt_tokens = 10,
           .tokens = 3,
           .text = "abc",
           .finish = "stop"};
  Sample b = a, bad{.status = 429, .error = "full", .sent = 0, .end = 0.1};
  b.sent = 0;
  const LoadSummary s = summarize("2 clients", {a, b, bad});
  EXPECT_EQ(s.requests, 3u);
  EXPECT_EQ(s.errors, 1u);
  EXPECT_EQ(s.first_error, "full");
  EXPECT_DOUBLE_EQ(s.seconds, 4);
  EXPECT_DOUBLE_EQ(s.decode_rate(), 1.5);
  EXPECT_DOUBLE_EQ(s.prompt_rate(), 5);
  EXPECT_DOUBLE_EQ(s.ttft.p50, 1.0);
  EXPECT_DOUBLE_EQ(s.itl.mean, 1.0);
  EXPECT_DOUBLE_EQ(s.sequence_rate.p50, 1.0);
  EXPECT_THAT(load_table({s}), HasSubstr("| 2 clients | 3 | 1 | 1.5 | 5.0 | 1.0 |"));
  // Answers without text say nothing of when it came.
  const LoadSummary silent = summarize("1 client", {{.sent = 0, .end = 1, .tokens = 2}});
  EXPECT_THAT(load_table({silent}), HasSubstr("| 1 client | 1 | 0 | 2.0 | 0.0 | - | - | - |"));
  EXPECT_TRUE(load_json(silent)["ttft_seconds"].is_null());
  const Spread q = Spread::of({4, 1, 3, 2});
  EXPECT_DOUBLE_EQ(q.p50, 2.5);
  EXPECT_DOUBLE_EQ(q.p90, 3.7);
  const Agreement agreement = compare_texts({"same", "abc"}, {"same", "abd"});
  EXPECT_EQ(agreement.equal, 1u);
  EXPECT_EQ(agreement.first_difference, "request 2 differs from byte 2 on: 'c' and 'd'");
}

}  // namespace
}  // namespace quire::cli::load
