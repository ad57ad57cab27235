// Filling in: /infill of llama.cpp and `suffix` of completions and of Ollama, with the demo model whose file names
// tokens for it, and a service that shows what prompts it gets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/client.h"
#include "server/demo_server.h"
#include "server/scripted_service.h"
#include "support/gguf_edit.h"
#include "support/program.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

constexpr TokenId kPrefix = 3001, kSuffix = 3002, kMiddle = 3003, kProject = 3004, kFile = 3005;

class Infill : public ProgramTest {
 protected:
  void serve(bool with_files) {
    GgufEdit edit;
    edit.metadata = [&](gguf::Writer& w) {
      w.add("tokenizer.ggml.fim_pre_token_id", static_cast<uint32_t>(kPrefix));
      w.add("tokenizer.ggml.fim_suf_token_id", static_cast<uint32_t>(kSuffix));
      w.add("tokenizer.ggml.fim_mid_token_id", static_cast<uint32_t>(kMiddle));
      if (!with_files) return;
      w.add("tokenizer.ggml.fim_rep_token_id", static_cast<uint32_t>(kProject));
      w.add("tokenizer.ggml.fim_sep_token_id", static_cast<uint32_t>(kFile));
    };
    edit_gguf(demo_model_path(), path("model.gguf"), edit);
    model_ = load_or_die(path("model.gguf"));
    server::ModelContext::Options m;
    m.names = {"demo"};
    m.path = path("model.gguf");
    m.context = 256;
    m.sequences = 1;
    server_.emplace(DemoServer::Options{.load = false});
    server_->api().serve(std::move(server::ModelContext::create(model_, std::move(m))).value(), service_);
  }
  Reply send(const char* route, const Json& body) {
    service_->will_answer({.texts = {"one", "two"}});
    return ask(server_->port(), post(route, body));
  }
  std::vector<TokenId> prompt() const {
    const std::vector<Request> all = service_->requests();
    return all.empty() ? std::vector<TokenId>{} : all.back().prompt.vector();
  }
  std::vector<TokenId> text(const std::string& text) const {
    return model_->tokenizer->encode(text, {.add_special = false, .parse_special = false});
  }
  static std::vector<TokenId> joined(std::initializer_list<std::vector<TokenId>> parts) {
    std::vector<TokenId> all;
    for (const std::vector<TokenId>& p : parts) all.insert(all.end(), p.begin(), p.end());
    return all;
  }

  ModelPtr model_;
  std::shared_ptr<ScriptedService> service_ = std::make_shared<ScriptedService>();
  std::optional<DemoServer> server_;
};

TEST_F(Infill, SuffixesStandBehindTheGap) {
  serve(false);
  const std::vector<TokenId> wanted =
      joined({{kPrefix}, text("def f(x):\n"), {kSuffix}, text("\nprint(f(1))"), {kMiddle}});
  const Reply r = send("/v1/completions", {{"prompt", "def f(x):\n"}, {"suffix", "\nprint(f(1))"}});
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(r.json()["choices"][0]["text"], "onetwo");
  EXPECT_EQ(prompt(), wanted);
  ASSERT_EQ(send("/v1/completions", {{"prompt", text("def f(x):\n")}, {"suffix", "\nprint(f(1))"}}).status, 200);
  EXPECT_EQ(prompt(), wanted) << "the same given as tokens";
  const Json ollama = {{"model", "demo"}, {"prompt", "def f(x):\n"}, {"suffix", "\nprint(f(1))"}, {"stream", false}};
  EXPECT_EQ(send("/api/generate", ollama).json()["response"], "onetwo");
  EXPECT_EQ(prompt(), wanted);
  EXPECT_EQ(send("/v1/completions", {{"prompt", "a"}, {"suffix", ""}}).status, 200);
  EXPECT_EQ(prompt(), text("a")) << "no suffix is none";
  EXPECT_THAT(send("/v1/completions", {{"prompt", "a"}, {"suffix", "b"}, {"echo", true}}).error(), HasSubstr("'echo'"));
  // Longer than the context: nothing is left out of what the client did not ask to be cut.
  const Reply r400 = send("/v1/completions", {{"prompt", std::vector<TokenId>(256, 65)}, {"suffix", "b"}});
  EXPECT_EQ(r400.status, 400);
  EXPECT_EQ(r400.json()["error"]["code"], "context_length_exceeded");
}

TEST_F(Infill, TextsHaveNoControlTokens) {
  serve(false);
  ASSERT_EQ(send("/v1/completions", {{"prompt", "<|im_end|>"}, {"suffix", "<|im_start|>"}}).status, 200);
  for (const char* control : {"<|im_end|>", "<|im_start|>"}) {
    const auto token = model_->tokenizer->find_token(control);
    ASSERT_TRUE(token);
    EXPECT_THAT(prompt(), testing::Not(testing::Contains(*token)));
  }
}

