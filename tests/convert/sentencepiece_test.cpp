// SentencePiece in model folders. What the originals make of 2,094 texts is in tests/data/tokenizer, which
// tools/check_tokenizers.py writes: tokens and text must be the same, from the folder's files and from the GGUF file
// that a conversion makes of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "convert/hf_tokenizer.h"
#include "convert/json.h"
#include "convert/sentencepiece_model.h"
#include "support.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

namespace quire::test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

std::string fixture(const std::string& name) {
  auto text = convert::read_text_file(std::string(QUIRE_SOURCE_DIR) + "/tests/data/tokenizer/" + name);
  QUIRE_CHECK(text.ok(), "{}", text.error().message);
  return std::move(text).value();
}

convert::HfConfig config_with(int64_t vocab) {
  convert::HfConfig c;
  c.vocab = vocab;
  return c;
}

convert::TokenizerFiles json_files(const std::string& name) {
  convert::TokenizerFiles files;
  files.tokenizer = json::parse(fixture(name + ".json"));
  return files;
}

int64_t vocab_of(const convert::TokenizerFiles& files) {
  if (!files.model.empty()) return std::ssize(convert::parse_sentencepiece_model(files.model)->pieces);
  const json& added = files.tokenizer["added_tokens"];
  int64_t size = std::ssize(files.tokenizer["model"]["vocab"]);
  for (const json& a : added) size = std::max(size, a["id"].get<int64_t>() + 1);
  return size;
}

convert::HfTokenizer read(const convert::TokenizerFiles& files) {
  auto made = convert::read_hf_tokenizer(files, config_with(vocab_of(files)));
  QUIRE_CHECK(made.ok(), "{}", made.error().message);
  return std::move(made).value();
}

// Of every text of a fixture. `control`: the texts may write control tokens.
void compare(const Tokenizer& t, const std::string& cases, bool control) {
  std::ifstream in(std::string(QUIRE_SOURCE_DIR) + "/tests/data/tokenizer/" + cases);
  int compared = 0;
  for (std::string line; std::getline(in, line); ++compared) {
    const json c = json::parse(line);
    const auto ids = c[1].get<std::vector<TokenId>>();
    ASSERT_EQ(t.encode(c[0].get_ref<const std::string&>(), {.add_special = false, .parse_special = control}), ids)
        << c[0];
    const auto end_of_turn = t.find_token("<end_of_turn>");  // a control token here, whatever the file says
    const bool hidden = !control && end_of_turn && std::find(ids.begin(), ids.end(), *end_of_turn) != ids.end();
    if (hidden) continue;
    ASSERT_EQ(t.decode(ids, control), c[2].get_ref<const std::string&>()) << c[0];
    StreamDetokenizer stream(t, control);
    std::string streamed;
    for (const TokenId id : ids) streamed += stream.push(id);
    ASSERT_EQ(streamed + stream.flush(), c[2].get_ref<const std::string&>());
  }
  EXPECT_GT(compared, 400) << cases;
}

TEST(SentencePieceFolder, ModelAloneAsInSentencePiece) {
  for (const std::string name : {"llama", "gemma"}) {
    convert::TokenizerFiles files;
    files.model = fixture(name + ".model");
    const auto t = Tokenizer::create(read(files).view());
    ASSERT_TRUE(t.ok()) << t.error().message;
    compare(*t, name + ".jsonl", false);
  }
}

TEST(SentencePieceFolder, TokenizerJsonAsInTokenizers) {
  for (const std::string name : {"prepend", "first", "replace"}) {
    const auto t = Tokenizer::create(read(json_files(name)).view());
    ASSERT_TRUE(t.ok()) << t.error().message;
    compare(*t, name + ".jsonl", true);
  }
}

// A folder of a tiny model with the vocabulary of a fixture, to its end as a GGUF file.
class ConvertedSentencePiece : public testing::Test {
 public:
  ConvertedSentencePiece() : model_(model("tiny-mistral")), folder_(model_) {
    vocab_ = hf_config(model_)["vocab_size"].get<size_t>();
    folder_.remove("tokenizer_config.json");
  }

  // The first pieces of a fixture, and the one for a space: as many as the model has tokens.
  std::string short_model() const {
    std::string bytes;
    const convert::SentencePieceModel all = *convert::parse_sentencepiece_model(fixture("llama.model"));
    for (size_t i = 0; i < vocab_; ++i) {
      const auto space =
          std::find_if(all.pieces.begin(), all.pieces.end(), [](const auto& p) { return p.text == "▁"; });
      const auto& p = i + 1 < vocab_ ? all.pieces[i] : *space;
      std::string piece = "\x0a" + std::string(1, static_cast<char>(p.text.size())) + p.text + "\x15";
      piece.append(reinterpret_cast<const char*>(&p.score), 4);
      piece += std::string("\x18") + static_cast<char>(p.type);
      bytes += "\x0a" + std::string(1, static_cast<char>(piece.size())) + piece;
    }
    return bytes + std::string("\x12\x02\x18\x02", 4) + std::string("\x1a\x04\x18\x01\x20\x00", 6);
  }

