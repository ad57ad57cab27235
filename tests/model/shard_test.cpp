// One rank's share of a model: what the loader gives of each tensor, for every type of weights; and what ranks compute
// together, beside one device.
#include "model/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>
#include <thread>

#include "cache/storage.h"
#include "gguf/writer.h"
#include "model/edited.h"
#include "model/memory.h"
#include "ops/all_reduce/cpu_ranks.h"
#include "quant/format.h"

namespace quire {
namespace {

using enum TensorRole;
using testing::HasSubstr;

// ---- What the loader gives ----

// A file of random bytes: tensors of every kind of division, of one type, in a layer that no model has.
class RandomTensors {
 public:
  static ModelSizes sizes() {
    return {.vocab = 80,
            .d_model = 256,
            .heads = 8,
            .kv_heads = 2,
            .head_dim = 128,
            .conv_kernel = 4,
            .key_heads = 4,
            .value_heads = 8,
            .key_dim = 256,
            .value_dim = 256,
            .d_ff = 1280,
            .experts = 3,
            .d_ff_expert = 1024};
  }
  explicit RandomTensors(DType type) : path_(testing::TempDir() + "shares-" + std::string(dtype_name(type)) + ".gguf") {
    constexpr TensorRole kMatrices[] = {kOutput,   kAttnQ,   kAttnOutput, kDeltaQkv,    kDeltaZ,
                                        kDeltaOut, kFfnDown, kExpertsUp,  kExpertsDown, kAttnK};
    constexpr TensorRole kVectors[] = {kAttnQBias,     kAttnOutputBias,  kDeltaConv, kDeltaA,
                                       kExpertsUpBias, kExpertsDownBias, kAttnNorm};
    gguf::Writer w;
    std::vector<int64_t> bytes;
    const auto declare = [&](TensorRole role, DType t) {
      const TensorSpec& spec = tensor_spec(role);
      const int64_t experts = spec.kind == TensorKind::kExperts ? sizes().experts : 1;
      const std::vector<int64_t> dims = {size_of(spec.cols, sizes()), size_of(spec.rows, sizes()), experts};
      EXPECT_TRUE(w.add_tensor(tensor_name(role), t, dims).ok());
      bytes.push_back(dtype_bytes(t, dims[0] * dims[1] * dims[2]));
    };
    for (const TensorRole role : kMatrices) declare(role, type);
    for (const TensorRole role : kVectors) declare(role, DType::kF32);
    EXPECT_TRUE(w.open(path_).ok());
    std::mt19937 random(static_cast<unsigned>(type));
    for (const int64_t n : bytes) {
      std::vector<std::byte> values(static_cast<size_t>(n));
      for (std::byte& b : values) b = static_cast<std::byte>(random());
      EXPECT_TRUE(w.write_tensor(values).ok());
    }
    EXPECT_TRUE(w.finish().ok());
  }
  ~RandomTensors() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A rank's loader, with what it made of the file.
struct RankLoader {
  WeightLoader::Arena arena;
  WeightLoader loader;
  RankLoader(const gguf::File& file, const Shard& s) : loader(file, RandomTensors::sizes(), arena, s) {}
};

std::vector<ShareRange> whole_of(int64_t n) {
  return {{0, n}};
}

// Copies what a rank has of a matrix to where it is in the whole.
void put_back(const Weight& mine, std::span<const ShareRange> rows, std::span<const ShareRange> columns,
              std::span<const ShareRange> experts, const Weight& whole, std::vector<std::byte>& to) {
  int64_t e = 0;
  for (const ShareRange& er : experts)
    for (int64_t we = er.begin; we < er.begin + er.count; ++we, ++e) {
      int64_t r = 0;
      for (const ShareRange& rr : rows)
        for (int64_t wr = rr.begin; wr < rr.begin + rr.count; ++wr, ++r) {
          const std::byte* from = mine.row(r, e);
          for (const ShareRange& c : columns) {
            const int64_t bytes = dtype_bytes(mine.dtype, c.count);
            std::memcpy(to.data() + (we * whole.rows + wr) * whole.row_bytes() + dtype_bytes(mine.dtype, c.begin), from,
                        static_cast<size_t>(bytes));
            from += bytes;
          }
        }
      EXPECT_EQ(r, mine.rows);
    }
  EXPECT_EQ(e, mine.experts);
}

class Shares : public testing::TestWithParam<DType> {};

TEST_P(Shares, OfMatricesArePutTogetherTheWhole) {
  const RandomTensors tensors(GetParam());
  const auto file = gguf::File::open(tensors.path());
  ASSERT_TRUE(file.ok()) << file.error().message;
  const ModelSizes sizes = RandomTensors::sizes();
  RankLoader one(*file, {});
  const Shard::Grains grains = share_grains(*file);
  EXPECT_EQ(grains.ffn, std::max<int64_t>(16, dtype_info(GetParam()).block_elems));
  for (const TensorRole role :
       {kOutput, kAttnQ, kAttnOutput, kDeltaQkv, kDeltaZ, kDeltaOut, kFfnDown, kExpertsUp, kExpertsDown, kAttnK})
    for (const int32_t of : {2, 4})
      for (const bool whole_experts : {false, true}) {
        if (whole_experts && of > sizes.experts) continue;
        SCOPED_TRACE(testing::Message() << tensor_name(role) << " by " << of
                                        << (whole_experts ? ", whole experts" : ""));
        const TensorSpec& spec = tensor_spec(role);
        const TensorShare& share = tensor_share(role);
        const auto whole = one.loader.matrix(role);
        ASSERT_TRUE(whole.ok()) << whole.error().message;
        std::vector<std::byte> put(static_cast<size_t>(whole->bytes()));
        for (int32_t rank = 0; rank < of; ++rank) {
          const Shard s{.rank = rank, .of = of, .whole_experts = whole_experts, .grains = grains};
          RankLoader mine(*file, s);
          const auto w = mine.loader.matrix(role);
          ASSERT_TRUE(w.ok()) << w.error().message;
          const bool by_expert = share.by_expert && whole_experts;
          const bool rows = !by_expert && share.division == Division::kRows;
          const bool columns = !by_expert && share.division == Division::kColumns;
          const ShareRange experts = by_expert ? expert_share(whole->experts, s) : ShareRange{0, whole->experts};
          put_back(*w, rows ? share_of(spec.rows, sizes, s) : whole_of(whole->rows),
                   columns ? share_of(spec.cols, sizes, s) : whole_of(whole->cols), {&experts, 1}, *whole, put);
          const bool one_range = !rows || share_of(spec.rows, sizes, s).size() == 1;
          EXPECT_EQ(mine.arena.bytes, columns || !one_range ? w->bytes() : 0) << "rows in one piece are a view";
        }
        EXPECT_EQ(std::memcmp(put.data(), whole->data, put.size()), 0);
      }
}

std::vector<DType> decodable() {
  std::vector<DType> all;
  for (const DTypeInfo& t : kDTypes)
    if (quant::can_decode(t.type) && !is_memory_type(t.type)) all.push_back(t.type);
  return all;
}
INSTANTIATE_TEST_SUITE_P(Types, Shares, testing::ValuesIn(decodable()),
                         [](const auto& type) { return std::string(dtype_name(type.param)); });

TEST(SharesOfVectors, ArePutTogetherTheWholeAndBiasesOfSumsAreTheFirstRanks) {
  const RandomTensors tensors(DType::kF32);
  const auto file = gguf::File::open(tensors.path());
  ASSERT_TRUE(file.ok());
  const ModelSizes sizes = RandomTensors::sizes();
  RankLoader one(*file, {});
  for (const TensorRole role : {kAttnQBias, kDeltaConv, kDeltaA, kExpertsUpBias}) {
    SCOPED_TRACE(tensor_name(role));
    const TensorSpec& spec = tensor_spec(role);
    const Tensor whole = one.loader.vector(role).value();
    const bool by_rows = tensor_share(role).division == Division::kRows;
    const int64_t width = whole.dim(whole.rank - 1), height = whole.elems() / width;
    std::vector<float> put(static_cast<size_t>(whole.elems()));
    for (int32_t rank = 0; rank < 2; ++rank) {
      const Shard s{.rank = rank, .of = 2};
      RankLoader mine(*file, s);
      const Tensor t = mine.loader.vector(role).value();
      EXPECT_EQ(t.rank, whole.rank);
      const float* from = t.as<float>();
      for (const ShareRange& r : by_rows ? share_of(spec.rows, sizes, s) : whole_of(height))
        for (int64_t i = r.begin; i < r.begin + r.count; ++i)
          for (const ShareRange& c : by_rows ? whole_of(width) : share_of(spec.cols, sizes, s)) {
            std::memcpy(put.data() + i * width + c.begin, from, static_cast<size_t>(c.count) * 4);
            from += c.count;
          }
      EXPECT_EQ(from, t.as<float>() + t.elems());
    }
    EXPECT_EQ(std::memcmp(put.data(), whole.data, put.size() * 4), 0);
  }
  for (const TensorRole role : {kAttnOutputBias, kExpertsDownBias, kAttnNorm}) {
    const Tensor whole = one.loader.vector(role).value();
    for (int32_t rank = 0; rank < 2; ++rank) {
      RankLoader mine(*file, {.rank = rank, .of = 2});
      const Tensor t = mine.loader.vector(role).value();
      ASSERT_EQ(t.elems(), whole.elems());
      const bool zeros = std::all_of(t.as<float>(), t.as<float>() + t.elems(), [](float x) { return x == 0; });
      EXPECT_EQ(zeros, rank == 1 && role != kAttnNorm);
      if (!zeros) {
        EXPECT_EQ(std::memcmp(t.data, whole.data, static_cast<size_t>(t.bytes())), 0);
      }
    }
  }
}

TEST(SharesOfColumns, EndWhereBlocksEnd) {
  const RandomTensors tensors(DType::kQ4_K);
  const auto file = gguf::File::open(tensors.path());
  ASSERT_TRUE(file.ok());
  // A head of 128 columns is half a block: eight ranks would have one each.
  RankLoader mine(*file, {.rank = 2, .of = 8});
  const auto w = mine.loader.matrix(kAttnOutput);
  ASSERT_FALSE(w.ok());
  EXPECT_EQ(w.error().message,
            "tensor blk.0.attn_output.weight: q4_k has blocks of 256 columns, and device 3 of 8 would have 128 from "
            "column 256 on; use fewer devices, or a file with another type");
}

// ---- What ranks compute together ----

// The logits of a text and its hidden states, and the logits of what the block for multi-token prediction makes of it.
struct Logits {
  std::vector<float> model, states, block;
  bool operator==(const Logits&) const = default;
};

// One device's, or one rank's: a prompt in two chunks, then the last tokens as generated ones.
class Runner {
 public:
  Runner(const Model& model, const std::optional<MtpBlock>& block, RankLink* link)
      : model_(model), block_(block), link_(link), pool_(1) {
    const CacheShape shape = cache_shape(model.config(), DType::kBF16, KvCacheType::kAuto,
                                         {.drafts = block ? 1 : 0, .mtp = block.has_value()});
    caches_.emplace(CacheStorage::create(shape, shape.counts(kBlocks, 1)).value());
  }
  Logits run(std::span<const int32_t> ids) {
    constexpr size_t kChunk = 64, kGenerated = 3;
    const size_t prompt = ids.size() - kGenerated;
    Logits all;
    for (size_t at = 0; at < ids.size();) {
      const bool generated = at >= prompt;
      const size_t count = generated ? 1 : std::min(kChunk, prompt - at);
      step(ids, at, count, generated, all);
      at += count;
    }
    return all;
  }

