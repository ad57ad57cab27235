// Embeddings: what they are made of, that no bit of them depends on steps or company, and that their requests end as
// all others do.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <numeric>

#include "engine/engine_rig.h"
#include "engine/pooling.h"
#include "support/protected_backend.h"

namespace quire::test {
namespace {

using Vector = std::vector<float>;

Request embed(std::vector<TokenId> prompt) {
  Request r;
  r.prompt = std::move(prompt);
  r.embed = true;
  return r;
}

EngineOptions pooled(Pooling pooling, int32_t chunk = 512, int depth = 1) {
  EngineOptions o{.threads = 2, .context = 512, .max_sequences = 4, .max_batch_tokens = chunk, .depth = depth};
  o.pooling = pooling;
  return o;
}

Vector embedding_of(Engine& engine, std::vector<TokenId> prompt) {
  const Heard h = hear_one(engine, embed(std::move(prompt)));
  EXPECT_EQ(h.events, 3);
  EXPECT_TRUE(h.tokens.empty());
  EXPECT_EQ(h.finish, FinishReason::kStop);
  return h.embedding;
}

const int64_t kEmbedded[] = {1, 63, 64, 65, 200, 511, 512};

std::vector<Vector> embedded_one_by_one(Engine& engine) {
  std::vector<Vector> all;
  for (const int64_t n : kEmbedded) all.push_back(embedding_of(engine, tokens(n, 1)));
  return all;
}

// All at once, among requests that generate.
std::vector<Vector> embedded_together(Engine& engine) {
  std::deque<Heard> heard, others;
  for (const int64_t n : kEmbedded) {
    engine.submit(request_of(tokens(20 + n / 8, 2), 12), others.emplace_back().listener()).value();
    engine.submit(embed(tokens(n, 1)), heard.emplace_back().listener()).value();
  }
  finish(engine);
  std::vector<Vector> all;
  for (const Heard& h : heard) {
    EXPECT_EQ(h.events, 3);
    all.push_back(h.embedding);
  }
  for (const Heard& h : others) EXPECT_EQ(h.tokens.size(), 12u);
  return all;
}

TEST(Embeddings, NoBitDependsOnStepsOrCompany) {
  for (const char* name : {"tiny-qwen35moe", "tiny-llama"})
    for (const Pooling pooling : {Pooling::kLast, Pooling::kMean}) {
      SCOPED_TRACE(testing::Message() << name << ", pooling " << static_cast<int>(pooling));
      const ModelPtr& model = tiny(name);
      const std::vector<Vector> want = embedded_one_by_one(*make_engine(model, pooled(pooling)));
      for (const Vector& v : want) EXPECT_NEAR(std::inner_product(v.begin(), v.end(), v.begin(), 0.0), 1.0, 1e-6);
      EXPECT_NE(want[1], want[2]);
      for (const int32_t chunk : {64, 128, 512})
        for (const int depth : {1, 2}) {
          SCOPED_TRACE(testing::Message() << "chunks of " << chunk << ", depth " << depth);
          EXPECT_EQ(embedded_one_by_one(*make_engine(model, pooled(pooling, chunk, depth))), want);
          EXPECT_EQ(embedded_together(*make_engine(model, pooled(pooling, chunk, depth))), want);
        }
      EXPECT_EQ(embedded_together(*make_engine(model, pooled(pooling, 128, 2), make_protected_backend)), want)
          << "nobody else touches the backend's memory";
    }
}

// Older sequences grow while a long prompt is computed, and take blocks that it has filled already.
TEST(Embeddings, SwappingChangesNothing) {
  const ModelPtr& model = tiny("tiny-qwen35moe");
  for (const Pooling pooling : {Pooling::kLast, Pooling::kMean}) {
    EngineOptions o = pooled(pooling, 128, 2);
    o.context = o.kv_tokens = 2048;
    const std::vector<TokenId> prompt = tokens(1940, 1);
    const Vector want = embedding_of(*make_engine(model, o), prompt);
    o.swap_bytes = int64_t{1} << 24;
    const auto engine = make_engine(model, o);
    for (int i = 0; i < 3; ++i) engine->submit(request_of(tokens(14, i), 60), nullptr).value();
    engine->step();
    EXPECT_EQ(embedding_of(*engine, prompt), want);
    EXPECT_GT(engine->stats().preemptions, 0);
  }
}

// The last token's row is always computed; a mean needs all of them.
TEST(Embeddings, OnlyTheLastTokenGoesOnFromWhatIsCached) {
  for (const char* name : {"tiny-qwen35moe", "tiny-llama"})
    for (const Pooling pooling : {Pooling::kLast, Pooling::kMean}) {
      const ModelPtr& model = tiny(name);
      const Vector want = embedding_of(*make_engine(model, pooled(pooling)), tokens(300, 1));
      EngineOptions o = pooled(pooling, 128);
      o.prefix_cache = true;
      const auto engine = make_engine(model, o);
      for (int i = 0; i < 3; ++i) {
        Heard two[2];
        for (Heard& h : two) engine->submit(embed(tokens(300, 1)), h.listener()).value();
        finish(*engine);
        for (const Heard& h : two) EXPECT_EQ(h.embedding, want);
        EXPECT_EQ(i > 0 && two[0].cached > 0, i > 0 && pooling == Pooling::kLast);
      }
      EXPECT_EQ(engine->stats().prefix_hits > 0, pooling == Pooling::kLast);
      // What a mean computed, others find.
      const int64_t before = engine->stats().prefix_hits;
      hear_one(*engine, request_of(tokens(300, 1), 1));
      EXPECT_GT(engine->stats().prefix_hits, before);
    }
}

// The residual stream after the last block of a float32 pass over the whole prompt, normalised and pooled here.
Vector by_hand(const ModelPtr& model, const std::vector<TokenId>& prompt, Pooling pooling) {
  const ModelConfig& c = model->model->config();
  std::vector<float> stream;
  EngineOptions o = pooled(pooling);
  o.device = Device::kReference;
  o.probe = [&](std::string_view name, int layer, const Tensor& x) {
    if (name == "layer_out" && layer == c.layers - 1) stream.assign(x.as<float>(), x.as<float>() + x.elems());
  };
  hear_one(*make_engine(model, o), request_of(prompt, 1));
  const auto width = static_cast<size_t>(c.d_model);
  EXPECT_EQ(stream.size(), prompt.size() * width);
  const auto* weight = reinterpret_cast<const float*>((*model->file.get_tensor("output_norm.weight"))->data);
  std::vector<double> sum(width);
  for (size_t t = pooling == Pooling::kMean ? 0 : prompt.size() - 1; t < prompt.size(); ++t) {
    const float* x = stream.data() + t * width;
    const double squares = std::inner_product(x, x + width, x, 0.0);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + static_cast<double>(c.eps));
    for (size_t i = 0; i < width; ++i) sum[i] += static_cast<double>(x[i]) * scale * static_cast<double>(weight[i]);
  }
  const double length = std::sqrt(std::inner_product(sum.begin(), sum.end(), sum.begin(), 0.0));
  Vector v;
  for (const double s : sum) v.push_back(static_cast<float>(s / length));
  return v;
}

double distance(const Vector& a, const Vector& b) {
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) squares += std::pow(static_cast<double>(a[i]) - b.at(i), 2);
  return std::sqrt(squares);
}

