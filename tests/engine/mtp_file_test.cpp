// The block for multi-token prediction from a file of its own, and heads of fewer tokens than the model has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "engine/engine.h"
#include "support/gguf_edit.h"
#include "support/golden.h"

namespace quire::test {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

// What an engine generates, and how its drafts fared.
struct Answer {
  std::vector<TokenId> tokens;
  int64_t drafts = 0, accepted = 0;
};

class MtpFile : public testing::Test {
 protected:
  MtpFile() {
    std::string pattern = (fs::temp_directory_path() / "quire-mtp-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    whole_ = std::make_unique<gguf::File>(std::move(gguf::File::open(kDemo)).value());
    layers_ = static_cast<int64_t>(whole_->get_u32("qwen35.block_count").value()) - 1;
  }
  ~MtpFile() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ / name; }

  // The model without its block.
  std::string bare() const {
    GgufEdit e{.drop = {"qwen35.block_count", "qwen35.nextn_predict_layers"},
               .metadata = [this](gguf::Writer& w) { w.add("qwen35.block_count", static_cast<uint32_t>(layers_)); }};
    drop(e, [this](int64_t block) { return block == layers_; });
    edit_gguf(kDemo, path("bare.gguf"), e);
    return path("bare.gguf");
  }
  // The block without the model. With `tokens` it has a head of its own, of these tokens alone.
  std::string block(const std::vector<TokenId>& tokens = {}) const {
    GgufEdit e;
    drop(e, [this](int64_t block) { return block >= 0 && block < layers_; });
    if (!tokens.empty()) add_head(e, tokens);
    edit_gguf(kDemo, path("block.gguf"), e);
    return path("block.gguf");
  }
  void add_head(GgufEdit& e, const std::vector<TokenId>& tokens) const {
    const gguf::TensorInfo& t = *whole_->find_tensor("token_embd.weight");
    const auto count = std::ssize(tokens), row = t.row_bytes();
    std::vector<std::byte> head(static_cast<size_t>(count * row)), apart(static_cast<size_t>(count * 8));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t token = tokens[static_cast<size_t>(i)], distance = token - i;
      if (token < t.dims[1]) std::memcpy(head.data() + i * row, t.data + token * row, static_cast<size_t>(row));
      std::memcpy(apart.data() + i * 8, &distance, 8);
    }
    const std::string name = fmt::format("blk.{}.nextn.shared_head_head.weight", layers_);
    e.tensors = {{name, t.dtype, {t.dims[0], count}, std::move(head)}, {"d2t", DType::kI64, {count}, std::move(apart)}};
  }
  template <class Fn>
  void drop(GgufEdit& e, Fn&& whether) const {
    for (const gguf::TensorInfo& t : whole_->tensors()) {
      const std::string name(t.name);
      if (name.starts_with("blk.") && whether(std::stoll(name.substr(4)))) e.drop.insert(name);
    }
  }

  static Answer answer(const ModelPtr& model, Speculative mode) {
    EngineOptions o{.threads = 2, .context = 256, .max_sequences = 2};
    o.speculative = {.mode = mode, .tokens = 3, .adaptive = false};
    const auto engine = std::move(Engine::create(model, o)).value();
    Request r;
    r.prompt = model->tokenizer->encode("Once there was a girl who", {.add_special = true, .parse_special = false});
    r.max_tokens = 120;
    r.ignore_eos = true;
    r.sampling.temperature = 0.7f;
    r.sampling.seed = 5;
    Answer a;
    bool over = false;
    EXPECT_TRUE(engine
                    ->submit(std::move(r),
                             [&](const TokenEvent& e) {
                               if (e.token() >= 0) a.tokens.push_back(e.token());
                               if (const auto* const end = e.as<TokenEvent::Ended>())
                                 a.drafts += end->drafts, a.accepted += end->drafts_accepted;
                               over = e.finish() != FinishReason::kNone;
                             })
                    .ok());
    while (!over) engine->step();
    return a;
  }
  ModelPtr load(const std::string& model, const std::string& mtp) const {
    auto m = load_model(model, {.mtp = mtp});
    EXPECT_TRUE(m.ok()) << m.error().message;
    return std::move(m).value();
  }
  // Why there is no block.
  std::string problem(const std::string& model, const std::string& mtp) const {
    const auto block = load(model, mtp)->mtp();
    return block.ok() ? "none" : block.error().message;
  }

