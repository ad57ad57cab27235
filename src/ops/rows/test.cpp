#include "ops/rows/rows.h"

#include <fmt/format.h>

#include <cmath>

#include "ops/conformance/gpu.h"
#include "ops/gemm/bounds.h"

namespace quire::conformance {
namespace {

constexpr OnGpu<EmbedArgs> kEmbedOnGpu{[](Operands& o, EmbedArgs& a) {
                                         for (Tensor* t : {&a.tokens, &a.sources, &a.sampled, &a.x}) o.tensor(*t);
                                         o.table(a.table);
                                       },
                                       embed};

constexpr OnGpu<GatherRowsArgs> kGatherRowsOnGpu{[](Operands& o, GatherRowsArgs& a) {
                                                   for (Tensor* t : {&a.x, &a.rows, &a.y}) o.tensor(*t);
                                                 },
                                                 gather_rows};

constexpr OnGpu<ReducePartialsArgs> kReducePartialsOnGpu{[](Operands& o, ReducePartialsArgs& a) {
                                                           for (Tensor* t : {&a.partials, &a.x, &a.h}) o.tensor(*t);
                                                         },
                                                         reduce_partials};

constexpr OnGpu<SoftCapArgs> kSoftCapOnGpu{[](Operands& o, SoftCapArgs& a) { o.tensor(a.x); }, soft_cap};

constexpr OnGpu<GatedProductArgs> kGatedProductOnGpu{[](Operands& o, GatedProductArgs& a) {
                                                       for (Tensor* t : {&a.gate, &a.up, &a.y}) o.tensor(*t);
                                                     },
                                                     gated_product};

// Types that a GPU embeds from half precision.
bool halved_on_gpu(DType t) {
  return t != DType::kF32 && t != DType::kF16 && t != DType::kBF16 && t != DType::kQ8_0 && t != DType::kNVFP4;
}

}  // namespace

// Decoding is exact, so there is no tolerance: the values are those of decode_row, times the scale.
void embed_conformance(Suite& s) {
  for (const DType type : weight_types()) {
    for (const int tokens : {0, 1, 5, 70}) {
      const std::string name = fmt::format("{} T={}", dtype_name(type), tokens);
      Rng rng = s.rng_for_case(name);
      const int vocab = 50;
      const int64_t width = 512;
      const RandomWeight table = random_weight(rng, type, vocab, width);
      const std::vector<float> decoded = decode_all(table.weight);
      std::vector<int32_t> ids(static_cast<size_t>(tokens)), sources(ids.size(), -1), sampled(9), given;
      for (int32_t& id : ids) id = rng.integer(0, vocab - 1);
      if (tokens > 1) ids[1] = vocab - 1;
      // The same tokens, some of them by way of what was sampled in the step before; where a row has a source, the
      // token beside it is none.
      for (int32_t& id : sampled) id = rng.integer(0, vocab - 1);
      sampled[3] = -1;  // a sequence that ended with an error: its row is padding
      given = ids;
      for (size_t i = 2; i < ids.size(); i += 3) {
        sources[i] = rng.integer(0, 8);
        ids[i] = std::max(0, sampled[static_cast<size_t>(sources[i])]);
        given[i] = -7;
      }
      const auto array = [](std::vector<int32_t>& v) {
        return make_tensor(v.data(), {static_cast<int64_t>(v.size())});
      };
      Buffer want(DType::kF32, {tokens, width});
      for (int64_t i = 0; i < tokens * width; ++i)
        store_float(want, i,
                    decoded[static_cast<size_t>(ids[static_cast<size_t>(i / width)] * width + i % width)] *
                        table.weight.scale_of());
      for (const auto& k : s.kernels(kEmbedOp.kernels, kEmbedOnGpu)) {
        if (!s.wants(k.name, name)) continue;
        if (k.on_gpu() && halved_on_gpu(type))
          for (int64_t i = 0; i < tokens * width; ++i)
            store_float(want, i,
                        to_float(to_half(
                            decoded[static_cast<size_t>(ids[static_cast<size_t>(i / width)] * width + i % width)])) *
                            table.weight.scale_of());
        // With a stride wider than the row, what lies between rows must stay as it was.
        for (const int64_t gap : {8, 0}) {
          Buffer wide(DType::kF32, {tokens, width + gap});
          const Buffer before = wide;
          const Tensor x = wide.tensor().cols(0, width);
          const EmbedArgs args{array(given), array(sources), array(sampled), table.weight, x};
          if (!k.fits(s.machine(), args)) continue;
          k.launch(s.context(Device::kCpu), args);
          s.expect_same_bits(k.name, name, x, want);
          s.expect_same_bits(k.name, name, wide.tensor().cols(width, gap), before.tensor().cols(width, gap));
          s.expect_guards(k.name, name, {&wide});
          k.launch(s.context(Device::kCpu), {array(ids), {}, {}, table.weight, x});
          s.expect_same_bits(k.name, name + " without sources", x, want);
        }
      }
    }
  }
}

namespace {

// One addition for each element. Every third row has none.
void add_gathered_rows(Suite& s, const std::string& name, const Buffer& x, std::vector<int32_t> rows) {
  const int64_t count = std::ssize(rows), width = x.tensor().dim(1);
  for (int64_t i = 0; i < count; i += 3) rows[static_cast<size_t>(i)] = -1;
  Rng rng = s.rng_for_case(name);
  Buffer before(DType::kF32, {count, width});
  before.fill([&] { return rng.normal(); });
  Buffer want = before;
  for (int64_t i = 0; i < count; ++i)
    if (const int32_t row = rows[static_cast<size_t>(i)]; row >= 0)
      for (int64_t d = 0; d < width; ++d) want.tensor().row<float>(i)[d] += x.tensor().row<float>(row)[d];
  for (const auto& k : s.kernels(kGatherRowsOp.kernels, kGatherRowsOnGpu)) {
    if (!s.wants(k.name, name)) continue;
    Buffer y = before;
    k.launch(s.context(Device::kCpu), {x, make_tensor(rows.data(), {count}), y, true});
    s.expect_same_bits(k.name, name, y, want);
    s.expect_guards(k.name, name, {&x, &y});
  }
}

}  // namespace

void gather_rows_conformance(Suite& s) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const int width : {1, 17, 1024, 20000}) {
      for (const int count : {0, 1, 3, 40}) {
        const std::string name = fmt::format("{} D={} R={}", dtype_name(type), width, count);
        Rng rng = s.rng_for_case(name);
        Buffer x(type, {30, width});
        x.fill([&] { return rng.normal(); });
        std::vector<int32_t> rows(static_cast<size_t>(count));
        for (int32_t& r : rows) r = rng.integer(0, 29);
        const Buffer want = x.gather(rows);
        for (const auto& k : s.kernels(kGatherRowsOp.kernels, kGatherRowsOnGpu)) {
          if (!s.wants(k.name, name)) continue;
          Buffer y(type, {count, width});
          k.launch(s.context(Device::kCpu), {x, make_tensor(rows.data(), {count}), y});
          s.expect_same_bits(k.name, name, y, want);
          s.expect_guards(k.name, name, {&x, &y});
        }
        if (type == DType::kF32) add_gathered_rows(s, "added " + name, x, rows);
      }
    }
  }
}