 private:
  static constexpr int32_t kBlocks = 16;

  void step(std::span<const int32_t> ids, size_t at, size_t count, bool generated, Logits& all) {
    const ModelConfig& c = model_.config();
    const auto rows = static_cast<int32_t>(count), position = static_cast<int32_t>(at);
    const StepLayout layout({.rows = rows,
                             .segments = 1,
                             .table_width = kBlocks,
                             .logit_rows = rows,
                             .width = static_cast<int32_t>(c.d_model)});
    std::vector<std::byte> memory(static_cast<size_t>(layout.bytes()));
    const StepArrays a = layout.arrays(memory.data());
    std::ranges::copy(ids.subspan(at, count), a.tokens);
    std::fill_n(a.sources, rows, -1);
    std::iota(a.tables, a.tables + kBlocks, 0);
    std::iota(a.logit_rows, a.logit_rows + rows, 0);
    a.segments[0] = {.count = rows, .position = position, .state_slot = 0, .anchor = anchor_};
    StepShape shape{
        .rows = rows, .segments = 1, .logit_rows = rows, .table_width = kBlocks, .longest = position + rows};
    if (generated) {
      shape.decode_rows = shape.decode_logit_rows = rows, shape.decodes = 1;
      shape.decode_keys = shape.longest;
    }
    const StepBatch batch = layout.batch(memory.data(), shape, nullptr);
    const OpContext ctx{.pool = pool_, .workspace = workspace_, .machine = {Device::kCpu}};
    std::vector<float> states(count * static_cast<size_t>(c.d_model));
    all.model.resize((at + count) * static_cast<size_t>(c.vocab));
    model_.decoder().forward(ctx, batch, *caches_, {.ranks = link_},
                             {.logits = make_tensor(all.model.data() + position * c.vocab, {rows, c.vocab}),
                              .states = make_tensor(states.data(), {rows, c.d_model})});
    all.states.insert(all.states.end(), states.begin(), states.end());
    if (block_ && !generated) draft(batch, states, all);
    anchor_ = static_cast<int32_t>(generated ? anchor_after_decode(a.segments[0]) : anchor_after_prompt(a.segments[0]));
  }
  // Of a draft head that is cut within the second rank's rows.
  void draft(StepBatch batch, std::vector<float>& states, Logits& all) {
    const ModelConfig& c = model_.config();
    const Decoder mtp = mtp_decoder(model_.decoder(), block_->weights, c.vocab * 3 / 4);
    const int64_t vocab = mtp.config().vocab, begin = std::ssize(all.block);
    batch.hidden = make_tensor(states.data(), {batch.rows(), c.d_model});
    all.block.resize(static_cast<size_t>(begin + batch.rows() * vocab));
    const OpContext ctx{.pool = pool_, .workspace = workspace_, .machine = {Device::kCpu}};
    mtp.forward(ctx, batch, *caches_, {.ranks = link_},
                {.logits = make_tensor(all.block.data() + begin, {batch.rows(), vocab})});
  }