  static inline const std::string kDemo = QUIRE_SOURCE_DIR "/models/demo-dense-nvfp4.gguf";
  fs::path folder_;
  std::unique_ptr<gguf::File> whole_;
  int64_t layers_ = 0;
};

TEST_F(MtpFile, DraftsAsTheModelsOwnBlockDoes) {
  const Answer own = answer(load(kDemo, ""), Speculative::kMtp), plain = answer(load(bare(), ""), Speculative::kOff);
  ASSERT_GT(own.accepted, 40);
  const Answer apart = answer(load(bare(), block()), Speculative::kMtp);
  EXPECT_EQ(apart.tokens, plain.tokens);
  EXPECT_EQ(apart.drafts, own.drafts);
  EXPECT_EQ(apart.accepted, own.accepted);
  EXPECT_EQ(answer(load(bare(), block()), Speculative::kAuto).tokens, plain.tokens);
  EXPECT_EQ(answer(load(bare(), ""), Speculative::kMtp).drafts, 0) << "there is none";
  EXPECT_EQ(answer(load(kDemo, block()), Speculative::kMtp).accepted, own.accepted) << "in place of its own";
}

TEST_F(MtpFile, HeadsOfSomeTokensDraftThese) {
  const Answer own = answer(load(kDemo, ""), Speculative::kMtp);
  std::vector<TokenId> all(4096), none = {0, 1, 2}, most;
  for (TokenId t = 0; t < 4096; ++t) {
    all[static_cast<size_t>(t)] = t;
    if (t % 7 != 3) most.push_back(t);
  }
  ASSERT_EQ(whole_->find_tensor("token_embd.weight")->dims[1], 4096);
  const Answer every = answer(load(bare(), block(all)), Speculative::kMtp);
  EXPECT_EQ(every.accepted, own.accepted);
  const Answer trimmed = answer(load(bare(), block(most)), Speculative::kMtp);
  EXPECT_EQ(trimmed.tokens, own.tokens);
  EXPECT_GT(trimmed.accepted, own.accepted / 2);
  EXPECT_LT(trimmed.accepted, own.accepted);
  EXPECT_EQ(answer(load(bare(), block(none)), Speculative::kMtp).accepted, 0) << "tokens that no text has";
}

TEST_F(MtpFile, SaysWhatIsWrong) {
  const std::string bare = this->bare();
  EXPECT_THAT(problem(bare, block({5, 5})), HasSubstr("tensor d2t: row 1 of the head is token 5; tokens must ascend"));
  EXPECT_THAT(problem(bare, block({0, 4096})), HasSubstr("token 4096; tokens must ascend and be below 4096"));
  EXPECT_THAT(problem(bare, bare), HasSubstr("0 blocks for multi-token prediction: there is none"));
  EXPECT_THAT(problem(bare, QUIRE_SOURCE_DIR "/models/demo-moe-nvfp4.gguf"),
              HasSubstr("it is of the architecture 'qwen35moe', but the model is of qwen35"));
  GgufEdit other{.drop = {"d2t"}};
  other.tensors = {{"d2t", DType::kF32, {1}, std::vector<std::byte>(4)}};
  edit_gguf(block(), path("floats.gguf"), other);
  EXPECT_THAT(problem(bare, path("floats.gguf")), HasSubstr("tensor d2t: [1] of f32, but it must be a list of i32"));
  EXPECT_EQ(answer(load(bare, path("floats.gguf")), Speculative::kAuto).tokens.size(), 120u) << "it serves without";
  const auto missing = load_model(bare, {.mtp = path("missing.gguf")});
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.error().message, HasSubstr("missing.gguf"));
}

}  // namespace
}  // namespace quire::test