 protected:
  TinyModel model_;
  HfFolder folder_;
  size_t vocab_ = 0;
};

TEST_F(ConvertedSentencePiece, WritesWhatOtherProgramsRead) {
  folder_.remove("tokenizer.json");
  folder_.write("tokenizer.model", short_model());
  const gguf::File file = converted(folder_);
  EXPECT_EQ(file.get_string("tokenizer.ggml.model").value(), "llama");
  EXPECT_EQ(file.get_string("tokenizer.ggml.pre").value(), "default");
  EXPECT_TRUE(file.get_bool("tokenizer.ggml.add_space_prefix").value());
  EXPECT_TRUE(file.get_bool("tokenizer.ggml.add_bos_token").value());
  EXPECT_FALSE(file.has("tokenizer.ggml.merges"));
  EXPECT_FALSE(file.has("tokenizer.ggml.remove_extra_whitespaces"));
  EXPECT_FALSE(file.has("quire.tokenizer.space_prefix"));
  const auto scores = file.get_f32_array("tokenizer.ggml.scores").value();
  ASSERT_EQ(scores.size(), vocab_);
  EXPECT_EQ(scores[260], -1);
  const auto t = Tokenizer::load(file);
  ASSERT_TRUE(t.ok()) << t.error().message;
  EXPECT_EQ(t->token_bytes(3 + 'A'), "A");
  EXPECT_EQ(t->decode(t->encode(" a\nb é")), " a\nb é");
}

