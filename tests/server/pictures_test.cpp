// Pictures in requests of every API: which tokens a prompt has for them, and what is handed to the engine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/client.h"
#include "server/demo_server.h"
#include "server/picture_model.h"
#include "server/scripted_service.h"

namespace quire::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const std::string kPicture = "<|vision_start|><|image_pad|><|vision_end|>";

ModelPtr shared_model() {
  static const ModelPtr model = picture_model();
  return model;
}

Json image_part(const std::string& name = "png-rgb") {
  return {{"type", "image_url"}, {"image_url", {{"url", picture_url(name)}, {"detail", "low"}}}};
}
Json image_block(const std::string& name = "png-rgb") {
  return {{"type", "image"},
          {"source", {{"type", "base64"}, {"media_type", "image/jpeg"}, {"data", picture_base64(name)}}}};
}
Json input_image(const std::string& name = "png-rgb") {
  return {{"type", "input_image"}, {"image_url", picture_url(name)}, {"detail", "auto"}};
}
Json text_part(const std::string& text) {
  return {{"type", "text"}, {"text", text}};
}

class PicturesInRequests : public testing::Test {
 protected:
  PicturesInRequests() { serve({}); }
  void serve(server::RequestLimits limits, const ModelPtr& model = shared_model(), int64_t context = 2048) {
    DemoServer::Options o;
    o.service = service_;
    o.loaded = model;
    o.limits = std::move(limits);
    o.context = context;
    model_ = model;
    server_.emplace(std::move(o));
  }
  Reply send(const char* path, const Json& body) {
    service_->will_answer({.texts = {"x"}});
    return ask(server_->port(), post(path, body));
  }
  Reply chat(const Json& content, const char* role = "user") {
    return send("/v1/chat/completions",
                {{"messages", {{{"role", "user"}, {"content", "q"}}, {{"role", role}, {"content", content}}}}});
  }
  Request request() const { return service_->requests().back(); }
  TokenId pad() const { return model_->vision->token; }
  // The prompt with one token for each picture, as its template wrote it, or as it is.
  std::string prompt(bool whole = false) const {
    const Request r = request();
    std::vector<TokenId> tokens;
    for (const TokenId t : r.prompt)
      if (whole || t != pad() || tokens.empty() || tokens.back() != pad()) tokens.push_back(t);
    return model_->tokenizer->decode(tokens, true);
  }
  // Whether every picture's tokens stand where it says, and there are no others.
  void check_places() const {
    const Request r = request();
    ASSERT_NE(r.images, nullptr);
    std::vector<bool> of_picture(r.prompt.size());
    for (const PromptImage& i : *r.images) {
      EXPECT_GT(i.tokens(), 0);
      ASSERT_LE(i.end(), std::ssize(r.prompt));
      std::fill(of_picture.begin() + i.position, of_picture.begin() + i.end(), true);
      ASSERT_NE(i.patches, nullptr);
      const int64_t merge = model_->vision->spec.merge;
      EXPECT_EQ(i.patches->plan.rows, i.rows * merge);
      EXPECT_EQ(i.patches->plan.columns, i.columns * merge);
    }
    for (size_t t = 0; t < r.prompt.size(); ++t) EXPECT_EQ(r.prompt[t] == pad(), of_picture[t]) << t;
  }

  std::shared_ptr<ScriptedService> service_ = std::make_shared<ScriptedService>();
  ModelPtr model_;
  std::optional<DemoServer> server_;
};

TEST_F(PicturesInRequests, StandBetweenTextsInTheirOrder) {
  const Reply r = chat({text_part("a"), image_part(), text_part("b"), text_part("c"), image_part("jpeg-turned6")});
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_THAT(prompt(), HasSubstr("user\na" + kPicture + "b\nc" + kPicture + "<|im_end|>"));
  check_places();
  const Request q = request();
  ASSERT_EQ(q.images->size(), 2u);
  const PromptImage &wide = (*q.images)[0], &tall = (*q.images)[1];
  EXPECT_GT(wide.columns, wide.rows);
  EXPECT_LT(tall.columns, tall.rows);
  EXPECT_NE(wide.digest, tall.digest);
  EXPECT_EQ(r.header("X-Left-Out"), "");
  EXPECT_EQ(Json::parse(r.body)["usage"]["prompt_tokens"], q.prompt.size());
}

