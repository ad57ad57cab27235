// Conversations x templates against the output of Jinja2 itself (tools/make_template_goldens.py).
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tokenizer/chat_template.h"

namespace quire {
namespace {

using nlohmann::ordered_json;

std::string read(const std::string& name) {
  std::ifstream in(std::string(QUIRE_SOURCE_DIR "/tests/data/templates/") + name);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::tm golden_date() {  // 2026-07-14 09:05, a Tuesday; the same as in tools/hf_jinja.py
  std::tm t{};
  t.tm_year = 126;
  t.tm_mon = 6;
  t.tm_mday = 14;
  t.tm_hour = 9;
  t.tm_min = 5;
  t.tm_wday = 2;
  t.tm_yday = 194;
  return t;
}

TEST(TemplateGoldens, EqualJinja2) {
  const auto goldens = ordered_json::parse(read("goldens.json"));
  std::map<std::string, ChatTemplate> templates;
  int errors = 0;
  for (const auto& expected : goldens["cases"]) {
    const std::string name = expected["template"];
    SCOPED_TRACE(name + " / " + expected["conversation"].get<std::string>() + " / " +
                 expected["options"].get<std::string>());
    if (!templates.count(name)) {
      auto parsed = ChatTemplate::parse(read(name));
      ASSERT_TRUE(parsed.ok()) << parsed.error().message;
      templates.emplace(name, *parsed);
    }
    ordered_json extra = goldens["options"][expected["options"].get<std::string>()];
    TemplateOptions options{.bos_token = "<s>", .eos_token = "</s>", .extra = &extra, .now = golden_date()};
    options.add_generation_prompt = extra.value("add_generation_prompt", false);
    const ordered_json tools = extra.contains("tools") ? extra["tools"] : ordered_json();
    extra.erase("tools");
    extra.erase("add_generation_prompt");
    const auto& messages = goldens["conversations"][expected["conversation"].get<std::string>()];
    const auto text = templates.at(name).render(messages, tools, options);
    if (expected.contains("error")) {
      ++errors;
      EXPECT_FALSE(text.ok()) << "Jinja2: " << expected["error"] << "\nours: " << text->text;
    } else if (!text.ok()) {
      ADD_FAILURE() << text.error().message;
    } else {
      EXPECT_EQ(text->text, expected["text"].get<std::string>());
    }
  }
  EXPECT_GE(goldens["cases"].size() - static_cast<std::size_t>(errors), 200u);
  EXPECT_GE(errors, 30);
}

TEST(TemplateGoldens, RefusalCarriesTheTemplatesMessage) {
  auto chat = ChatTemplate::parse(read("turns.jinja"));
  ASSERT_TRUE(chat.ok());
  const auto twice = ordered_json::parse(R"([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])");
  const auto text = chat->render(twice, nullptr, {.bos_token = "<s>"});
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().fault, Fault::kRequest);
  EXPECT_EQ(text.error().message,
            "the chat template refuses the conversation (line 15): "
            "Conversation roles must alternate user/assistant/user/assistant/...");
}

TEST(TemplateGoldens, KnowsWhatATemplateReads) {
  const auto reads = [](const char* name) {
    auto chat = ChatTemplate::parse(read(name));
    return std::pair{chat->references_tools(), chat->references_enable_thinking()};
  };
  EXPECT_EQ(reads("demo.jinja"), (std::pair{true, true}));
  EXPECT_EQ(reads("chatml_tools.jinja"), (std::pair{true, false}));
  EXPECT_EQ(reads("turns.jinja"), (std::pair{false, false}));
  EXPECT_EQ(reads("thinking_reverse.jinja"), (std::pair{false, true}));
}

}  // namespace
}  // namespace quire
