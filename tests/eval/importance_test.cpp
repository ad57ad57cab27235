// Collecting importances: every matrix gets the sums that follow from the intermediates of the forward pass,
// worked out here by plain loops; the sums do not depend on threads; the logits do not depend on collecting.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>

#include "eval/importance_collector.h"
#include "gguf/writer.h"
#include "ops/gemm/activation.h"
#include "quant/format.h"
#include "support/golden.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

using quant::ImportanceTotals;

constexpr int64_t kTokens = 100;

std::vector<TokenId> some_tokens() {
  std::vector<TokenId> tokens;
  for (TokenId t = 0; t < kTokens; ++t) tokens.push_back(t * 7 % 300);
  return tokens;
}

struct Collected {
  ImportanceTotals totals;
  std::vector<float> logits;
};

Collected collect(const ModelPtr& model, Device device, int threads, bool observe = true) {
  ImportanceCollector collector(model->file);
  const auto scorer = std::move(Scorer::create(model, {.device = device,
                                                       .threads = threads,
                                                       .window = kTokens,
                                                       .observer = observe ? &collector : nullptr}))
                          .value();
  Collected c;
  EXPECT_TRUE(scorer
                  ->run(some_tokens(),
                        [&](int64_t, std::span<const float> logits) {
                          c.logits.insert(c.logits.end(), logits.begin(), logits.end());
                        })
                  .ok());
  EXPECT_TRUE(collector.add_to(c.totals).ok());
  return c;
}

// The named intermediates of the same tokens, as rows.
using Rows = std::vector<std::vector<double>>;
std::map<std::pair<std::string, int>, Rows> intermediates(const ModelPtr& model) {
  std::map<std::pair<std::string, int>, Rows> out;
  EngineOptions options{.device = Device::kReference, .threads = 2, .context = 256};
  options.probe = [&](std::string_view name, int layer, const Tensor& t) {
    if (t.rank != 2) return;
    Rows& rows = out[{std::string(name), layer}];
    for (int64_t r = 0; r < t.dim(0); ++r) {
      rows.emplace_back();
      for (int64_t c = 0; c < t.dim(1); ++c)
        rows.back().push_back(static_cast<double>(load_float(t, r * t.stride[0] + c)));
    }
  };
  const auto engine = std::move(Engine::create(model, options)).value();
  Request r;
  r.prompt = some_tokens();
  r.max_tokens = 1;
  EXPECT_TRUE(engine->submit(r, [](const TokenEvent&) {}).ok());
  while (engine->busy()) engine->step();
  return out;
}

std::vector<double> product(const gguf::File& f, const std::string& name, int64_t matrix,
                            const std::vector<double>& x) {
  const gguf::TensorInfo* t = f.find_tensor(name);
  QUIRE_CHECK(t != nullptr && t->dims[0] == static_cast<int64_t>(x.size()), "{}", name);
  std::vector<double> y(static_cast<size_t>(t->dims[1]));
  std::vector<float> row(x.size());
  for (int64_t r = 0; r < t->dims[1]; ++r) {
    quant::decode_row(t->dtype, t->data + (matrix * t->dims[1] + r) * t->row_bytes(), t->dims[0], row.data());
    y[static_cast<size_t>(r)] = std::inner_product(x.begin(), x.end(), row.begin(), 0.0);
  }
  const size_t weight = name.rfind(".weight");
  if (const gguf::TensorInfo* bias = f.find_tensor(name.substr(0, weight) + ".bias"); bias != nullptr)
    for (size_t r = 0; r < y.size(); ++r)
      y[r] +=
          static_cast<double>(reinterpret_cast<const float*>(bias->data)[static_cast<size_t>(matrix) * y.size() + r]);
  return y;
}

GateActivation activation_of(const TinyModel& m) {
  if (m.architecture.starts_with("gemma")) return GateActivation::kGeluTanh;
  return m.gpt_oss() ? GateActivation::kSwigluOai : GateActivation::kSilu;
}

// Sums for one matrix per call of add().
struct Expected {
  std::map<std::string, std::map<int64_t, std::pair<std::vector<double>, double>>> sums;
  void add(const std::string& tensor, int64_t matrix, const std::vector<double>& x) {
    auto& [sum, count] = sums[tensor][matrix];
    sum.resize(x.size());
    for (size_t i = 0; i < x.size(); ++i) sum[i] += x[i] * x[i];
    ++count;
  }
};

