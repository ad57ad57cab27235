// What the server makes of bytes, without sockets and without a model: JSON, fields, reasoning, keys, metrics.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/auth.h"
#include "server/cache_marks.h"
#include "server/metrics.h"
#include "server/protocol/chat_request.h"
#include "server/protocol/reasoning.h"
#include "tokenizer/chat_template.h"

namespace quire::server {
namespace {

using testing::HasSubstr;

RequestLimits limits() {
  RequestLimits l;
  l.vocab = 100;
  l.context = 64;
  return l;
}

std::string json_complaint(std::string_view text, const JsonLimits& l = {}) {
  const ApiResult<JsonDocument> r = parse_json_object(text, l);
  return r.ok() ? "" : r.error().message;
}

TEST(Json, LimitsWhatItReads) {
  EXPECT_EQ(json_complaint(R"({"a": [1, 2.5, "x", null, true]})"), "");
  EXPECT_THAT(json_complaint(R"({"a": 1, "a": 2})"), HasSubstr("key 'a' occurs twice"));
  EXPECT_THAT(json_complaint(R"({"a": })"), HasSubstr("syntax error at byte 7"));
  EXPECT_THAT(json_complaint("{\"a\": \"\xff\"}"), HasSubstr("syntax error"));
  EXPECT_THAT(json_complaint(R"({"a": 1e999})"), HasSubstr("a number out of range"));
  EXPECT_THAT(json_complaint("[1]"), HasSubstr("must be a JSON object, not an array"));
  EXPECT_THAT(json_complaint(""), HasSubstr("the body is empty"));
  EXPECT_THAT(json_complaint(R"({"a": 1} x)"), HasSubstr("syntax error"));
  const std::string deep = R"({"a": )" + std::string(70, '[') + std::string(70, ']') + "}";
  EXPECT_THAT(json_complaint(deep), HasSubstr("nested more than 64 levels"));
  JsonLimits few;
  few.max_values = 4;
  EXPECT_EQ(json_complaint(R"({"a": [1, 2]})", few), "");
  EXPECT_THAT(json_complaint(R"({"a": [1, 2, 3]})", few), HasSubstr("more than 4 values"));
  few.max_bytes = 10;
  EXPECT_EQ(parse_json(R"({"a": [1, 2, 3]})", few).error().status, 413);
}

// Memory follows from how many texts and containers there are, more than from a body's length.
TEST(Json, LimitsWhatTakesMemory) {
  JsonLimits few;
  few.max_blocks = 6;
  EXPECT_EQ(json_complaint(R"({"a": [1, 2, 3, 4, 5, 6, 7, 8], "b": ""})", few), "");
  for (const char* text : {R"({"a": [[], [], [], []], "b": 1})", R"({"a": [{}, {}, {}, {}, {}]})",
                           R"({"a": ["", "", "", "", ""]})", R"({"a":1,"b":1,"c":1,"d":1,"e":1,"f":1})"})
    EXPECT_THAT(json_complaint(text, few), HasSubstr("more than 6 strings, arrays, objects and members")) << text;
  // As many tokens as any context has are fine, and so is a long conversation.
  std::string tokens = R"({"prompt": [0)", messages = R"({"messages": [)";
  for (int i = 0; i < 1'500'000; ++i) tokens += ",0";
  for (int i = 0; i < 16384; ++i)
    messages += R"({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},)";
  messages.back() = ']';
  EXPECT_EQ(json_complaint(tokens + "]}"), "");
  EXPECT_EQ(json_complaint(messages + "}"), "");
}

// Objects grow while they are read; nothing of them changes.
TEST(Json, KeepsMembersAndTheirOrder) {
  for (const int count : {1, 2, 3, 15, 16, 17, 100}) {
    std::string text = "{";
    for (int i = 0; i < count; ++i)
      text += fmt::format(R"({}"k{}":{{"a":[{},"x",null],"b":{{}}}})", i == 0 ? "" : ",", i, i);
    text += '}';
    EXPECT_EQ(dump(*std::move(parse_json(text)).value()), text);
  }
}

TEST(Json, FindsDuplicatesAmongManyKeys) {
  std::string text = "{";
  for (int i = 0; i < 5000; ++i) text += fmt::format("\"k{}\": {}, ", i, i);
  EXPECT_EQ(json_complaint(text + R"("last": 0})"), "");
  EXPECT_THAT(json_complaint(text + R"("k4321": 0})"), HasSubstr("key 'k4321' occurs twice"));
}

RequestLimits strict() {
  RequestLimits l = limits();
  l.strict_parameters = true;
  return l;
}

ApiError chat_error(const char* text, const RequestLimits& l = limits()) {
  const auto r = parse_chat_request(Json::parse(text), l);
  return r.ok() ? ApiError{200, "accepted", "", ""} : r.error();
}

TEST(ChatRequest, ReadsEveryField) {
  const auto r = parse_chat_request(Json::parse(R"({
    "model": "m", "messages": [{"role": "developer", "content": "a"},
      {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
      {"role": "assistant", "content": null, "tool_calls": []}],
    "stream": true, "stream_options": {"include_usage": true}, "n": 3, "max_tokens": 5,
    "max_completion_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": -1, "min_p": 0.1, "typical_p": 0.8,
    "repetition_penalty": 1.1, "presence_penalty": 1, "frequency_penalty": -1, "seed": -5,
    "logit_bias": {"3": -100, "4": 1.5}, "logprobs": true, "top_logprobs": 2, "stop": "end",
    "stop_token_ids": [1, 2], "ignore_eos": true, "skip_special_tokens": false, "priority": 3,
    "chat_template_kwargs": {"enable_thinking": true}, "user": "u", "tools": [], "response_format": {"type": "text"}
  })"),
                                    limits());
  ASSERT_TRUE(r.ok()) << r.error().message;
  const GenerationParams& p = r->params;
  EXPECT_EQ(p.model, "m");
  EXPECT_TRUE(p.stream && p.include_usage && p.request.ignore_eos);
  EXPECT_FALSE(p.skip_special_tokens);
  EXPECT_EQ(p.n, 3);
  EXPECT_EQ(p.max_tokens, 7);  // the newer name wins
  EXPECT_EQ(p.request.priority, 3);
  EXPECT_FLOAT_EQ(p.request.sampling.temperature, 0.5f);
  EXPECT_EQ(p.request.sampling.top_k, 0);
  EXPECT_EQ(p.request.sampling.logprobs, 2);
  EXPECT_EQ(p.seed, static_cast<uint64_t>(-5));
  EXPECT_EQ(p.request.sampling.logit_bias.at(3), -100.0f);
  EXPECT_EQ(p.request.stop, std::vector<std::string>{"end"});
  EXPECT_EQ(p.request.stop_tokens, (std::vector<TokenId>{1, 2}));
  const Json& m = *r->conversation.messages;
  EXPECT_EQ(m[0]["role"], "system");
  EXPECT_EQ(m[1]["content"], "b\nc");
  EXPECT_TRUE(m[2]["content"].is_null());
  EXPECT_EQ((*r->conversation.template_variables)["enable_thinking"], true);
}

TEST(ChatRequest, NamesWhatIsWrong) {
  const auto expect = [](const char* body, const char* param, const char* code, const char* message) {
    const ApiError e = chat_error(body, strict());
    EXPECT_EQ(e.status, 400) << body;
    EXPECT_EQ(e.param, param) << body;
    EXPECT_EQ(e.code, code) << body;
    EXPECT_THAT(e.message, HasSubstr(message)) << body;
  };
  expect(R"({})", "messages", "missing_parameter", "'messages' is missing");
  expect(R"({"messages": [{"role": "user", "content": "x"}], "temperature": "hot"})", "temperature", "invalid_type",
         "'temperature' must be a number, not a string");
  expect(R"({"messages": [{"role": "user", "content": "x"}], "top_p": 1.5})", "top_p", "invalid_value",
         "'top_p' is 1.5: must be between 0 and 1");
  expect(R"({"messages": [{"role": "user", "content": "x"}], "tools": [{}]})", "tools[0].function", "invalid_type",
         "'tools[0].function' must be an object");
  expect(R"({"messages": [{"role": "user", "content": "x"}], "frobnicate": 1})", "frobnicate", "unknown_parameter",
         "unknown parameter 'frobnicate'");
  expect(R"({"messages": [{"role": "user", "content": "x"}], "stream": true, "stream_options": {"x": 1}})",
         "stream_options.x", "unknown_parameter", "unknown parameter 'stream_options.x'");
  expect(R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})", "messages[0].content[0].type",
         "unsupported_parameter", "reads text only");
  expect(R"({"messages": [{"role": "user", "content": "x"}], "top_logprobs": 2})", "top_logprobs", "invalid_value",
         "needs 'logprobs'");
  expect(R"({"messages": [{"role": "user", "content": "x"}], "logit_bias": {"100": 1}})", "logit_bias", "invalid_value",
         "no token id");
}

