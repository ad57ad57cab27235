// Histories as clients send them, before templates that are strict in ways of real ones.
#include "server/template_needs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace quire::server {
namespace {

using testing::HasSubstr;

class Needs : public testing::Test {
 protected:
  explicit Needs(const char* source, CallArguments takes = {}) : chat_(std::move(ChatTemplate::parse(source)).value()) {
    needs_ = TemplateNeeds::probe([this](const Json& m) { return chat_.render(m, Json(), {}); }, takes);
  }
  std::string render(const char* messages) {
    conversation_.messages = JsonDocument(Json::parse(messages));
    needs_.fit(conversation_);
    const Result<RenderedPrompt> prompt = chat_.render(*conversation_.messages, Json(), {});
    return prompt.ok() ? prompt->text : "refused: " + prompt.error().message;
  }
  Conversation conversation_;

 private:
  ChatTemplate chat_;
  TemplateNeeds needs_;
};

// As Qwen3.5's: a system message at the beginning alone, and somebody's question somewhere.
class Strict : public Needs {
 public:
  Strict()
      : Needs(
            "{%- set ns = namespace(asked=false) -%}"
            "{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.asked = true -%}{%- endif -%}{%- endfor -%}"
            "{%- if not ns.asked -%}{{ raise_exception('No user query found in messages.') }}{%- endif -%}"
            "{%- for m in messages -%}"
            "{%- if m.role == 'system' and not loop.first -%}{{ raise_exception('System message must be at the "
            "beginning.') }}{%- endif -%}"
            "<{{ m.role }}>{{ m.content }}"
            "{%- for c in m.tool_calls or [] -%}!{{ c.function.name }}{%- endfor -%}"
            "{%- if m.reasoning_content is defined -%}?{{ m.reasoning_content }}{%- endif -%}"
            "{%- endfor -%}") {}
};

TEST_F(Strict, LaterSystemMessagesBecomePartOfTheFirst) {
  EXPECT_EQ(render(R"([{"role":"system","content":"a"},{"role":"user","content":"u"},{"role":"system","content":"b"},
                       {"role":"assistant","content":"x"},{"role":"system","content":"c"},
                       {"role":"user","content":"v"}])"),
            "<system>a\n\nb\n\nc<user>u<assistant>x<user>v");
  EXPECT_EQ(render(R"([{"role":"user","content":"u"},{"role":"system","content":"b"}])"), "<system>b<user>u");
  EXPECT_EQ(
      render(R"([{"role":"system","content":"a"},{"role":"system","content":"b"},{"role":"user","content":"u"}])"),
      "<system>a\n\nb<user>u")
      << "instructions and a developer's item";
  EXPECT_EQ(render(R"([{"role":"system","content":""},{"role":"user","content":"u"},{"role":"system","content":"b"}])"),
            "<system>b<user>u");
}

TEST_F(Strict, MarksStayWhereTheirTextIs) {
  conversation_.marks = {{1, 1}, {2, 2}, {3, 1}};
  EXPECT_EQ(render(R"([{"role":"system","content":"a"},{"role":"user","content":"u"},{"role":"system","content":"bb"},
                       {"role":"user","content":"v"}])"),
            "<system>a\n\nbb<user>u<user>v");
  ASSERT_EQ(conversation_.marks.size(), 3u);
  const auto at = [&](size_t i) { return std::pair(conversation_.marks[i].message, conversation_.marks[i].offset); };
  EXPECT_EQ(at(0), (std::pair<size_t, size_t>(0, 5)));
  EXPECT_EQ(at(1), (std::pair<size_t, size_t>(1, 1)));
  EXPECT_EQ(at(2), (std::pair<size_t, size_t>(2, 1)));
}

TEST_F(Strict, SomebodyAsksWhereNobodyDid) {
  EXPECT_EQ(render(R"([{"role":"system","content":"a"}])"), "<system>a<user>");
  EXPECT_EQ(render(R"([{"role":"system","content":"a"},{"role":"assistant","content":"x"}])"),
            "<system>a<user><assistant>x");
  EXPECT_EQ(render(R"([{"role":"assistant","content":"x"}])"), "<user><assistant>x");
}

TEST_F(Strict, ACallHasNoContentThatSaysNone) {
  EXPECT_EQ(render(R"([{"role":"user","content":"u"},{"role":"assistant","content":null,"tool_calls":
                       [{"function":{"name":"f"}}]},{"role":"tool","content":"r"}])"),
            "<user>u<assistant>!f<tool>r");
}