// The additions are few and their order is given, so every kernel has the same bits as a plain loop.
void reduce_partials_conformance(Suite& s) {
  for (const int64_t count : {1, 2, 3, 8})
    for (const int64_t tokens : {0, 1, 5, 40})
      for (const int64_t width : {1, 7, 16, 300, 2048})
        for (const auto& [add, scale] : {std::pair{true, 1.0f}, {false, 1.0f}, {true, 0.3f}, {false, -1.7f}}) {
          const std::string name = fmt::format("P={} T={} D={}{}{}", count, tokens, width, add ? "" : " overwritten",
                                               scale == 1.0f ? "" : " scaled");
          if (!s.wants_case(name)) continue;
          Rng rng = s.rng_for_case(name);
          // Strides wider than rows: what lies between must stay as it was.
          Buffer partials(DType::kF32, {count, tokens + 1, width + 3}), x(DType::kF32, {tokens, width + 5});
          partials.fill([&] { return rng.normal(); });
          if (add) x.fill([&] { return rng.normal(); });
          Buffer want = x;
          for (int64_t i = 0; i < tokens * width; ++i) {
            const int64_t t = i / width, d = i % width, to = t * (width + 5) + d;
            const auto at = [&](int64_t p) { return load_float(partials, (p * (tokens + 1) + t) * (width + 3) + d); };
            float sum = at(0);
            for (int64_t p = 1; p < count; ++p) sum += at(p);
            store_float(want, to, (add ? load_float(want, to) + sum : sum) * scale);
          }
          Tensor rows = partials.tensor().cols(0, width);
          rows.shape[1] = tokens;
          for (const auto& k : s.kernels(kReducePartialsOp.kernels, kReducePartialsOnGpu)) {
            Buffer got = x;
            const ReducePartialsArgs args{rows, got.tensor().cols(0, width), add, scale};
            if (!s.wants(k.name, name) || !k.fits(s.machine(), args)) continue;
            k.launch(s.context(Device::kCpu), args);
            s.expect_same_bits(k.name, name, got, want);
            s.expect_guards(k.name, name, {&got, &partials});
            // The copy holds the rounded numbers, and changes nothing else.
            for (const DType type : {DType::kF32, DType::kBF16}) {
              got = x;
              Buffer copy(type, {tokens, width + 7});
              const Tensor h = copy.tensor().cols(0, width);
              ReducePartialsArgs copying{rows, got.tensor().cols(0, width), add, scale, h};
              k.launch(s.context(Device::kCpu), copying);
              s.expect_same_bits(k.name, name, got, want);
              s.expect_same_bits(k.name, name, h, want.as(type).tensor().cols(0, width));
              s.expect_guards(k.name, name, {&got, &copy});
            }
          }
        }
}