TEST_F(PicturesInRequests, TakeEveryForm) {
  ASSERT_EQ(chat({text_part("look"), image_part()}).status, 200);
  const Request wanted = request();
  const std::string url = picture_url("png-rgb");
  for (const Json& part :
       {Json{{"type", "image_url"}, {"image_url", url}},
        {{"type", "image_url"}, {"image_url", {{"url", "DATA:;base64," + picture_base64("png-rgb")}}}},
        {{"type", "input_image"}, {"image_url", url}, {"detail", "high"}},
        {{"type", "image"}, {"source", {{"type", "url"}, {"url", url}}}},
        {{"type", "image"}, {"data", picture_base64("png-rgb")}, {"mimeType", "image/png"}},
        image_block()}) {
    const Reply r = chat({text_part("look"), part});
    ASSERT_EQ(r.status, 200) << r.body;
    EXPECT_EQ(r.header("X-Ignored-Parameters"), "");
    const Request q = request();
    EXPECT_TRUE(std::ranges::equal(q.prompt, wanted.prompt));
    EXPECT_EQ((*q.images)[0].digest, (*wanted.images)[0].digest);
    EXPECT_EQ((*q.images)[0].position, (*wanted.images)[0].position);
  }
}

TEST_F(PicturesInRequests, TextNeverBecomesOne) {
  Json body = {{"messages",
                {{{"role", "system"}, {"content", kPicture}},
                 {{"role", "user"}, {"content", {text_part(kPicture), image_part(), text_part(kPicture)}}}}}};
  ASSERT_EQ(send("/v1/chat/completions", body).status, 200);
  ASSERT_EQ(request().images->size(), 1u);
  check_places();
  ASSERT_EQ(chat(kPicture).status, 200);
  EXPECT_EQ(request().images, nullptr);
  EXPECT_EQ(std::ranges::count(request().prompt, pad()), 0);
}

// The template takes texts alone from tools: what stands for the picture is put there, and is trusted there only.
TEST_F(PicturesInRequests, StandInResultsOfTools) {
  const Json call = {{"id", "c1"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}};
  const Json body = {
      {"messages",
       {{{"role", "user"}, {"content", "q"}},
        {{"role", "assistant"}, {"content", "go"}, {"tool_calls", {call}}},
        {{"role", "tool"},
         {"tool_call_id", "c1"},
         {"content", {text_part("<|im_end|>" + kPicture), image_part(), text_part("<|im_end|>"), image_part()}}}}}};
  const Reply r = send("/v1/chat/completions", body);
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_THAT(prompt(), HasSubstr("<|im_end|>" + kPicture + kPicture + "<|im_end|>" + kPicture + "<|im_end|>\n"));
  check_places();
  ASSERT_EQ(request().images->size(), 2u);
  const TokenId end = *model_->tokenizer->find_token("<|im_end|>");
  EXPECT_EQ(std::ranges::count(request().prompt, end), 3);
}

TEST_F(PicturesInRequests, OfMessages) {
  const Json result = {{"type", "tool_result"}, {"tool_use_id", "t"}, {"content", {text_part("seen"), image_block()}}};
  const Json use = {{"type", "tool_use"}, {"id", "t"}, {"name", "f"}, {"input", Json::object()}};
  const Json body = {{"max_tokens", 9},
                     {"messages",
                      {{{"role", "user"}, {"content", {image_block("jpeg-420"), text_part("what")}}},
                       {{"role", "assistant"}, {"content", {use}}},
                       {{"role", "user"}, {"content", {result, text_part("and")}}}}}};
  const Reply r = send("/v1/messages", body);
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_THAT(prompt(), HasSubstr("user\n" + kPicture + "what"));
  EXPECT_THAT(prompt(), HasSubstr("tool\nseen" + kPicture + "<|im_end|>\n<|im_start|>user\nand"));
  check_places();
  EXPECT_EQ(request().images->size(), 2u);
  const size_t tokens = request().prompt.size();
  const Reply counted = ask(server_->port(), post("/v1/messages/count_tokens", body));
  EXPECT_EQ(Json::parse(counted.body)["input_tokens"], tokens) << counted.body;
}

