// What a server is started with: file names of any bytes, templates that are none, flags for requests that say nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "server/client.h"
#include "server/serve_program.h"
#include "support/gguf_edit.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

class Start : public ServeProgram {
 protected:
  // What it says when it does not start.
  std::string refusal(const std::string& options) {
    launch(options);
    EXPECT_GT(wait(), 0);
    return read_whole_file(path("err"));
  }
};

// Names on a disk are bytes. What clients are told, and may send back, is text.
TEST_F(Start, ModelFilesHaveNamesOfAnyBytes) {
  const std::string file = path("mod\xe9l \xff.gguf");
  std::filesystem::create_symlink(demo_model_path(), file);
  start("-c 512 --no-access-log -m '" + file + "'");
  const Json models = ask(port_, get("/v1/models")).json();
  EXPECT_EQ(models["data"][0]["id"], "mod\uFFFDl \uFFFD");
  EXPECT_EQ(ask(port_, get("/api/tags")).json()["models"][0]["name"], models["data"][0]["id"]);
  const Json body = {{"model", models["data"][0]["id"]}, {"prompt", "a"}, {"max_tokens", 1}};
  const Reply r = ask(port_, post("/v1/completions", body));
  EXPECT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(r.json()["model"], models["data"][0]["id"]);
  EXPECT_THAT(ask(port_, get("/metrics")).body, HasSubstr("model_name=\"mod\uFFFDl \uFFFD\""));
}

TEST_F(Start, TemplatesThatAreNoneAreNamed) {
  for (const char* source : {"{% if %}", "{{ a", "{% for x in y %}"}) {
    write("template.jinja", source);
    const std::string said = refusal("-c 512 --chat-template " + path("template.jinja"));
    EXPECT_THAT(said, HasSubstr("--chat-template " + path("template.jinja") + ": ")) << source;
    EXPECT_EQ(said.find("serving"), std::string::npos) << said;
  }
  GgufEdit edit{.drop = {"tokenizer.chat_template"}};
  edit.metadata = [](gguf::Writer& w) { w.add_string("tokenizer.chat_template", "{% if %}"); };
  edit_gguf(demo_model_path(), path("broken.gguf"), edit);
  const std::string said = refusal("-c 512 -m " + path("broken.gguf"));
  EXPECT_THAT(said, HasSubstr(path("broken.gguf") + ": its chat template (--chat-template gives another one): "));
}

TEST_F(Start, FlagsForRequestsThatSayNothing) {
  start("-c 512 --no-access-log --max-output-tokens 9 -n 2 --default-model");
  const Json body = {{"model", "gpt-4o"}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"ignore_eos", true}};
  const Json answer = ask(port_, post("/v1/chat/completions", body)).json();
  EXPECT_EQ(answer["usage"]["completion_tokens"], 2) << "of a flag that is given twice the last one counts";
  EXPECT_EQ(answer["model"], "gpt-4o");
}

TEST_F(Start, FlagsOutOfRangeAreRefused) {
  EXPECT_THAT(refusal("--max-output-tokens -2"), HasSubstr("--max-output-tokens -2: must be"));
}

}  // namespace
}  // namespace quire::test