TEST_F(ConvertedSentencePiece, MergesGoIntoTheFileWithScoresOfTheirRanks) {
  json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int b = 0; b < 256; ++b) vocab[fmt::format("<0x{:02X}>", b)] = 3 + b;
  for (const char* text : {"▁", "a", "b", "ab", "▁a"}) vocab[text] = vocab.size();
  const json tokenizer = {
      {"model",
       {{"type", "BPE"},
        {"vocab", vocab},
        {"merges", {"a b", {"▁", "a"}}},
        {"unk_token", "<unk>"},
        {"byte_fallback", true}}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", false}}},
      {"added_tokens",
       {{{"id", 0}, {"content", "<unk>"}, {"special", true}},
        {{"id", 1}, {"content", "<s>"}, {"special", true}, {"rstrip", true}},
        {{"id", 2}, {"content", "</s>"}, {"special", true}, {"lstrip", true}}}},
      {"decoder",
       {{"type", "Sequence"},
        {"decoders",
         {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
          {{"type", "ByteFallback"}},
          {{"type", "Fuse"}},
          {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}}};
  folder_.write_json("tokenizer.json", tokenizer);
  folder_.write("tokenizer.model", "?");  // of no use: that is noted
  convert::ConvertSummary s;
  const gguf::File file = converted(folder_, &s);
  EXPECT_THAT(s.notes, testing::Contains(HasSubstr("tokenizer.model is left alone")));
  EXPECT_EQ(file.get_strings("tokenizer.ggml.merges").value()[1], "▁ a");
  EXPECT_EQ(file.get_string("quire.tokenizer.space_prefix").value(), "metaspace_first");
  EXPECT_THAT(file.get_i32_array("quire.tokenizer.strip_behind").value(), ElementsAre(1));
  EXPECT_THAT(file.get_i32_array("quire.tokenizer.strip_before").value(), ElementsAre(2));
  const auto scores = file.get_f32_array("tokenizer.ggml.scores").value();
  EXPECT_EQ(scores[262], 0);
  EXPECT_EQ(scores[263], -1);
  const auto types = file.get_i32_array("tokenizer.ggml.token_type").value();
  EXPECT_EQ(types[0], 2);
  EXPECT_EQ(types[1], 3);
  EXPECT_EQ(types[3], 6);
  EXPECT_EQ(types[260], 1);
  const auto t = Tokenizer::load(file);
  ASSERT_TRUE(t.ok()) << t.error().message;
  EXPECT_THAT(t->encode("ab<s> ab \n</s>", {.add_special = false}), ElementsAre(259, 262, 1, 262, 2));
}

TEST(SentencePieceFolder, WhatNoFileCanSayIsRefused) {
  const struct {
    const char *pointer, *value, *reason;
  } cases[] = {
      {"/normalizer", R"({"type":"NFKC"})", "normalizer: 'NFKC' is not supported here"},
      {"/normalizer", R"({"type":"Prepend","prepend":"_"})", "normalizer: 'Prepend' is not supported here"},
      {"/normalizer", "null", "neither normalizer nor pre_tokenizer replaces spaces"},
      {"/pre_tokenizer", R"({"type":"Whitespace"})", "pre_tokenizer: 'Whitespace' is not supported here"},
      {"/decoder", R"({"type":"WordPiece"})", "decoder: 'WordPiece' is not supported here"},
      {"/decoder", "null", "decoder: without ByteFallback"},
      {"/decoder/decoders/3/content", R"("x")", "decoder: 'Strip' is not supported here"},
      {"/model/ignore_merges", "true", "ignore_merges with byte_fallback"},
      {"/model/dropout", "0.5", "dropout"},
      {"/model/merges/0", R"(["a b","c"])", "merge 0 has a space"},
      {"/model/merges/0", R"(["qqq","zzz"])", "is no token"},
      {"/added_tokens/1/single_word", "true", "single_word is not supported"},
  };
  for (const auto& c : cases) {
    convert::TokenizerFiles files = json_files("prepend");
    const int64_t vocab = vocab_of(files);
    files.tokenizer[json::json_pointer(c.pointer)] = json::parse(c.value);
    const auto made = convert::read_hf_tokenizer(files, config_with(vocab));
    ASSERT_FALSE(made.ok()) << c.reason;
    EXPECT_THAT(made.error().message, HasSubstr(c.reason));
  }
  convert::TokenizerFiles files = json_files("first");
  files.tokenizer["pre_tokenizer"]["split"] = true;
  EXPECT_THAT(convert::read_hf_tokenizer(files, config_with(vocab_of(files))).error().message, HasSubstr("(split)"));
  files.tokenizer["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "_"}, {"split", false}};
  EXPECT_THAT(convert::read_hf_tokenizer(files, config_with(vocab_of(files))).error().message,
              HasSubstr("the replacement '_'"));
  files = json_files("prepend");
  files.tokenizer["decoder"]["decoders"].erase(3);
  EXPECT_THAT(convert::read_hf_tokenizer(files, config_with(vocab_of(files))).error().message,
              HasSubstr("keeps a space in front, which encoding adds"));
}

TEST(SentencePieceModel, HostileFiles) {
  const std::string good = fixture("llama.model");
  const std::string one = std::string("\x0a\x05\x0a\x03", 4) + "abc";  // a piece
  const struct {
    std::string bytes, reason;
  } cases[] = {
      {"", "has no pieces"},
      {"{}", "kind"},
      {std::string("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 10), "longer than what holds it"},
      {std::string("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 12), "more than 64 bits"},
      {std::string("\x0a\x04\x0a\x09zz", 6), "byte 4: has a field that is longer than what holds it"},
      {std::string("\x08\x01", 2), "field 1 is no message"},
      {std::string("\x0a\x02\x18\x01", 4), "piece 0 has no text"},
      {one + std::string("\x0a\x05\x0a\x01x\x18\x09", 7), "piece 1, 'x', is of an unknown type"},
      {one, "a model of type Unigram is not supported"},
      {one + std::string("\x12\x02\x18\x04", 4), "a model of type characters is not supported"},
      {one + std::string("\x12\x02\x18\x63", 4), "a model of type 99 is not supported"},
      {good + std::string("\x1a\x0c\x0a\x08nmt_nfkc\x12\x00", 14), ""},
      {good + std::string("\x1a\x0d\x0a\x08nmt_nfkc\x12\x01z", 15), "the normalizer 'nmt_nfkc' is not supported"},
      {good + std::string("\x1a\x02\x28\x00", 4), "escape_whitespaces = false"},
      {good + std::string("\x12\x03\xc0\x01\x01", 5), "treat_whitespace_as_suffix"},
      {good + std::string("\x2a\x03\x12\x01z", 5), "a denormalizer"},
      {good + std::string("\x0a\x05\x0a\x01x\x18\x05", 7), "unused pieces, such as 'x'"},
      {good + std::string("\x0a\x07\x0a\x03\xe2\x96\x81\x18\x04", 9), "which begins with a space"},
  };
  for (const auto& c : cases) {
    const auto model = convert::parse_sentencepiece_model(c.bytes);
    ASSERT_EQ(model.ok(), c.reason.empty()) << c.reason;
    if (!model.ok()) {
      EXPECT_THAT(model.error().message, HasSubstr(c.reason));
    }
  }
  // Cut anywhere: an error, or the pieces so far.
  for (size_t n = 0; n < good.size(); n += 7) {
    const auto cut = convert::parse_sentencepiece_model(good.substr(0, n));
    EXPECT_TRUE(cut.ok() || !cut.error().message.empty());
  }
}

}  // namespace
}  // namespace quire::test
