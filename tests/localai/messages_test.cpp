// LocalAI's messages as requests and options, and answers as its replies. tests/localai/backend.sh plays its calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "localai/frames.h"
#include "localai/load_options.h"
#include "localai/messages.h"
#include "localai/predict_request.h"
#include "localai/predict_writer.h"
#include "localai/status.h"
#include "support/golden.h"

namespace quire::test {
namespace {

using localai::Frame;
using localai::NamedOption;
using server::AnswerEvent;
using server::AnswerPart;
using testing::HasSubstr;
using Kind = AnswerEvent::Kind;

server::RequestLimits limits() {
  server::RequestLimits l;
  l.vocab = 1000;
  l.context = 512;
  l.template_tools = true;
  l.effort_variable = "enable_thinking";
  return l;
}

backend::PredictOptions chat_of(const std::string& text) {
  backend::PredictOptions asked;
  asked.set_usetokenizertemplate(true);
  backend::Message& m = *asked.add_messages();
  m.set_role("user");
  m.set_content(text);
  return asked;
}

std::string refusal_of(const backend::PredictOptions& asked) {
  const auto read = localai::read_predict(asked, limits(), false);
  return read.ok() ? "" : read.error().message;
}

TEST(LocalAiRequest, ReadsEveryField) {
  backend::PredictOptions asked = chat_of("hello");
  asked.set_tokens(7);
  asked.set_topk(3);
  asked.set_topp(0.5f);
  asked.set_minp(0.25f);
  asked.set_penalty(1.5f);
  asked.set_frequencypenalty(-1);
  asked.set_presencepenalty(1);
  asked.set_seed(11);
  asked.set_ignoreeos(true);
  asked.set_logitbias(R"({"5": -100})");
  asked.set_toplogprobs(2);
  asked.add_stopprompts("");
  asked.add_stopprompts("end");
  (*asked.mutable_metadata())["enable_thinking"] = "false";
  asked.set_tools(R"([{"type": "function", "function": {"name": "get_weather"}}])");
  asked.set_grammar("root ::= [0-9]+");
  auto read = localai::read_predict(asked, limits(), true);
  ASSERT_TRUE(read.ok()) << read.error().message;
  const auto& chat = std::get<server::ChatRequest>(*read);
  const server::GenerationParams& p = chat.params;
  EXPECT_EQ(p.max_tokens, 7);
  EXPECT_TRUE(p.cut_max_tokens);
  EXPECT_TRUE(p.stream);
  EXPECT_TRUE(p.request.ignore_eos);
  EXPECT_EQ(p.seed, 11u);
  EXPECT_EQ(p.request.stop, std::vector<std::string>{"end"});
  EXPECT_EQ(p.request.sampling.temperature, 0.0f);
  EXPECT_EQ(p.request.sampling.top_k, 3);
  EXPECT_EQ(p.request.sampling.top_p, 0.5f);
  EXPECT_EQ(p.request.sampling.min_p, 0.25f);
  EXPECT_EQ(p.request.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(p.request.sampling.frequency_penalty, -1.0f);
  EXPECT_EQ(p.request.sampling.presence_penalty, 1.0f);
  EXPECT_EQ(p.request.sampling.logprobs, 2);
  EXPECT_EQ(p.request.sampling.logit_bias.at(5), -100.0f);
  EXPECT_EQ((*chat.conversation.template_variables)["enable_thinking"], false);
  EXPECT_NE(chat.tools, nullptr);
  ASSERT_TRUE(p.form.has_value());
  EXPECT_EQ(p.form->spec.text, "root ::= [0-9]+");
}

TEST(LocalAiRequest, ZeroIsNotSaid) {
  const server::RequestLimits l = limits();
  backend::PredictOptions asked = chat_of("hello");
  asked.set_seed(-1);
  auto read = localai::read_predict(asked, l, false);
  ASSERT_TRUE(read.ok()) << read.error().message;
  const server::GenerationParams& p = std::get<server::ChatRequest>(*read).params;
  EXPECT_EQ(p.max_tokens, std::nullopt);
  EXPECT_EQ(p.seed, std::nullopt);
  EXPECT_EQ(p.request.sampling.top_p, l.sampling.top_p);
  EXPECT_EQ(p.request.sampling.top_k, l.sampling.top_k);
  EXPECT_EQ(p.request.sampling.logprobs, -1);
}

TEST(LocalAiRequest, APromptIsNoConversation) {
  backend::PredictOptions asked;
  asked.set_prompt("once");
  auto read = localai::read_predict(asked, limits(), false);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_FALSE(std::get<server::CompletionRequest>(*read).short_by_default);
}

TEST(LocalAiRequest, SaysWhichFieldIsWrong) {
  backend::PredictOptions asked = chat_of("a");
  asked.set_logitbias("{");
  EXPECT_THAT(refusal_of(asked), HasSubstr("LogitBias"));
  asked = chat_of("a");
  asked.set_tools(std::string(100000, '['));
  EXPECT_THAT(refusal_of(asked), HasSubstr("Tools"));
  asked.set_tools("{}");
  EXPECT_THAT(refusal_of(asked), HasSubstr("'Tools' must be an array"));
  asked = chat_of("a");
  asked.mutable_messages(0)->set_tool_calls("1");
  EXPECT_THAT(refusal_of(asked), HasSubstr("Messages[0].tool_calls"));
  asked = chat_of("a");
  asked.set_toolchoice("{\"");
  EXPECT_THAT(refusal_of(asked), HasSubstr("ToolChoice"));
  asked = chat_of("a");
  asked.add_audios("x");
  EXPECT_THAT(refusal_of(asked), HasSubstr("Audios"));
  asked = chat_of("a");
  (*asked.mutable_metadata())["enable_thinking"] = "1";
  EXPECT_THAT(refusal_of(asked), HasSubstr("enable_thinking"));
}

const std::string* find(const std::vector<NamedOption>& options, std::string_view name) {
  for (const NamedOption& o : options)
    if (o.name == name) return &o.value;
  return nullptr;
}

TEST(LocalAiOptions, FieldsAreDefaultsAndNamesAreGiven) {
  backend::ModelOptions asked;
  asked.set_model("demo");
  asked.set_modelfile("demo.gguf");
  asked.set_modelpath("/models");
  asked.set_contextsize(2048);
  asked.set_nbatch(512);
  asked.set_threads(3);
  asked.set_cachetypekey("f16");
  asked.add_options("parallel:4");
  asked.add_options("no_repack");
  asked.add_options("mtp:a:b");
  asked.set_engineargs(R"({"pooling": "mean", "kv_tokens": 4096, "served_model_name": ["a", "b"], "none": null})");
  auto read = localai::read_load_options(asked);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*find(read->defaults, "model"), "/models/demo.gguf");
  EXPECT_EQ(*find(read->defaults, "ctx-size"), "2048");
  EXPECT_EQ(*find(read->defaults, "threads"), "3");
  EXPECT_EQ(*find(read->defaults, "kv-cache-dtype"), "bf16");
  EXPECT_EQ(find(read->defaults, "max-num-batched-tokens"), nullptr) << "512 is what LocalAI says for nothing";
  EXPECT_EQ(find(read->defaults, "device"), nullptr);
  EXPECT_EQ(*find(read->given, "parallel"), "4");
  EXPECT_EQ(*find(read->given, "no_repack"), "true");
  EXPECT_EQ(*find(read->given, "mtp"), "a:b");
  EXPECT_EQ(*find(read->given, "kv_tokens"), "4096");
  EXPECT_EQ(read->given.size(), 7u);
}

TEST(LocalAiOptions, SaysWhatIsWrong) {
  backend::ModelOptions asked;
  EXPECT_THAT(localai::read_load_options(asked).error().message, HasSubstr("no file is named"));
  asked.set_model("demo");
  for (const char* args : {"[", "[1]", "7", R"({"a": {"b": 1}})", R"({"a": [[1]]})"}) {
    asked.set_engineargs(args);
    EXPECT_THAT(localai::read_load_options(asked).error().message, HasSubstr("EngineArgs")) << args;
  }
}

class LocalAiReply : public testing::Test {
 protected:
  LocalAiReply() {
    usage_.prompt_tokens = 5;
    usage_.generated_tokens = 9;
    usage_.first_token_seconds = 0.5;
    usage_.total_seconds = 3.5;
    writer_ = localai::predict_writer(*model_->tokenizer, false, last_);
  }
  backend::Reply piece(std::vector<AnswerEvent> events) {
    AnswerPart part;
    part.events = std::move(events);
    const std::string bytes = writer_->piece(part, [this] { return usage_; });
    std::string_view rest = bytes;
    Frame frame = localai::take_frame(rest);
    EXPECT_TRUE(rest.empty());
    backend::Reply reply;
    EXPECT_TRUE(reply.ParseFromString(std::get<std::string>(frame)));
    return reply;
  }
  ModelPtr model_ = load_or_die(std::string(QUIRE_SOURCE_DIR) + "/models/demo-moe-nvfp4.gguf");
  server::Usage usage_;
  std::shared_ptr<localai::LastAnswer> last_ = std::make_shared<localai::LastAnswer>();
  std::unique_ptr<server::AnswerWriter> writer_;
};

TEST_F(LocalAiReply, StreamsCallsInPieces) {
  const backend::Reply first = piece({{Kind::kReasoning, "hm"}, {Kind::kText, "Look: "}});
  EXPECT_EQ(first.message(), "Look: ");
  EXPECT_EQ(first.chat_deltas(0).content(), "Look: ");
  EXPECT_EQ(first.chat_deltas(0).reasoning_content(), "hm");
  EXPECT_EQ(first.tokens(), 9);
  const backend::Reply second =
      piece({{Kind::kCallBegin, "get_weather", "id1"}, {Kind::kCallArguments, R"({"city":)"}});
  ASSERT_EQ(second.chat_deltas(0).tool_calls_size(), 1);
  EXPECT_EQ(second.chat_deltas(0).tool_calls(0).name(), "get_weather");
  EXPECT_EQ(second.chat_deltas(0).tool_calls(0).id(), "id1");
  EXPECT_EQ(second.chat_deltas(0).tool_calls(0).arguments(), R"({"city":)");
  const backend::Reply third = piece({{Kind::kCallArguments, R"("Paris"})"},
                                      {Kind::kCallEnd, ""},
                                      {Kind::kCallBegin, "get_time", "id2"},
                                      {Kind::kCallArguments, "{}"}});
  ASSERT_EQ(third.chat_deltas(0).tool_calls_size(), 2);
  EXPECT_EQ(third.chat_deltas(0).tool_calls(0).index(), 0);
  EXPECT_EQ(third.chat_deltas(0).tool_calls(0).arguments(), R"("Paris"})");
  EXPECT_EQ(third.chat_deltas(0).tool_calls(0).name(), "");
  EXPECT_EQ(third.chat_deltas(0).tool_calls(1).index(), 1);
  EXPECT_EQ(third.chat_deltas(0).tool_calls(1).name(), "get_time");
}

TEST_F(LocalAiReply, WholeAnswersHaveWholeCalls) {
  AnswerPart part;
  part.events = {{Kind::kReasoning, "hm"},
                 {Kind::kCallBegin, "get_weather", "id1"},
                 {Kind::kCallArguments, "{}"},
                 {Kind::kCallEnd, ""}};
  const server::WholeAnswer answer{&part, nullptr};
  backend::Reply reply;
  ASSERT_TRUE(reply.ParseFromString(writer_->whole({&answer, 1}, usage_)));
  ASSERT_EQ(reply.chat_deltas_size(), 1);
  EXPECT_EQ(reply.chat_deltas(0).reasoning_content(), "hm");
  ASSERT_EQ(reply.chat_deltas(0).tool_calls_size(), 1);
  EXPECT_EQ(reply.chat_deltas(0).tool_calls(0).arguments(), "{}");
  EXPECT_EQ(reply.prompt_tokens(), 5);
  EXPECT_EQ(reply.timing_prompt_processing(), 500);
  EXPECT_EQ(reply.timing_token_generation(), 3000);
  EXPECT_EQ(last_->generated_tokens, 9);
  EXPECT_FLOAT_EQ(last_->tokens_per_second, 3);
}

TEST_F(LocalAiReply, FramesKeepTheirOrder) {
  backend::Reply reply;
  reply.set_message("one");
  const std::string bytes = localai::frame_of(reply) + writer_->failure({503, "the end", "", ""});
  std::string_view rest = bytes;
  EXPECT_EQ(std::get<std::string>(localai::take_frame(rest)), reply.SerializeAsString());
  const Frame last = localai::take_frame(rest);
  EXPECT_EQ(std::get<server::ApiError>(last).status, 503);
  EXPECT_EQ(std::get<server::ApiError>(last).message, "the end");
  EXPECT_TRUE(rest.empty());
}

// What a message's bytes would come to is known before anything is made of them.
std::string refusal_of(const std::string& bytes, const google::protobuf::Descriptor& type) {
  const server::ApiStatus status = localai::check_message(bytes, type);
  return status.ok() ? "" : status.error().message;
}

std::string times(int count, std::string_view text) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

TEST(LocalAiMessages, AreCountedBeforeTheyAreRead) {
  const auto& predict = *backend::PredictOptions::descriptor();
  const auto field = [&](const char* name) { return predict.FindFieldByName(name)->number(); };
  const auto tag = [](int number) {  // of what has a length
    std::string bytes;
    for (uint32_t left = static_cast<uint32_t>(number) << 3 | 2; left > 0; left >>= 7)
      bytes += static_cast<char>((left & 0x7f) | (left > 0x7f ? 0x80 : 0));
    return bytes;
  };
  const std::string empty_message = tag(field("Messages")) + '\0', empty_text = tag(field("StopPrompts")) + '\0';
  EXPECT_EQ(refusal_of("", predict), "");
  EXPECT_EQ(refusal_of(times(60'000, empty_message), predict), "");
  EXPECT_THAT(refusal_of(times(70'000, empty_message), predict), HasSubstr("more than 400000 fields"));
  EXPECT_EQ(refusal_of(times(399'000, empty_text), predict), "");
  EXPECT_THAT(refusal_of(times(400'001, empty_text), predict), HasSubstr("more than 400000 fields"));
  EXPECT_THAT(refusal_of(times(400'001, std::string("\xf8\x7f\x01")), predict), HasSubstr("more than 400000 fields"))
      << "fields that nobody knows";
  const auto numbers = [](int count) {
    backend::DetokenizeRequest many;
    for (int i = 0; i < count; ++i) many.add_tokens(1);
    return many.SerializeAsString();
  };
  EXPECT_EQ(refusal_of(numbers(2'000'000), *backend::DetokenizeRequest::descriptor()), "");
  EXPECT_THAT(refusal_of(numbers(2'000'001), *backend::DetokenizeRequest::descriptor()), HasSubstr("numbers in lists"));
}

TEST(LocalAiMessages, BytesThatAreNoneAreRefused) {
  backend::PredictOptions asked = chat_of("text");
  asked.set_tokens(7);
  asked.set_temperature(0.5f);
  (*asked.mutable_metadata())["enable_thinking"] = "true";
  const std::string good = asked.SerializeAsString();
  const auto& type = *backend::PredictOptions::descriptor();
  EXPECT_EQ(refusal_of(good, type), "");
  backend::PredictOptions read;
  ASSERT_TRUE(localai::read_message(localai::to_buffer(good), read).ok());
  EXPECT_EQ(read.SerializeAsString(), good);
  // Cut anywhere it is refused, or is what the library reads of it as well.
  for (size_t n = 0; n < good.size(); ++n)
    EXPECT_EQ(refusal_of(good.substr(0, n), type).empty(), read.ParseFromString(good.substr(0, n))) << n;
  for (const std::string& bad : {std::string(100, '\xff'), std::string("\x0a\xff\xff\xff\xff\x07"),
                                 std::string("\x0b\x0c"), std::string("\x00\x01", 2), std::string("\x0d\x01")})
    EXPECT_THAT(refusal_of(bad, type), HasSubstr("cannot be read"));
}

TEST(LocalAiMessages, TextsOfJsonShareTheirLimits) {
  backend::PredictOptions asked = chat_of("text");
  const std::string calls = "[" + times(150'000, "[],") + "[]]";
  for (int i = 0; i < 2; ++i)
    asked.mutable_messages(0)->set_tool_calls(calls), asked.add_messages()->CopyFrom(asked.messages(0));
  asked.mutable_messages(0)->set_role("assistant");
  EXPECT_THAT(refusal_of(asked), HasSubstr("more than"));
}

TEST(LocalAiStatus, LongMessagesAreCutBetweenCharacters) {
  std::string message = "a";
  while (message.size() < 9000) message += "ä";
  const grpc::Status status = localai::to_status({400, message, "", ""});
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_LT(status.error_message().size(), 2100u);
  EXPECT_THAT(status.error_message(), testing::EndsWith("ä..."));
}

}  // namespace
}  // namespace quire::test
