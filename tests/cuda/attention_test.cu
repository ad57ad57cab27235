// Attention on the GPU against float64 on the host, and bit for bit against itself in other company.
#include <optional>

#include "core/cuda/device.h"
#include "cuda/attention_cases.h"

namespace quire::cuda_test {
namespace {

constexpr KvFormat kE4m3 = KvFormat::kE4m3;
constexpr Shape kShapes[] = {{16, 2, 256},
                             {24, 4, 256},
                             {8, 8, 128, false},
                             {8, 2, 128},
                             {4, 1, 64},
                             {6, 6, 64},
                             {32, 1, 64, false},
                             {16, 2, 512, false},
                             {12, 1, 512},
                             {2, 2, 512, false},
                             {16, 2, 256, true, kE4m3},
                             {24, 4, 256, false, kE4m3},
                             {8, 8, 128, true, kE4m3},
                             {8, 1, 128, false, kE4m3},
                             {4, 1, 64, true, kE4m3},
                             {6, 6, 64, false, kE4m3},
                             {32, 1, 64, true, kE4m3},
                             {16, 2, 512, false, kE4m3},
                             {6, 2, 512, true, kE4m3}};

// Prompts read such a cache by code for sm_90a only.
bool takes_e4m3() {
  return cuda::device_limits().value().wgmma;
}
std::vector<Shape> shapes() {
  std::vector<Shape> all(std::begin(kShapes), std::end(kShapes));
  if (!takes_e4m3()) std::erase_if(all, [](const Shape& s) { return s.format == kE4m3; });
  return all;
}

const char* name(KvFormat f) {
  return f == kE4m3 ? "e4m3" : "bf16";
}

Sequence sequence_for(const Shape& s, int positions, unsigned seed) {
  return s.format == kE4m3 ? rounded_sequence(s, positions, seed) : random_sequence(s, positions, seed);
}
std::vector<Sequence> sequences_for(const Shape& s, const std::vector<Piece>& pieces, unsigned seed) {
  std::vector<Sequence> all;
  for (const Piece& p : pieces)
    all.push_back(sequence_for(s, p.position + p.count, seed + static_cast<unsigned>(all.size())));
  return all;
}

TEST(CudaAttention, DecodeMatchesFloat64) {
  for (const Shape& s : shapes()) {
    const std::vector<Piece> pieces = {{1, 0},   {1, 14},   {1, 15},  {0, 700}, {1, 16},   {1, 63},
                                       {1, 254}, {1, 255},  {3, 255}, {1, 256}, {1, 511},  {4, 510},
                                       {0, 0},   {1, 1000}, {2, 30},  {1, 777}, {1, 2049}, {1, 4999}};
    const auto sequences = sequences_for(s, pieces, 1);
    Step step(s, sequences, pieces, static_cast<int>(pieces.size()), 2);
    const auto out = step.run();
    const double worst = step.worst(out, 8);
    std::printf("decode %d/%d heads of %d, %s: largest error %.2f of its bound\n", s.q_heads, s.kv_heads, s.d,
                name(s.format), worst);
    EXPECT_LE(worst, 1.0);
    EXPECT_TRUE(step.padding_untouched(out));
  }
}

TEST(CudaAttention, PromptMatchesFloat64) {
  for (const Shape& s : shapes()) {
    const std::vector<Piece> pieces = {{1, 0},   {15, 0},  {16, 0},  {17, 0},    {64, 0},
                                       {0, 64},  {65, 64}, {130, 0}, {300, 64},  {63, 1024},
                                       {1, 192}, {0, 0},   {1, 64},  {77, 2048}, {513, 0}};
    const auto sequences = sequences_for(s, pieces, 100);
    Step step(s, sequences, pieces, 0, 3);
    const auto out = step.run();
    const double worst = step.worst(out, 12);
    std::printf("prompt %d/%d heads of %d, %s: largest error %.2f of its bound\n", s.q_heads, s.kv_heads, s.d,
                name(s.format), worst);
    EXPECT_LE(worst, 1.0);
    EXPECT_TRUE(step.padding_untouched(out));
  }
}

// A decode row alone, in a batch, as one of several rows of its segment, with its blocks elsewhere: the same bits.
TEST(CudaAttention, DecodeBitsDependOnTheRowAlone) {
  for (const Shape& s : shapes()) {
    const std::vector<Piece> batch = {{1, 700}, {4, 253}, {1, 15}, {9, 1020}, {1, 3000}, {2, 511}};
    const auto sequences = sequences_for(s, batch, 200);
    Step together(s, sequences, batch, static_cast<int>(batch.size()), 4);
    const auto out = together.run();
    for (size_t i = 0; i < batch.size(); ++i) {
      for (int t = 0; t < batch[i].count; ++t) {
        const std::vector<Piece> lone = {{1, batch[i].position + t, static_cast<int>(i)}};
        Step alone(s, sequences, lone, 1, 5 + static_cast<unsigned>(i));
        EXPECT_EQ(alone.row_of(alone.run(), 0, 0), together.row_of(out, i, t)) << "piece " << i << " row " << t;
      }
    }
  }
}

// Prompts in chunks cut at multiples of 64, in other company: the same bits.
TEST(CudaAttention, PromptBitsDoNotDependOnChunksOrCompany) {
  for (const Shape& s : shapes()) {
    const std::vector<Piece> whole = {{437, 0, 0}}, first = {{64, 0, 0}, {0, 0, 0}, {130, 0, 1}},
                             second = {{1, 40, 1}, {256, 64, 0}, {66, 64, 1}}, third = {{117, 320, 0}};
    const std::vector<Sequence> sequences = {sequence_for(s, 437, 300), sequence_for(s, 200, 301)};
    Step all(s, sequences, whole, 0, 6), a(s, sequences, first, 0, 7), b(s, sequences, second, 1, 8),
        c(s, sequences, third, 0, 9);
    const auto out = all.run(), out_a = a.run(), out_b = b.run(), out_c = c.run();
    for (int t = 0; t < 437; ++t) {
      const auto chunked = t < 64    ? a.row_of(out_a, 0, t)
                           : t < 320 ? b.row_of(out_b, 1, t - 64)
                                     : c.row_of(out_c, 0, t - 320);
      ASSERT_EQ(chunked, all.row_of(out, 0, t)) << "row " << t;
    }
    for (int t = 64; t < 130; ++t) ASSERT_EQ(b.row_of(out_b, 2, t - 64), a.row_of(out_a, 2, t)) << "row " << t;
  }
}

// Rows of pictures look at keys up to their end: over the borders of tiles of rows and of keys, in any chunks that do
// not part a picture, or that begin within one. An E4M3 cache gives the same bits as a bf16 one here, too.
TEST(CudaAttention, RowsOfPicturesLookAheadToTheirEnd) {
  const auto add_pictures = [](Step& step) {
    for (const auto& [begin, end] : {std::pair{3, 40}, {41, 64}, {64, 80}, {100, 356}, {360, 361}, {400, 437}})
      step.add_picture(0, begin, end);
    step.add_picture(2, 0, 16);
    return step.run();
  };
  for (const Shape& s : shapes()) {
    const std::vector<Sequence> sequences = {sequence_for(s, 437, 700), sequence_for(s, 200, 701),
                                             sequence_for(s, 16, 702)};
    const std::vector<Piece> whole = {{1, 150, 1}, {437, 0, 0}, {70, 64, 1}, {16, 0, 2}},
                             first = {{64, 0, 0}, {9, 64, 1}}, second = {{36, 64, 0}}, third = {{181, 256, 0}};
    Step all(s, sequences, whole, 1, 13);
    const auto out = add_pictures(all);
    const double worst = all.worst(out, 40);
    std::printf("pictures %d/%d heads of %d, %s: largest error %.2f of its bound\n", s.q_heads, s.kv_heads, s.d,
                name(s.format), worst);
    EXPECT_LE(worst, 1.0);
    EXPECT_TRUE(all.padding_untouched(out));
    Step a(s, sequences, first, 0, 14), b(s, sequences, second, 0, 15), c(s, sequences, third, 0, 16);
    const auto out_a = add_pictures(a), out_b = add_pictures(b), out_c = add_pictures(c);
    for (int t = 0; t < 64; ++t) ASSERT_EQ(a.row_of(out_a, 0, t), all.row_of(out, 1, t)) << "row " << t;
    for (int t = 64; t < 100; ++t) ASSERT_EQ(b.row_of(out_b, 0, t - 64), all.row_of(out, 1, t)) << "row " << t;
    for (int t = 256; t < 437; ++t) ASSERT_EQ(c.row_of(out_c, 0, t - 256), all.row_of(out, 1, t)) << "row " << t;
    if (s.format != kE4m3) continue;
    Step wide(s.in(KvFormat::kBf16), sequences, whole, 1, 17);
    EXPECT_EQ(out, add_pictures(wide));
  }
}

// What an E4M3 cache holds, a bf16 one holds too: the same bits come out, of the most extreme numbers as well.
TEST(CudaAttention, AnE4m3CacheIsABf16OneOfTheSameNumbers) {
  for (const Shape& s : shapes()) {
    if (s.format != kE4m3) continue;
    const std::vector<Piece> pieces = {{1, 0}, {1, 700}, {4, 253}, {1, 15}, {200, 64}, {77, 0}, {1, 192}};
    std::vector<Sequence> sequences = sequences_for(s, pieces, 500);
    // Tokens of zeros, of the least and of the largest numbers, and of both together.
    const auto d = static_cast<size_t>(s.d);
    for (Sequence& q : sequences)
      for (std::vector<bf16>* x : {&q.k, &q.v})
        for (size_t head = 0; head * d < x->size(); ++head) {
          const std::span<bf16> e(x->data() + head * d, d);
          const float sizes[] = {0.0f, 1e-38f, 1e-20f, 1e4f, 1e9f};
          if (head % 11 < 5)
            for (bf16& v : e) v = to_bf16(to_float(v) * sizes[head % 11]);
          if (head % 11 == 5) e[3] = to_bf16(-3e38f);
          round_head(e);
          for (const bf16 v : e) ASSERT_LE(std::abs(to_float(v)), attention::kMostMagnitude);
        }
    Step narrow(s, sequences, pieces, 4, 11), wide(s.in(KvFormat::kBf16), sequences, pieces, 4, 12);
    const auto out = narrow.run();
    const auto want = wide.run();
    EXPECT_EQ(out, want) << s.q_heads << "/" << s.kv_heads << " heads of " << s.d;
    for (size_t i = 0; i < pieces.size(); ++i)
      for (int t = 0; t < pieces[i].count; ++t)
        for (const bf16 v : narrow.row_of(out, i, t)) ASSERT_TRUE(std::isfinite(to_float(v)));
  }
}

// A head with a NaN or an infinity is NaN as a whole, to whoever sees the token and to nobody else.
TEST(CudaAttention, AnE4m3CacheKeepsNoNumbers) {
  if (!takes_e4m3()) GTEST_SKIP() << "no code for E4M3 caches here";
  const Shape s{8, 2, 128, false, kE4m3};
  for (const float bad : {NAN, INFINITY}) {
    std::vector<Sequence> sequences = {rounded_sequence(s, 300, 600)};
    const std::vector<Piece> pieces = {{1, 149, 0}, {1, 150, 0}, {1, 290, 0}, {64, 64, 0}, {108, 192, 0}};
    sequences[0].v[static_cast<size_t>((150 * s.kv_heads + 1) * s.d + 5)] = to_bf16(bad);
    Step step(s, sequences, pieces, 3, 13);
    const auto out = step.run();
    const auto width = static_cast<size_t>(s.d) * 8;
    for (size_t i = 0; i < pieces.size(); ++i)
      for (int t = 0; t < pieces[i].count; ++t) {
        const auto row = step.row_of(out, i, t);
        for (size_t c = 0; c < width; ++c)
          ASSERT_EQ(std::isnan(to_float(row[c])), pieces[i].position + t >= 150 && c >= width / 2)
              << "piece " << i << " row " << t << " column " << c;
      }
  }
}

TEST(CudaAttention, BlocksAreCopiedWhole) {
  for (const KvFormat f : {KvFormat::kBf16, kE4m3}) {
    if (f == kE4m3 && !takes_e4m3()) continue;
    const Shape s = Shape{16, 2, 256}.in(f);
    const std::vector<Piece> pieces = {{1, 700}, {2, 15}, {200, 64}};
    const auto sequences = sequences_for(s, pieces, 700);
    Step step(s, sequences, pieces, 2, 14);
    const auto out = step.run();
    step.move_blocks();
    EXPECT_EQ(step.run(), out);
  }
}

void expect_the_same_from_a_graph(const Shape& s) {
  const std::vector<Piece> pieces = {{1, 700}, {1, 15}, {0, 0}, {200, 64}};
  const auto sequences = sequences_for(s, pieces, 400);
  Step step(s, sequences, pieces, 3, 10);
  const auto eager = step.run();
  DeviceBuffer<char> workspace(static_cast<size_t>(cuda::decode_attention_workspace_bytes(step.params, step.bounds)));
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreate(&stream));
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  EXPECT_TRUE(cuda::launch_decode_attention(stream, step.params, step.bounds, workspace.data()).ok());
  EXPECT_TRUE(launch_prompt_attention(stream, step.params, step.prompt_rows).ok());
  cudaGraph_t graph;
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec;
  CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; ++i) CUDA_OK(cudaGraphLaunch(exec, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  std::vector<bf16> again(eager.size());
  CUDA_OK(cudaMemcpy(again.data(), step.params.out, again.size() * sizeof(bf16), cudaMemcpyDeviceToHost));
  EXPECT_EQ(again, eager);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST(CudaAttention, RunsInsideAGraphAndTheSameAgain) {
  for (const Shape& s : {Shape{16, 2, 256}, Shape{16, 2, 512}}) expect_the_same_from_a_graph(s);
}

}  // namespace
}  // namespace quire::cuda_test
