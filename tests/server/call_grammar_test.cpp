// Calls as grammars, for every format: what the model may write, to the token, where a call must be and where it may
// be. Formats of control tokens are spelt with those tokens and no others.
#include <gtest/gtest.h>

#include "constraint/constrained_output.h"
#include "server/tools/call_grammar.h"
#include "tokenizer/vocab_builder.h"

namespace quire::test {
namespace {

using server::CallGrammars;
using server::CallSchema;

constexpr std::string_view kSchema =
    R"({"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false})";

// Bytes, the control tokens of a format, and <eos>.
class Model {
 public:
  Model(const char* format, std::initializer_list<const char*> control) : format_(*server::find_tool_format(format)) {
    for (const char* text : control) builder_.control(text);
    builder_.config().eos = builder_.control("<eos>");
    tokenizer_.emplace(builder_.build());
    for (const char* name : {"now", "later"}) tools_.push_back({name, {}});
    for (const server::Tool& tool : tools_) schemas_.push_back({&tool, std::string(kSchema)});
    vocabulary_ = std::make_shared<const Vocabulary>(vocabulary_of(*tokenizer_, tokenizer_->size()));
  }

  // A grammar of required calls, one or several, or of an answer that may have some.
  void must_call(bool parallel) { use(CallGrammars(format_, *tokenizer_).required(schemas_, parallel)); }
  void may_call() { use(CallGrammars(format_, *tokenizer_).free(schemas_)); }
  // Or of an answer that is a call, or of a form.
  void calls_or(const char* form, bool parallel = true) {
    use(CallGrammars(format_, *tokenizer_).or_form(schemas_, parallel, server::Json::parse(form)));
  }

  // How an answer of these tokens ends: "whole" if the grammar takes it and may end there, "part" if something must
  // follow, or what it does not take and all behind it.
  std::string judge(std::string_view text) const {
    Constraint c{.vocabulary = vocabulary_, .grammar = grammar_, .after = made_.after, .repeats = !made_.after.empty()};
    const auto words = mask_words(std::ssize(vocabulary_->bytes));
    ConstrainedOutput output(std::make_shared<const Constraint>(std::move(c)), words);
    std::vector<uint32_t> mask(static_cast<size_t>(words));
    const std::vector<TokenId> ids = tokenizer_->encode(text, {.add_special = false, .parse_special = true});
    const auto may = [&](TokenId t) {
      if (!output.masked()) return true;
      output.fill({}, mask);
      return (mask[static_cast<size_t>(t) / 32] >> (t % 32) & 1) != 0;
    };
    for (size_t i = 0; i < ids.size(); ++i)
      if (output.ended() || !may(ids[i]) || !output.commit(ids[i]))
        return "not " + tokenizer_->decode(std::vector(ids.begin() + static_cast<ptrdiff_t>(i), ids.end()), true);
    return output.ended() || may(*tokenizer_->find_token("<eos>")) ? "whole" : "part";
  }

 private:
  void use(std::optional<server::CallGrammar> made) {
    ASSERT_TRUE(made.has_value());
    made_ = std::move(*made);
    const auto compiler = make_grammar_compiler(*vocabulary_);
    auto done = compiler->compile({GrammarKind::kStructuralTag, made_.structural_tag, !made_.after.empty()}, {});
    ASSERT_TRUE(done.ok()) << done.error().message;
    grammar_ = std::move(*done);
  }

  const server::ToolFormat& format_;
  VocabBuilder builder_;
  std::optional<Tokenizer> tokenizer_;
  std::vector<server::Tool> tools_;
  std::vector<CallSchema> schemas_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  server::CallGrammar made_;
  std::shared_ptr<const Grammar> grammar_;
};

class CallGrammar : public testing::Test {
  void SetUp() override {
    if (!has_grammars()) GTEST_SKIP() << "built without XGrammar";
  }
};

TEST_F(CallGrammar, MistralNamesAndArguments) {
  Model m("mistral", {"[TOOL_CALLS]", "[ARGS]"});
  const std::string now = R"([TOOL_CALLS]now[ARGS]{"n": 1})", later = R"([TOOL_CALLS]later[ARGS]{"n": -20})";
  m.must_call(true);
  EXPECT_EQ(m.judge(now), "whole");
  EXPECT_EQ(m.judge(now + later + now), "whole");
  EXPECT_EQ(m.judge(now.substr(0, now.size() - 1)), "part");
  EXPECT_EQ(m.judge(""), "part");
  EXPECT_EQ(m.judge("Well, " + now), "not Well, " + now);
  EXPECT_EQ(m.judge("[TOOL_CALLS]never"), "not ever");
  EXPECT_EQ(m.judge(R"([TOOL_CALLS]now[ARGS]{"m")"), R"(not m")");
  m.must_call(false);
  EXPECT_EQ(m.judge(now), "whole");
  EXPECT_EQ(m.judge(now + later), "not " + later);
  m.may_call();
  EXPECT_EQ(m.judge(""), "whole");
  EXPECT_EQ(m.judge("Well [1, {2}]."), "whole");
  EXPECT_EQ(m.judge("Well. " + now + later), "whole");
  EXPECT_EQ(m.judge(now + "Well."), "not Well.");
  EXPECT_EQ(m.judge(R"(Well. [TOOL_CALLS]now[ARGS]{"n": "1"})"), R"(not "1"})");
}