TEST_F(Strict, ReasoningHasTheNameThatIsRead) {
  for (const char* const name : {"reasoning_content", "reasoning", "thinking"})
    EXPECT_EQ(render(fmt::format(R"([{{"role":"user","content":"u"}},{{"role":"assistant","content":"x","{}":"t"}},
                                     {{"role":"user","content":"v"}}])",
                                 name)
                         .c_str()),
              "<user>u<assistant>x?t<user>v")
        << name;
}

// As gpt-oss's: it adds contents up, and reads `thinking` of turns with calls alone.
class Adding : public Needs {
 public:
  Adding()
      : Needs(
            "{%- for m in messages -%}"
            "{%- if m.role == 'assistant' and m.tool_calls -%}"
            "{%- if m.thinking -%}<think>{{ m.thinking }}{%- endif -%}{{ '<call>' + m.content }}"
            "{%- else -%}{{ '<' + m.role + '>' + m.content }}{%- endif -%}"
            "{%- endfor -%}") {}
};

TEST_F(Adding, AContentThatIsNeededIsEmpty) {
  EXPECT_EQ(render(R"([{"role":"user","content":"u"},{"role":"assistant","content":null,"reasoning_content":"t",
                       "tool_calls":[{"function":{"name":"f"}}]},{"role":"tool","content":"r"}])"),
            "<user>u<think>t<call><tool>r");
  EXPECT_EQ(render(R"([{"role":"user","content":"u"},{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]}])"),
            "<user>u<call>");
}

TEST_F(Adding, SystemMessagesStayWhereTheyAreTaken) {
  EXPECT_EQ(
      render(R"([{"role":"system","content":"a"},{"role":"user","content":"u"},{"role":"system","content":"b"}])"),
      "<system>a<user>u<system>b");
  EXPECT_EQ(render(R"([{"role":"system","content":"a"}])"), "<system>a") << "nor is anybody made to ask";
}

// Prints the first system message alone, as some do without a word.
class Silent : public Needs {
 public:
  Silent()
      : Needs(
            "{%- if messages[0].role == 'system' -%}[{{ messages[0].content }}]{%- endif -%}"
            "{%- for m in messages -%}{%- if m.role != 'system' -%}<{{ m.role }}>{{ m.content }}{%- endif -%}"
            "{%- endfor -%}") {}
};

TEST_F(Silent, NothingIsLeftOut) {
  EXPECT_EQ(render(R"([{"role":"user","content":"u"},{"role":"system","content":"b"}])"), "[b]<user>u");
  EXPECT_EQ(
      render(R"([{"role":"system","content":"a"},{"role":"user","content":"u"},{"role":"system","content":"b"}])"),
      "[a\n\nb]<user>u");
}

// As DeepSeek's: the text of arguments is put into the template's own, and a call stands behind a content.
class ArgumentsAsText : public Needs {
 public:
  ArgumentsAsText()
      : Needs(
            "{%- for m in messages -%}<{{ m.role }}>{{ m['content'] + '' }}"
            "{%- for c in m.tool_calls or [] -%}{{ '!' + c.function.arguments }}{%- endfor -%}{%- endfor -%}",
            {.objects = false, .texts = true}) {}
};

TEST_F(ArgumentsAsText, AContentThatIsMissingIsEmpty) {
  const char* const kWant = R"(<user>u<assistant>!{"a":1}<tool>r)";
  for (const char* const content : {"", R"("content":null,)", R"("content":"",)"})
    EXPECT_EQ(render((R"([{"role":"user","content":"u"},{"role":"assistant",)" + std::string(content) +
                      R"("tool_calls":[{"function":{"name":"f","arguments":"{\"a\":1}"}}]},
                         {"role":"tool","content":"r"}])")
                         .c_str()),
              kWant)
        << content;
}

// A template that never ends costs the server a moment at its start.
TEST(TemplateNeeds, AskingIsBounded) {
  const ChatTemplate chat =
      std::move(ChatTemplate::parse("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
                                    {.max_steps = 100'000}))
          .value();
  const TemplateNeeds needs = TemplateNeeds::probe([&](const Json& m) { return chat.render(m, Json(), {}); }, {});
  Conversation c;
  c.messages = JsonDocument(Json::parse(R"([{"role":"user","content":"u"},{"role":"system","content":"b"}])"));
  needs.fit(c);
  EXPECT_EQ((*c.messages).size(), 2u);
}

}  // namespace
}  // namespace quire::server