Conversation conversation(const Json& messages, const RequestLimits& l = limits()) {
  auto r = parse_chat_request(Json{{"messages", messages}}, l);
  EXPECT_TRUE(r.ok()) << (r.ok() ? "" : r.error().message);
  return std::move(r->conversation);
}
Json part(const std::string& text, bool marked = false) {
  Json p = {{"type", "text"}, {"text", text}};
  if (marked) p["cache_control"] = {{"type", "ephemeral"}, {"ttl", "1h"}};
  return p;
}

TEST(ChatRequest, HeadersOfASystemPromptAreLeftOut) {
  const auto system = [](const Json& content, const RequestLimits& l = limits()) {
    return conversation({{{"role", "system"}, {"content", content}}}, l).messages->at(0)["content"];
  };
  const std::string header = "x-anthropic-billing-header: cch=1;";
  EXPECT_EQ(system(header + "\nBe kind."), "Be kind.");
  EXPECT_EQ(system("X-ANTHROPIC-Billing-Header:\r\nBe kind."), "Be kind.");
  EXPECT_EQ(system(header + "\n" + header + "\n\nBe kind."), "\nBe kind.");
  EXPECT_EQ(system(header), "");
  EXPECT_EQ(system(Json::array({part(header), part(header), part("a"), part("b")})), "a\nb");
  EXPECT_EQ(system(Json::array({part(header + "\na"), part(header)})), "a\n" + header);
  EXPECT_EQ(system(Json::array({part(""), part(header)})), "\n" + header) << "it does not come first";
  for (const std::string& kept : {"Be kind.\n" + header, " " + header, std::string("x-anthropic-billing-header"),
                                  std::string("x-anthropic-billing-header2: a"), std::string()})
    EXPECT_EQ(system(kept), kept);
  RequestLimits other = limits();
  other.system_headers = {"date", "x-b"};
  EXPECT_EQ(system("Date: today\nx-b: 1\nc", other), "c");
  EXPECT_EQ(system(header, other), header);
  other.system_headers.clear();
  EXPECT_EQ(system(header, other), header);
  // Nowhere else.
  const Json messages = {{{"role", "user"}, {"content", header}}, {{"role", "system"}, {"content", header}}};
  EXPECT_EQ(*conversation(messages).messages, messages);
  EXPECT_EQ(conversation({{{"role", "developer"}, {"content", header + "\na"}}}).messages->at(0)["content"], "a");
}