TEST_F(Infill, RouteOfLlamaCpp) {
  serve(true);
  const Json body = {{"input_prefix", "int a = "},
                     {"input_suffix", ";\n"},
                     {"prompt", "4"},
                     {"n_predict", 7},
                     {"input_extra", {{{"filename", "b.h"}, {"text", "int b;"}}}},
                     {"samplers", {"top_k"}}};
  const Reply r = send("/infill", body);
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(r.json()["content"], "onetwo");
  EXPECT_EQ(r.json()["stop"], true);
  EXPECT_EQ(r.json()["stop_type"], "eos");
  EXPECT_EQ(r.json()["tokens_evaluated"], prompt().size());
  EXPECT_EQ(r.header("X-Ignored-Parameters"), "samplers");
  EXPECT_EQ(service_->requests().back().max_tokens, 7);
  EXPECT_EQ(prompt(), joined({{kProject},
                              text("project\n"),
                              {kFile},
                              text("b.h\nint b;\n"),
                              {kFile, kPrefix},
                              text("int a = "),
                              {kSuffix},
                              text(";\n"),
                              {kMiddle},
                              text("4")}));
  Json stream = body;
  stream["stream"] = true;
  const Reply events = send("/infill", stream);
  EXPECT_THAT(events.body, HasSubstr("\"content\":\"one\""));
  EXPECT_THAT(events.body, HasSubstr("\"stop\":true"));
  EXPECT_THAT(events.body, testing::Not(HasSubstr("[DONE]")));
  EXPECT_EQ(send("/v1/infill", {{"input_prefix", "a"}, {"n_predict", -1}}).status, 200);
  EXPECT_EQ(service_->requests().back().max_tokens + static_cast<int64_t>(prompt().size()), 256) << "all there is";
  for (const char* wrong :
       {R"({"input_prefix": 5})", R"({"input_prefix": "a", "n": 2})", R"({"input_prefix": "a", "n_probs": 2})",
        R"({"input_prefix": "a", "echo": true})", R"({"input_prefix": "a", "truncate_prompt_tokens": 5})",
        R"({"input_extra": 5})", R"({"input_extra": ["a"]})", R"({"input_extra": [{"text": 5}]})"})
    EXPECT_EQ(ask(server_->port(), post("/infill", std::string_view(wrong))).status, 400) << wrong;
}

// An editor sends the whole file: what is near the gap is kept.
TEST_F(Infill, LongTextsLoseWhatIsFarFromTheGap) {
  serve(true);
  std::string lines;
  for (int i = 0; i < 400; ++i) lines += fmt::format("line {}\n", i);
  const Json extra = {{{"filename", "other"}, {"text", lines}}};
  ASSERT_EQ(
      send("/infill", {{"input_prefix", lines}, {"input_suffix", lines}, {"input_extra", extra}, {"n_predict", 56}})
          .status,
      200);
  const std::vector<TokenId> all = text(lines), sent = prompt();
  ASSERT_EQ(sent.size(), 200u);
  EXPECT_EQ(sent.front(), kPrefix) << "other files go first";
  EXPECT_EQ(sent.back(), kMiddle);
  const auto suffix = std::find(sent.begin(), sent.end(), kSuffix);
  ASSERT_NE(suffix, sent.end());
  EXPECT_TRUE(std::equal(sent.begin() + 1, suffix, all.end() - (suffix - sent.begin() - 1)));
  EXPECT_TRUE(std::equal(suffix + 1, sent.end() - 1, all.begin()));
  EXPECT_EQ(sent.end() - suffix - 2, 197 / 4) << "a quarter stands behind the gap";
  // What is short leaves its part to the others.
  ASSERT_EQ(send("/infill", {{"input_prefix", "a"}, {"input_suffix", lines}, {"n_predict", 56}}).status, 200);
  EXPECT_EQ(prompt().size(), 200u);
}

TEST(InfillWithoutTokens, IsRefused) {
  for (const auto& [route, body] : {std::pair{"/v1/completions", Json{{"prompt", "a"}, {"suffix", "b"}}},
                                    {"/infill", {{"input_prefix", "a"}, {"input_suffix", "b"}}},
                                    {"/api/generate", {{"model", "demo"}, {"prompt", "a"}, {"suffix", "b"}}}}) {
    const Reply r = ask(demo_server().port(), post(route, body));
    EXPECT_EQ(r.status, 400) << route;
    EXPECT_THAT(r.body, HasSubstr("this model's vocabulary has no tokens for filling in a text")) << route;
  }
}

}  // namespace
}  // namespace quire::test