  const Model& model_;
  const std::optional<MtpBlock>& block_;
  RankLink* link_;
  ThreadPool pool_;
  Workspace workspace_;
  std::optional<CacheStorage> caches_;
  int32_t anchor_ = 0;
};

// What each of `of` ranks has at the end, on a thread of its own; one device without any for of = 1.
std::vector<Logits> by_ranks(const gguf::File& file, int32_t of, std::span<const int32_t> ids, bool mtp,
                             bool whole_experts = false) {
  const CpuRanks group(of);
  std::vector<Logits> all(static_cast<size_t>(of));
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < of; ++rank)
    threads.emplace_back([&, rank] {
      auto model = Model::load(file, {.rank = rank, .of = of, .whole_experts = whole_experts});
      QUIRE_CHECK(model.ok(), "{}", model.error().message);
      std::optional<MtpBlock> block;
      if (mtp) block = (*model)->mtp().value();
      Runner runner(**model, block, of == 1 ? nullptr : &group.link(rank));
      all[static_cast<size_t>(rank)] = runner.run(ids);
    });
  for (std::thread& t : threads) t.join();
  return all;
}

std::vector<int32_t> some_tokens(int64_t vocab) {
  std::mt19937 random(7);
  std::vector<int32_t> ids;
  for (int i = 0; i < 101; ++i) ids.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocab)));
  return ids;
}

