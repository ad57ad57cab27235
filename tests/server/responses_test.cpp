// OpenAI's Responses API: items in, items out, and the events of its streams.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/client.h"
#include "server/demo_server.h"
#include "server/scripted_service.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

const Json kTools =
    Json::parse(R"([{"type": "function", "name": "get_weather", "strict": false, "description": "Weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    {"type": "custom", "name": "apply_patch", "description": "Patch", "format": {"type": "grammar"}},
    {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "inner", "parameters": {}}]},
    {"type": "web_search"}])");
const std::string kAnswer =
    "<think>\nwhere?\n</think>\n\nLet me look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
    "\"Paris\"}}\n</tool_call>";

class Responses : public testing::Test {
 protected:
  Responses() {
    DemoServer::Options o;
    o.service = service_;
    server_.emplace(std::move(o));
  }
  Reply respond(const Json& more, const std::vector<std::string>& texts = {"Hello"},
                FinishReason finish = FinishReason::kStop) {
    service_->will_answer({.texts = texts, .finish = finish});
    Json body = {{"model", "demo"}, {"input", "hi"}};
    body.update(more);
    return ask(server_->port(), post("/v1/responses", body));
  }
  std::string prompt() const {
    const std::vector<Request> all = service_->requests();
    const SharedTokens& tokens = all.back().prompt;
    return demo_model("moe")->tokenizer->decode(std::vector<TokenId>(tokens.begin(), tokens.end()), true);
  }
  // The events' data, whose types and numbers must be right.
  static std::vector<Json> events_of(const Reply& r) {
    std::vector<Json> all;
    std::string rest = r.body;
    while (!rest.empty()) {
      const size_t end = rest.find("\n\n");
      const std::string one = rest.substr(0, end);
      rest.erase(0, end == std::string::npos ? end : end + 2);
      const size_t line = one.find("\ndata: ");
      all.push_back(Json::parse(one.substr(line + 7), nullptr, false));
      EXPECT_EQ(one.substr(0, line), "event: " + all.back()["type"].get<std::string>());
      EXPECT_EQ(all.back()["sequence_number"], all.size() - 1);
    }
    return all;
  }
  // Output items without their ids, which differ.
  static Json nameless(Json output) {
    for (Json& item : output)
      for (const char* id : {"id", "call_id"}) item.erase(id);
    return output;
  }

  std::shared_ptr<ScriptedService> service_ = std::make_shared<ScriptedService>();
  std::optional<DemoServer> server_;
};

TEST_F(Responses, AWholeResponseHasAllItsFields) {
  const Json j = respond({{"instructions", "Be brief."}}).json();
  EXPECT_EQ(j["output"][0]["content"][0]["text"], "Hello");
  EXPECT_EQ(j["status"], "completed");
  for (const char* field : {"id",
                            "object",
                            "created_at",
                            "completed_at",
                            "status",
                            "incomplete_details",
                            "model",
                            "previous_response_id",
                            "instructions",
                            "output",
                            "error",
                            "tools",
                            "tool_choice",
                            "truncation",
                            "parallel_tool_calls",
                            "text",
                            "top_p",
                            "presence_penalty",
                            "frequency_penalty",
                            "top_logprobs",
                            "temperature",
                            "reasoning",
                            "usage",
                            "max_output_tokens",
                            "max_tool_calls",
                            "store",
                            "background",
                            "service_tier",
                            "metadata",
                            "safety_identifier",
                            "prompt_cache_key"})
    EXPECT_TRUE(j.contains(field)) << field;
  const Json cut = respond(Json::object(), {"a"}, FinishReason::kLength).json();
  EXPECT_EQ(cut["status"], "incomplete");
  EXPECT_EQ(cut["incomplete_details"]["reason"], "max_output_tokens");
}

TEST_F(Responses, ItemsStandInTheirOrderAndStreamsTellTheSame) {
  const Reply whole = respond({{"tools", kTools}}, {kAnswer});
  EXPECT_EQ(whole.header("X-Ignored-Parameters"), "tools[3]");
  const Json output = whole.json()["output"];
  ASSERT_EQ(output.size(), 3u) << output;
  EXPECT_EQ(output[0]["type"], "reasoning");
  EXPECT_EQ(output[0]["content"][0]["text"], "where?");
  EXPECT_EQ(output[1]["content"][0]["text"], "Let me look.");
  EXPECT_EQ(output[2]["type"], "function_call");
  EXPECT_EQ(output[2]["name"], "get_weather");
  EXPECT_EQ(output[2]["arguments"], R"({"city": "Paris"})");
  for (size_t at = 0; at < kAnswer.size(); at += 5) {
    const std::vector<std::string> texts = {kAnswer.substr(0, at), kAnswer.substr(at, 3),
                                            kAnswer.substr(std::min(kAnswer.size(), at + 3))};
    const std::vector<Json> events = events_of(respond({{"tools", kTools}, {"stream", true}}, texts));
    ASSERT_FALSE(events.empty());
    EXPECT_EQ(events[0]["type"], "response.created");
    EXPECT_EQ(events[1]["type"], "response.in_progress");
    EXPECT_EQ(events.back()["type"], "response.completed");
    EXPECT_EQ(nameless(events.back()["response"]["output"]), nameless(output)) << "cut at " << at;
    Json done = Json::array();
    std::string text, arguments, reasoning;
    for (const Json& e : events) {
      if (e["type"] == "response.output_item.added") {
        EXPECT_EQ(e["output_index"], done.size());
      }
      if (e["type"] == "response.output_item.done") done.push_back(e["item"]);
      if (e["type"] == "response.output_text.delta") text += e["delta"].get<std::string>();
      if (e["type"] == "response.reasoning_text.delta") reasoning += e["delta"].get<std::string>();
      if (e["type"] == "response.function_call_arguments.delta") arguments += e["delta"].get<std::string>();
    }
    EXPECT_EQ(done, events.back()["response"]["output"]);
    EXPECT_EQ(text, "Let me look.");
    EXPECT_EQ(reasoning, "where?");
    EXPECT_EQ(arguments, R"({"city": "Paris"})");
  }
}