TEST(ChatRequest, MarksAreWherePartsEnd) {
  const Conversation c = conversation(
      {{{"role", "system"},
        {"content", Json::array({part("x-anthropic-billing-header: 1", true), part("ab", true), part("c")})}},
       {{"role", "user"}, {"content", Json::array({part("d"), part("ef", true)})}}});
  ASSERT_EQ(c.marks.size(), 2u);
  EXPECT_EQ(c.marks[0].message, 0u);
  EXPECT_EQ(c.marks[0].offset, 2u);
  EXPECT_EQ(c.marks[1].message, 1u);
  EXPECT_EQ(c.marks[1].offset, 4u);
  const auto expect = [](const Json& p, const char* param, const char* message) {
    const ApiError e =
        chat_error(Json{{"messages", {{{"role", "user"}, {"content", Json::array({p})}}}}}.dump().c_str());
    EXPECT_EQ(e.param, param);
    EXPECT_THAT(e.message, HasSubstr(message));
  };
  Json bad = part("a");
  bad["cache_control"] = {{"type", "persistent"}};
  expect(bad, "messages[0].content[0].cache_control.type", "must be \"ephemeral\"");
  bad["cache_control"] = "ephemeral";
  expect(bad, "messages[0].content[0].cache_control", "must be an object");
  const Json many = {{"messages", {{{"role", "user"}, {"content", std::vector<Json>(5, part("a", true))}}}}};
  EXPECT_THAT(chat_error(many.dump().c_str()).message, HasSubstr("has 5 parts with 'cache_control'; at most 4"));
}

