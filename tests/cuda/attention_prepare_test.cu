// Preparation of q, k and v on the GPU against float64 on the host.
#include <cmath>

#include "cuda/attention_cases.h"

namespace quire::cuda_test {
namespace {

struct Variant {
  Shape shape;
  bool norms, halves, writes_gate;
  int n_rot;
  float magnitude;
  bool value_norms = false;
};
constexpr Variant kVariants[] = {{{16, 2, 256, true}, true, true, true, 64, 1.0f},
                                 {{24, 4, 256, true}, true, true, false, 64, 1.0f},
                                 {{8, 8, 128, false}, true, true, false, 128, 1.2f},
                                 {{4, 2, 64, false}, false, false, false, 64, 1.0f},
                                 {{6, 2, 128, false}, false, false, false, 32, 0.8f},
                                 {{2, 1, 64, true}, true, true, true, 0, 1.0f},
                                 {{16, 2, 512, false}, true, true, false, 512, 1.0f, true},
                                 {{4, 4, 512, true}, false, false, true, 128, 1.2f},
                                 {{8, 4, 256, false}, true, true, false, 256, 1.0f, true},
                                 {{16, 2, 256, true, KvFormat::kE4m3}, true, true, false, 64, 1.0f},
                                 {{8, 4, 128, false, KvFormat::kE4m3}, true, true, false, 128, 1.2f},
                                 {{8, 4, 256, false, KvFormat::kE4m3}, true, true, false, 256, 1.0f, true},
                                 {{4, 2, 64, true, KvFormat::kE4m3}, false, false, true, 64, 1.0f},
                                 {{8, 2, 512, false, KvFormat::kE4m3}, true, true, false, 512, 1.0f},
                                 {{2, 2, 512, true, KvFormat::kE4m3}, true, false, true, 64, 1.2f, true}};

// What a head should become, and how far off it may be: one rounding to bf16, and sine and cosine within 2 ulp.
struct Expected {
  std::vector<double> value, bound;
};
Expected expected_head(const bf16* x, const Variant& v, const float* norm, float eps, bool rotate, int position,
                       const std::vector<float>& inv_freq) {
  const int d = v.shape.d, half = v.n_rot / 2;
  Expected e{std::vector<double>(static_cast<size_t>(d)), std::vector<double>(static_cast<size_t>(d))};
  double sum = 0;
  for (int c = 0; c < d; ++c) {
    e.value[static_cast<size_t>(c)] = static_cast<double>(to_float(x[c]));
    sum += e.value[static_cast<size_t>(c)] * e.value[static_cast<size_t>(c)];
  }
  if (norm != nullptr)
    for (int c = 0; c < d; ++c)
      e.value[static_cast<size_t>(c)] *= static_cast<double>(norm[c]) / std::sqrt(sum / d + static_cast<double>(eps));
  std::vector<double> size(e.value);
  for (double& s : size) s = std::abs(s);
  for (int j = 0; rotate && j < half; ++j) {
    const double angle = static_cast<double>(static_cast<float>(position) * inv_freq[static_cast<size_t>(j)]);
    const double c = std::cos(angle) * static_cast<double>(v.magnitude),
                 s = std::sin(angle) * static_cast<double>(v.magnitude);
    const auto ia = static_cast<size_t>(v.halves ? j : 2 * j),
               ib = static_cast<size_t>(v.halves ? j + half : 2 * j + 1);
    const double a = e.value[ia], b = e.value[ib];
    e.value[ia] = a * c - b * s;
    e.value[ib] = a * s + b * c;
    size[ia] = size[ib] = (std::abs(a) + std::abs(b)) * static_cast<double>(v.magnitude);
  }
  for (size_t c = 0; c < size.size(); ++c) e.bound[c] = 0x1p-8 * 1.001 * std::abs(e.value[c]) + 1e-6 * size[c] + 1e-30;
  return e;
}

void expect_close(const Expected& e, const std::vector<bf16>& all, size_t at, const std::string& what) {
  for (size_t c = 0; c < e.value.size(); ++c) {
    const double got = static_cast<double>(to_float(all[at + c]));
    ASSERT_TRUE(std::abs(got - e.value[c]) <= e.bound[c])
        << what << " column " << c << ": " << got << " for " << e.value[c];
  }
}

// A token's keys or values in its block's head at `at` of the cache, whose bytes then count as untouched.
void check_stored(const Expected& e, KvFormat format, int slot, std::vector<uint8_t>& left, size_t at,
                  const std::string& what) {
  const int d = static_cast<int>(e.value.size());
  uint8_t* const head = left.data() + at;
  if (format == KvFormat::kBf16) {
    std::vector<bf16> stored(e.value.size());
    for (int c = 0; c < d; ++c) {
      std::memcpy(&stored[static_cast<size_t>(c)], head + 2 * cuda::kv_offset(slot, c), sizeof(bf16));
      std::memset(head + 2 * cuda::kv_offset(slot, c), 0xff, sizeof(bf16));
    }
    return expect_close(e, stored, 0, what);
  }
  const uint32_t scale_byte = std::exchange(head[kBlockTokens * d + slot], uint8_t{0xff});
  const double scale = static_cast<double>(attention::scale_of(scale_byte));
  const double most = static_cast<double>(attention::kMostMagnitude);
  double largest = 0;
  for (const double x : e.value) largest = std::max(largest, std::abs(x));
  if (largest > 1e30) {
    EXPECT_EQ(scale_byte, attention::kNoNumber) << what;
  } else {
    EXPECT_TRUE(std::min(largest, most) <= 448 * scale * 1.001) << what << " scale " << scale_byte;
    EXPECT_TRUE(largest >= 224 * scale * 0.999 || scale_byte == 0) << what << " scale " << scale_byte;
  }
  for (int chunk = 0; chunk < d; chunk += cuda::kChunkColumns)
    for (int i = 0; i < cuda::kChunkColumns; ++i) {
      const auto c = static_cast<size_t>(chunk + cuda::kv_chunk_column(i));
      const uint8_t code = std::exchange(head[cuda::kv_chunk_offset(slot, chunk) + i], uint8_t{0xff});
      if (scale_byte == attention::kNoNumber) continue;
      const double want = std::clamp(e.value[c], -most, most), got = to_float(e4m3{code}) * scale;
      ASSERT_TRUE(std::abs(got - want) <= e.bound[c] + std::abs(want) * 0x1.01p-4 + 0x1.01p-10 * scale)
          << what << " column " << c << ": " << got << " for " << want;
    }
}

TEST(CudaAttentionPrepare, MatchesFloat64AndWritesNothingElse) {
  for (const Variant& v : kVariants) {
    const Shape& s = v.shape;
    std::mt19937 rng(11);
    const std::vector<Segment> segments = {{.row = 0, .count = 1, .position = 1048575},
                                           {.row = 1, .count = 3, .position = 14},
                                           {.row = 4, .count = 0, .position = 9},
                                           {.row = 6, .count = 50, .position = 64},
                                           {.row = 56, .count = 1, .position = 200003}};
    const int rows = 60, pitch = 65600, blocks = 40;
    const int q_width = s.q_heads * s.d * (s.gated ? 2 : 1), kv_width = s.kv_heads * s.d;
    const auto q_proj = random_bf16(static_cast<size_t>(rows * q_width), rng, 3.0f);
    const auto k_proj = random_bf16(static_cast<size_t>(rows * kv_width), rng, 3.0f);
    auto v_proj = random_bf16(static_cast<size_t>(rows * kv_width), rng);
    // The first head of some rows: nothing, little, much, too much; and of no number.
    const std::pair<int, float> sizes[] = {{6, 0.0f}, {7, 1e-36f}, {8, 1e-3f}, {9, 1e4f}, {10, 1e6f}};
    for (const auto& [row, size] : sizes)
      for (int c = 0; c < s.d; ++c) {
        bf16& x = v_proj[static_cast<size_t>(row * kv_width + c)];
        x = to_bf16(to_float(x) * size);
      }
    if (s.format == KvFormat::kE4m3 && !v.value_norms)
      v_proj[static_cast<size_t>(11 * kv_width + 1)] = to_bf16(INFINITY);
    std::vector<float> q_norm(static_cast<size_t>(s.d)), k_norm(q_norm), v_norm(q_norm),
        inv_freq(static_cast<size_t>(v.n_rot / 2 + 1));
    for (std::vector<float>* norm : {&q_norm, &k_norm, &v_norm})
      for (float& x : *norm) x = std::uniform_real_distribution<float>(0.5f, 2.0f)(rng);
    for (size_t j = 0; j < inv_freq.size(); ++j)
      inv_freq[j] = std::pow(10000.0f, -2.0f * static_cast<float>(j) / static_cast<float>(std::max(v.n_rot, 1)));

    std::vector<int32_t> order(blocks);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), rng);
    std::vector<int32_t> tables(segments.size() * static_cast<size_t>(pitch), 0x7ffffff0);
    size_t next = 0;
    for (size_t i = 0; i < segments.size(); ++i)
      for (int t = segments[i].position / 16; t <= (segments[i].position + segments[i].count - 1) / 16; ++t)
        if (segments[i].count > 0) tables[i * static_cast<size_t>(pitch) + static_cast<size_t>(t)] = order[next++];