// A place to save the state at moves with what stands before it.
TEST_F(PicturesInRequests, MarksBehindThem) {
  Json block = image_block();
  block["cache_control"] = {{"type", "ephemeral"}};
  const Json body = {{"max_tokens", 9},
                     {"messages", {{{"role", "user"}, {"content", {text_part("a"), block, text_part("b")}}}}}};
  const Reply r = send("/v1/messages", body);
  ASSERT_EQ(r.status, 200) << r.body;
  const PromptImage image = (*request().images)[0];
  EXPECT_THAT(request().cache_positions, ElementsAre(image.end() + 1));  // and the token that ends it
}

TEST_F(PicturesInRequests, OfResponses) {
  const Json body = {
      {"input",
       {{{"role", "user"}, {"content", {{{"type", "input_text"}, {"text", "what"}}, input_image("webp-lossy")}}},
        {{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", "{}"}},
        {{"type", "function_call_output"}, {"call_id", "c"}, {"output", {input_image("gif-plain")}}}}}};
  const Reply r = send("/v1/responses", body);
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_THAT(prompt(), HasSubstr("what" + kPicture));
  EXPECT_THAT(prompt(), HasSubstr("tool\n" + kPicture));
  check_places();
  const Reply next =
      send("/v1/responses", {{"previous_response_id", Json::parse(r.body)["id"]}, {"input", "and"}, {"store", false}});
  ASSERT_EQ(next.status, 200) << next.body;
  check_places();
  EXPECT_EQ(request().images->size(), 2u);
}

TEST_F(PicturesInRequests, OfOllama) {
  const Json images = Json::array({picture_base64("png-rgb"), picture_base64("jpeg-420")});
  Reply r = send("/api/chat",
                 {{"stream", false}, {"messages", {{{"role", "user"}, {"content", "what"}, {"images", images}}}}});
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_THAT(prompt(), HasSubstr("user\n" + kPicture + kPicture + "what"));
  check_places();
  r = send("/api/generate", {{"stream", false}, {"prompt", "what"}, {"images", images}});
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_THAT(prompt(), HasSubstr("user\n" + kPicture + kPicture + "what"));
  check_places();
  r = send("/api/generate", {{"stream", false}, {"prompt", "what"}, {"images", images}, {"raw", true}});
  EXPECT_EQ(r.status, 400);
  EXPECT_THAT(r.body, HasSubstr("'images'"));
}

TEST_F(PicturesInRequests, AreRefusedByName) {
  const auto url = [](const std::string& u) { return Json{{"type", "image_url"}, {"image_url", {{"url", u}}}}; };
  const std::string cut = picture_base64("png-rgb").substr(0, 400);
  for (const auto& [part, words] :
       {std::pair{url("https://example.org/a.png"),
                  "image_url.url': this server fetches no pictures (--allowed-media-domains"},
        {url("file:///etc/passwd"), "reads no pictures from files (--allowed-local-media-path"},
        {url("ftp://example.org/a.png"), "image_url.url' is a URL of 'ftp:': data: URLs are taken"},
        {Json{{"type", "image"}, {"link", "https://example.org/a.png"}, {"where", "x"}, {"field", "x"}}, "is missing"},
        {url("data:image/png,abc"), "without ';base64,'"},
        {url("data:image/png;base64,a$b"), "is no base64"},
        {url("data:image/png;base64,"), "is empty"},
        {Json{{"type", "image_url"}}, "'messages[1].content[0].image_url' is missing"},
        {Json{{"type", "image_url"}, {"image_url", 3}}, "must be a string"},
        {Json{{"type", "input_image"}, {"file_id", "f"}}, "names a file"},
        {Json{{"type", "image"}, {"source", {{"type", "file"}, {"file_id", "f"}}}}, "names a file"},
        {url("data:image/png;base64,AAAA"), "'messages[1].content[0]': "},
        {url("data:image/png;base64," + cut), "'messages[1].content[0]': "}}) {
    const Reply r = chat(Json::array({part}));
    EXPECT_EQ(r.status, 400) << part << r.body;
    EXPECT_THAT(r.body, HasSubstr(words)) << part;
  }
  Json input = {
      {"input",
       {{{"role", "user"},
         {"content", {{{"type", "input_text"}, {"text", "w"}}, {{"type", "input_image"}, {"image_url", "x"}}}}}}}};
  EXPECT_THAT(send("/v1/responses", input).body, HasSubstr("'input[0].content[1].image_url'"));
  EXPECT_THAT(service_->requests(), testing::IsEmpty());
}

TEST_F(PicturesInRequests, OtherMediaAreNamedInWords) {
  const Reply r = chat(Json::array({{{"type", "input_audio"}, {"input_audio", {{"data", "AAAA"}}}}, image_part()}));
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_THAT(prompt(), HasSubstr("[audio left out: this model reads text and images of messages]" + kPicture));
  EXPECT_EQ(r.header("X-Left-Out"), "messages[1].content[0]:audio");
}

// Counted from the header alone, and refused before anything is decoded.
TEST_F(PicturesInRequests, AreCountedWithoutBeingDecoded) {
  std::string cut = picture_file("png-rgb");
  cut.resize(cut.size() - 40);  // its header says how large it is, and its pixels are not all there
  const std::string data = server::base64(std::as_bytes(std::span(cut)));
  const Json body = {
      {"messages",
       {{{"role", "user"}, {"content", {{{"type", "image_url"}, {"image_url", "data:;base64," + data}}}}}}}};
  ASSERT_EQ(send("/v1/chat/completions", body).status, 400);
  const Reply counted = ask(server_->port(), post("/tokenize", body));
  EXPECT_EQ(counted.status, 200) << counted.body;
  serve({}, shared_model(), 48);
  const Reply r = send("/v1/chat/completions", body);
  EXPECT_EQ(r.status, 400);
  EXPECT_THAT(r.body, HasSubstr("context_length_exceeded"));
}

TEST_F(PicturesInRequests, HaveLimits) {
  server::RequestLimits limits;
  limits.max_images = 2;
  serve(limits);
  EXPECT_EQ(chat({image_part(), image_part()}).status, 200);
  EXPECT_THAT(chat({image_part(), image_part(), image_part()}).body, HasSubstr("more than 2 pictures"));
  limits.image.max_pixels = 200;
  serve(limits);
  EXPECT_THAT(chat(Json::array({image_part()})).body, HasSubstr("has 19 x 13 pixels, which are more than 200"));
  limits.image = {.max_bytes = 100};
  serve(limits);
  EXPECT_EQ(chat(Json::array({image_part()})).status, 400);
}

TEST_F(PicturesInRequests, AreKeptForLaterTurns) {
  ASSERT_EQ(chat({image_part(), image_part()}).status, 200);
  const Request first = request();
  EXPECT_EQ((*first.images)[0].patches, (*first.images)[1].patches);
  ASSERT_EQ(chat(Json::array({text_part("again"), image_part()})).status, 200);
  EXPECT_EQ((*request().images)[0].patches, (*first.images)[0].patches);
  EXPECT_EQ(server_->metric("vllm:mm_cache_queries_total"), 3);
  EXPECT_EQ(server_->metric("vllm:mm_cache_hits_total"), 2);
}

// What requests hold is bounded: beyond it 503, and what one alone would exceed is 400.
TEST_F(PicturesInRequests, TakeSoMuchMemory) {
  ASSERT_EQ(chat(Json::array({image_part()})).status, 200);
  const size_t one = (*request().images)[0].patches->bytes().size_bytes();
  server::RequestLimits limits;
  limits.max_image_memory = one + one / 2;
  serve(limits);
  ASSERT_EQ(chat(Json::array({image_part()})).status, 200);  // which the service keeps, as a queue does
  const Reply r = chat(Json::array({image_part("jpeg-420")}));
  EXPECT_EQ(r.status, 503);
  EXPECT_NE(r.header("Retry-After"), "");
  EXPECT_EQ(chat(Json::array({image_part()})).status, 200) << "it is there already";
  EXPECT_EQ(chat({image_part(), image_part("jpeg-420")}).status, 400);
}

TEST_F(PicturesInRequests, TemplatesOfTextsAloneHaveThemToo) {
  serve({}, picture_model("{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
                          "{%- endfor -%}"));
  ASSERT_EQ(chat({text_part("a"), image_part(), text_part("b")}).status, 200);
  EXPECT_THAT(prompt(), HasSubstr("user\na" + kPicture + "b<|im_end|>"));
  check_places();
}

TEST_F(PicturesInRequests, TemplatesThatDropThemAreRefused) {
  serve({}, picture_model(
                "{%- for m in messages -%}{%- if not loop.last or loop.first -%}"
                "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endif -%}{%- endfor -%}"));
  const Reply r = chat(Json::array({image_part()}));
  EXPECT_EQ(r.status, 400);
  EXPECT_THAT(r.body, HasSubstr("chat template leaves out pictures: 0 of 1"));
}

TEST_F(PicturesInRequests, CutPromptsHaveWholeOnes) {
  Json body = {{"messages", {{{"role", "user"}, {"content", {image_part(), text_part("b"), image_part()}}}}}};
  ASSERT_EQ(send("/v1/chat/completions", body).status, 200);
  const Request whole = request();
  body["truncate_prompt_tokens"] = std::ssize(whole.prompt) - (*whole.images)[0].position - 2;
  ASSERT_EQ(send("/v1/chat/completions", body).status, 200);
  check_places();
  EXPECT_EQ(request().images->size(), 1u);
}

TEST_F(PicturesInRequests, OldestTurnsGoWithTheirs) {
  serve({}, shared_model(), 160);
  Json messages = Json::array();
  for (int i = 0; i < 4; ++i) {
    messages.push_back({{"role", "user"}, {"content", "what"}, {"images", {picture_base64("png-rgb")}}});
    messages.push_back({{"role", "assistant"}, {"content", "that"}});
  }
  messages.push_back({{"role", "user"}, {"content", "on"}});
  const Reply r = send("/api/chat", {{"stream", false}, {"messages", messages}});
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_NE(r.header("X-Dropped-Messages"), "");
  check_places();
  EXPECT_LT(request().images->size(), 4u);
}

// What Gemma3Processor of transformers 5.24 makes of a picture's marker before it makes tokens of the text. GGUF files
// have no token for the rows: another one stands for them.
TEST_F(PicturesInRequests, OfGemmaStandBetweenLineBreaks) {
  for (const char* const row : {"<image_soft_token>", "<pad>"}) {
    serve({}, gemma_picture_model(row));
    const std::string picture = fmt::format("\n\n<start_of_image>{}<end_of_image>\n\n", row);
    EXPECT_EQ(model_->tokenizer->token_text(pad()), row);
    ASSERT_EQ(chat({image_part(), text_part(" \nwhat is it? "), image_part("jpeg-turned6")}).status, 200);
    const std::string text = "user\n" + picture + "what is it?" + picture + "<|im_end|>";
    EXPECT_THAT(prompt(), HasSubstr(text));
    check_places();
    const Request q = request();
    ASSERT_EQ(q.images->size(), 2u);
    EXPECT_EQ((*q.images)[0].tokens(), 16);
    EXPECT_EQ((*q.images)[1].tokens(), 16);
    // Line breaks join with those beside them: the text as a whole became tokens.
    std::vector<TokenId> once;
    for (const TokenId t : q.prompt)
      if (t != pad() || once.empty() || once.back() != pad()) once.push_back(t);
    EXPECT_EQ(once, model_->tokenizer->encode(prompt(), {.parse_special = true}));
  }
}

// What Gemma3Processor writes around the pieces of pan and scan, once for each picture that has some.
TEST_F(PicturesInRequests, OfGemmaAreSeenInPieces) {
  const Json scans = {{"do_pan_and_scan", true}, {"pan_and_scan_min_crop_size", 4}};
  serve({}, gemma_picture_model("<image_soft_token>", kGemmaTemplate, scans));
  ASSERT_EQ(chat({image_part(), text_part("and"), image_part("png-rgb"), image_part("jpeg-turned6")}).status, 200);
  const std::string picture = "\n\n<start_of_image><image_soft_token><end_of_image>\n\n";
  const std::string pieces = "Here is the original image " + picture +
                             " and here are some crops to help you see better " + picture + " " + picture;
  EXPECT_THAT(prompt(), HasSubstr("user\n" + pieces + "and" + pieces + pieces + "<|im_end|>"));
  check_places();
  const Request q = request();
  ASSERT_EQ(q.images->size(), 9u);
  const auto digest = [&](size_t i) { return (*q.images)[i].digest; };
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(digest(i), digest(3 + i));
    EXPECT_NE(digest(i), digest(6 + i));
    EXPECT_NE(digest(i), digest((i + 1) % 3));
  }
  // 19 pixels in two pieces: the second begins where the first ends.
  const std::string file = picture_file("png-rgb");
  const image::Pixels pixels = std::move(image::decode(std::as_bytes(std::span(file)), {})).value();
  const image::Patches second = std::move(image::prepare(pixels, model_->vision->spec, {10, 0, 9, 13})).value();
  EXPECT_TRUE(std::ranges::equal((*q.images)[2].patches->bytes(), second.bytes()));
}

TEST_F(PicturesInRequests, OfGemmaAreNoTexts) {
  serve({}, gemma_picture_model());
  const std::string marker = "<start_of_image>";
  ASSERT_EQ(chat({text_part(marker), image_part(), text_part(marker)}).status, 200);
  EXPECT_THAT(prompt(), HasSubstr(marker + "\n\n" + marker + "<image_soft_token><end_of_image>\n\n" + marker));
  check_places();
  EXPECT_EQ(std::ranges::count(request().prompt, *model_->tokenizer->find_token(marker)), 1);
  ASSERT_EQ(chat(marker).status, 200);
  EXPECT_EQ(request().images, nullptr);
}

TEST_F(PicturesInRequests, OfGemmaInTemplatesOfTextsAlone) {
  serve({}, gemma_picture_model("<image_soft_token>",
                                "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' + m.content }}"
                                "{{ '<|im_end|>\\n' }}{%- endfor -%}"));
  ASSERT_EQ(chat({text_part("a"), image_part(), text_part("b")}).status, 200);
  EXPECT_THAT(prompt(), HasSubstr("user\na\n\n<start_of_image><image_soft_token><end_of_image>\n\nb<|im_end|>"));
  check_places();
}

// What Gemma4Processor makes of them, but that the padding token stands for rows.
TEST_F(PicturesInRequests, OfGemma4StandBetweenTokensOfTheirOwn) {
  serve({}, gemma4_picture_model());
  EXPECT_EQ(model_->tokenizer->token_text(pad()), "<pad>");
  const std::string picture = "<|image><pad><image|>", marker = "<|image|>";
  ASSERT_EQ(chat({image_part(), text_part("what is " + marker), image_part("jpeg-turned6")}).status, 200);
  EXPECT_THAT(prompt(), HasSubstr("user\n" + picture + "what is " + marker + picture + "<|im_end|>"));
  check_places();
  const Request q = request();
  ASSERT_EQ(q.images->size(), 2u);
  for (const PromptImage& image : *q.images) {
    EXPECT_GT(image.tokens(), 32) << "also where the picture is smaller";
    EXPECT_LE(image.tokens(), 64);
  }
}

TEST_F(PicturesInRequests, AreTold) {
  const Json models = Json::parse(ask(server_->port(), get("/v1/models")).body);
  EXPECT_EQ(models["data"][0]["architecture"]["input_modalities"], Json::array({"text", "image"}));
  EXPECT_EQ(Json::parse(ask(server_->port(), get("/props")).body)["modalities"]["vision"], true);
  const Json shown = Json::parse(ask(server_->port(), post("/api/show", Json{{"model", "demo"}})).body);
  EXPECT_THAT(shown["capabilities"], testing::Contains("vision"));
  const Json without = Json::parse(ask(demo_server().port(), get("/props")).body);
  EXPECT_EQ(without["modalities"]["vision"], false);
}

TEST(Base64, BackAndForth) {
  for (size_t n = 0; n < 9; ++n) {
    std::vector<uint8_t> bytes(n);
    for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<uint8_t>(251 * i + 7 * n);
    std::string text = server::base64(std::as_bytes(std::span(bytes)));
    EXPECT_EQ(server::from_base64(text), bytes) << n;
    while (text.ends_with('=')) text.pop_back();
    EXPECT_EQ(server::from_base64(text), bytes) << n;
    EXPECT_EQ(server::from_base64(" " + text + "\r\n"), bytes) << n;
  }
  EXPECT_EQ(server::from_base64("-_8="), server::from_base64("+/8="));
  for (const char* const text : {"A", "AAAAA", "A=A=", "AA=", "AAA==", "A===", "AA==A", "====", "A*AA"})
    EXPECT_FALSE(server::from_base64(text)) << text;
}

}  // namespace
}  // namespace quire::test