// What a template makes of contents decides where marks are, or that they are nowhere.
TEST(CacheMarks, AreFoundWhereTheTemplatePutsThem) {
  const auto find = [](const char* source, const Json& messages) {
    const auto chat = std::move(ChatTemplate::parse(source)).value();
    Conversation c = conversation(messages);
    const RenderMessages render = [&](const Json& m) { return chat.render(m, Json(), {}); };
    const std::string text = render(*c.messages).value().text;
    std::vector<std::string> before;
    for (const size_t at : find_marks(c, text, render)) before.push_back(text.substr(0, at));
    return before;
  };
  const Json two = {{{"role", "system"}, {"content", Json::array({part("rules  \n", true), part("more")})}},
                    {{"role", "user"}, {"content", Json::array({part("why", true)})}}};
  constexpr char kPlain[] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}";
  using testing::ElementsAre;
  using testing::IsEmpty;
  EXPECT_THAT(find(kPlain, two), ElementsAre("<system>rules", "<system>rules  \n\nmore</><user>why"));
  EXPECT_THAT(find("{% for m in messages %}<{{ m.content | trim }}>{% endfor %}", two),
              ElementsAre("<rules", "<rules  \n\nmore><why"));
  // The other way round.
  EXPECT_THAT(find("{{ messages[1].content }}{{ messages[0].content }}", two), ElementsAre("why", "whyrules"));
  // What is written twice has no one place, nor has what is not written; the others have.
  EXPECT_THAT(find("{{ messages[0].content }}{{ messages[0].content }}{{ messages[1].content }}", two),
              ElementsAre("rules  \n\nmorerules  \n\nmorewhy"));
  EXPECT_THAT(find("{{ messages[0].content }}", two), ElementsAre("rules"));
  // What is changed has none.
  EXPECT_THAT(find("{% for m in messages %}{{ m.content | upper }}{% endfor %}", two), IsEmpty());
  EXPECT_THAT(find("{% for m in messages %}{{ m.content | length }}{% endfor %}", two), IsEmpty());
  EXPECT_THAT(find("{{ messages[0].content[:7] }}", two), IsEmpty());
  EXPECT_THAT(find("{% if 'mark' in messages[0].content %}{{ raise_exception('no') }}{% endif %}x", two), IsEmpty());
  EXPECT_THAT(find(kPlain, {{{"role", "user"}, {"content", Json::array({part("  ", true), part("a")})}}}), IsEmpty());
  EXPECT_THAT(find(kPlain, {{{"role", "user"}, {"content", "a"}}}), IsEmpty());
}

TEST(CompletionRequest, TakesAllFormsOfPrompts) {
  const auto parse = [](const char* text) { return parse_completion_request(Json::parse(text), limits()); };
  EXPECT_EQ(std::get<std::string>(parse(R"({"prompt": "a"})")->prompts.at(0)), "a");
  EXPECT_EQ(parse(R"({"prompt": ["a", "b"]})")->prompts.size(), 2u);
  EXPECT_EQ(std::get<1>(parse(R"({"prompt": [1, 2, 3]})")->prompts.at(0)), (std::vector<TokenId>{1, 2, 3}));
  EXPECT_EQ(std::get<1>(parse(R"({"prompt": [[1], [2, 3]]})")->prompts.at(1)), (std::vector<TokenId>{2, 3}));
  EXPECT_FALSE(parse(R"({"prompt": []})").ok());
  EXPECT_FALSE(parse(R"({"prompt": [100]})").ok());
  EXPECT_FALSE(parse(R"({"prompt": [1, "a"]})").ok());
  EXPECT_FALSE(parse(R"({"prompt": [1.5]})").ok());
  EXPECT_EQ(parse(R"({"prompt": "a", "logprobs": 0})")->params.request.sampling.logprobs, 0);
  EXPECT_TRUE(parse(R"({"prompt": "a", "logprobs": 1, "echo": true})")->echo);
  EXPECT_EQ(parse(R"({"prompt": "a"})")->params.prompt_logprobs, -1);
  EXPECT_EQ(parse(R"({"prompt": "a", "prompt_logprobs": 0, "max_tokens": 0})")->params.prompt_logprobs, 0);
  EXPECT_EQ(parse(R"({"prompt": "a", "prompt_logprobs": 0, "stream": true})").error().param, "prompt_logprobs");
  EXPECT_EQ(parse(R"({"prompt": "a", "cache_positions": [5, 64.0]})")->cache_positions, (std::vector<int64_t>{5, 64}));
  for (const char* bad : {"[0]", "[65]", "[1.5]", "[\"a\"]", "5", "[1,1,1,1,1,1,1,1,1]"})
    EXPECT_EQ(parse(fmt::format(R"({{"prompt": "a", "cache_positions": {}}})", bad).c_str()).error().param,
              "cache_positions")
        << bad;
}

