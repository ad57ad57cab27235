// A server whose device is lost: whoever waits is told, whoever comes is refused, and /health says why.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "server/client.h"
#include "server/demo_server.h"
#include "support/failing_backend.h"

namespace quire::test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kLost = "the device is lost: the GPU computing a step: an illegal memory access";

Json completion(bool streamed) {
  return {{"prompt", "Once upon a time"},
          {"max_tokens", 500},
          {"temperature", 0},
          {"ignore_eos", true},
          {"stream", streamed}};
}

TEST(DeviceLoss, EveryAnswerEndsAndHealthTurns503) {
  DemoServer::Options o;
  o.max_sequences = 2;
  o.backend = failing_backend({.step = 30});
  DemoServer s(o);
  EXPECT_EQ(ask(s.port(), get("/health")).status, 200);

  // Two that run, two that wait in the queue.
  Client streamed(s.port());
  streamed.send(post("/v1/completions", completion(true)));
  streamed.receive_until([](const std::string& r) { return r.find("data: ") != std::string::npos; }, 60);
  std::vector<std::future<Reply>> whole;
  for (int i = 0; i < 3; ++i)
    whole.push_back(
        std::async(std::launch::async, [&] { return ask(s.port(), post("/v1/completions", completion(false))); }));
  const Reply began = streamed.receive(60);
  EXPECT_EQ(began.status, 200) << "its first tokens had been sent";
  EXPECT_THAT(began.body, HasSubstr(kLost));
  EXPECT_THAT(began.body, HasSubstr("data: [DONE]"));
  for (auto& w : whole) {
    const Reply r = w.get();
    EXPECT_THAT(r.status, testing::AnyOf(500, 503));
    EXPECT_THAT(r.error(), HasSubstr(kLost));
    EXPECT_THAT(r.error(), Not(HasSubstr("\n")));
    EXPECT_EQ(r.json()["error"]["type"], "server_error");
  }

  const Reply health = ask(s.port(), get("/health"));
  EXPECT_EQ(health.status, 503);
  EXPECT_THAT(health.error(), HasSubstr(kLost));
  EXPECT_THAT(health.error(), HasSubstr("must be started again"));
  EXPECT_EQ(health.json()["error"]["code"], "device_lost");
  const Reply late = ask(s.port(), post("/v1/completions", completion(false)));
  EXPECT_EQ(late.status, 503);
  EXPECT_EQ(late.json()["error"]["code"], "device_lost");
  // What needs no device goes on.
  EXPECT_EQ(ask(s.port(), get("/v1/models")).status, 200);
}

}  // namespace
}  // namespace quire::test