    const int64_t head = kv_head_bytes(s.format, s.d), layer = 2 * s.kv_heads * head, stride = kLayers * layer;
    DeviceBuffer<bf16> d_q_proj(q_proj), d_k_proj(k_proj), d_v_proj(v_proj);
    DeviceBuffer<bf16> d_q(static_cast<size_t>(rows * s.q_heads * s.d)), d_gate(d_q.size());
    DeviceBuffer<uint8_t> d_cache(static_cast<size_t>(blocks * stride));
    DeviceBuffer<float> d_q_norm(q_norm), d_k_norm(k_norm), d_v_norm(v_norm), d_inv_freq(inv_freq);
    DeviceBuffer<int32_t> d_tables(tables);
    DeviceBuffer<Segment> d_segments(segments);
    cuda::AttentionPrepareParams p;
    p.q_proj = d_q_proj.data();
    p.k_proj = d_k_proj.data();
    p.v_proj = d_v_proj.data();
    p.q_stride = q_width;
    p.k_stride = p.v_stride = kv_width;
    p.gated = s.gated;
    if (v.norms) {
      p.q_norm = d_q_norm.data();
      p.k_norm = d_k_norm.data();
    }
    if (v.value_norms) p.v_norm = d_v_norm.data();
    p.n_rot = v.n_rot;
    p.halves = v.halves;
    p.inv_freq = d_inv_freq.data();
    p.magnitude = v.magnitude;
    p.segments = {d_segments.data(), static_cast<int32_t>(segments.size()), 2, d_tables.data(), pitch};
    p.rows = rows;
    p.q_heads = s.q_heads;
    p.kv_heads = s.kv_heads;
    p.head_size = s.d;
    p.q = d_q.data();
    p.gate = v.writes_gate ? d_gate.data() : nullptr;
    p.kv = {d_cache.data() + layer, d_cache.data() + layer + layer / 2, stride, s.format};
    const Status launched = cuda::launch_attention_prepare(nullptr, p);
    ASSERT_TRUE(launched.ok()) << launched.error().message;
    CUDA_OK(cudaDeviceSynchronize());