// Against tanh in float64; an element's bits depend on nothing but its value.
void soft_cap_conformance(Suite& s) {
  for (const int64_t tokens : {0, 1, 3, 40})
    for (const int64_t width : {1, 7, 16, 333, 20001})
      for (const float cap : {30.0f, 0.5f}) {
        const std::string name = fmt::format("T={} V={} cap={}", tokens, width, cap);
        if (!s.wants_case(name)) continue;
        Rng rng = s.rng_for_case(name);
        Buffer x(DType::kF32, {tokens, width + 5});
        x.fill([&] { return rng.normal(rng.integer(0, 3) == 0 ? 0.01f : 2 * cap); });
        for (int64_t i = 0; i < x.tensor().elems(); i += 7) store_float(x, i, i % 2 == 0 ? 1e30f : -INFINITY);
        std::vector<double> want, bound;
        for (int64_t i = 0; i < tokens * width; ++i) {
          const auto v = static_cast<double>(load_float(x, i / width * (width + 5) + i % width));
          const auto c = static_cast<double>(cap);
          want.push_back(c * std::tanh(v / c));
          bound.push_back(0x1p-21 * c);
        }
        for (const auto& k : s.kernels(kSoftCapOp.kernels, kSoftCapOnGpu)) {
          Buffer got = x;
          const SoftCapArgs args{got.tensor().cols(0, width), cap};
          if (!s.wants(k.name, name) || !k.fits(s.machine(), args)) continue;
          k.launch(s.context(Device::kCpu), args);
          s.expect_close(k.name, name, worst_excess(values(args.x), want, bound));
          s.expect_same_bits(k.name, name, got.tensor().cols(width, 5), x.tensor().cols(width, 5));
          s.expect_guards(k.name, name, {&got});
          s.expect_row_invariant(k.name, name, tokens, [&](std::span<const int32_t> rows) {
            Buffer out = x.gather(rows);
            k.launch(s.context(Device::kCpu, 1), {out.tensor().cols(0, width), cap});
            return out;
          });
        }
      }
}

// Against the activation in float64, under the bound that products with it have (ops/gemm/bounds.h).
void gated_product_conformance(Suite& s) {
  for (const GateActivation activation : {GateActivation::kSilu, GateActivation::kGeluTanh, GateActivation::kSwigluOai})
    for (const DType type : {DType::kF32, DType::kBF16})
      for (const int64_t tokens : {0, 1, 5, 40})
        for (const int64_t width : {1, 7, 40, 256, 1001}) {
          const std::string name =
              fmt::format("{} T={} D={}{}", dtype_name(type), tokens, width, activation_note(activation));
          if (!s.wants_case(name)) continue;
          Rng rng = s.rng_for_case(name);
          // Columns of wider rows: `up` is a slice of what all layers have.
          Buffer gates(DType::kF32, {tokens, width + 3}), ups(DType::kF32, {tokens, 3 * width});
          gates.fill([&] { return rng.normal(rng.integer(0, 9) == 0 ? 12.0f : 2.0f); });
          ups.fill([&] { return rng.normal(); });
          const Tensor gate = gates.tensor().cols(0, width), up = ups.tensor().cols(width, width);
          const std::vector<float> g = values(gate), u = values(up);
          std::vector<double> want, bound;
          for (const Bounded& b :
               bounded_gated(activation, exact(g.data(), std::ssize(g)), exact(u.data(), std::ssize(u)), type)) {
            // A GPU's exponential is the less exact the larger its argument; and 1 + tanh has an end in float64.
            const double argument = std::min(std::abs(static_cast<double>(g[want.size()])), 90.0);
            bound.push_back(b.error + 4 * argument * kEpsF32 * std::abs(b.value) + 0x1p-40);
            want.push_back(b.value);
          }
          for (const auto& k : s.kernels(kGatedProductOp.kernels, kGatedProductOnGpu)) {
            Buffer y(type, {tokens, width + 5});
            const Buffer before = y;
            const GatedProductArgs args{gate, up, y.tensor().cols(0, width), activation};
            if (!s.wants(k.name, name) || !k.fits(s.machine(), args)) continue;
            k.launch(s.context(Device::kCpu), args);
            s.expect_close(k.name, name, worst_excess(values(args.y), want, bound));
            s.expect_same_bits(k.name, name, y.tensor().cols(width, 5), before.tensor().cols(width, 5));
            s.expect_guards(k.name, name, {&gates, &ups, &y});
            s.expect_row_invariant(k.name, name, tokens, [&](std::span<const int32_t> rows) {
              const Buffer some_gates = gates.gather(rows), some_ups = ups.gather(rows);
              Buffer out(type, {std::ssize(rows), width + 5});
              k.launch(s.context(Device::kCpu, 1),
                       {some_gates.tensor().cols(0, width), some_ups.tensor().cols(width, width),
                        out.tensor().cols(0, width), activation});
              return out;
            });
          }
        }
}

}  // namespace quire::conformance