TEST(Embeddings, AreThoseOfAFloat32Pass) {
  for (const TinyModel& m : tiny_models())
    for (const Pooling pooling : {Pooling::kLast, Pooling::kMean}) {
      SCOPED_TRACE(testing::Message() << m.name << ", pooling " << static_cast<int>(pooling));
      const ModelPtr& model = tiny(m.name);
      const std::vector<TokenId> prompt = tokens(100, 3);
      const Vector want = by_hand(model, prompt, pooling);
      EngineOptions reference = pooled(pooling, 64);
      reference.device = Device::kReference;
      EXPECT_LT(distance(embedding_of(*make_engine(model, reference), prompt), want), 1e-6);
      EXPECT_LT(distance(embedding_of(*make_engine(model, pooled(pooling, 64)), prompt), want), 0.05) << "in bf16";
      EXPECT_GT(distance(by_hand(model, prompt, pooling == Pooling::kMean ? Pooling::kLast : Pooling::kMean), want),
                0.2)
          << "the poolings differ";
    }
}

TEST(Embeddings, AreCancelledLikeOthers) {
  for (const int depth : {1, 2}) {
    EngineOptions o = pooled(Pooling::kMean, 64, depth);
    o.max_sequences = 1;
    const auto engine = make_engine(tiny("tiny-qwen35moe"), o);
    Heard running, waiting, last;
    const RequestId a = engine->submit(embed(tokens(500, 1)), running.listener()).value();
    const RequestId b = engine->submit(embed(tokens(500, 2)), waiting.listener()).value();
    engine->submit(embed(tokens(5, 1)), last.listener()).value();
    for (int i = 0; i < 3; ++i) engine->step();
    engine->cancel(a);
    engine->cancel(b);
    finish(*engine);
    for (const Heard* h : {&running, &waiting}) {
      EXPECT_EQ(h->events, 1) << "the end alone";
      EXPECT_EQ(h->finish, FinishReason::kCancelled);
      EXPECT_TRUE(h->embedding.empty());
    }
    EXPECT_EQ(last.finish, FinishReason::kStop);
    Heard left;
    engine->submit(embed(tokens(500, 1)), left.listener()).value();
    engine->step();
    engine->cancel(RequestId{12345});
    finish(*engine);
    EXPECT_EQ(left.finish, FinishReason::kStop);
  }
}