// Mean over rows of the divergence of what `got` makes of the next token from what `want` does.
double mean_kl(std::span<const float> want, std::span<const float> got, int64_t vocab) {
  const auto log_probabilities = [&](const float* row) {
    std::vector<double> p(row, row + vocab);
    const double top = *std::ranges::max_element(p);
    double sum = 0;
    for (const double l : p) sum += std::exp(l - top);
    for (double& l : p) l -= top + std::log(sum);
    return p;
  };
  double kl = 0;
  const int64_t rows = std::ssize(want) / vocab;
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<double> a = log_probabilities(want.data() + r * vocab),
                              b = log_probabilities(got.data() + r * vocab);
    for (size_t i = 0; i < a.size(); ++i) kl += std::exp(a[i]) * (a[i] - b[i]);
  }
  return kl / static_cast<double>(rows);
}

constexpr double kMostKl = 5e-4;

class Ranks : public testing::TestWithParam<test::TinyModel> {};

TEST_P(Ranks, ComputeWhatOneDeviceDoes) {
  const test::TinyModelFile made(GetParam());
  const auto file = gguf::File::open(made.path());
  ASSERT_TRUE(file.ok()) << file.error().message;
  const int64_t vocab = read_config(*file)->vocab;
  const std::vector<int32_t> ids = some_tokens(vocab);
  const Logits one = by_ranks(*file, 1, ids, false)[0];
  for (const int32_t of : {2, 4}) {
    if (!check_shares(*read_config(*file), {.rank = 0, .of = of}).ok()) {
      EXPECT_NE(of, 2) << "every one of these can be shared by two";
      continue;
    }
    const std::vector<Logits> ranks = by_ranks(*file, of, ids, false);
    for (const Logits& r : ranks) EXPECT_TRUE(r == ranks[0]) << "every rank has the same bits";
    EXPECT_TRUE(by_ranks(*file, of, ids, false)[0] == ranks[0]) << "and in every run";
    const double kl = mean_kl(one.model, ranks[0].model, vocab);
    EXPECT_LT(kl, kMostKl) << of << " ranks";
    EXPECT_FALSE(one.states == ranks[0].states) << "sums are rounded elsewhere: this compares nothing otherwise";
  }
}
// Each with some of the experts: the router is everybody's.
class RanksWithWholeExperts : public testing::TestWithParam<test::TinyModel> {};