TEST_F(CallGrammar, MistralLists) {
  Model m("mistral", {"[TOOL_CALLS]"});
  const std::string now = R"({"name": "now", "arguments": {"n": 1}})";
  m.must_call(true);
  EXPECT_EQ(m.judge("[TOOL_CALLS][" + now + "]"), "whole");
  EXPECT_EQ(m.judge("[TOOL_CALLS][" + now + ", " + now + "]"), "whole");
  EXPECT_EQ(m.judge("[TOOL_CALLS][" + now), "part");
  EXPECT_EQ(m.judge("[TOOL_CALLS][]"), "not ]");
  m.must_call(false);
  EXPECT_EQ(m.judge("[TOOL_CALLS][" + now + ", "), "not , ");
  m.may_call();
  EXPECT_EQ(m.judge("No."), "whole");
  EXPECT_EQ(m.judge("No. [TOOL_CALLS][" + now + "]"), "whole");
  EXPECT_EQ(m.judge("No. [TOOL_CALLS]No"), "not No");
}

TEST_F(CallGrammar, HarmonyMessages) {
  Model m("harmony", {"<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|start|>", "<|call|>", "<|return|>"});
  const std::string thinks = "<|channel|>analysis<|message|>Let me {see}.<|end|><|start|>assistant",
                    now = R"(<|channel|>commentary to=functions.now <|constrain|>json<|message|>{"n": 1})",
                    says = "<|channel|>final<|message|>It is {n}.";
  m.must_call(true);
  EXPECT_EQ(m.judge(now), "whole");
  EXPECT_EQ(m.judge(thinks + now), "whole");
  EXPECT_EQ(m.judge(thinks + thinks + now), "whole");
  EXPECT_EQ(m.judge(thinks), "part");
  EXPECT_EQ(m.judge(says), "not final<|message|>It is {n}.");
  EXPECT_EQ(m.judge("Well"), "not Well");
  EXPECT_EQ(m.judge("<|channel|>analysis<|message|>a<|channel|>"), "not <|channel|>");
  EXPECT_EQ(m.judge("<|channel|>analysis<|message|>a<eos>"), "not <eos>");
  EXPECT_EQ(m.judge("<|channel|>commentary to=functions.never"), "not ever");
  m.may_call();
  EXPECT_EQ(m.judge(says), "whole");
  EXPECT_EQ(m.judge(thinks + says), "whole");
  EXPECT_EQ(m.judge(thinks + now), "whole");
  EXPECT_EQ(m.judge("<|channel|>commentary<|message|>I shall call.<|end|><|start|>assistant" + now), "whole");
  EXPECT_EQ(m.judge(R"(<|channel|>commentary to=functions.now <|constrain|>json<|message|>{"n": "1"})"), R"(not "1"})");
}

TEST_F(CallGrammar, TextsOfPlainTokens) {
  Model qwen("qwen3_xml", {});
  const std::string call = "<tool_call>\n<function=now>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>";
  qwen.must_call(true);
  EXPECT_EQ(qwen.judge(call), "whole");
  EXPECT_EQ(qwen.judge(call + "\n" + call), "whole");
  qwen.may_call();
  EXPECT_EQ(qwen.judge("No."), "whole");
  EXPECT_EQ(qwen.judge("Yes. " + call + " Done. " + call), "whole");
  EXPECT_EQ(qwen.judge("Yes. <tool_call>\n<function=never>"), "not ever>");
  Model llama("llama3_json", {});
  llama.must_call(false);
  EXPECT_EQ(llama.judge(R"({"name": "later", "parameters": {"n": 3}})"), "whole");
}

constexpr const char* kForm = R"({"type":"json_schema","json_schema":{"type":"object",
    "properties":{"city":{"enum":["Rome","Oslo"]}},"required":["city"],"additionalProperties":false}})";
constexpr const char* kWord = R"({"type":"regex","pattern":"yes|no"})";

