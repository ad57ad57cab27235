// A batch over a paged cache, on the host and on the GPU, and what attention over it should give.
#pragma once

#include <cmath>
#include <numeric>
#include <optional>
#include <span>
#include <thread>

#include "cuda/attention_launch.h"
#include "cuda/support.h"
#include "ops/attention/scale.h"

namespace quire::cuda_test {

inline std::vector<bf16> random_bf16(size_t n, std::mt19937& rng, float spread = 1.0f) {
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<bf16> v(n);
  for (bf16& x : v) x = to_bf16(normal(rng));
  return v;
}

using cuda::KvFormat;

struct Shape {
  int q_heads, kv_heads, d;
  bool gated = true;
  KvFormat format = KvFormat::kBf16;

  Shape in(KvFormat f) const { return {q_heads, kv_heads, d, gated, f}; }
};

// The scale of a token's head in an E4M3 cache.
inline uint32_t head_scale(std::span<const bf16> head) {
  uint32_t largest = 0;
  for (const bf16 x : head) largest = std::max(largest, x.bits & 0x7fffu);
  return attention::choose_scale(largest << 16);
}
// To numbers that an E4M3 cache keeps as they are. The largest is exact after one rounding, and the scale settled.
inline void round_head(std::span<bf16> head) {
  for (int i = 0; i < 2; ++i) {
    const uint32_t s = head_scale(head);
    for (bf16& x : head)
      x = to_bf16(to_float(to_e4m3(to_float(x) * attention::inverse_scale_of(s))) * attention::scale_of(s));
  }
}
// Into token t of a block's head at `to`.
inline void store_head(KvFormat f, std::span<const bf16> head, int t, uint8_t* to) {
  const int d = static_cast<int>(head.size());
  const uint32_t s = head_scale(head);
  for (int c = 0; c < d; ++c) {
    const bf16 x = head[static_cast<size_t>(c)];
    if (f == KvFormat::kBf16) {
      std::memcpy(to + 2 * cuda::kv_offset(t, c), &x, sizeof x);
    } else {
      const int chunk = cuda::kv_chunk_offset(t, c);
      for (int i = 0; i < cuda::kChunkColumns; ++i)
        if (cuda::kv_chunk_column(i) == c % cuda::kChunkColumns)
          to[chunk + i] = to_e4m3(to_float(x) * attention::inverse_scale_of(s)).bits;
    }
  }
  if (f == KvFormat::kE4m3) to[kBlockTokens * d + t] = static_cast<uint8_t>(s);
}

// The tokens of one sequence that a step computes: positions [position, position + count).
struct Piece {
  int count, position;
  int sequence = -1;  // which keys and values, queries and gates; -1: the piece's number
};

constexpr bf16 kNan{0xffff};
constexpr int kLayers = 2;  // in a block; the second is used

// Keys, values, queries and gates of one sequence, by position.
struct Sequence {
  std::vector<bf16> k, v, q, gate;  // [positions][heads][d]
};

inline Sequence random_sequence(const Shape& s, int positions, unsigned seed) {
  std::mt19937 rng(seed);
  const auto n = static_cast<size_t>(positions);
  const auto kv = n * static_cast<size_t>(s.kv_heads * s.d), q = n * static_cast<size_t>(s.q_heads * s.d);
  return {random_bf16(kv, rng), random_bf16(kv, rng), random_bf16(q, rng, 2.0f), random_bf16(q, rng, 2.0f)};
}
// Keys and values that an E4M3 cache holds exactly, tokens of very different sizes among them.
inline Sequence rounded_sequence(const Shape& s, int positions, unsigned seed) {
  Sequence all = random_sequence(s, positions, seed);
  std::mt19937 rng(seed + 1);
  const auto d = static_cast<size_t>(s.d);
  for (std::vector<bf16>* x : {&all.k, &all.v})
    for (size_t at = 0; at < x->size(); at += d) {
      const float size = std::exp2(std::uniform_real_distribution<float>(-14.0f, x == &all.k ? 1.0f : 6.0f)(rng));
      const std::span<bf16> head(x->data() + at, d);
      for (bf16& e : head) e = to_bf16(to_float(e) * size);
      round_head(head);
    }
  return all;
}

// A step on the GPU. Blocks are shuffled; what no token of a piece's past or present owns is NaN; table entries past
// the end are wild; rows of padding (every fifth) lie between the pieces.
class Step {
 public:
  Step(const Shape& s, const std::vector<Sequence>& sequences, const std::vector<Piece>& pieces, int decodes,
       unsigned seed)
      : shape(s), all(&sequences) {
    std::mt19937 rng(seed);
    int blocks = 0;
    for (const Piece& p : pieces) {
      blocks += (p.position + p.count + kBlockTokens - 1) / kBlockTokens;
      pitch = std::max(pitch, (p.position + p.count) / kBlockTokens + 2);
    }
    std::vector<int32_t> order(static_cast<size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), rng);
    const int64_t head = kv_head_bytes(s.format, s.d), layer = 2 * s.kv_heads * head, stride = kLayers * layer;
    std::vector<uint8_t> cache(static_cast<size_t>(std::max(blocks, 1) * stride), 0xff);
    std::vector<int32_t> tables(std::max<size_t>(1, pieces.size() * static_cast<size_t>(pitch)), 0x7ffffff0);
    size_t next = 0;
    int row = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Piece& p = pieces[i];
      const int of = p.sequence < 0 ? static_cast<int>(i) : p.sequence;
      const Sequence& from = sequences[static_cast<size_t>(of)];
      for (int t = 0; t < p.position + p.count; ++t) {
        int32_t& block = tables[i * static_cast<size_t>(pitch) + static_cast<size_t>(t / kBlockTokens)];
        if (t % kBlockTokens == 0) block = order[next++];
        for (int h = 0; h < s.kv_heads; ++h) {
          uint8_t* const to = cache.data() + block * stride + layer + h * head;
          const auto source = static_cast<size_t>((t * s.kv_heads + h) * s.d), d = static_cast<size_t>(s.d);
          store_head(s.format, std::span(from.k).subspan(source, d), t % kBlockTokens, to);
          store_head(s.format, std::span(from.v).subspan(source, d), t % kBlockTokens, to + s.kv_heads * head);
        }
      }
      segments.push_back({.row = row, .count = p.count, .position = p.position});
      owner.push_back(of);
      row += p.count + (i % 5 == 4 ? 1 : 0);
      if (static_cast<int>(i) < decodes) {
        bounds.rows = std::max(bounds.rows, p.count);
        if (p.count > 0) bounds.max_parts += attention_parts(p.position + p.count);
      } else {
        prompt_rows += p.count;
      }
    }
    rows = row;
    const auto width = static_cast<size_t>(s.q_heads * s.d);
    std::vector<bf16> q(std::max<size_t>(1, static_cast<size_t>(rows) * width), kNan), gate = q;
    for (size_t i = 0; i < segments.size(); ++i) {
      const Sequence& from = sequences[static_cast<size_t>(owner[i])];
      const auto begin = static_cast<std::ptrdiff_t>(static_cast<size_t>(segments[i].position) * width);
      const auto n = static_cast<std::ptrdiff_t>(static_cast<size_t>(segments[i].count) * width);
      const auto to = static_cast<std::ptrdiff_t>(static_cast<size_t>(segments[i].row) * width);
      std::copy(from.q.begin() + begin, from.q.begin() + begin + n, q.begin() + to);
      std::copy(from.gate.begin() + begin, from.gate.begin() + begin + n, gate.begin() + to);
    }
    d_cache.emplace(cache);
    d_tables.emplace(tables);
    d_segments.emplace(segments);
    d_q.emplace(q);
    d_gate.emplace(gate);
    d_out.emplace(q.size());
    params.q = d_q->data();
    params.gate = s.gated ? d_gate->data() : nullptr;
    params.out = d_out->data();
    params.q_stride = params.gate_stride = params.out_stride = s.q_heads * s.d;
    params.gate_head_stride = s.d;
    params.kv = {d_cache->data() + layer, d_cache->data() + layer + layer / 2, stride, s.format};
    params.segments = {d_segments->data(), static_cast<int32_t>(segments.size()), decodes, d_tables->data(), pitch};
    params.q_heads = s.q_heads;
    params.kv_heads = s.kv_heads;
    params.head_size = s.d;
    params.scale = 1.0f / std::sqrt(static_cast<float>(s.d));
  }

  // Rows of prompts at positions [begin, end) of a sequence look at keys up to `end`.
  void add_picture(int sequence, int begin, int end) {
    ends.resize(static_cast<size_t>(rows));
    for (size_t i = 0; i < segments.size(); ++i)
      for (int t = 0; t < segments[i].count; ++t)
        if (const int p = segments[i].position + t; owner[i] == sequence && p >= begin && p < end)
          ends[static_cast<size_t>(segments[i].row + t)] = end;
    d_ends.emplace(ends);
    params.ends = d_ends->data();
  }

  // Both kernels, poisoned outputs and workspace; [rows][q_heads * d].
  std::vector<bf16> run() {
    d_out->poison();
    DeviceBuffer<char> workspace(static_cast<size_t>(cuda::decode_attention_workspace_bytes(params, bounds)));
    const Status decode = cuda::launch_decode_attention(nullptr, params, bounds, workspace.data());
    EXPECT_TRUE(decode.ok()) << decode.error().message;
    const Status prompt = launch_prompt_attention(nullptr, params, prompt_rows);
    EXPECT_TRUE(prompt.ok()) << prompt.error().message;
    must(cudaDeviceSynchronize(), "attention");
    EXPECT_TRUE(workspace.guards_intact());
    EXPECT_TRUE(d_out->guards_intact());
    return d_out->download();
  }

  // Every block by one copy to another place, where the tables then find it.
  void move_blocks() {
    const int64_t bytes = params.kv.block_bytes, blocks = static_cast<int64_t>(d_cache->size()) / bytes;
    DeviceBuffer<uint8_t> moved(d_cache->size());
    const auto place = [&](int64_t b) { return (b + 3) % blocks; };
    for (int64_t b = 0; b < blocks; ++b)
      must(cudaMemcpy(moved.data() + place(b) * bytes, d_cache->data() + b * bytes, static_cast<size_t>(bytes),
                      cudaMemcpyDeviceToDevice),
           "a block");
    std::vector<int32_t> tables = d_tables->download();
    for (int32_t& b : tables)
      if (b < blocks) b = static_cast<int32_t>(place(b));
    d_tables->upload(tables);
    const auto layer = static_cast<uint8_t*>(params.kv.k) - d_cache->data();
    const auto values = static_cast<uint8_t*>(params.kv.v) - d_cache->data();
    d_cache.emplace(std::move(moved));
    params.kv.k = d_cache->data() + layer;
    params.kv.v = d_cache->data() + values;
  }

  // Row `step` of piece i.
  std::vector<bf16> row_of(const std::vector<bf16>& out, size_t i, int step) const {
    const size_t width = static_cast<size_t>(shape.q_heads * shape.d);
    const auto at = static_cast<std::ptrdiff_t>(static_cast<size_t>(segments[i].row + step) * width);
    return {out.begin() + at, out.begin() + at + static_cast<std::ptrdiff_t>(width)};
  }

  // Largest error over its bound, of about `checked` rows of every piece, and the rows around borders.
  // The bound: a weight is rounded to bf16 (2^-8 of it at most), so is the result; scores in float32 add 2^-16 of a
  // weight.
  double worst(const std::vector<bf16>& out, int checked) const {
    std::vector<std::pair<size_t, int>> work;
    for (size_t i = 0; i < segments.size(); ++i) {
      const int n = segments[i].count, every = std::max(1, n / checked);
      for (int t = 0; t < n; ++t)
        if (t % every == 0 || t == n - 1) work.emplace_back(i, t);
    }
    std::vector<double> excess(16, 0.0);
    std::vector<std::thread> threads;
    for (size_t w = 0; w < excess.size(); ++w)
      threads.emplace_back([&, w] {
        for (size_t x = w; x < work.size(); x += excess.size())
          excess[w] = std::max(excess[w], row_excess(out, work[x].first, work[x].second));
      });
    for (std::thread& t : threads) t.join();
    return *std::max_element(excess.begin(), excess.end());
  }

  // Rows that belong to no piece must keep their poison.
  bool padding_untouched(const std::vector<bf16>& out) const {
    std::vector<bool> owned(static_cast<size_t>(rows), false);
    for (const Segment& s : segments)
      for (int t = 0; t < s.count; ++t) owned[static_cast<size_t>(s.row + t)] = true;
    const auto width = static_cast<size_t>(shape.q_heads * shape.d);
    for (size_t r = 0; r < owned.size(); ++r)
      for (size_t c = 0; !owned[r] && c < width; ++c)
        if (!(out[r * width + c] == kNan)) return false;
    return true;
  }

  Shape shape;
  const std::vector<Sequence>* all;
  std::vector<Segment> segments;
  std::vector<int> owner;
  std::vector<int32_t> ends;  // empty: rows look at what is before them
  int rows = 0, pitch = 1, prompt_rows = 0;
  cuda::DecodeBounds bounds{.rows = 1, .max_parts = 0};
  cuda::AttentionParams params;

 private:
  double row_excess(const std::vector<bf16>& out, size_t i, int step) const {
    const Sequence& s = (*all)[static_cast<size_t>(owner[i])];
    const int position = segments[i].position + step, d = shape.d, group = shape.q_heads / shape.kv_heads;
    const std::vector<bf16> got = row_of(out, i, step);
    const int end = ends.empty() ? 0 : ends[static_cast<size_t>(segments[i].row + step)];
    const int keys = std::max(position + 1, end);
    double excess = 0;
    std::vector<double> p(static_cast<size_t>(keys));
    for (int h = 0; h < shape.q_heads; ++h) {
      const bf16* q = &s.q[static_cast<size_t>((position * shape.q_heads + h) * d)];
      double most = -INFINITY, total = 0;
      for (int t = 0; t < keys; ++t) {
        const bf16* k = &s.k[static_cast<size_t>((t * shape.kv_heads + h / group) * d)];
        double dot = 0;
        for (int c = 0; c < d; ++c) dot += static_cast<double>(to_float(q[c])) * static_cast<double>(to_float(k[c]));
        p[static_cast<size_t>(t)] = dot * static_cast<double>(params.scale);
        most = std::max(most, p[static_cast<size_t>(t)]);
      }
      for (double& x : p) total += x = std::exp(x - most);
      std::vector<double> sum(static_cast<size_t>(d), 0.0), size(static_cast<size_t>(d), 0.0);
      for (int t = 0; t < keys; ++t) {
        const bf16* v = &s.v[static_cast<size_t>((t * shape.kv_heads + h / group) * d)];
        const double w = p[static_cast<size_t>(t)] / total;
        for (int c = 0; c < d; ++c) {
          sum[static_cast<size_t>(c)] += w * static_cast<double>(to_float(v[c]));
          size[static_cast<size_t>(c)] += w * std::abs(static_cast<double>(to_float(v[c])));
        }
      }
      for (int c = 0; c < d; ++c) {
        double gate = 1;
        if (shape.gated) {
          const bf16 g = s.gate[static_cast<size_t>((position * shape.q_heads + h) * d + c)];
          gate = 1 / (1 + std::exp(-static_cast<double>(to_float(g))));
        }
        const double want = sum[static_cast<size_t>(c)] * gate;
        const double bound = (0x1p-8 + 0x1p-16) * (size[static_cast<size_t>(c)] * gate + std::abs(want)) + 1e-30;
        const double error = std::abs(static_cast<double>(to_float(got[static_cast<size_t>(h * d + c)])) - want);
        excess = std::max(excess, error <= bound ? error / bound : (std::isnan(error) ? 1e9 : error / bound));
      }
    }
    return excess;
  }

  std::optional<DeviceBuffer<uint8_t>> d_cache;
  std::optional<DeviceBuffer<bf16>> d_q, d_gate, d_out;
  std::optional<DeviceBuffer<int32_t>> d_tables, d_ends;
  std::optional<DeviceBuffer<Segment>> d_segments;
};

}  // namespace quire::cuda_test