TEST_F(Responses, CustomToolsTakeText) {
  const std::string call =
      "<tool_call>{\"name\": \"apply_patch\", \"arguments\": {\"input\": \"*** a\\nb\"}}</tool_call>";
  const Json item = respond({{"tools", kTools}}, {call}).json()["output"][0];
  EXPECT_EQ(item["type"], "custom_tool_call");
  EXPECT_EQ(item["input"], "*** a\nb");
  std::string input;
  for (const Json& e : events_of(respond({{"tools", kTools}, {"stream", true}}, {call})))
    if (e["type"] == "response.custom_tool_call_input.delta") input += e["delta"].get<std::string>();
  EXPECT_EQ(input, "*** a\nb");
}

TEST_F(Responses, ACallThatIsCutIsNeverDone) {
  const std::string cut = "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Pa";
  const Json answer = respond({{"tools", kTools}}, {cut}, FinishReason::kLength).json();
  for (const Json& item : answer["output"]) EXPECT_EQ(item["type"], "message");
  for (const Json& e : events_of(respond({{"tools", kTools}, {"stream", true}}, {cut}, FinishReason::kLength)))
    EXPECT_NE(e["type"], "response.output_item.done");
}

TEST_F(Responses, ItemsBecomeWhatChatsBecome) {
  const Json input = Json::parse(
      R"([{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
    {"role": "user", "content": "hi"},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": null},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Look:", "annotations": []}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"a\": 1}"},
    {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "5"},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "6"}]},
    {"type": "custom_tool_call", "call_id": "c3", "name": "p", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "c3", "output": "ok"},
    {"type": "web_search_call", "id": "w"}, {"role": "user", "content": "go on"}])");
  const Reply r = respond({{"input", input}});
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(r.header("X-Ignored-Parameters"), "input[10]");
  const std::string theirs = prompt();
  const Json same = Json::parse(R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"},
    {"role": "assistant", "reasoning_content": "hm", "content": "Look:", "tool_calls": [
      {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
      {"id": "c2", "type": "function", "function": {"name": "g", "arguments": {}}}]},
    {"role": "tool", "content": "5"}, {"role": "tool", "content": "6"},
    {"role": "assistant", "tool_calls": [{"id": "c3", "type": "function",
      "function": {"name": "p", "arguments": {"input": "x"}}}]},
    {"role": "tool", "content": "ok"}, {"role": "user", "content": "go on"}])");
  service_->will_answer({.texts = {"x"}});
  ASSERT_EQ(ask(server_->port(), post("/v1/chat/completions", Json{{"messages", same}})).status, 200);
  EXPECT_EQ(theirs, prompt());
}

TEST_F(Responses, WhatIsNotServedIsRefusedByName) {
  for (const auto& [more, says] :
       {std::pair{Json{{"previous_response_id", "resp_1"}}, "Previous response with id 'resp_1' not found"},
        {Json{{"previous_response_id", 7}}, "'previous_response_id' must be a string"},
        {Json{{"conversation", "conv_1"}}, "'conversation' is not supported"},
        {Json{{"background", true}}, "'background' is not supported"},
        {Json{{"text", {{"format", {{"type", "json_schema"}}}}}}, "'response_format.json_schema.schema' is missing"},
        {Json{{"tool_choice", "required"}}, "'tool_choice' asks for a call, but there are no tools"},
        {Json{{"input", {{{"type", "item_reference"}, {"id", "x"}}}}}, "'input[0]' refers to an item"},
        {Json{{"input", {{{"role", "user"}, {"content", {{{"type", "input_text"}}}}}}}}, "must be a string"}}) {
    const Reply r = respond(more);
    EXPECT_EQ(r.status, 400) << more;
    EXPECT_THAT(r.error(), HasSubstr(says));
  }
}

TEST_F(Responses, WhatCodexSendsIsAnswered) {
  const Json codex = Json::parse(R"({"instructions": "You are Codex.", "input": [{"type": "message", "role": "user",
    "content": [{"type": "input_text", "text": "hi"}]}], "tool_choice": "auto", "parallel_tool_calls": true,
    "reasoning": {"effort": "medium", "summary": "auto"}, "store": false, "stream": true,
    "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "client_metadata": {"a": "b"}})");
  EXPECT_EQ(events_of(respond(codex)).back()["type"], "response.completed");
  EXPECT_EQ(respond({{"input", Json::array()}, {"max_output_tokens", 16}}).status, 200) << "a probe";
}

TEST_F(Responses, AFailureIsAnEvent) {
  const std::vector<Json> events = [&] {
    service_->will_answer(
        {.texts = {"so"}, .finish = FinishReason::kError, .error = Error{Fault::kModelFile, "damaged"}});
    return events_of(ask(server_->port(), post("/v1/responses", Json{{"input", "hi"}, {"stream", true}})));
  }();
  EXPECT_EQ(events.back()["type"], "response.failed");
  EXPECT_EQ(events.back()["response"]["error"]["message"], "damaged");
}

}  // namespace
}  // namespace quire::test