TEST_P(RanksWithWholeExperts, ComputeWhatOneDeviceDoes) {
  const test::TinyModelFile made(GetParam());
  const auto file = gguf::File::open(made.path());
  ASSERT_TRUE(file.ok()) << file.error().message;
  const int64_t vocab = read_config(*file)->vocab;
  const std::vector<int32_t> ids = some_tokens(vocab);
  const Logits one = by_ranks(*file, 1, ids, false)[0];
  const std::vector<Logits> ranks = by_ranks(*file, 2, ids, false, true);
  EXPECT_TRUE(ranks[0] == ranks[1]) << "every rank has the same bits";
  EXPECT_LT(mean_kl(one.model, ranks[0].model, vocab), kMostKl);
  EXPECT_FALSE(one.states == ranks[0].states);
}

std::string name_of(const testing::TestParamInfo<test::TinyModel>& model) {
  std::string name = model.param.name;
  std::ranges::replace(name, '-', '_');
  return name;
}
std::vector<test::TinyModel> models_of_experts() {
  std::vector<test::TinyModel> all = test::tiny_models();
  std::erase_if(all, [](const test::TinyModel& m) { return m.experts == 0; });
  return all;
}
INSTANTIATE_TEST_SUITE_P(Tiny, Ranks, testing::ValuesIn(test::tiny_models()), name_of);
INSTANTIATE_TEST_SUITE_P(Tiny, RanksWithWholeExperts, testing::ValuesIn(models_of_experts()), name_of);

// Its own tensors of the block with numbers in them.
test::GgufEdit with_random_mtp_block() {
  test::GgufEdit e = test::with_mtp_block();
  std::mt19937 random(5);
  for (const auto& [name, dims] : std::exchange(e.add, {})) {
    const int64_t count = std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
    std::vector<float> values(static_cast<size_t>(count));
    for (float& v : values) v = (dims.size() == 1 ? 1.0f : 0.0f) + static_cast<float>(random() % 2001) * 1e-4f - 0.1f;
    const auto bytes = std::as_bytes(std::span(values));
    e.tensors.push_back({name, DType::kF32, dims, {bytes.begin(), bytes.end()}});
  }
  return e;
}

// With the block for multi-token prediction, whose head's first rows are drafted from.
TEST(RanksDraft, WhatOneDeviceDoes) {
  const test::Edited qwen("tiny-qwen35");
  const test::Opened o = qwen.open(with_random_mtp_block());
  ASSERT_EQ(o.error(), "");
  const int64_t vocab = (*o.model)->config().vocab;
  const std::vector<int32_t> ids = some_tokens(vocab);
  const Logits one = by_ranks(o.file, 1, ids, true)[0];
  const std::vector<Logits> ranks = by_ranks(o.file, 2, ids, true);
  EXPECT_TRUE(ranks[0] == ranks[1]);
  ASSERT_EQ(one.block.size(), ranks[0].block.size());
  EXPECT_LT(mean_kl(one.model, ranks[0].model, vocab), kMostKl);
  EXPECT_LT(mean_kl(one.block, ranks[0].block, vocab * 3 / 4), kMostKl);
  EXPECT_FALSE(one.block == ranks[0].block);
  EXPECT_NE(one.block[0], one.block[1]) << "the block says something";
}

TEST(RanksOfAModel, WhatCannotBeSharedIsSaidWhenItIsLoaded) {
  const test::Edited qwen("tiny-qwen35moe");
  const auto file = gguf::File::open(qwen.original());
  ASSERT_TRUE(file.ok());
  const auto model = Model::load(*file, {.rank = 0, .of = 4});
  ASSERT_FALSE(model.ok());
  EXPECT_THAT(model.error().message, HasSubstr("4 devices cannot share this model"));
}

}  // namespace
}  // namespace quire
