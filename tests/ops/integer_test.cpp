// The arithmetic of the integer cores, by hand: what is an integer, what is summed exactly, and which float operations
// follow in which order. Every core must give these bits, so machines agree in products whatever their instructions.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/float.h"
#include "ops/gemm/repack.h"
#include "ops/linear/linear.h"
#include "quant/fp4.h"
#include "quant/iq4.h"

namespace quire {
namespace {

float half_at(const std::byte* p) {
  half h;
  std::memcpy(&h.bits, p, sizeof h.bits);
  return to_float(h);
}
int byte_at(const std::byte* p) {
  return std::to_integer<int>(*p);
}

// A row of weights as integers: weight = unit * factor * code + offset, or with d: d * factor * code - dmin * offset.
struct Row {
  int parts = 2;  // of 64 columns: 2 of 32 or 4 of 16
  float unit = 1.0f;
  bool super = false, offsets = false;
  std::vector<int> codes;
  std::vector<float> factor, offset;  // of each part
  std::vector<float> d, dmin;         // of each 256 columns
};

// Formats with blocks of 32 columns.
void read_block32(DType type, const std::byte* p, Row& row) {
  const bool minimum = type == DType::kQ4_1 || type == DType::kQ5_1;
  const bool fifth = type == DType::kQ5_0 || type == DType::kQ5_1;
  row.offsets = minimum;
  row.factor.push_back(type == DType::kMXFP4 ? quant::decode_e8m0(static_cast<uint8_t>(byte_at(p))) : half_at(p));
  row.offset.push_back(minimum ? half_at(p + 2) : 0.0f);
  p += type == DType::kMXFP4 ? 1 : minimum ? 4 : 2;
  uint32_t bits = 0;
  if (fifth) std::memcpy(&bits, p, 4), p += 4;
  for (int i = 0; i < 32; ++i) {
    if (type == DType::kQ8_0) {
      row.codes.push_back(static_cast<int8_t>(byte_at(p + i)));
      continue;
    }
    const int nibble = byte_at(p + i % 16) >> (i / 16 * 4) & 15;
    if (type == DType::kMXFP4)
      row.codes.push_back(quant::kE2m1Doubled[nibble]);
    else if (type == DType::kIQ4_NL)
      row.codes.push_back(quant::kIq4Values[nibble]);
    else
      row.codes.push_back((nibble | static_cast<int>(bits >> i & 1) << 4) - (minimum ? 0 : fifth ? 16 : 8));
  }
  if (type == DType::kMXFP4) row.unit = 0.5f;
}

void read_nvfp4(const std::byte* p, Row& row) {
  row.parts = 4;
  row.unit = 0x1p7f;
  for (int g = 0; g < 4; ++g) {
    row.factor.push_back(quant::decode_ue4m3(static_cast<uint8_t>(byte_at(p + g))) * 0x1p-8f);
    row.offset.push_back(0.0f);
    for (int i = 0; i < 16; ++i)
      row.codes.push_back(quant::kE2m1Doubled[byte_at(p + 4 + 8 * g + i % 8) >> (i / 8 * 4) & 15]);
  }
}

void read_q45k(bool fifth, const std::byte* p, Row& row) {
  row.super = row.offsets = true;
  row.d.push_back(half_at(p));
  row.dmin.push_back(half_at(p + 2));
  const auto six = [&](int k) { return byte_at(p + 4 + k); };
  for (int j = 0; j < 8; ++j) {
    const int scale = j < 4 ? six(j) & 63 : (six(j + 4) & 15) | (six(j - 4) >> 6 << 4);
    const int minimum = j < 4 ? six(j + 4) & 63 : six(j + 4) >> 4 | (six(j) >> 6 << 4);
    row.factor.push_back(static_cast<float>(scale));
    row.offset.push_back(static_cast<float>(minimum));
    for (int i = 0; i < 32; ++i) {
      const int nibble = byte_at(p + (fifth ? 48 : 16) + j / 2 * 32 + i) >> (j % 2 * 4) & 15;
      row.codes.push_back(nibble | (fifth ? (byte_at(p + 16 + i) >> j & 1) << 4 : 0));
    }
  }
}

void read_q6k(const std::byte* p, Row& row) {
  row.parts = 4;
  row.super = true;
  row.d.push_back(half_at(p + 208));
  row.dmin.push_back(0.0f);
  for (int i = 0; i < 256; ++i) {
    const int in_half = i % 128, low = byte_at(p + i / 128 * 64 + in_half % 64) >> (in_half / 64 * 4) & 15;
    const int top = byte_at(p + 128 + i / 128 * 32 + in_half % 32) >> (in_half / 32 * 2) & 3;
    row.codes.push_back((low | top << 4) - 32);
    if (i % 16 != 0) continue;
    row.factor.push_back(static_cast<float>(static_cast<int8_t>(byte_at(p + 192 + i / 16))));
    row.offset.push_back(0.0f);
  }
}

// Sixteen sub-blocks of 16, two bits of a code in the bytes at `codes`.
void read_crumbs(const std::byte* codes, Row& row) {
  row.parts = 4;
  row.super = true;
  for (int i = 0; i < 256; ++i) row.codes.push_back(byte_at(codes + i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3);
}
void read_q2k(const std::byte* p, Row& row) {
  read_crumbs(p + 16, row);
  row.offsets = true;
  row.d.push_back(half_at(p + 80));
  row.dmin.push_back(half_at(p + 82));
  for (int j = 0; j < 16; ++j) {
    row.factor.push_back(static_cast<float>(byte_at(p + j) & 15));
    row.offset.push_back(static_cast<float>(byte_at(p + j) >> 4));
  }
}
void read_q3k(const std::byte* p, Row& row) {
  const size_t first = row.codes.size();
  read_crumbs(p + 32, row);
  for (size_t i = 0; i < 256; ++i)
    if ((byte_at(p + i % 32) >> (i / 32) & 1) == 0) row.codes[first + i] -= 4;
  row.d.push_back(half_at(p + 108));
  row.dmin.push_back(0.0f);
  for (int j = 0; j < 16; ++j) {
    const int low = byte_at(p + 96 + j % 8) >> (j / 8 * 4) & 15, high = byte_at(p + 104 + j % 4) >> (j / 4 * 2) & 3;
    row.factor.push_back(static_cast<float>((low | high << 4) - 32));
    row.offset.push_back(0.0f);
  }
}
void read_iq4_xs(const std::byte* p, Row& row) {
  row.super = true;
  row.d.push_back(half_at(p));
  row.dmin.push_back(0.0f);
  for (int j = 0; j < 8; ++j) {
    const int low = byte_at(p + 4 + j / 2) >> (j % 2 * 4) & 15, high = byte_at(p + 2 + j / 4) >> (j % 4 * 2) & 3;
    row.factor.push_back(static_cast<float>((low | high << 4) - 32));
    row.offset.push_back(0.0f);
    for (int i = 0; i < 32; ++i)
      row.codes.push_back(quant::kIq4Values[byte_at(p + 8 + 16 * j + i % 16) >> (i / 16 * 4) & 15]);
  }
}

Row read_row(const Weight& w, int64_t r) {
  Row row;
  const std::byte* p = w.row(r);
  const DTypeInfo& info = dtype_info(w.dtype);
  for (int64_t at = 0; at < w.cols; at += info.block_elems, p += info.block_bytes) {
    if (w.dtype == DType::kNVFP4)
      read_nvfp4(p, row);
    else if (w.dtype == DType::kQ4_K || w.dtype == DType::kQ5_K)
      read_q45k(w.dtype == DType::kQ5_K, p, row);
    else if (w.dtype == DType::kQ6_K)
      read_q6k(p, row);
    else if (w.dtype == DType::kQ2_K)
      read_q2k(p, row);
    else if (w.dtype == DType::kQ3_K)
      read_q3k(p, row);
    else if (w.dtype == DType::kIQ4_XS)
      read_iq4_xs(p, row);
    else
      read_block32(w.dtype, p, row);
  }
  return row;
}

// A token: integers of 11 bits, and a scale for 32 of them.
struct Token {
  std::vector<int> q;
  std::vector<float> scale;
};
Token read_token(const bf16* x, int64_t cols) {
  Token t;
  for (int64_t first = 0; first < cols; first += 32) {
    float largest = 0.0f;
    for (int64_t i = first; i < first + 32; ++i) largest = std::max(largest, std::abs(to_float(x[i])));
    const bool kept = largest >= 0x1p-116f;
    const float reciprocal = 1016.0f / (kept ? largest : 1.0f);
    t.scale.push_back(kept ? largest / 1016.0f : 0.0f);
    for (int64_t i = first; i < first + 32; ++i)
      t.q.push_back(kept ? static_cast<int>(std::nearbyint(to_float(x[i]) * reciprocal)) : 0);
  }
  return t;
}

float product(const Row& row, const Token& x) {
  const int columns = 64 / row.parts;
  std::array<float, 4> acc{}, of_unit{}, offsets{};
  for (size_t part = 0; part < row.factor.size(); ++part) {
    const size_t lane = part % static_cast<size_t>(row.parts), first = part * static_cast<size_t>(columns);
    int sum = 0, values = 0;
    for (size_t i = first; i < first + static_cast<size_t>(columns); ++i)
      sum += row.codes[i] * x.q[i], values += x.q[i];
    const float scale = x.scale[first / 32], minus_value = -static_cast<float>(values) * scale;
    float& to = row.super ? of_unit[lane] : acc[lane];
    to = std::fma(static_cast<float>(sum), row.factor[part] * scale, to);
    if (row.offsets && row.super) offsets[lane] = std::fma(row.offset[part], minus_value, offsets[lane]);
    if (row.offsets && !row.super) acc[lane] = std::fma(-row.offset[part], minus_value, acc[lane]);
    const bool last = (first + static_cast<size_t>(columns)) % 256 == 0;
    if (!row.super || !last) continue;
    for (size_t i = 0; i < static_cast<size_t>(row.parts); ++i) {
      acc[i] = std::fma(row.d[first / 256], of_unit[i], acc[i]);
      if (row.offsets) acc[i] = std::fma(row.dmin[first / 256], offsets[i], acc[i]);
      of_unit[i] = offsets[i] = 0.0f;
    }
  }
  return row.unit * (row.parts == 2 ? acc[0] + acc[1] : (acc[0] + acc[2]) + (acc[1] + acc[3]));
}

// Random bits with halves of moderate size, as real scales are.
std::vector<std::byte> random_blocks(DType type, int64_t elems, std::mt19937& random) {
  std::vector<std::byte> bytes(static_cast<size_t>(dtype_bytes(type, elems)));
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  const auto block = static_cast<size_t>(dtype_info(type).block_bytes);
  for (size_t at = 0; at < bytes.size(); at += block) {
    const auto put = [&](size_t where) {
      const half h = to_half(std::ldexp(static_cast<float>(random() % 2048) - 1024.0f, -14));
      std::memcpy(bytes.data() + at + where, &h.bits, 2);
    };
    if (type == DType::kMXFP4)
      bytes[at] = static_cast<std::byte>(100 + random() % 40);
    else if (type == DType::kQ6_K)
      put(208);
    else if (type == DType::kQ3_K)
      put(108);
    else if (type == DType::kQ2_K)
      put(80), put(82);
    else if (type != DType::kNVFP4)
      put(0);
    if (type == DType::kQ4_1 || type == DType::kQ5_1 || type == DType::kQ4_K || type == DType::kQ5_K) put(2);
  }
  return bytes;
}

void expect_product_by_hand(const Kernel<LinearArgs>& kernel, const Weight& w, const std::vector<bf16>& x,
                            int64_t tokens, ThreadPool& pool) {
  Workspace workspace;
  const OpContext ctx{pool, workspace};
  std::vector<float> y(static_cast<size_t>(tokens * w.rows), NAN);
  const LinearPart part{w, {}, make_tensor(y.data(), {tokens, w.rows}), false};
  const LinearArgs args{make_tensor(x.data(), {tokens, w.cols}), {part}, tokens};
  ASSERT_TRUE(kernel.fits(ctx.machine, args));
  kernel.launch(ctx, args);
  for (int64_t t = 0; t < tokens; ++t) {
    const Token token = read_token(x.data() + t * w.cols, w.cols);
    for (int64_t r = 0; r < w.rows; ++r)
      ASSERT_EQ(y[static_cast<size_t>(t * w.rows + r)], product(read_row(w, r), token))
          << dtype_name(w.dtype) << (w.repacked == nullptr ? "" : " repacked") << ", row " << r << " of " << w.rows
          << ", token " << t << " of " << tokens;
  }
}

class IntegerCores : public testing::TestWithParam<const char*> {};

TEST_P(IntegerCores, GiveTheBitsOfTheArithmeticByHand) {
  const Kernel<LinearArgs>* kernel = nullptr;
  for (const Kernel<LinearArgs>& k : kLinearOp.kernels)
    if (k.name == GetParam()) kernel = &k;
  ASSERT_NE(kernel, nullptr);
  if (!reaches(Machine{}, kernel->needs)) GTEST_SKIP() << kernel->name << " needs " << describe(kernel->needs);
  ThreadPool pool(2);
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (const DType type :
       {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K,
        DType::kMXFP4, DType::kNVFP4, DType::kQ2_K, DType::kQ3_K, DType::kIQ4_NL, DType::kIQ4_XS}) {
    for (const auto& [tokens, rows] : {std::pair{1, 48}, {2, 16}, {7, 37}}) {
      const int64_t cols = dtype_info(type).block_elems == 32 && tokens > 1 ? 608 : 768;
      const std::vector<std::byte> bytes = random_blocks(type, rows * cols, random);
      const Weight w{type, bytes.data(), rows, cols};
      std::vector<bf16> x(static_cast<size_t>(tokens * cols));
      for (bf16& v : x) v = to_bf16(normal(random));
      std::fill_n(x.begin() + 32, 32, bf16{});  // of which all are zero
      ASSERT_NO_FATAL_FAILURE(expect_product_by_hand(*kernel, w, x, tokens, pool));
      const auto copies = RepackedWeights::create({&w, 1}, pool).value();
      ASSERT_NE(copies->find(w).repacked, nullptr);
      ASSERT_NO_FATAL_FAILURE(expect_product_by_hand(*kernel, copies->find(w), x, tokens, pool));
    }
  }
}

const std::vector<const char*> kIntegerKernels = kOnX86
                                                     ? std::vector{"integer", "integer_avxvnni", "integer_avx2"}
                                                     : std::vector{"integer_i8mm", "integer_dotprod", "integer_neon"};
INSTANTIATE_TEST_SUITE_P(Kernels, IntegerCores, testing::ValuesIn(kIntegerKernels),
                         [](const auto& kernel) { return std::string(kernel.param); });

}  // namespace
}  // namespace quire
