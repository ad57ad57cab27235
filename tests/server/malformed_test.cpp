// Requests that are wrong, each with the exact status and message it gets. The server is asked for its health after
// each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/client.h"
#include "server/demo_server.h"

namespace quire::test {
namespace {

struct Case {
  int status;
  std::string request;
  std::string message;
};

void expect_refused(const std::vector<Case>& cases) {
  const uint16_t port = demo_server().port();
  for (const Case& c : cases) {
    Client client(port);
    client.send(c.request);
    const Reply r = client.receive(10);
    const std::string shown = c.request.substr(0, 300);
    EXPECT_EQ(r.status, c.status) << shown;
    EXPECT_EQ(r.error(), c.message) << shown;
    EXPECT_EQ(r.header("Content-Type"), "application/json") << shown;
    EXPECT_FALSE(r.header("X-Request-Id").empty()) << shown;
    EXPECT_EQ(ask(port, get("/health")).status, 200) << shown;
  }
}

// A body for /v1/completions that is right but for some members.
Case with(const char* members, std::string message, int status = 400) {
  return {status, post("/v1/completions", std::string_view(R"({"prompt": "a", )" + std::string(members) + "}")),
          std::move(message)};
}
Case chat_with(const char* members, std::string message, int status = 400) {
  return {status,
          post("/v1/chat/completions",
               std::string_view(R"({"messages": [{"role": "user", "content": "a"}], )" + std::string(members) + "}")),
          std::move(message)};
}
Case messages(const char* list, std::string message) {
  return {400, post("/v1/chat/completions", std::string_view(R"({"messages": )" + std::string(list) + "}")),
          std::move(message)};
}
Case body(const char* text, std::string message, int status = 400) {
  return {status, post("/v1/completions", std::string_view(text)), std::move(message)};
}
Case http(const char* text, std::string why, int status = 400) {
  return {status, text, "malformed HTTP request: " + std::move(why)};
}

TEST(Malformed, Http) {
  expect_refused({
      http("GET /\x01 HTTP/1.1\r\nHost: t\r\n\r\n", "bad target"),
      http("G@T /health HTTP/1.1\r\nHost: t\r\n\r\n", "bad method"),
      http("GET /health HTTP/3.1\r\nHost: t\r\n\r\n", "bad version"),
      http("GET /health\r\nHost: t\r\n\r\n", "bad target"),
      http("GET /health HTTP/1.1\r\n\r\n", "no Host header"),
      http("GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "more than one Host header"),
      http("GET /health HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n", "bad field"),
      http("GET /health HTTP/1.1\r\nHost: a\r\nA: \x01\r\n\r\n", "bad value"),
      http("POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: ten\r\n\r\n", "bad Content-Length"),
      http("POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
           "bad Content-Length"),
      http("POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
           "bad Transfer-Encoding"),
      http("POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
           "the only Transfer-Encoding read here is chunked"),
      http("POST /tokenize HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "bad chunk"),
      {415, "POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\n{}",
       "bodies with a Content-Encoding are not read"},
      {413, "POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n",
       "the body has more than 16777216 bytes"},
      {431, "GET /health HTTP/1.1\r\nHost: a\r\nX: " + std::string(20000, 'x') + "\r\n\r\n",
       "request line and headers have more than 16384 bytes"},
      {431, "GET /" + std::string(20000, 'x') + " HTTP/1.1\r\nHost: a\r\n\r\n",
       "request line and headers have more than 16384 bytes"},
  });
}

TEST(Malformed, Routes) {
  expect_refused({
      {404, get("/nothing"), "there is no '/nothing'"},
      {404, get("/v1"), "there is no '/v1'; did you mean '/v1/models'?"},
      {404, get("/v1/chat/completions/x"),
       "there is no '/v1/chat/completions/x'; did you mean '/v1/chat/completions'?"},
      {404, get("/../etc/passwd"), "there is no '/../etc/passwd'"},
      {404, get("/v1/models/none"), "the model 'none' does not exist; this server has 'demo'"},
      {405, get("/v1/completions"), "/v1/completions does not take 'GET'"},
      {405, post("/health", std::string_view("{}")), "/health does not take 'POST'"},
      {405, "DELETE /v1/models/demo HTTP/1.1\r\nHost: t\r\n\r\n", "/v1/models/ does not take 'DELETE'"},
      {405, "BREW /health HTTP/1.1\r\nHost: t\r\n\r\n", "/health does not take 'BREW'"},
      {415,
       "POST /tokenize HTTP/1.1\r\nHost: t\r\nOrigin: http://t\r\nContent-Type: text/plain\r\nContent-Length: "
       "2\r\n\r\n{}",
       "the Content-Type is 'text/plain'; it must be application/json"},
      {415,
       "POST /tokenize HTTP/1.1\r\nHost: t\r\nSec-Fetch-Site: cross-site\r\nContent-Type: "
       "application/x-www-form-urlencoded\r\nContent-Length: "
       "3\r\n\r\na=b",
       "the Content-Type is 'application/x-www-form-urlencoded'; it must be application/json"},
  });
}

TEST(Malformed, Json) {
  expect_refused({
      body("", "the body is empty; a JSON object is expected"),
      body("[]", "the body must be a JSON object, not an array"),
      body("\"prompt\"", "the body must be a JSON object, not a string"),
      body("{", "the body is not valid JSON: syntax error at byte 2 near '{'"),
      body("{'prompt': 1}", "the body is not valid JSON: syntax error at byte 2 near '{''"),
      body(R"({"prompt": "a",})", "the body is not valid JSON: syntax error at byte 16 near '\"a\",}'"),
      body("{\"prompt\": \"\xc3\"}", "the body is not valid JSON: syntax error at byte 14 near '\"\\xc3\"'"),
      body(R"({"prompt": "a", "seed": 1e400})",
           "the body is not valid JSON: a number out of range at byte 29 near '1e400'"),
      body(R"({"prompt": "a", "prompt": "b"})", "the body is not valid JSON: key 'prompt' occurs twice in one object"),
      body((R"({"prompt": )" + std::string(100, '[') + std::string(100, ']') + "}").c_str(),
           "the body is not valid JSON: nested more than 64 levels deep"),
  });
}

TEST(Malformed, Fields) {
  expect_refused({
      body("{}", "'prompt' is missing"),
      body(R"({"prompt": 5})", "'prompt' must be a string or an array, not a number"),
      body(R"({"prompt": []})", "'prompt' is an empty array"),
      body(R"({"prompt": ""})", "the prompt is empty: there is nothing to continue"),
      body(R"({"prompt": [1, 99999]})", "'prompt' holds 99999; the vocabulary has the ids 0 to 4095"),
      body(R"({"prompt": [1, -1]})", "'prompt' holds -1; the vocabulary has the ids 0 to 4095"),
      body(R"({"prompt": ["a", 1]})", "'prompt' must hold strings or arrays of token ids, not a number"),
      with(R"("model": "gpt-4")", "the model 'gpt-4' does not exist; this server has 'demo'", 404),
      with(R"("model": 4)", "'model' must be a string, not a number"),
      with(R"("max_tokens": -2)", "'max_tokens' is -2: must be at least -1"),
      with(R"("max_tokens": 1.5)", "'max_tokens' is 1.5: must be an integer"),
      with(R"("max_tokens": "5")", "'max_tokens' must be an integer, not a string"),
      with(R"("max_tokens": 99999999999999999999)", "'max_tokens' is 1e+20: must be an integer"),
      with(R"("max_tokens": 5000)",
           "This model's maximum context length is 2048 tokens. However, you requested 5001 tokens (1 in the prompt, "
           "5000 in the completion). Please reduce the length of the prompt or completion."),
      with(R"("n": 0)", "'n' is 0: must be between 1 and 16"),
      with(R"("n": 17)", "'n' is 17: must be between 1 and 16"),
      with(R"("temperature": -1)", "'temperature' is -1: must be between 0 and 100"),
      with(R"("temperature": true)", "'temperature' must be a number, not a boolean"),
      with(R"("top_p": 2)", "'top_p' is 2: must be between 0 and 1"),
      with(R"("top_k": -2)", "'top_k' is -2: must be at least -1"),
      with(R"("presence_penalty": 3)", "'presence_penalty' is 3: must be between -2 and 2"),
      with(R"("repetition_penalty": 0)", "'repetition_penalty' is 0: must be between 0.01 and 100"),
      with(R"("seed": "x")", "'seed' must be an integer, not a string"),
      with(R"("stop": 5)", "'stop' must be a string or an array of strings, not a number"),
      with(R"("stop": [""])", "'stop' holds an empty string"),
      with(R"("stop": ["a", 1])", "'stop' must hold strings, not a number"),
      with(R"("stop": ["a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a"])",
           "'stop' has 17 entries; at most 16 are allowed"),
      with(R"("stop_token_ids": ["a"])", "'stop_token_ids' must hold token ids, not a string"),
      with(R"("logit_bias": [])", "'logit_bias' must be an object, not an array"),
      with(R"("logit_bias": {"x": 1})", "a key of 'logit_bias' is no token id: they are \"0\" to \"4095\""),
      with(R"("logit_bias": {"5": 101})", "'logit_bias' of token 5 must be a number between -100 and 100"),
      with(R"("logprobs": 21)", "'logprobs' is 21: must be between 0 and 20"),
      with(R"("logprobs": true)", "'logprobs' must be an integer, not a boolean"),
      with(R"("echo": 1)", "'echo' must be true or false, not a number"),
      with(R"("stream_options": {})", "'stream_options' needs 'stream' to be true"),
      with(R"("stream": true, "stream_options": {"include_usage": 1})",
           "'stream_options.include_usage' must be true or false, not a number"),
      with(R"("best_of": 2)", "'best_of' is not supported: only as many answers as 'n' are computed"),
      with(R"("suffix": "b")",
           "'suffix' is not supported: this model's vocabulary has no tokens for filling in a text"),
      with(R"("return_token_ids": 1)", "'return_token_ids' must be true or false, not a number"),
      with(R"("min_tokens": -1)", "'min_tokens' is -1: must be at least 0"),
      with(R"("min_tokens": 3, "max_tokens": 2)", "'min_tokens' is 3, but 'max_tokens' allows 2"),
      with(R"("min_tokens": 17)", "'min_tokens' is 17, but at most 16 tokens are generated"),
      with(R"("guided_json": 5)", "'guided_json' must be a JSON schema, not a number"),
      with(R"("guided_json": "{")",
           "'guided_json' is no JSON schema: the body is not valid JSON: syntax error at byte 2 near '{'"),
      with(R"("guided_choice": [])", "'guided_choice' must be an array of strings that is not empty, not an array"),
      with(R"("guided_regex": "a", "guided_json": {})",
           "'guided_json' and 'guided_regex' exclude each other: give one of them"),
      with(R"("structured_outputs": {"json": [1]})", "'structured_outputs.json' must be a JSON schema, not an array"),
  });
}

TEST(Malformed, Chats) {
  expect_refused({
      messages("null", "'messages' is missing"),
      messages("[]", "'messages' has 0 entries; 1 to 16384 are allowed"),
      messages("\"hello\"", "'messages' must be an array, not a string"),
      messages("[5]", "'messages[0]' must be an object, not a number"),
      messages("[{}]", "'messages[0].role' must be a string of 1 to 64 bytes"),
      messages(R"([{"role": "user"}])", "'messages[0].content' is missing"),
      messages(R"([{"role": "user", "content": 5}])",
               "'messages[0].content' must be a string or an array of parts, not a number"),
      messages(R"([{"role": "user", "content": ["a"]}])", "'messages[0].content[0]' must be an object, not a string"),
      messages(R"([{"role": "user", "content": [{"type": 7}]}])",
               "'messages[0].content[0].type' must be a string, not a number"),
      messages(R"([{"role": "user", "content": [{"type": "text"}]}])",
               "'messages[0].content[0].text' must be a string"),
      chat_with(R"("logprobs": 2)", "'logprobs' must be true or false, not a number"),
      chat_with(R"("top_logprobs": 2)", "'top_logprobs' needs 'logprobs' to be true"),
      chat_with(R"("tools": [{"type": "function"}])", "'tools[0].function' must be an object"),
      chat_with(R"("tools": {"a": 1})", "'tools' must be an array, not an object"),
      chat_with(R"("tools": [1])", "'tools[0]' must be an object"),
      chat_with(R"("tools": [{"type": "function", "function": {"name": ""}}])",
                "'tools[0].function.name' must be a string of 1 to 256 bytes"),
      chat_with(R"("tools": [{"type": "function", "function": {"name": "f", "parameters": []}}])",
                "'tools[0].function.parameters' must be an object"),
      chat_with(R"("tools": [{"type": "web_search"}])",
                "'tools[0].type' is 'web_search': only tools of type \"function\" are known"),
      chat_with(R"("continue_final_message": true, "add_generation_prompt": true)",
                "'continue_final_message' and 'add_generation_prompt' exclude each other"),
      chat_with(R"("response_format": {"type": "json_schema"})", "'response_format.json_schema' must be an object"),
      chat_with(R"("response_format": {"type": "xml"})",
                "'response_format.type' must be \"text\", \"json_object\", \"json_schema\" or \"structural_tag\""),
      chat_with(R"("reasoning_effort": 3)", "'reasoning_effort' must be a string, not a number"),
      chat_with(R"("tool_choice": "required")", "'tool_choice' asks for a call, but there are no tools"),
      chat_with(R"("tool_choice": {"type": "function", "function": {"name": "f"}})",
                "'tool_choice' asks for a call, but there are no tools"),
      chat_with(R"("tool_choice": "sometimes")",
                "'tool_choice' must be \"auto\", \"none\", \"required\" or {\"type\": \"function\", \"function\": "
                "{\"name\": ...}}"),
      chat_with(R"("chat_template_kwargs": {"messages": []})", "'chat_template_kwargs' must not hold 'messages'"),
      messages(R"([{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "x"}}]}])",
               "'messages[0].content[0].cache_control.type' must be \"ephemeral\""),
      chat_with(R"("return_cache_info": 1)", "'return_cache_info' must be true or false, not a number"),
  });
}

TEST(Malformed, LongPromptsAreRefusedBeforeTheyAreTokenized) {
  const uint16_t port = demo_server().port();
  std::string words;
  while (words.size() < 30000) words += "the cat ";
  const Reply r = ask(port, post("/v1/completions", Json{{"prompt", words}}));
  EXPECT_EQ(r.status, 400);
  EXPECT_EQ(r.json()["error"]["code"], "context_length_exceeded");
  const auto start = std::chrono::steady_clock::now();
  const Reply huge = ask(port, post("/v1/completions", Json{{"prompt", std::string(10'000'000, 'a')}}));
  EXPECT_EQ(huge.status, 400);
  EXPECT_THAT(huge.error(), testing::HasSubstr("your prompt resulted in at least "));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

}  // namespace
}  // namespace quire::test
