// What the HTTP side makes of answers that no demo model would write: reasoning cut at every place, failures in the
// middle, a service that refuses, a device that is lost, and clients that leave.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/client.h"
#include "server/demo_server.h"
#include "server/scripted_service.h"

namespace quire::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Script = ScriptedService::Script;

class Scripted : public testing::Test {
 protected:
  Scripted() {
    DemoServer::Options o;
    o.service = service_;
    server_.emplace(std::move(o));
  }
  Reply chat(bool stream, const Json& more = Json::object()) {
    Json body = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"stream", stream}};
    body.update(more);
    return ask(server_->port(), post("/v1/chat/completions", body));
  }
  // The members of all deltas of a stream put together.
  static std::string joined(const Reply& r, const char* member) {
    std::string text;
    for (const std::string& e : r.events()) {
      const Json j = Json::parse(e, nullptr, false);
      if (!j.is_object() || !j.contains("choices") || j["choices"].empty()) continue;
      const Json& delta = j["choices"][0]["delta"];
      if (delta.contains(member) && delta[member].is_string()) text += delta[member].get<std::string>();
    }
    return text;
  }

  std::shared_ptr<ScriptedService> service_ = std::make_shared<ScriptedService>();
  std::optional<DemoServer> server_;
};

// Where some were verified: those of all answers.
TEST_F(Scripted, UsageTellsOfDrafts) {
  service_->will_answer({.texts = {"a", "b"}, .drafts = 7, .drafts_accepted = 4});
  service_->will_answer({.texts = {"c"}, .drafts = 2, .drafts_accepted = 2});
  const Json usage = chat(false, {{"n", 2}}).json()["usage"];
  EXPECT_EQ(usage["completion_tokens_details"],
            Json({{"reasoning_tokens", 0}, {"accepted_prediction_tokens", 6}, {"rejected_prediction_tokens", 3}}));
  service_->will_answer({.texts = {"a"}});
  EXPECT_EQ(chat(false).json()["usage"]["completion_tokens_details"], (Json{{"reasoning_tokens", 0}}));
  service_->will_answer({.texts = {"a"}, .drafts = 3, .drafts_accepted = 1});
  const Reply streamed = chat(true, {{"stream_options", {{"include_usage", true}}}});
  const std::vector<std::string> events = streamed.events();
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(Json::parse(events[events.size() - 2])["usage"]["completion_tokens_details"]["rejected_prediction_tokens"],
            2);
}

TEST_F(Scripted, ReasoningIsSplitOffWhereverItIsCut) {
  const std::string text = "<think>\nwhy <b>?\n</think>\n\nBecause </think> \xC3\xA9.";
  const std::string reasoning = "why <b>?", content = "Because </think> \xC3\xA9.";
  for (size_t first = 0; first <= text.size(); ++first) {
    const size_t second = std::min(text.size(), first + 3);
    if ((text[first] & 0xC0) == 0x80 || (second < text.size() && (text[second] & 0xC0) == 0x80))
      continue;  // the engine's texts are whole characters
    service_->will_answer({.texts = {text.substr(0, first), text.substr(first, second - first), text.substr(second)}});
    const Reply streamed = chat(true);
    EXPECT_EQ(joined(streamed, "reasoning_content"), reasoning) << "cut at " << first;
    EXPECT_EQ(joined(streamed, "content"), content) << "cut at " << first;
    service_->will_answer({.texts = {text.substr(0, first), text.substr(first)}});
    const Json whole = chat(false).json();
    EXPECT_EQ(whole["choices"][0]["message"]["reasoning_content"], reasoning) << "cut at " << first;
    EXPECT_EQ(whole["choices"][0]["message"]["content"], content) << "cut at " << first;
  }
}

TEST_F(Scripted, AFailureInTheMiddleIsToldAndEndsTheStream) {
  const Error damaged{Fault::kModelFile, "the model's logits are not numbers"};
  service_->will_answer({.texts = {"so ", "far"}, .finish = FinishReason::kError, .error = damaged});
  const Reply streamed = chat(true);
  EXPECT_EQ(streamed.status, 200) << "the beginning was sent";
  EXPECT_EQ(joined(streamed, "content"), "so far");
  EXPECT_THAT(streamed.body, HasSubstr("the model's logits are not numbers"));
  service_->will_answer({.texts = {"so ", "far"}, .finish = FinishReason::kError, .error = damaged});
  const Reply whole = chat(false);
  EXPECT_EQ(whole.status, 500);
  EXPECT_THAT(whole.error(), HasSubstr("the model's logits are not numbers"));
}

TEST_F(Scripted, ARefusalKeepsItsStatusAndWhenToComeBack) {
  service_->will_refuse(server::ApiError{.status = 429, .message = "the queue is full", .retry_after = 7});
  for (const bool stream : {false, true}) {
    const Reply r = chat(stream);
    EXPECT_EQ(r.status, 429);
    EXPECT_EQ(r.header("Retry-After"), "7");
    EXPECT_EQ(r.error(), "the queue is full");
  }
  service_->will_refuse(std::nullopt);
  service_->will_answer({.texts = {"fine"}});
  EXPECT_EQ(chat(false).status, 200);
}

TEST_F(Scripted, ALostDeviceIsToldByHealth) {
  EXPECT_EQ(ask(server_->port(), get("/health")).status, 200);
  service_->set_health(server::ApiError{503, "the device is lost", "", "device_lost"});
  const Reply r = ask(server_->port(), get("/health"));
  EXPECT_EQ(r.status, 503);
  EXPECT_THAT(r.body, HasSubstr("the device is lost"));
}

TEST_F(Scripted, AClientThatLeavesHasAllItsJobsCancelledOnce) {
  for (int i = 0; i < 3; ++i) service_->will_answer({.texts = {"a"}, .finish = FinishReason::kNone});
  {
    Client c(server_->port());
    const Json body = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"stream", true}, {"n", 3}};
    ASSERT_TRUE(c.send(post("/v1/chat/completions", body)));
    c.receive_until([](const std::string& s) { return s.find("\"a\"") != s.npos; }, 60);
    EXPECT_THAT(service_->cancelled(), IsEmpty());
  }
  ASSERT_TRUE(eventually([&] { return service_->cancelled().size() >= 3; }));
  EXPECT_THAT(service_->cancelled(), ElementsAre(1, 2, 3));
}

TEST_F(Scripted, AnswersOfOneRequestKeepTheirTextsApart) {
  service_->will_answer({.texts = {"one", " and", " more"}});
  service_->will_answer({.texts = {"two"}, .finish = FinishReason::kLength});
  const Json j = chat(false, {{"n", 2}, {"seed", 5}}).json();
  ASSERT_EQ(j["choices"].size(), 2u) << j;
  EXPECT_EQ(j["choices"][0]["message"]["content"], "one and more");
  EXPECT_EQ(j["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(j["choices"][1]["message"]["content"], "two");
  EXPECT_EQ(j["choices"][1]["finish_reason"], "length");
  const std::vector<Request> asked = service_->requests();
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[0].sampling.seed, 5u);
  EXPECT_EQ(asked[1].sampling.seed, 6u);
}

TEST_F(Scripted, TheEndOfTheServerStopsTheService) {
  service_->will_answer({.texts = {"a"}, .finish = FinishReason::kNone});
  Client c(server_->port());
  ASSERT_TRUE(c.send(post("/v1/completions", Json{{"prompt", "x"}, {"stream", true}})));
  c.receive_until([](const std::string& s) { return s.find("\"a\"") != s.npos; }, 60);
  server_.reset();
  EXPECT_TRUE(service_->stopped());
}

}  // namespace
}  // namespace quire::test