TEST(Embeddings, RefusesWhatCannotBe) {
  EngineOptions o = pooled(Pooling::kLast);
  o.max_waiting = 2;
  const auto engine = make_engine(tiny("tiny-llama"), o);
  const auto refused = [&](Request r) {
    const Result<RequestId> id = engine->submit(std::move(r), nullptr);
    return id.ok() ? "(accepted)" : id.error().message;
  };
  EXPECT_EQ(refused(embed({})), "the prompt is empty: there is nothing to continue");
  EXPECT_EQ(refused(embed({40, 320})), "prompt token 1 is 320: the vocabulary has 320 tokens");
  EXPECT_EQ(refused(embed(tokens(513, 1))), "the prompt has 513 tokens, but the context holds 512");
  Request r = embed({40});
  r.max_tokens = -1;  // has no meaning
  r.sampling.temperature = NAN;
  r.stop = {""};
  EXPECT_EQ(refused(r), "(accepted)");
  EXPECT_EQ(refused(embed({40})), "(accepted)");
  EXPECT_EQ(refused(embed({40})), "2 requests wait already, and at most 2 may; try again later");
  finish(*engine);
}

TEST(Embeddings, ADamagedModelSaysSo) {
  for (const TinyModel& m : tiny_models()) {
    if (m.name != "tiny-llama") continue;
    const auto bytes = std::make_shared<std::string>(read_whole_file(TinyModelFile(m).path()));
    gguf::File file = std::move(gguf::File::parse(std::as_bytes(std::span(*bytes)))).value();
    const auto at = reinterpret_cast<const char*>((*file.get_tensor("output_norm.weight"))->data) - bytes->data();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(bytes->data() + at, &nan, sizeof nan);
    const auto model = std::move(load_model(std::move(file), "damaged", bytes)).value();
    const Heard h = hear_one(*make_engine(model, pooled(Pooling::kLast)), embed({40, 41}));
    EXPECT_EQ(h.finish, FinishReason::kError);
    EXPECT_EQ(h.message(), "the model's hidden states are not numbers: its file is damaged or not supported");
    EXPECT_TRUE(h.embedding.empty());
  }
}

TEST(Embeddings, RowsArePooledOneByOne) {
  PooledRows rows;
  EXPECT_TRUE(rows.normalised().empty());
  rows.add(Vector{0, 0});
  EXPECT_TRUE(rows.normalised().empty()) << "zero has no direction";
  rows.add(Vector{1, 4});
  rows.add(Vector{2, 0});
  EXPECT_EQ(rows.normalised(), (Vector{0.6f, 0.8f}));
  rows.add(Vector{std::numeric_limits<float>::infinity(), 0});
  EXPECT_TRUE(rows.normalised().empty());
}

}  // namespace
}  // namespace quire::test