void add_mlp(Expected& want, const gguf::File& f, const TinyModel& m, const std::string& prefix,
             const std::string& suffix, int64_t matrix, const std::vector<double>& h) {
  const auto name = [&](const char* which) { return prefix + "ffn_" + which + suffix + ".weight"; };
  const std::string in = name(f.find_tensor(name("gate_up")) != nullptr ? "gate_up" : "up");
  std::vector<double> gate, up = product(f, in, matrix, h);
  if (f.find_tensor(name("gate")) != nullptr) {
    want.add(name("gate"), matrix, h);
    gate = product(f, name("gate"), matrix, h);
  } else {  // the two in one, the gate first
    const auto half = up.begin() + std::ssize(up) / 2;
    gate.assign(up.begin(), half);
    up.erase(up.begin(), half);
  }
  want.add(in, matrix, h);
  for (size_t i = 0; i < gate.size(); ++i) gate[i] = gated(activation_of(m), gate[i], up[i]);
  want.add(name("down"), matrix, gate);
}

// The experts that a token goes through.
std::vector<int64_t> chosen_experts(const gguf::File& f, const TinyModel& m, const std::string& prefix,
                                    const std::vector<double>& h) {
  std::vector<double> keys = product(f, prefix + "ffn_gate_inp.weight", 0, h);
  const auto by_key = [&](size_t a, size_t b) { return keys[a] > keys[b]; };
  if (m.groups > 0) {
    const auto* bias = reinterpret_cast<const float*>(f.find_tensor(prefix + "exp_probs_b.bias")->data);
    for (size_t e = 0; e < keys.size(); ++e) keys[e] = 1 / (1 + std::exp(-keys[e])) + static_cast<double>(bias[e]);
    const size_t size = keys.size() / static_cast<size_t>(m.groups);
    QUIRE_CHECK(size == 2, "groups of {}: the sum of the best two is that of all", size);
    std::vector<size_t> groups(static_cast<size_t>(m.groups));
    std::iota(groups.begin(), groups.end(), 0);
    std::sort(groups.begin(), groups.end(),
              [&](size_t a, size_t b) { return keys[2 * a] + keys[2 * a + 1] > keys[2 * b] + keys[2 * b + 1]; });
    for (size_t i = static_cast<size_t>(m.used_groups); i < groups.size(); ++i)
      keys[2 * groups[i]] = keys[2 * groups[i] + 1] = -1e9;
  }
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), by_key);
  return {order.begin(), order.begin() + m.experts_used};
}

Expected expected_sums(const ModelPtr& model, const TinyModel& m) {
  const gguf::File& f = model->file;
  auto seen = intermediates(model);
  Expected want;
  if (m.per_layer > 0)
    for (const auto& x : seen[{"embed", -1}]) want.add("per_layer_model_proj.weight", 0, x);
  for (int layer = 0; layer < m.layers; ++layer) {
    const std::string p = fmt::format("blk.{}.", layer);
    for (const auto& x : seen[{"ffn_out", layer}]) want.add(p + "inp_gate.weight", 0, x);
    for (const auto& x : seen[{"per_layer_gated", layer}]) want.add(p + "proj.weight", 0, x);
    const bool full = m.full_attention(layer);
    for (const auto& x : seen[{"attn_norm", layer}])
      for (const char* which : {"attn_q", "attn_k", "attn_v", "attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta"})
        if (f.find_tensor(p + which + ".weight") != nullptr) want.add(p + which + ".weight", 0, x);
    for (const auto& x : seen[{"attn_mix", layer}]) want.add(p + (full ? "attn_output" : "ssm_out") + ".weight", 0, x);
    const auto &routed = seen[{"router_norm", layer}], &to_experts = seen[{"experts_norm", layer}];
    for (size_t i = 0; i < routed.size(); ++i) {
      want.add(p + "ffn_gate_inp.weight", 0, routed[i]);
      for (const int64_t e : chosen_experts(f, m, p, routed[i])) add_mlp(want, f, m, p, "_exps", e, to_experts[i]);
    }
    for (const auto& h : seen[{"ffn_norm", layer}]) {
      if (m.experts == 0 || layer < m.dense || !routed.empty()) {
        add_mlp(want, f, m, p, "", 0, h);
        continue;
      }
      want.add(p + "ffn_gate_inp.weight", 0, h);
      if (m.shared_ffn > 0) add_mlp(want, f, m, p, "_shexp", 0, h);
      for (const int64_t e : chosen_experts(f, m, p, h)) add_mlp(want, f, m, p, "_exps", e, h);
    }
  }
  return want;
}

class Importances : public testing::TestWithParam<TinyModel> {
 protected:
  Importances() : file_(GetParam()), model_(load_or_die(file_.path())) {}
  TinyModelFile file_;
  ModelPtr model_;
};
INSTANTIATE_TEST_SUITE_P(All, Importances, testing::ValuesIn(tiny_models()),
                         [](const auto& model) { return model.param.name.substr(5); });