// Cut anywhere, the parts are the same.
void expect_split(std::string_view text, bool inside, const char* reasoning, const char* content) {
  for (size_t step = 1; step <= text.size(); ++step) {
    ReasoningSplitter s(inside);
    std::string r, c;
    const auto add = [&](const ReasoningSplitter::Output& o) {
      r += o.reasoning;
      c += o.content;
    };
    for (size_t at = 0; at < text.size(); at += step) add(s.push(text.substr(at, step)));
    add(s.flush());
    EXPECT_EQ(r, reasoning) << text << " in steps of " << step;
    EXPECT_EQ(c, content) << text << " in steps of " << step;
  }
}

TEST(Reasoning, IsToldFromTheAnswer) {
  expect_split("plain text", false, "", "plain text");
  expect_split("<think>\nwhy\n\nso\n</think>\n\nanswer\n", false, "why\n\nso", "answer\n");
  expect_split("why\n</think>\n\nanswer", true, "why", "answer");
  expect_split("never ends\n", true, "never ends", "");
  expect_split("a <think>b</think>", false, "", "a <think>b</think>");
  expect_split("  <thin", false, "", "  <thin");
  expect_split("x</thin</think>y", true, "x</thin", "y");
  expect_split("</think>\n", true, "", "");
  EXPECT_TRUE(ends_in_reasoning("<|im_start|>assistant\n<think>\n"));
  EXPECT_FALSE(ends_in_reasoning("<think>\n\n</think>\n\n"));
  EXPECT_FALSE(ends_in_reasoning("nothing"));
}

TEST(KeyRing, FindsKeysAndNeverShowsThem) {
  const auto ring = KeyRing::parse("# comment\n\nfirst-key-1\n  second-key-2 \r\n");
  ASSERT_TRUE(ring.ok());
  EXPECT_EQ(ring->size(), 2u);
  EXPECT_EQ(ring->find("first-key-1"), 1);
  EXPECT_EQ(ring->find("second-key-2"), 2);
  EXPECT_EQ(ring->find("first-key-"), 0);
  EXPECT_EQ(ring->find("first-key-12"), 0);
  EXPECT_EQ(ring->find(""), 0);
  EXPECT_EQ(KeyRing::bearer("Bearer first-key-1"), "first-key-1");
  EXPECT_EQ(KeyRing::bearer("bearer  second-key-2"), "second-key-2");
  for (const char* none : {"first-key-1", "Basic abc", "Bearer ", ""}) EXPECT_EQ(KeyRing::bearer(none), "");
  EXPECT_FALSE(KeyRing::parse("# nothing\n").ok());
  // What tells their prompts apart belongs to the key, not to its place.
  const auto moved = KeyRing::parse("another-key\nsecond-key-2\nfirst-key-1\n");
  EXPECT_EQ(ring->salt(1), moved->salt(3));
  EXPECT_EQ(ring->salt(2), moved->salt(2));
  EXPECT_NE(ring->salt(1), ring->salt(2));
  EXPECT_EQ(ring->salt(1).find("first"), std::string::npos);
  EXPECT_EQ(ring->salt(0), "");
  const auto bad = KeyRing::parse("good-key-1\nbad key with spaces\n");
  ASSERT_FALSE(bad.ok());
  EXPECT_THAT(bad.error().message, HasSubstr("line 2"));
  EXPECT_THAT(bad.error().message, testing::Not(HasSubstr("bad key")));
}

TEST(Metrics, AreWrittenAsPrometheusReadsThem) {
  Registry r;
  r.counter("c_total", "Help.", {{"a", "x\"y"}}).add(2);
  r.counter("c_total", "Help.", {{"a", "x\"y"}}).add();
  r.gauge("g", "A gauge.").set(0.25);
  Histogram& h = r.histogram("h", "Hist.", {1, 2.5}, {{"m", "n"}});
  for (const double x : {0.5, 1.0, 2.0, 100.0}) h.observe(x);
  EXPECT_EQ(r.text(),
            "# HELP c_total Help.\n# TYPE c_total counter\nc_total{a=\"x\\\"y\"} 3\n"
            "# HELP g A gauge.\n# TYPE g gauge\ng 0.25\n"
            "# HELP h Hist.\n# TYPE h histogram\n"
            "h_bucket{m=\"n\",le=\"1\"} 2\nh_bucket{m=\"n\",le=\"2.5\"} 3\nh_bucket{m=\"n\",le=\"+Inf\"} 4\n"
            "h_sum{m=\"n\"} 103.5\nh_count{m=\"n\"} 4\n");
  EXPECT_EQ(buckets_1_2_5(30), (std::vector<double>{1, 2, 5, 10, 20}));
}

}  // namespace
}  // namespace quire::server