TEST_F(CallGrammar, OrAForm) {
  const std::string city = R"({"city": "Rome"})";
  Model qwen("qwen3_xml", {});
  const std::string call = "<tool_call>\n<function=now>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>";
  qwen.calls_or(kForm);
  EXPECT_EQ(qwen.judge(call), "whole");
  EXPECT_EQ(qwen.judge(call + "\n" + call), "whole");
  EXPECT_EQ(qwen.judge(city), "whole");
  EXPECT_EQ(qwen.judge(""), "part");
  EXPECT_EQ(qwen.judge("Well"), "not Well");
  EXPECT_EQ(qwen.judge(call + city), "not " + city);
  EXPECT_EQ(qwen.judge(city + call), "not " + call);
  EXPECT_EQ(qwen.judge(R"({"city": "Bonn"})"), R"(not Bonn"})");
  qwen.calls_or(kWord, false);
  EXPECT_EQ(qwen.judge("yes"), "whole");
  EXPECT_EQ(qwen.judge(call), "whole");
  EXPECT_EQ(qwen.judge(call + "\n" + call), "not \n" + call);
  Model hermes("hermes", {});
  hermes.calls_or(kForm);
  EXPECT_EQ(hermes.judge("<tool_call>\n{\"name\": \"now\", \"arguments\": {\"n\": 1}}\n</tool_call>"), "whole");
  EXPECT_EQ(hermes.judge(city), "whole");
  Model llama("llama3_json", {});
  llama.calls_or(kForm);
  EXPECT_EQ(llama.judge(R"({"name": "later", "parameters": {"n": 3}})"), "whole");
  EXPECT_EQ(llama.judge(city), "whole");
  EXPECT_EQ(llama.judge(R"({"name": "never)"), "not ever");
}

TEST_F(CallGrammar, OrAFormWithControlTokens) {
  Model mistral("mistral", {"[TOOL_CALLS]", "[ARGS]"});
  const std::string call = R"([TOOL_CALLS]now[ARGS]{"n": 1})";
  mistral.calls_or(kForm);
  EXPECT_EQ(mistral.judge(call + call), "whole");
  EXPECT_EQ(mistral.judge(R"({"city": "Oslo"})"), "whole");
  EXPECT_EQ(mistral.judge("Well. " + call), "not Well. " + call);
  Model lists("mistral", {"[TOOL_CALLS]"});
  lists.calls_or(kWord);
  EXPECT_EQ(lists.judge(R"([TOOL_CALLS][{"name": "now", "arguments": {"n": 1}}])"), "whole");
  EXPECT_EQ(lists.judge("no"), "whole");
  Model harmony("harmony",
                {"<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|start|>", "<|call|>", "<|return|>"});
  const std::string thinks = "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant",
                    now = R"(<|channel|>commentary to=functions.now <|constrain|>json<|message|>{"n": 1})";
  harmony.calls_or(kForm);
  EXPECT_EQ(harmony.judge(thinks + R"(<|channel|>final<|message|>{"city": "Rome"})"), "whole");
  EXPECT_EQ(harmony.judge(now), "whole");
  EXPECT_EQ(harmony.judge("<|channel|>final<|message|>Well"), "not Well");
  EXPECT_EQ(harmony.judge(thinks), "part");
}

// A model that likes white space would write nothing else.
TEST_F(CallGrammar, WhiteSpaceOfArgumentsHasAnEnd) {
  Model hermes("hermes", {});
  hermes.must_call(false);
  const std::string begin = "<tool_call>\n{\"name\": \"now\", \"arguments\": {", end = "\"n\": 1}}\n</tool_call>";
  const std::string most = "\n\n" + std::string(20, ' ');
  EXPECT_EQ(hermes.judge(begin + most + end), "whole");
  EXPECT_EQ(hermes.judge(begin + most + " " + end), "not  " + end);
}

TEST(CallGrammars, NeedTheTokensOfTheirFormat) {
  VocabBuilder builder;
  builder.config().eos = builder.control("<eos>");
  const Tokenizer tokenizer = builder.build();
  const server::Tool tool{"now", {}};
  const CallSchema schemas[] = {{&tool, std::string(kSchema)}};
  for (const char* format : {"harmony", "mistral"}) {
    const CallGrammars grammars(*server::find_tool_format(format), tokenizer);
    EXPECT_FALSE(grammars.required(schemas, true).has_value()) << format;
    EXPECT_FALSE(grammars.free(schemas).has_value()) << format;
    EXPECT_FALSE(grammars.or_form(schemas, true, server::Json::parse(kWord)).has_value()) << format;
  }
}

}  // namespace
}  // namespace quire::test
