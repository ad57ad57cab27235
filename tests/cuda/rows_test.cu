// Embedding, gathering of rows and copies of slots on the GPU: bit for bit what the host does.
#include <cmath>
#include <cstring>
#include <numeric>

#include "cuda/support.h"
#include "ops/copy/cuda/copy.h"
#include "ops/rows/cuda/rows.h"
#include "quant/format.h"

namespace quire::cuda_test {
namespace {

std::vector<std::byte> random_bytes(size_t n, std::mt19937& rng) {
  std::vector<std::byte> v(n);
  for (std::byte& b : v) b = static_cast<std::byte>(rng() & 255);
  return v;
}

TEST(CudaRows, EmbedDecodesAsTheHostDoes) {
  std::mt19937 rng(1);
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16, DType::kQ8_0, DType::kNVFP4}) {
    for (const int width : {64, 320, 2048}) {
      constexpr int kVocab = 37, kRows = 50, kBatchSlots = 5;
      const auto row_bytes = static_cast<size_t>(dtype_bytes(type, width));
      const std::vector<std::byte> table = random_bytes(kVocab * row_bytes, rng);
      std::vector<int32_t> tokens(kRows), sources(kRows), sampled = {3, -1, 36, 0, 7};
      for (size_t r = 0; r < kRows; ++r) {
        tokens[r] = static_cast<int32_t>(rng() % kVocab);
        sources[r] = static_cast<int32_t>(rng() % (2 * kBatchSlots)) - kBatchSlots;
        if (sources[r] < 0) sources[r] = -1;
      }
      tokens[3] = 0x7fffffff;  // wild, but the row has a source
      sources[3] = 2;
      DeviceBuffer<std::byte> d_table(table);
      DeviceBuffer<int32_t> d_tokens(tokens), d_sources(sources), d_sampled(sampled);
      for (const bool with_sources : {true, false}) {
        if (!with_sources) d_tokens.upload(std::vector<int32_t>(kRows, 5));
        DeviceBuffer<float> x(static_cast<size_t>(kRows * width));
        const cuda::EmbedParams p{.tokens = d_tokens.data(),
                                  .sources = with_sources ? d_sources.data() : nullptr,
                                  .sampled = d_sampled.data(),
                                  .dtype = type,
                                  .table = d_table.data(),
                                  .scale = 0.37f,
                                  .rows = kRows,
                                  .vocab = kVocab,
                                  .width = width,
                                  .x = x.data()};
        const Status launched = cuda::launch_embed(nullptr, p);
        ASSERT_TRUE(launched.ok()) << launched.error().message;
        CUDA_OK(cudaDeviceSynchronize());
        const std::vector<float> got = x.download();
        for (size_t r = 0; r < kRows; ++r) {
          const int32_t token = !with_sources    ? 5
                                : sources[r] < 0 ? tokens[r]
                                                 : std::max(0, sampled[static_cast<size_t>(sources[r])]);
          std::vector<float> want(static_cast<size_t>(width));
          quant::decode_row(type, table.data() + static_cast<size_t>(token) * row_bytes, width, want.data());
          for (size_t c = 0; c < want.size(); ++c) {
            want[c] *= 0.37f;
            const float g = got[r * want.size() + c];
            ASSERT_TRUE(std::memcmp(&g, &want[c], sizeof g) == 0 || (std::isnan(g) && std::isnan(want[c])))
                << dtype_name(type) << " row " << r << " column " << c << ": " << g << " for " << want[c];
          }
        }
        EXPECT_TRUE(x.guards_intact());
      }
    }
  }
  EXPECT_FALSE(cuda::embed_takes(DType::kQ4_K, 256));
  EXPECT_FALSE(cuda::embed_takes(DType::kNVFP4, 96));
}

TEST(CudaRows, GatherMovesRowsAndSkipsPadding) {
  std::mt19937 rng(2);
  for (const int bytes : {2, 6, 16, 130, 4096}) {
    constexpr int kFrom = 40;
    const int stride = bytes + (bytes % 16 == 0 ? 32 : 2);
    const std::vector<std::byte> x = random_bytes(static_cast<size_t>(kFrom * stride), rng);
    const std::vector<int32_t> rows = {7, 7, 0, -1, 39, 40, 3, 0x7fffffff, 12};
    DeviceBuffer<std::byte> d_x(x), d_y(rows.size() * static_cast<size_t>(bytes));
    DeviceBuffer<int32_t> d_rows(rows);
    const cuda::GatherRowsParams p{d_x.data(), d_rows.data(), d_y.data(), static_cast<int>(rows.size()),
                                   kFrom,      bytes,         stride,     bytes};
    const Status launched = cuda::launch_gather_rows(nullptr, p);
    ASSERT_TRUE(launched.ok()) << launched.error().message;
    CUDA_OK(cudaDeviceSynchronize());
    const auto y = d_y.download();
    for (size_t i = 0; i < rows.size(); ++i) {
      const std::vector<std::byte> got(y.begin() + static_cast<std::ptrdiff_t>(i) * bytes,
                                       y.begin() + static_cast<std::ptrdiff_t>(i + 1) * bytes);
      std::vector<std::byte> want(static_cast<size_t>(bytes), std::byte{0xff});
      if (rows[i] >= 0 && rows[i] < kFrom)
        want.assign(x.begin() + rows[i] * stride, x.begin() + rows[i] * stride + bytes);
      EXPECT_EQ(got, want) << "row " << i << " of " << bytes << " bytes";
    }
    EXPECT_TRUE(d_y.guards_intact());
  }
}

