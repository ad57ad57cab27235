// The order of repacked weights, word by word, and which matrices have a copy.
#include "ops/gemm/repack.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace quire {
namespace {

struct Matrix {
  std::vector<std::byte> bytes;
  Weight weight;

  Matrix(DType type, int64_t rows, int64_t cols, int64_t experts = 1)
      : bytes(static_cast<size_t>(dtype_bytes(type, rows * cols * experts))) {
    std::mt19937 rng(static_cast<unsigned>(rows * cols));
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
    weight = {type, bytes.data(), rows, cols, experts};
  }
  const std::byte* block(int64_t row, int64_t expert, int64_t index) const {
    return weight.row(row, expert) + index * dtype_info(weight.dtype).block_bytes;
  }
};

class Repack : public testing::Test {
 protected:
  std::unique_ptr<RepackedWeights> copies(std::span<const Weight> weights) {
    auto made = RepackedWeights::create(weights, pool_);
    EXPECT_TRUE(made.ok());
    return std::move(made).value();
  }
  ThreadPool pool_{2};
};

// Byte `at` of the unit of a row, in the group of 16 rows that begins at `group`.
std::byte byte_of(const std::byte* group, int64_t row, int64_t unit_words, int64_t unit, int64_t at) {
  return group[((unit * unit_words + at / 4) * 16 + row) * 4 + at % 4];
}

TEST_F(Repack, PutsWordsOfSixteenRowsSideBySide) {
  constexpr int64_t kRows = 37, kUnits = 3, kExperts = 2;
  for (const auto& [type, words] : {std::pair{DType::kNVFP4, 9},
                                    {DType::kQ4_K, 36},
                                    {DType::kQ5_K, 44},
                                    {DType::kQ2_K, 21},
                                    {DType::kQ3_K, 28},
                                    {DType::kIQ4_XS, 34}}) {
    const int64_t columns = dtype_info(type).block_elems, bytes = dtype_info(type).block_bytes;
    const Matrix m(type, kRows, kUnits * columns, kExperts);
    const auto all = copies({&m.weight, 1});
    const Weight w = all->find(m.weight);
    ASSERT_NE(w.repacked, nullptr);
    const int64_t group_bytes = gemm::repacked_group_bytes(type, w.cols);
    EXPECT_EQ(group_bytes, kUnits * words * 64);
    EXPECT_EQ(all->bytes(), kExperts * 3 * group_bytes);
    EXPECT_EQ(all->bytes(), RepackedWeights::bytes_for({&m.weight, 1}));
    for (int64_t e = 0; e < kExperts; ++e)
      for (int64_t r = 0; r < 48; ++r)
        for (int64_t u = 0; u < kUnits; ++u)
          for (int64_t i = 0; i < 4 * words; ++i) {
            const std::byte want = r < kRows && i < bytes ? m.block(r, e, u)[i] : std::byte{0};
            ASSERT_EQ(byte_of(gemm::repacked_group(w, e, r / 16 * 16, group_bytes), r % 16, words, u, i), want)
                << dtype_name(type) << " expert " << e << " row " << r << " unit " << u << " byte " << i;
          }
  }
}

TEST_F(Repack, CollectsFieldsOfSeveralBlocks) {
  // A row of three blocks fills one and a half units; Q8_0's codes lose their sign.
  const Matrix m(DType::kQ8_0, 16, 96);
  const auto all = copies({&m.weight, 1});
  const std::byte* const group = all->find(m.weight).repacked;
  for (int64_t r = 0; r < 16; ++r)
    for (int64_t b = 0; b < 4; ++b) {
      for (int64_t i = 0; i < 2; ++i)
        ASSERT_EQ(byte_of(group, r, 17, b / 2, b % 2 * 2 + i), b < 3 ? m.block(r, 0, b)[i] : std::byte{0});
      for (int64_t i = 0; i < 32; ++i)
        ASSERT_EQ(byte_of(group, r, 17, b / 2, 4 + b % 2 * 32 + i),
                  (b < 3 ? m.block(r, 0, b)[2 + i] : std::byte{0}) ^ std::byte{0x80});
    }
  // IQ4_NL: two scales, two times 16 bytes.
  const Matrix n(DType::kIQ4_NL, 16, 96);
  const auto of_n = copies({&n.weight, 1});
  for (int64_t r = 0; r < 16; ++r)
    for (int64_t b = 0; b < 4; ++b)
      for (int64_t i = 0; i < 18; ++i)
        ASSERT_EQ(byte_of(of_n->find(n.weight).repacked, r, 9, b / 2, i < 2 ? b % 2 * 2 + i : 4 + b % 2 * 16 + i - 2),
                  b < 3 ? n.block(r, 0, b)[i] : std::byte{0});
  // Q5_1: two scales, two minima, two words of fifth bits, two times 16 bytes.
  const Matrix q(DType::kQ5_1, 5, 64);
  const auto of_q = copies({&q.weight, 1});
  const std::byte* const words = of_q->find(q.weight).repacked;
  const int64_t begin[4] = {0, 4, 8, 16}, from[4] = {0, 2, 4, 8}, bytes[4] = {2, 2, 4, 16};
  for (int64_t r = 0; r < 5; ++r)
    for (int64_t b = 0; b < 2; ++b)
      for (int f = 0; f < 4; ++f)
        for (int64_t i = 0; i < bytes[f]; ++i)
          ASSERT_EQ(byte_of(words, r, 12, 0, begin[f] + b * bytes[f] + i), q.block(r, 0, b)[from[f] + i]);
}

TEST_F(Repack, KnowsItsMatrices) {
  const Matrix a(DType::kQ4_0, 40, 64, 3), b(DType::kMXFP4, 16, 128), plain(DType::kBF16, 16, 64);
  const Weight weights[] = {a.weight, plain.weight, {}, b.weight, a.weight};
  const auto all = copies(weights);
  EXPECT_EQ(all->bytes(), 3 * 3 * (9 * 64) + 17 * 64) << "each once, the others not";
  const Weight found = all->find(a.weight);
  EXPECT_NE(found.repacked, nullptr);
  EXPECT_NE(all->find(b.weight).repacked, nullptr);
  EXPECT_EQ(all->find(plain.weight).repacked, nullptr);
  EXPECT_EQ(all->find({}).repacked, nullptr);
  // Views of a matrix are other matrices, also those that begin where it does.
  EXPECT_EQ(all->find(a.weight.row_slice(0, 16)).repacked, nullptr);
  EXPECT_EQ(all->find(a.weight.row_slice(16, 24)).repacked, nullptr);
  EXPECT_EQ(all->find(a.weight.expert_slice(0)).repacked, nullptr);
  EXPECT_EQ(found.row_slice(0, 16).repacked, nullptr);
  EXPECT_EQ(found.expert_slice(1).repacked, nullptr);
  // A slice that was given has its own copy.
  const Weight slice = a.weight.row_slice(8, 20);
  const auto of_slice = copies({&slice, 1});
  EXPECT_NE(of_slice->find(slice).repacked, nullptr);
  EXPECT_EQ(of_slice->find(a.weight.row_slice(8, 21)).repacked, nullptr);
  EXPECT_EQ(copies({&plain.weight, 1})->bytes(), 0);
}

}  // namespace
}  // namespace quire
