// What messages hold beside text: text where there is some, words in its place where there is none, and never the end
// of a conversation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/client.h"
#include "server/demo_server.h"
#include "server/scripted_service.h"

namespace quire::test {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kOnly = " left out: this model reads text only]";

class ContentParts : public testing::Test {
 protected:
  ContentParts() { serve(false); }
  void serve(bool strict) {
    DemoServer::Options o;
    o.service = service_;
    o.limits.strict_parameters = strict;
    server_.emplace(std::move(o));
  }
  Reply send(const char* path, const Json& body) {
    service_->will_answer({.texts = {"x"}});
    return ask(server_->port(), post(path, body));
  }
  // The part as that of a message of each API.
  Reply chat(const Json& part, const char* role = "user") {
    return send("/v1/chat/completions",
                {{"messages", {{{"role", "user"}, {"content", "q"}}, {{"role", role}, {"content", {part}}}}}});
  }
  Reply claude(const Json& block, const char* role = "user") {
    Json history = {{{"role", "user"}, {"content", "q"}}, {{"role", role}, {"content", {block}}}};
    history.push_back({{"role", "user"}, {"content", "on"}});
    return send("/v1/messages", {{"max_tokens", 9}, {"messages", history}});
  }
  Reply codex(const Json& part) {
    return send("/v1/responses", {{"input", {{{"role", "user"}, {"content", {part}}}}}});
  }
  std::string prompt() const {
    const std::vector<Request> all = service_->requests();
    const SharedTokens& tokens = all.back().prompt;
    return demo_model("moe")->tokenizer->decode(std::vector<TokenId>(tokens.begin(), tokens.end()), true);
  }