TEST(CudaRows, PartialsAreAddedAsTheHostDoes) {
  std::mt19937 rng(4);
  std::normal_distribution<float> normal;
  for (const int count : {1, 2, 8})
    for (const int width : {1, 6, 512, 2048})
      for (const bool add : {true, false}) {
        constexpr int kRows = 5;
        const int gap = width % 4 == 0 ? 4 : 3, row = width + gap, partial = (kRows + 1) * row;
        std::vector<float> partials(static_cast<size_t>(count * partial)), x(static_cast<size_t>(kRows * row), NAN);
        for (float& v : partials) v = normal(rng);
        if (add)
          for (float& v : x) v = normal(rng);
        DeviceBuffer<float> d_partials(partials), d_x(x);
        const cuda::ReducePartialsParams p{.partials = d_partials.data(),
                                           .count = count,
                                           .partial_stride = partial,
                                           .row_stride = row,
                                           .x = d_x.data(),
                                           .x_stride = row,
                                           .rows = kRows,
                                           .width = width,
                                           .add_to_x = add};
        const Status launched = cuda::launch_reduce_partials(nullptr, p);
        ASSERT_TRUE(launched.ok()) << launched.error().message;
        CUDA_OK(cudaDeviceSynchronize());
        for (int t = 0; t < kRows; ++t)
          for (int d = 0; d < width; ++d) {
            const auto at = [&](int i) { return partials[static_cast<size_t>(i * partial + t * row + d)]; };
            float sum = at(0);
            for (int i = 1; i < count; ++i) sum += at(i);
            float& want = x[static_cast<size_t>(t * row + d)];
            want = add ? want + sum : sum;
          }
        const std::vector<float> got = d_x.download();
        EXPECT_EQ(std::memcmp(got.data(), x.data(), x.size() * sizeof(float)), 0)
            << count << " partials of " << width << " columns";
        EXPECT_TRUE(d_x.guards_intact());
      }
}

TEST(CudaCopy, SlotsMoveWithinThePoolAndToTheHostAndBack) {
  std::mt19937 rng(3);
  for (const int64_t bytes : {16, 4096, 16384, 40976}) {
    for (const int64_t gap : {0, 48}) {
      constexpr int kSlots = 12;
      const int64_t stride = bytes + gap;
      const std::vector<std::byte> pool = random_bytes(static_cast<size_t>(kSlots * stride), rng);
      const std::vector<int32_t> pairs = {0, 11, 3, 2, 0, 5, -1, 7, 8, -1};
      DeviceBuffer<std::byte> d_pool(pool);
      DeviceBuffer<int32_t> d_pairs(pairs);
      const cuda::CopySlotsParams p{d_pool.data(), bytes, stride, d_pairs.data(), static_cast<int>(pairs.size() / 2)};
      ASSERT_TRUE(cuda::launch_copy_slots(nullptr, p).ok());
      std::vector<std::byte> want = pool;
      for (size_t i = 0; i < pairs.size(); i += 2)
        if (pairs[i] >= 0 && pairs[i + 1] >= 0)
          std::copy_n(pool.begin() + pairs[i] * stride, bytes, want.begin() + pairs[i + 1] * stride);
      CUDA_OK(cudaDeviceSynchronize());
      EXPECT_EQ(d_pool.download(), want);

      const std::vector<int32_t> out = {4, 5, 6, 1, 10}, in = {1, 2, 7, 8, 9};
      std::byte* host = nullptr;
      CUDA_OK(cudaMallocHost(reinterpret_cast<void**>(&host), out.size() * static_cast<size_t>(bytes)));
      cudaStream_t stream;
      CUDA_OK(cudaStreamCreate(&stream));
      ASSERT_TRUE(cuda::copy_slots_to_host(stream, d_pool.data(), bytes, stride, out, host).ok());
      ASSERT_TRUE(cuda::copy_slots_from_host(stream, d_pool.data(), bytes, stride, in, host).ok());
      CUDA_OK(cudaStreamSynchronize(stream));
      std::vector<std::byte> after = want;
      for (size_t i = 0; i < out.size(); ++i) {
        EXPECT_EQ(std::memcmp(host + static_cast<int64_t>(i) * bytes, &want[static_cast<size_t>(out[i] * stride)],
                              static_cast<size_t>(bytes)),
                  0);
        std::copy_n(want.begin() + out[i] * stride, bytes, after.begin() + in[i] * stride);
      }
      EXPECT_EQ(d_pool.download(), after);
      EXPECT_TRUE(d_pool.guards_intact());
      cudaStreamDestroy(stream);
      cudaFreeHost(host);
    }
  }
}

}  // namespace
}  // namespace quire::cuda_test
