// Attention on the GPU against float64 on the host, and bit for bit against itself in other company.
#include <optional>

#include "cuda/attention_cases.h"

namespace quire::cuda_test {
namespace {

constexpr Shape kShapes[] = {{16, 2, 256}, {24, 4, 256}, {8, 8, 128, false}, {8, 2, 128},
                             {4, 1, 64},   {6, 6, 64},   {32, 1, 64, false}};

std::vector<Sequence> sequences_for(const Shape& s, const std::vector<Piece>& pieces, unsigned seed) {
  std::vector<Sequence> all;
  for (const Piece& p : pieces)
    all.push_back(random_sequence(s, p.position + p.count, seed + static_cast<unsigned>(all.size())));
  return all;
}

TEST(CudaAttention, DecodeMatchesFloat64) {
  for (const Shape& s : kShapes) {
    const std::vector<Piece> pieces = {{1, 0},   {1, 14},   {1, 15},  {0, 700}, {1, 16},   {1, 63},
                                       {1, 254}, {1, 255},  {3, 255}, {1, 256}, {1, 511},  {4, 510},
                                       {0, 0},   {1, 1000}, {2, 30},  {1, 777}, {1, 2049}, {1, 4999}};
    const auto sequences = sequences_for(s, pieces, 1);
    Step step(s, sequences, pieces, static_cast<int>(pieces.size()), 2);
    const auto out = step.run();
    const double worst = step.worst(out, 8);
    std::printf("decode %d/%d heads of %d: largest error %.2f of its bound\n", s.q_heads, s.kv_heads, s.d,
                worst);
    EXPECT_LE(worst, 1.0);
    EXPECT_TRUE(step.padding_untouched(out));
  }
}

TEST(CudaAttention, PromptMatchesFloat64) {
  for (const Shape& s : kShapes) {
    const std::vector<Piece> pieces = {{1, 0},   {15, 0},  {16, 0},  {17, 0},    {64, 0},
                                       {0, 64},  {65, 64}, {130, 0}, {300, 64},  {63, 1024},
                                       {1, 192}, {0, 0},   {1, 64},  {77, 2048}, {513, 0}};
    const auto sequences = sequences_for(s, pieces, 100);
    Step step(s, sequences, pieces, 0, 3);
    const auto out = step.run();
    const double worst = step.worst(out, 12);
    std::printf("prompt %d/%d heads of %d: largest error %.2f of its bound\n", s.q_heads, s.kv_heads, s.d,
                worst);
    EXPECT_LE(worst, 1.0);
    EXPECT_TRUE(step.padding_untouched(out));
  }
}

// A decode row alone, in a batch, as one of several rows of its segment, with its blocks elsewhere: the same bits.
TEST(CudaAttention, DecodeBitsDependOnTheRowAlone) {
  for (const Shape& s : kShapes) {
    const std::vector<Piece> batch = {{1, 700}, {4, 253}, {1, 15}, {9, 1020}, {1, 3000}, {2, 511}};
    const auto sequences = sequences_for(s, batch, 200);
    Step together(s, sequences, batch, static_cast<int>(batch.size()), 4);
    const auto out = together.run();
    for (size_t i = 0; i < batch.size(); ++i) {
      for (int t = 0; t < batch[i].count; ++t) {
        const std::vector<Piece> lone = {{1, batch[i].position + t, static_cast<int>(i)}};
        Step alone(s, sequences, lone, 1, 5 + static_cast<unsigned>(i));
        EXPECT_EQ(alone.row_of(alone.run(), 0, 0), together.row_of(out, i, t))
            << "piece " << i << " row " << t;
      }
    }
  }
}

// Prompts in chunks cut at multiples of 64, in other company: the same bits.
TEST(CudaAttention, PromptBitsDoNotDependOnChunksOrCompany) {
  for (const Shape& s : kShapes) {
    const std::vector<Piece> whole = {{437, 0, 0}}, first = {{64, 0, 0}, {0, 0, 0}, {130, 0, 1}},
                             second = {{1, 40, 1}, {256, 64, 0}, {66, 64, 1}}, third = {{117, 320, 0}};
    const std::vector<Sequence> sequences = {random_sequence(s, 437, 300), random_sequence(s, 200, 301)};
    Step all(s, sequences, whole, 0, 6), a(s, sequences, first, 0, 7), b(s, sequences, second, 1, 8),
        c(s, sequences, third, 0, 9);
    const auto out = all.run(), out_a = a.run(), out_b = b.run(), out_c = c.run();
    for (int t = 0; t < 437; ++t) {
      const auto chunked = t < 64    ? a.row_of(out_a, 0, t)
                           : t < 320 ? b.row_of(out_b, 1, t - 64)
                                     : c.row_of(out_c, 0, t - 320);
      ASSERT_EQ(chunked, all.row_of(out, 0, t)) << "row " << t;
    }
    for (int t = 64; t < 130; ++t)
      ASSERT_EQ(b.row_of(out_b, 2, t - 64), a.row_of(out_a, 2, t)) << "row " << t;
  }
}

TEST(CudaAttention, RunsInsideAGraphAndTheSameAgain) {
  const Shape s{16, 2, 256};
  const std::vector<Piece> pieces = {{1, 700}, {1, 15}, {0, 0}, {200, 64}};
  const auto sequences = sequences_for(s, pieces, 400);
  Step step(s, sequences, pieces, 3, 10);
  const auto eager = step.run();
  DeviceBuffer<char> workspace(
      static_cast<size_t>(cuda::decode_attention_workspace_bytes(step.params, step.bounds)));
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreate(&stream));
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  EXPECT_TRUE(cuda::launch_decode_attention(stream, step.params, step.bounds, workspace.data()).ok());
  EXPECT_TRUE(cuda::launch_prompt_attention(stream, step.params, step.prompt_rows).ok());
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

TEST(CudaAttention, RefusesWhatItCannotDo) {
  cuda::AttentionParams p;
  p.q_heads = 4;
  p.kv_heads = 2;
  p.head_size = 96;
  p.segments.count = p.segments.decodes = 1;
  EXPECT_FALSE(cuda::launch_decode_attention(nullptr, p, {1, 1}, nullptr).ok());
  EXPECT_FALSE(cuda::launch_prompt_attention(nullptr, p, 1).ok());
  p.head_size = 128;
  p.kv_heads = 3;
  EXPECT_FALSE(cuda::launch_decode_attention(nullptr, p, {1, 1}, nullptr).ok());
  EXPECT_FALSE(cuda::launch_prompt_attention(nullptr, p, 1).ok());
}

}  // namespace
}  // namespace quire::cuda_test