  std::shared_ptr<ScriptedService> service_ = std::make_shared<ScriptedService>();
  std::optional<DemoServer> server_;
};

TEST_F(ContentParts, WordsStandInThePlaceOfMedia) {
  for (const auto& [part, words, kind] :
       {std::tuple{Json{{"type", "image_url"}, {"image_url", {{"url", "data:image/png;base64,AAAA"}}}}, "[image",
                   "image"},
        {Json{{"type", "input_audio"}, {"input_audio", {{"data", "AAAA"}}}}, "[audio", "audio"},
        {Json{{"type", "video_url"}, {"video_url", {{"url", "u"}}}}, "[video", "video"},
        {Json{{"type", "file"}, {"file", {{"filename", "a.pdf"}, {"file_data", "AAAA"}}}}, "[file \"a.pdf\"", "file"},
        {Json{{"type", "hologram"}, {"data", "AAAA"}}, "[hologram", "other"},
        {Json{{"depth", 3}}, "[a part", "other"}}) {
    const Reply r = chat(part);
    EXPECT_EQ(r.status, 200) << part << r.body;
    EXPECT_THAT(prompt(), HasSubstr(words + kOnly)) << part;
    EXPECT_THAT(prompt(), Not(HasSubstr("AAAA"))) << part;
    EXPECT_EQ(r.header("X-Left-Out"), fmt::format("messages[1].content[0]:{}", kind));
    EXPECT_EQ(r.header("X-Ignored-Parameters"), "") << part;
  }
  EXPECT_EQ(server_->metric(R"(quire:left_out_total{kind="image"})"), 1);
  EXPECT_EQ(server_->metric(R"(quire:left_out_total{kind="other"})"), 2);
}

TEST_F(ContentParts, TextIsText) {
  for (const Json& part : {Json{{"type", "text"}, {"text", "words"}},
                           {{"type", "input_text"}, {"text", "words"}},
                           {{"type", "output_text"}, {"text", "words"}, {"annotations", Json::array()}},
                           {{"type", "refusal"}, {"refusal", "words"}},
                           {{"type", "brand_new"}, {"text", "words"}},
                           {{"text", "words"}}}) {
    for (const char* role : {"user", "assistant", "tool", "system"}) {
      const Reply r = chat(part, role);
      EXPECT_EQ(r.status, 200) << part << r.body;
      EXPECT_THAT(prompt(), HasSubstr("words")) << part << role;
      EXPECT_EQ(r.header("X-Left-Out"), "");
      EXPECT_EQ(r.header("X-Ignored-Parameters"), "") << part;
    }
    EXPECT_EQ(codex(part).status, 200) << part;
    EXPECT_THAT(prompt(), HasSubstr("words")) << part;
  }
}

// Reasoning in a content is that of the message.
TEST_F(ContentParts, ThoughtsAreReasoning) {
  const auto turn = [](const Json& content) {
    return Json{{"messages",
                 {{{"role", "user"}, {"content", "q"}},
                  {{"role", "assistant"}, {"content", content}, {"reasoning_content", nullptr}},
                  {{"role", "user"}, {"content", "on"}}}}};
  };
  Json said = turn("words");
  said["messages"][1]["reasoning_content"] = "hm";
  ASSERT_EQ(send("/v1/chat/completions", said).status, 200);
  const std::string wanted = prompt();
  for (const Json& thought : {Json{{"type", "thinking"}, {"thinking", "hm"}, {"signature", "s"}},
                              {{"type", "thinking"}, {"thinking", {{{"type", "text"}, {"text", "hm"}}}}},
                              {{"type", "reasoning"}, {"text", "hm"}},
                              {{"type", "reasoning"}, {"summary", {{{"type", "summary_text"}, {"text", "hm"}}}}}}) {
    const Reply r = send("/v1/chat/completions", turn(Json::array({thought, {{"type", "text"}, {"text", "words"}}})));
    EXPECT_EQ(r.status, 200) << thought << r.body;
    EXPECT_EQ(prompt(), wanted) << thought;
  }
}

TEST_F(ContentParts, BlocksOfAnthropic) {
  const Json image = {{"type", "image"},
                      {"source", {{"type", "base64"}, {"media_type", "image/png"}, {"data", "AAAA"}}}};
  const auto document = [](const Json& source) {
    return Json{{"type", "document"}, {"title", "Plan"}, {"source", source}};
  };
  const Json found = {{{"type", "web_search_result"},
                       {"title", "Cats"},
                       {"url", "https://c.at"},
                       {"encrypted_content", "AAAA"},
                       {"page_age", nullptr}}};
  for (const auto& [block, role, says, kind] :
       {std::tuple{image, "user", "[image" + kOnly, "image"},
        {document({{"type", "text"}, {"media_type", "text/plain"}, {"data", "step one"}}), "user", "Plan\nstep one",
         ""},
        {document({{"type", "content"}, {"content", {{{"type", "text"}, {"text", "step one"}}}}}), "user",
         "Plan\nstep one", ""},
        {document({{"type", "base64"}, {"media_type", "application/pdf"}, {"data", "AAAA"}}), "user",
         "[document \"Plan\"" + kOnly, "document"},
        {Json{{"type", "search_result"},
              {"source", "https://c.at"},
              {"title", "Cats"},
              {"content", {{{"type", "text"}, {"text", "they purr"}}}}},
         "user", "Cats\nhttps://c.at\nthey purr", ""},
        {Json{{"type", "server_tool_use"}, {"id", "s"}, {"name", "web_search"}, {"input", {{"query", "cats"}}}},
         "assistant", "[call of web_search: {\"query\":\"cats\"}]", ""},
        {Json{{"type", "web_search_tool_result"}, {"tool_use_id", "s"}, {"content", found}}, "assistant",
         "[result of web_search]\nCats\nhttps://c.at", ""},
        {Json{{"type", "web_search_tool_result"},
              {"tool_use_id", "s"},
              {"content", {{"type", "web_search_tool_result_error"}, {"error_code", "max_uses_exceeded"}}}},
         "assistant", "[result of web_search]\nmax_uses_exceeded", ""},
        {Json{{"type", "code_execution_tool_result"},
              {"tool_use_id", "s"},
              {"content", {{"type", "code_execution_result"}, {"stdout", "4"}, {"stderr", ""}, {"return_code", 0}}}},
         "assistant", "[result of code_execution]\n4", ""},
        {Json{{"type", "mcp_tool_result"},
              {"tool_use_id", "s"},
              {"content", {{{"type", "text"}, {"text", "4"}}, image}}},
         "assistant", "[result of mcp]\n4\n[image" + kOnly, "image"},
        {Json{{"type", "compaction_of_2027"}, {"encrypted", "AAAA"}}, "assistant", "[compaction_of_2027" + kOnly,
         "other"}}) {
    const Reply r = claude(block, role);
    EXPECT_EQ(r.status, 200) << block << r.body;
    EXPECT_THAT(prompt(), HasSubstr(says)) << block;
    EXPECT_THAT(prompt(), Not(HasSubstr("AAAA"))) << block;
    EXPECT_EQ(r.header("X-Left-Out"), kind[0] == '\0' ? "" : fmt::format("messages[1].content[0]:{}", kind)) << block;
  }
}

// Screenshots are what tools answer with, and what they were found by.
TEST_F(ContentParts, ResultsOfTools) {
  const Json image = {{"type", "image"}, {"source", {{"type", "base64"}, {"data", "AAAA"}}}};
  const Json result = {
      {"type", "tool_result"},
      {"tool_use_id", "t"},
      {"content", {{{"type", "text"}, {"text", "seen"}}, image, {{"type", "tool_reference"}, {"tool_name", "look"}}}}};
  const Reply r = send("/v1/messages", {{"max_tokens", 9}, {"messages", {{{"role", "user"}, {"content", {result}}}}}});
  EXPECT_EQ(r.status, 200) << r.body;
  EXPECT_THAT(prompt(), HasSubstr("seen\n[image" + kOnly + "\n[tool: look]"));
  EXPECT_EQ(r.header("X-Left-Out"), "messages[0].content[0].content[1]:image");

  const Json item = {{"type", "function_call_output"},
                     {"call_id", "c"},
                     {"output",
                      {{{"type", "input_image"}, {"image_url", "data:AAAA"}},
                       {{"type", "input_file"}, {"filename", "a.pdf"}, {"file_data", "AAAA"}}}}};
  const Reply codex = send("/v1/responses", {{"input", {item}}});
  EXPECT_EQ(codex.status, 200) << codex.body;
  EXPECT_THAT(prompt(), HasSubstr("[image" + kOnly + "\n[file \"a.pdf\"" + kOnly));
  EXPECT_EQ(codex.header("X-Left-Out"), "input[0].output[0]:image, input[0].output[1]:file");

  const Json said = {{{"role", "user"}, {"content", "look"}, {"images", {"AAAA", "AAAA"}}}};
  const Reply ollama = send("/api/chat", {{"model", "demo"}, {"messages", said}});
  EXPECT_EQ(ollama.status, 200) << ollama.body;
  EXPECT_THAT(prompt(), HasSubstr("look\n[2 images" + kOnly));
  EXPECT_EQ(ollama.header("X-Left-Out"), "messages[0].images:image");
  const Reply generated = send("/api/generate", {{"model", "demo"}, {"prompt", "look"}, {"images", {"AAAA"}}});
  EXPECT_THAT(prompt(), HasSubstr("look\n[image" + kOnly));
  EXPECT_EQ(generated.header("X-Left-Out"), "images:image");
}

TEST_F(ContentParts, WhoIsStrictIsTold) {
  serve(true);
  const Json image = {{"type", "image_url"}, {"image_url", {{"url", "u"}}}};
  EXPECT_EQ(chat(image).error(), "'messages[1].content[0].type' is 'image_url': this server reads text only");
  EXPECT_EQ(claude({{"type", "image"}, {"source", Json::object()}}).error(),
            "'messages[1].content[0].type' is 'image': this server reads text only");
  EXPECT_EQ(codex({{"type", "brand_new"}}).json()["error"]["code"], "unsupported_parameter");
  EXPECT_EQ(
      send("/api/chat", {{"model", "demo"}, {"messages", {{{"role", "user"}, {"content", "a"}, {"images", {"b"}}}}}})
          .json()["error"],
      "'messages[0].images' is not supported: this server reads text only");
  EXPECT_EQ(chat({{"type", "output_text"}, {"text", "words"}}).status, 200);
  EXPECT_EQ(claude({{"type", "document"}, {"source", {{"type", "text"}, {"data", "words"}}}}).status, 200);
}

TEST_F(ContentParts, MistakesAreStillMistakes) {
  for (const auto& [part, says] :
       {std::pair{Json("text"), "'messages[1].content[0]' must be an object, not a string"},
        {Json{{"type", "text"}}, "'messages[1].content[0].text' must be a string"},
        {Json{{"type", "text"}, {"text", 7}}, "'messages[1].content[0].text' must be a string"},
        {Json{{"type", "refusal"}}, "'messages[1].content[0].refusal' must be a string"},
        {Json{{"type", 7}, {"text", "a"}}, "'messages[1].content[0].type' must be a string, not a number"}}) {
    const Reply r = chat(part);
    EXPECT_EQ(r.status, 400) << part;
    EXPECT_EQ(r.error(), says);
  }
}

// As many as a body can hold, and nested as deep: told of in a header of few names.
TEST_F(ContentParts, ManyAreBounded) {
  EXPECT_EQ(chat({{"type", std::string(1000, 'x')}}).status, 200);
  EXPECT_THAT(prompt(), HasSubstr("[" + std::string(64, 'x') + kOnly));
  Json parts = Json::array();
  for (int i = 0; i < 40; ++i) parts.push_back({{"type", "x"}});
  const Reply some = send("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", parts}}}}});
  EXPECT_EQ(some.status, 200) << some.body;
  EXPECT_TRUE(some.header("X-Left-Out").ends_with("messages[0].content[15]:other, ..."));
  Json deep = "here";
  for (int i = 0; i < 50; ++i) deep = Json::array({std::move(deep)});
  EXPECT_EQ(chat({{"type", "new"}, {"content", deep}}).status, 200);
}

}  // namespace
}  // namespace quire::test