TEST_P(Importances, AreTheSumsOfSquaresOfEachMatrixsInputs) {
  const Collected got = collect(model_, Device::kReference, 2);
  const Expected want = expected_sums(model_, GetParam());
  const std::string head = GetParam().tied ? "token_embd.weight" : "output.weight";
  for (const auto& [tensor, matrices] : want.sums) {
    SCOPED_TRACE(tensor);
    ASSERT_TRUE(got.totals.tensors().contains(tensor));
    const ImportanceTotals::Total& t = got.totals.tensors().at(tensor);
    EXPECT_EQ(t.columns, model_->file.find_tensor(tensor)->dims[0]);
    EXPECT_EQ(t.matrices, model_->file.find_tensor(tensor)->dims[2]);
    double tokens = 0;
    for (int64_t e = 0; e < t.matrices; ++e) {
      const auto at = matrices.find(e);
      const double count = at == matrices.end() ? 0 : at->second.second;
      EXPECT_EQ(t.counts[static_cast<size_t>(e)], count) << e;
      tokens += count;
      for (int64_t c = 0; c < t.columns; ++c) {
        const double sum = count == 0 ? 0 : at->second.first[static_cast<size_t>(c)];
        EXPECT_NEAR(t.sum2[static_cast<size_t>(e * t.columns + c)], sum, 1e-5 * sum) << e << " " << c;
      }
    }
    EXPECT_EQ(tokens, static_cast<double>(kTokens * (t.matrices > 1 ? GetParam().experts_used : 1)));
  }
  EXPECT_EQ(got.totals.tensors().size(), want.sums.size() + 1) << "and the head";
  EXPECT_EQ(got.totals.tensors().at(head).counts, std::vector{static_cast<double>(kTokens)});
}

TEST_P(Importances, OfTheKernelsAreCloseToThose) {
  const Collected want = collect(model_, Device::kReference, 2), got = collect(model_, Device::kCpu, 2);
  ASSERT_EQ(got.totals.tensors().size(), want.totals.tensors().size());
  for (const auto& [tensor, t] : want.totals.tensors()) {
    const auto sum = [](const std::vector<double>& v) { return std::accumulate(v.begin(), v.end(), 0.0); };
    const ImportanceTotals::Total& g = got.totals.tensors().at(tensor);
    EXPECT_EQ(sum(g.counts), sum(t.counts)) << tensor;
    EXPECT_NEAR(sum(g.sum2), sum(t.sum2), 0.05 * sum(t.sum2)) << tensor;
  }
}

TEST_P(Importances, DoNotDependOnThreadsNorChangeTheLogits) {
  for (const Device device : {Device::kCpu, Device::kReference}) {
    const Collected one = collect(model_, device, 1), plain = collect(model_, device, 2, false);
    EXPECT_TRUE(plain.totals.tensors().empty());
    for (const int threads : {2, 3}) {
      const Collected many = collect(model_, device, threads);
      EXPECT_EQ(many.logits, plain.logits);
      for (const auto& [tensor, t] : one.totals.tensors()) {
        EXPECT_EQ(many.totals.tensors().at(tensor).sum2, t.sum2) << tensor << ", " << threads << " threads";
        EXPECT_EQ(many.totals.tensors().at(tensor).counts, t.counts) << tensor;
      }
    }
    EXPECT_EQ(one.logits, plain.logits);
  }
}

// Two parts of one tensor see the same rows: they count once, under its name.
TEST(ImportanceCollector, AFusedTensorCountsOnce) {
  const std::string path = std::filesystem::temp_directory_path() / fmt::format("quire-fused-{}", getpid());
  gguf::Writer w;
  const int64_t dims[] = {4, 6};
  const std::vector<float> values(24, 1.0f);
  ASSERT_TRUE(w.add_tensor("fused.weight", DType::kF32, dims).ok());
  ASSERT_TRUE(w.open(path).ok() && w.write_tensor(std::as_bytes(std::span(values))).ok() && w.finish().ok());
  const gguf::File f = std::move(gguf::File::open(path)).value();
  std::filesystem::remove(path);
  const Weight whole{DType::kF32, f.tensors()[0].data, 6, 4}, other{DType::kF32, f.tensors()[0].data + 1, 1, 4};
  const Weight parts[] = {whole.row_slice(0, 2), whole.row_slice(2, 4)};
  const Weight* const pointers[] = {&parts[0], &parts[1]};
  const Weight* const unknown[] = {&other};
  ThreadPool pool(2);
  Workspace workspace;
  const float x[] = {1, 2, 3, 4, 0, 0, 2, 0};
  ImportanceCollector collector(f);
  const OpContext ctx{.pool = pool, .workspace = workspace};
  collector.inputs(ctx, pointers, 0, make_tensor(x, {2, 4}));
  collector.inputs(ctx, unknown, 0, make_tensor(x, {2, 4}));
  ImportanceTotals totals;
  ASSERT_TRUE(collector.add_to(totals).ok());
  ASSERT_EQ(totals.tensors().size(), 1u);
  EXPECT_THAT(totals.tensors().at("fused.weight").sum2, testing::ElementsAre(1, 4, 13, 16));
  EXPECT_THAT(totals.tensors().at("fused.weight").counts, testing::ElementsAre(2));
}

}  // namespace
}  // namespace quire::test