    const auto q = d_q.download(), gate = d_gate.download();
    std::vector<uint8_t> left = d_cache.download();  // what nothing should have written
    for (size_t i = 0; i < segments.size(); ++i) {
      for (int t = 0; t < segments[i].count; ++t) {
        const int row = segments[i].row + t, position = segments[i].position + t;
        const std::string where = "row " + std::to_string(row);
        for (int h = 0; h < s.q_heads; ++h) {
          const bf16* x = &q_proj[static_cast<size_t>(row * q_width + h * s.d * (s.gated ? 2 : 1))];
          const auto at = static_cast<size_t>((row * s.q_heads + h) * s.d);
          expect_close(expected_head(x, v, v.norms ? q_norm.data() : nullptr, p.eps, true, position, inv_freq), q, at,
                       where + " query " + std::to_string(h));
          for (int c = 0; v.writes_gate && c < s.d; ++c)
            ASSERT_EQ(gate[at + static_cast<size_t>(c)].bits, x[s.d + c].bits);
        }
        const int block = tables[i * static_cast<size_t>(pitch) + static_cast<size_t>(position / 16)];
        for (int h = 0; h < s.kv_heads; ++h) {
          for (int which = 0; which < 2; ++which) {
            const auto from = static_cast<size_t>(row * kv_width + h * s.d);
            const auto e = which == 0 ? expected_head(&k_proj[from], v, v.norms ? k_norm.data() : nullptr, p.eps, true,
                                                      position, inv_freq)
                                      : expected_head(&v_proj[from], v, v.value_norms ? v_norm.data() : nullptr, p.eps,
                                                      false, position, inv_freq);
            check_stored(e, s.format, position % kBlockTokens, left,
                         static_cast<size_t>(block * stride + layer + which * layer / 2 + h * head),
                         where + (which == 0 ? " key " : " value ") + std::to_string(h));
          }
        }
      }
    }
    EXPECT_TRUE(std::all_of(left.begin(), left.end(), [](uint8_t x) { return x == 0xff; }));
    for (const int row : {4, 5, 57, 59})  // of no segment
      EXPECT_EQ(q[static_cast<size_t>(row * s.q_heads * s.d)].bits, 0xffff);
    EXPECT_TRUE(d_q.guards_intact() && d_cache.guards_intact() && d_gate.guards_intact());
  }
}

}  // namespace
}  // namespace quire::cuda_test
