// A sequence's whole life in the gated delta net on the GPU: gdn_prepare and gdn_chunked for its prompt,
// gdn_decode for what follows, over one slot; against float64.
#include "cuda/gdn_support.h"
#include "ops/gated_delta/cuda/chunked.h"
#include "ops/gated_delta/cuda/decode.h"
#include "ops/gated_delta/cuda/prepare.h"

namespace quire::cuda_test {
namespace {

constexpr int kSlot = 1, kGenerated = 20;

class Chain {
 public:
  Chain(const GdnLayer& layer, int prompt) : layer_(layer), prompt_(prompt), slots_(layer.shape, 3, 20, 8) {
    for (int t = 0; t < prompt + kGenerated; ++t) tokens_.push_back(make_token(layer, 4, t, 0));
  }

  // Outputs of the delta rule of every token, without the norm.
  std::vector<float> run() {
    const size_t width = static_cast<size_t>(layer_.shape.Hv) * kDeltaHead;
    std::vector<float> out;
    const auto append = [&](const std::vector<bf16>& rows) {
      for (size_t i = 0; i < width * (rows.size() / width); ++i) out.push_back(to_f(rows[i]));
    };
    append(run_prompt());
    for (int t = prompt_, anchor = prompt_; t < prompt_ + kGenerated; ++t) {
      append(run_decode(t, anchor));
      anchor = std::max(anchor, (t + 1) / 16 * 16);
    }
    return out;
  }
  const std::vector<GdnToken>& tokens() const { return tokens_; }

 private:
  struct Rows {
    DeviceBuffer<bf16> qkv;
    DeviceBuffer<float> a, b;
  };
  Rows upload(int first, int count) const {
    std::vector<bf16> qkv;
    std::vector<float> a, b;
    for (int t = first; t < first + count; ++t) {
      const GdnToken& token = tokens_[static_cast<size_t>(t)];
      qkv.insert(qkv.end(), token.qkv.begin(), token.qkv.end());
      a.insert(a.end(), token.a.begin(), token.a.end());
      b.insert(b.end(), token.b.begin(), token.b.end());
    }
    return {DeviceBuffer<bf16>(qkv), DeviceBuffer<float>(a), DeviceBuffer<float>(b)};
  }
  static void check(const Status& status) {
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
    must(cudaDeviceSynchronize(), "gated delta net");
  }

  std::vector<bf16> run_prompt() {
    const auto n = static_cast<size_t>(prompt_), Hk = static_cast<size_t>(layer_.shape.Hk);
    const auto Hv = static_cast<size_t>(layer_.shape.Hv);
    const Rows rows = upload(0, prompt_);
    const DeviceBuffer<bf16> q(n * Hk * 128), k(n * Hk * 128), v(n * Hv * 128), out(n * Hv * 128);
    const DeviceBuffer<float> g(n * Hv), beta(n * Hv);
    const DeviceBuffer<Segment> segments(std::vector<Segment>{{0, prompt_, 0, kSlot, 0, 0}});
    cuda::GdnPrepareParams p;
    p.shape = layer_.shape;
    p.weights = layer_.weights();
    p.slots = slots_.views();
    p.segments = {segments.data(), 1, 0};
    p.prompt_rows = prompt_;
    p.qkv = rows.qkv.data(), p.qkv_stride = layer_.shape.channels();
    p.a = {rows.a.data(), layer_.shape.Hv, false}, p.b = {rows.b.data(), layer_.shape.Hv, false};
    p.q = q.data(), p.k = k.data(), p.v = v.data(), p.g = g.data(), p.beta = beta.data();
    check(cuda::launch_gdn_prepare(nullptr, p));
    const DeviceBuffer<unsigned char> workspace(
        static_cast<size_t>(cuda::gdn_chunked_workspace_bytes(layer_.shape, prompt_, 1)));
    cuda::GdnChunkedParams c;
    c.shape = layer_.shape;
    c.slots = p.slots;
    c.segments = p.segments;
    c.prompt_rows = prompt_;
    c.q = q.data(), c.k = k.data(), c.v = v.data(), c.g = g.data(), c.beta = beta.data();
    c.out = out.data();
    c.workspace = workspace.data();
    check(cuda::launch_gdn_chunked(nullptr, c));
    return out.download();
  }

  std::vector<bf16> run_decode(int t, int anchor) {
    const Rows rows = upload(t, 1);
    const DeviceBuffer<bf16> y(static_cast<size_t>(layer_.shape.Hv) * 128);
    const DeviceBuffer<Segment> segments(std::vector<Segment>{{0, 1, t, kSlot, anchor, 0}});
    cuda::GdnDecodeParams p;
    p.shape = layer_.shape;
    p.weights = layer_.weights();
    p.slots = slots_.views();
    p.segments = {segments.data(), 1, 1};
    p.qkv = rows.qkv.data(), p.qkv_stride = layer_.shape.channels();
    p.a = {rows.a.data(), layer_.shape.Hv, false}, p.b = {rows.b.data(), layer_.shape.Hv, false};
    p.y = y.data(), p.y_stride = layer_.shape.Hv * 128;
    check(cuda::launch_gdn_decode(nullptr, p));
    return y.download();
  }

  const GdnLayer& layer_;
  const int prompt_;
  GdnSlots slots_;
  std::vector<GdnToken> tokens_;
};

// q, k and v of prompts are rounded to bf16 on their way, and the factors of their products: a unit of a
// whole rounding.
TEST(GdnChain, PromptThenDecode) {
  const GdnLayer layer({2, 4, false});
  for (const int prompt : {1, 2, 3, 15, 16, 63, 64, 70, 130}) {
    Chain chain(layer, prompt);
    const std::vector<float> got = chain.run();
    GdnOracle oracle(layer);
    Worst of_prompt, of_decode;
    for (size_t t = 0; t < chain.tokens().size(); ++t) {
      std::vector<const std::vector<bf16>*> inputs(4, nullptr);
      for (size_t x = 0; x < 4; ++x)
        if (t + x >= 3) inputs[x] = &chain.tokens()[t + x - 3].qkv;
      const GdnPrepared p = prepare_oracle(layer, inputs, chain.tokens()[t]);
      oracle.step(p.q, p.k, p.v, p.g, p.beta);
      for (size_t d = 0; d < oracle.o.size(); ++d)
        (t < static_cast<size_t>(prompt) ? of_prompt : of_decode)
            .add(static_cast<double>(got[t * oracle.o.size() + d]), oracle.o[d],
                 kEpsBf16 * (std::abs(oracle.o[d]) + oracle.o_error[d]));
    }
    std::printf("  prompt of %3d: %.3f, generated %.3f of their bounds\n", prompt, of_prompt.excess, of_decode.excess);
    EXPECT_LE(of_prompt.excess, 1.0) << "prompt of " << prompt;
    EXPECT_LE(of_decode.excess, 1.0) << "after a prompt of " << prompt;
    EXPECT_GT(of_prompt.excess, 0.0);
  }
}

}  // namespace
}  // namespace quire::cuda_test
