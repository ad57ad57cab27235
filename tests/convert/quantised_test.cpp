// Model folders with FP8, NVFP4, MXFP4 and 4-bit integer weights. Each model is written twice with random codes:
// quantised, and as the float32 values that the codes stand for, worked out here from the layouts' definitions. Scales
// have few significant bits, so that both give the same numbers exactly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "convert/convert.h"
#include "convert/matrix.h"
#include "convert/open.h"
#include "convert/produce.h"
#include "convert/random_matrix.h"
#include "gguf/reader.h"
#include "quant/format.h"
#include "support/bytes.h"
#include "support/hf_folder.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

struct Case {
  std::string model;
  Layout layout;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model << ' ' << kLayoutNames[static_cast<int>(c.layout)];
}
class QuantisedFolder : public testing::TestWithParam<Case> {};

TEST_P(QuantisedFolder, HoldsTheSameValues) {
  const Case& c = GetParam();
  TinyModel m;
  for (const TinyModel& t : tiny_models())
    if (t.name == c.model) m = t;
  constexpr unsigned kSeed = 20;
  const auto [quantised, plain, linears] = quantise(m, c.layout, kSeed);  // not: see FallsBackWhereBlocksDoNotFit
  ASSERT_GT(linears, 10);
  const HfFolder folder(m);
  folder.write("model.safetensors", safetensors_file(plain));
  const gguf::File want = convert_folder(folder, "plain.gguf");
  folder.write("model.safetensors", safetensors_file(quantised));
  convert::ConvertSummary summary;
  const gguf::File got = convert_folder(folder, "quantised.gguf", &summary);

  const bool nvfp4 = c.layout == Layout::kModelOpt || c.layout == Layout::kCompressedTensors;
  int64_t kept = 0;
  for (const gguf::TensorInfo& a : want.tensors()) {
    SCOPED_TRACE(std::string(a.name));
    const gguf::TensorInfo* b = got.find_tensor(a.name);
    ASSERT_NE(b, nullptr);
    EXPECT_EQ(a.dims, b->dims);
    std::vector<float> x = values_of(want, a);
    const std::vector<float> y = values_of(got, *b);
    if (b->dtype == DType::kBF16)
      for (float& v : x) v = to_float(to_bf16(v));
    EXPECT_TRUE(x == y) << "seed " << kSeed;
    if (b->dtype == DType::kMXFP4 || b->dtype == DType::kQ4_0 || b->dtype == DType::kQ5_0) ++kept;
    if (b->dtype != DType::kNVFP4) continue;
    ++kept;
    const std::string stem(a.name.substr(0, a.name.size() - 7));
    const gguf::TensorInfo* input = got.find_tensor(stem + ".input_scale");
    ASSERT_NE(input, nullptr);
    EXPECT_EQ(input->elems(), a.dims[2]);
  }
  if (nvfp4 || c.layout == Layout::kMxfp4 || c.layout >= Layout::kPacked) {
    EXPECT_GT(kept, 5);
  } else {
    EXPECT_THAT(summary.notes.at(0), HasSubstr("FP8 matrices are decoded to bf16"));
  }
  if (nvfp4) {
    EXPECT_EQ(got.get_u32("general.file_type").value(), 39u);
  }
  // And the folder itself holds what its file holds.
  const auto opened = convert::open_model(folder.path(), {.keep_fp8 = false, .threads = 2});
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  ASSERT_EQ(opened->tensors().size(), got.tensors().size());
  for (const gguf::TensorInfo& a : got.tensors()) {
    const gguf::TensorInfo* const b = opened->find_tensor(a.name);
    ASSERT_TRUE(b != nullptr && b->dtype == a.dtype && b->bytes == a.bytes) << a.name;
    EXPECT_EQ(std::memcmp(a.data, b->data, static_cast<size_t>(a.bytes)), 0) << a.name;
  }
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const char* model : {"tiny-llama", "tiny-mixtral", "tiny-qwen3", "tiny-qwen3moe", "tiny-qwen35"})
    for (const Layout layout :
         {Layout::kModelOpt, Layout::kCompressedTensors, Layout::kMxfp4, Layout::kFp8Block, Layout::kFp8Row,
          Layout::kFp8Tensor, Layout::kPacked, Layout::kPackedZeros, Layout::kGptq, Layout::kGptq8, Layout::kAwq})
      out.push_back({model, layout});
  return out;
}
INSTANTIATE_TEST_SUITE_P(All, QuantisedFolder, testing::ValuesIn(cases()), [](const auto& c) {
  return c.param.model.substr(std::strlen("tiny-")) + kLayoutNames[static_cast<int>(c.param.layout)];
});

TEST(Quantised, FallsBackWhereBlocksDoNotFit) {
  const TinyModel m = tiny_models()[0];  // its FFN is 112 wide
  std::mt19937 random(7);
  std::vector<SafeTensor> tensors;
  std::vector<float> want;
  for (SafeTensor& t : safe_tensors(m)) {
    if (t.name != "model.layers.1.mlp.down_proj.weight") {
      tensors.push_back(std::move(t));
      continue;
    }
    RandomMatrix made(Layout::kModelOpt, "model.layers.1.mlp.down_proj", t.shape[0], t.shape[1], random);
    for (SafeTensor& part : made.tensors) tensors.push_back(std::move(part));
    const SafeTensor plain = made.plain();
    want.resize(plain.bytes.size() / 4);
    std::memcpy(want.data(), plain.bytes.data(), plain.bytes.size());
  }
  const HfFolder folder(m);
  folder.write("model.safetensors", safetensors_file(tensors));
  convert::ConvertSummary summary;
  const gguf::File got = convert_folder(folder, "m.gguf", &summary);
  ASSERT_EQ(summary.notes.size(), 1u);
  EXPECT_THAT(summary.notes[0], HasSubstr("1 4-bit (rows that make no whole blocks"));
  const gguf::TensorInfo* t = got.find_tensor("blk.1.ffn_down.weight");
  EXPECT_EQ(t->dtype, DType::kBF16);
  EXPECT_EQ(got.find_tensor("blk.1.ffn_down.scale"), nullptr) << "multiplied in";
  for (float& v : want) v = to_float(to_bf16(v));
  EXPECT_EQ(values_of(got, *t), want);
}

TEST(Quantised, SingleExpertsAreStackedAsPackedOnesAre) {
  for (const TinyModel& m : tiny_models()) {
    if (m.experts == 0 || m.gpt_oss()) continue;  // gpt-oss has them stacked alone
    SCOPED_TRACE(m.name);
    const HfFolder folder(m);
    const gguf::File packed = convert_folder(folder, "packed.gguf");
    folder.write("model.safetensors", safetensors_file(unpack_experts(m)));
    const gguf::File single = convert_folder(folder, "single.gguf");
    ASSERT_EQ(packed.tensors().size(), single.tensors().size());
    for (const gguf::TensorInfo& a : packed.tensors()) {
      const gguf::TensorInfo* b = single.find_tensor(a.name);
      ASSERT_NE(b, nullptr) << a.name;
      ASSERT_EQ(a.bytes, b->bytes) << a.name;
      EXPECT_EQ(std::memcmp(a.data, b->data, static_cast<size_t>(a.bytes)), 0) << a.name;
    }
  }
}

TEST(Quantised, MovesOnlyBits) {
  // Codes 0..15 in order, then 48 zeros; scale bytes 38, ff (a sign, which is dropped), 40, 01.
  const auto codes = from_hex("10 32 54 76 98 ba dc fe" + std::string(48, '0')), scales = from_hex("38 ff 40 01");
  std::vector<std::byte> out(36);
  convert::repack_nvfp4_row(codes.data(), scales.data(), 64, {}, out.data());
  EXPECT_EQ(out, from_hex("38 7f 40 01 80 91 a2 b3 c4 d5 e6 f7" + std::string(48, '0')));
  const int64_t order[] = {3, 0, 1, 2};
  convert::repack_nvfp4_row(codes.data(), scales.data(), 64, order, out.data());
  EXPECT_EQ(out, from_hex("01 38 7f 40" + std::string(16, '0') + "80 91 a2 b3 c4 d5 e6 f7" + std::string(32, '0')));

  const auto wide = from_hex("10 32 54 76 98 ba dc fe 01 23 45 67 89 ab cd ef");
  std::vector<std::byte> block(17);
  const std::byte e{0x7c};
  convert::repack_mxfp4_row(wide.data(), &e, 32, {}, block.data());
  EXPECT_EQ(block, from_hex("7c 10 01 32 23 54 45 76 67 98 89 ba ab dc cd fe ef"));
}

TEST(Quantised, RoundsOnce) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> mantissa(-2, 2);
  std::uniform_int_distribution<int> exponent(-30, 30);
  const auto nearest = [](double x, float low) {  // of the bf16 beside `low`, by distance
    const uint32_t bits = std::bit_cast<uint32_t>(low) & 0xffff0000U;
    const float a = std::bit_cast<float>(bits), b = std::bit_cast<float>(bits + 0x10000U);
    const double da = std::fabs(x - a), db = std::fabs(x - b);
    if (da == db) return (bits & 0x10000U) == 0 ? a : b;
    return da < db ? a : b;
  };
  for (int i = 0; i < 200'000; ++i) {
    // A third of them next to halfway between two bf16, where rounding to float32 first goes wrong.
    double x = std::ldexp(mantissa(random), exponent(random));
    if (i % 3 == 0) {
      const float half = std::bit_cast<float>((std::bit_cast<uint32_t>(static_cast<float>(x)) & 0xffff0000U) | 0x8000U);
      x = half * (1 + std::ldexp(mantissa(random), -30));
    }
    const float odd = convert::round_to_odd(x);
    float toward = static_cast<float>(x);
    if (std::fabs(static_cast<double>(toward)) > std::fabs(x))
      toward = std::bit_cast<float>(std::bit_cast<uint32_t>(toward) - 1);
    ASSERT_EQ(to_float(to_bf16(odd)), nearest(x, toward)) << x;
  }
  EXPECT_EQ(convert::round_to_odd(0.75), 0.75F);
  EXPECT_EQ(convert::round_to_odd(-0.0), -0.0F);
}

// One linear map of [2, 64] in tensors that do not fit together.
TEST(Quantised, RefusesScalesThatDoNotFit) {
  const auto raw = [](const char* name, const char* dtype, std::vector<int64_t> shape, size_t bytes, char fill = 0x38) {
    return SafeTensor{name, dtype, std::move(shape), std::string(bytes, fill)};
  };
  const auto number = [](const char* name, float x) { return safe_tensor(name, "F32", {1}, std::vector<float>{x}); };
  const SafeTensor codes = raw("l.weight", "U8", {2, 32}, 64), scales = raw("l.weight_scale", "F8_E4M3", {2, 4}, 8);
  const SafeTensor fp8 = raw("l.weight", "F8_E4M3", {2, 64}, 128);
  struct BadScales {
    std::vector<SafeTensor> tensors;
    const char* reason;
  };
  const std::vector<BadScales> bad = {
      {{codes}, "has 4-bit codes, but there is no l.weight_scale"},
      {{codes, scales}, "neither l.weight_scale_2 nor l.weight_global_scale"},
      {{codes, scales, number("l.weight_scale_2", 0)}, "scale 0 is not positive"},
      {{codes, scales, number("l.weight_global_scale", NAN)}, "scale nan is not positive"},
      {{codes, scales, safe_tensor("l.weight_scale_2", "F32", {2}, std::vector<float>{1, 1})}, "is not one number"},
      {{codes, raw("l.weight_scale", "F8_E4M3", {2, 4}, 8, '\x7f')}, "scale code 0x7f is negative or not a number"},
      {{codes, raw("l.weight_scale", "F8_E4M3", {2, 4}, 8, '\x91')}, "scale code 0x91 is negative or not a number"},
      {{codes, raw("l.weight_scale", "F8_E8M0", {2, 2}, 4, '\xff')}, "scale code 0xff is negative or not a number"},
      {{codes, raw("l.weight_scale", "F8_E4M3", {2, 3}, 6)}, "[2, 3] scales do not make the [2, 64]"},
      {{codes, raw("l.weight_scale", "I8", {2, 4}, 8)}, "neither NVFP4's (F8_E4M3) nor MXFP4's"},
      {{raw("l.weight", "U8", {2, 16}, 32), scales}, "do not make the [2, 64]"},
      {{fp8}, "no l.weight_scale_inv and no l.weight_scale"},
      {{fp8, safe_tensor("l.weight_scale_inv", "F32", {3, 1}, std::vector<float>{1, 1, 1})},
       "does not scale 1 matrices"},
      {{fp8, raw("l.weight_scale", "I32", {2, 1}, 8)}, "scales of type I32 cannot be read"},
      {{raw("l.weight_packed", "I32", {2, 8}, 64), scales}, "type F8_E4M3 cannot be read here"},
      {{raw("l.weight_packed", "I32", {2, 8}, 64)}, "there is no l.weight_scale"},
      {{raw("l.weight_packed", "I32", {2, 16}, 128), scales},
       "[2, 16] words do not hold the 4-bit codes of the [2, 64]"},
      {{raw("l.weight_packed", "I32", {2, 8}, 64), raw("l.weight_scale", "F16", {2, 3}, 12)},
       "does not scale groups of 64 columns"},
      {{raw("l.qweight", "I32", {8, 2}, 64)}, "as neither GPTQ nor AWQ packs them"},
      {{raw("l.weight", "I32", {2, 64}, 512)}, "type I32 holds no weights"},
  };
  for (const BadScales& c : bad) {
    SCOPED_TRACE(c.reason);
    const std::string file = safetensors_file(c.tensors);
    const auto weights = convert::FolderWeights::parse(std::as_bytes(std::span(file)));
    ASSERT_TRUE(weights.ok()) << weights.error().message;
    convert::Source source(*weights);
    const auto m = source.linear("l", 2, 64);
    ASSERT_FALSE(m.ok());
    EXPECT_THAT(m.error().message, HasSubstr(c.reason));
  }
}

TEST(Quantised, RefusesCodesThatAreNotNumbers) {
  const TinyModel m = tiny_models()[0];
  std::vector<SafeTensor> tensors;
  for (SafeTensor& t : safe_tensors(m)) {
    if (t.name == "model.layers.1.mlp.down_proj.weight") {
      const size_t n = t.bytes.size() / 2;
      tensors.push_back({t.name, "F8_E4M3", t.shape, std::string(n - 1, 0x38) + '\x7f'});
      tensors.push_back(safe_tensor(t.name + "_scale", "F32", {}, std::vector<float>{1}));
      continue;
    }
    tensors.push_back(std::move(t));
  }
  const HfFolder folder(m);
  folder.write("model.safetensors", safetensors_file(tensors));
  const auto s = convert::convert({.folder = folder.path(), .output = folder.path("m.gguf")});
  ASSERT_FALSE(s.ok());
  EXPECT_THAT(s.error().message, HasSubstr("1 tensor holds NaN or infinity: 'model.layers.1.mlp.down_proj.weight'"));
  EXPECT_FALSE(std::filesystem::exists(folder.path("m.gguf")));
}

// Packed FP8 experts: one grid of block scales for each, the gate and `up` halves of it each with their own
// rows.
TEST(Quantised, PackedFp8ExpertsHaveAGridEach) {
  constexpr int64_t kExperts = 2, kRows = 256, kCols = 130;
  std::vector<uint8_t> codes(kExperts * kRows * kCols, 0x38);  // 1.0
  const std::vector<float> scales = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::string file =
      safetensors_file({safe_tensor("x.experts.gate_up_proj", "F8_E4M3", {kExperts, kRows, kCols}, codes),
                        safe_tensor("x.experts.gate_up_proj_scale_inv", "F32", {kExperts, kRows / 128, 2}, scales)});
  const auto weights = convert::FolderWeights::parse(std::as_bytes(std::span(file)));
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  convert::Source source(*weights);
  const auto m = source.tensor("x.experts.gate_up_proj", kExperts * kRows, kCols);
  ASSERT_TRUE(m.ok()) << m.error().message;
  std::vector<double> row(kCols);
  const convert::Matrix up = m->slice(kRows + 128, 128);  // of the second expert
  convert::decode_row(up, 127, row.data());
  EXPECT_EQ(row[127], 7);
  EXPECT_EQ(row[128], 8);
  convert::decode_row(*m, 127, row.data());
  EXPECT_EQ(row[0], 1);
  EXPECT_TRUE(source.unused().empty());
}

// Of Qwen3-VL's experts: codes and scales of the transpose, whose rows the gate and `up` share.
TEST(Quantised, TransposedFp8ExpertsHaveTransposedScales) {
  constexpr int64_t kExperts = 2, kRows = 256, kCols = 130;
  std::vector<uint8_t> codes(kExperts * kRows * kCols, 0x38);  // 1.0
  codes[(kCols + 128) * kRows + 255] = 0x40;                   // 2.0: of the second expert row 255, column 128
  const std::vector<float> scales = {1, 2, 3, 4, 5, 6, 7, 8};  // of each expert columns 0 and 128, of these the rows
  const auto of = [&](std::vector<float> s, std::vector<int64_t> shape, auto&& see) {
    const std::string file =
        safetensors_file({safe_tensor("x.experts.gate_up_proj", "F8_E4M3", {kExperts, kCols, kRows}, codes),
                          safe_tensor("x.experts.gate_up_proj_scale_inv", "F32", std::move(shape), s)});
    const auto weights = convert::FolderWeights::parse(std::as_bytes(std::span(file)));
    ASSERT_TRUE(weights.ok()) << weights.error().message;
    convert::Source source(*weights);
    see(source.transposed_experts("x.experts.gate_up_proj", kExperts, kRows, kCols));
    EXPECT_TRUE(source.unused().empty());
  };
  std::vector<double> row(kCols);
  of(scales, {kExperts, 2, kRows / 128}, [&](const Result<std::vector<convert::Matrix>>& all) {
    ASSERT_TRUE(all.ok()) << all.error().message;
    ASSERT_EQ(all->size(), 2u);
    const convert::Matrix up = (*all)[1].slice(128, 128);
    convert::decode_row(up, 127, row.data());
    EXPECT_EQ(row[127], 6);
    EXPECT_EQ(row[128], 16);
    EXPECT_EQ(row[129], 8);
    convert::decode_row((*all)[0], 127, row.data());
    EXPECT_EQ(row[127], 1);
    EXPECT_EQ(row[128], 3);
  });
  of({5, 7}, {kExperts}, [&](const Result<std::vector<convert::Matrix>>& all) {
    ASSERT_TRUE(all.ok()) << all.error().message;
    convert::decode_row((*all)[1], 255, row.data());
    EXPECT_EQ(row[0], 7);
    EXPECT_EQ(row[128], 14);
  });
  of(scales, {kExperts, kRows / 128, 2, 1}, [&](const Result<std::vector<convert::Matrix>>& all) {
    ASSERT_FALSE(all.ok());
    EXPECT_THAT(all.error().message, HasSubstr("does not scale 2 matrices of [130, 256] in blocks of 128"));
  });
}

// A folder of Qwen3-VL's experts in FP8, whichever way they lie, is the one of single experts.
TEST(Quantised, Fp8ExpertsOfQwen3VlLieEitherWay) {
  TinyModel m;
  for (const TinyModel& t : tiny_models())
    if (t.name == "tiny-qwen3vlmoe") m = t;
  m.hidden = 256;
  m.expert_ffn = 384;  // no square: shapes say how experts lie
  std::mt19937 random(3);
  std::vector<SafeTensor> either[3];  // transposed, as they are, single
  for (SafeTensor& t : safe_tensors(m)) {
    const bool both = t.name.ends_with("experts.gate_up_proj");
    if (!both && !t.name.ends_with("experts.down_proj")) {
      for (auto& all : either) all.push_back(t);
      continue;
    }
    const int64_t experts = t.shape[0], cols = t.shape[1], rows = t.shape[2], down = cols / 128, across = rows / 128;
    std::vector<uint8_t> codes(static_cast<size_t>(experts * cols * rows)), turned(codes.size());
    std::vector<float> scales(static_cast<size_t>(experts * down * across)), turned_scales(scales.size());
    for (uint8_t& c : codes) c = static_cast<uint8_t>(0x20 + random() % 0x20);
    for (float& s : scales) s = 0.25f * static_cast<float>(1 + random() % 16);
    const auto turn = [experts](const auto& from, auto& to, int64_t lines, int64_t width) {
      for (int64_t e = 0; e < experts; ++e)
        for (int64_t y = 0; y < lines; ++y)
          for (int64_t x = 0; x < width; ++x)
            to[static_cast<size_t>((e * width + x) * lines + y)] =
                from[static_cast<size_t>((e * lines + y) * width + x)];
    };
    turn(codes, turned, cols, rows);
    turn(scales, turned_scales, down, across);
    either[0].push_back(safe_tensor(t.name, "F8_E4M3", t.shape, codes));
    either[0].push_back(safe_tensor(t.name + "_scale_inv", "F32", {experts, down, across}, scales));
    either[1].push_back(safe_tensor(t.name, "F8_E4M3", {experts, rows, cols}, turned));
    either[1].push_back(safe_tensor(t.name + "_scale_inv", "F32", {experts, across, down}, turned_scales));
    const std::string stem = t.name.substr(0, t.name.rfind('.') + 1);
    const int64_t parts = both ? 2 : 1, height = rows / parts, grid = across / parts;
    for (int64_t i = 0; i < experts * parts; ++i) {
      const std::string name = fmt::format("{}{}.{}.weight", stem, i / parts,
                                           !both        ? "down_proj"
                                           : i % 2 == 0 ? "gate_proj"
                                                        : "up_proj");
      const auto piece = [i](const auto& all, int64_t n) {
        return std::remove_cvref_t<decltype(all)>(all.begin() + i * n, all.begin() + (i + 1) * n);
      };
      either[2].push_back(safe_tensor(name, "F8_E4M3", {height, cols}, piece(turned, height * cols)));
      either[2].push_back(safe_tensor(name + "_scale_inv", "F32", {grid, down}, piece(turned_scales, grid * down)));
    }
  }
  for (const bool keep : {false, true}) {
    std::vector<gguf::File> files;
    std::vector<std::unique_ptr<HfFolder>> folders;
    for (const auto& tensors : either) {
      folders.push_back(std::make_unique<HfFolder>(m));
      folders.back()->write("model.safetensors", safetensors_file(tensors));
      Result<gguf::File> f = convert::open_model(folders.back()->path(), {.keep_fp8 = keep, .threads = 2});
      ASSERT_TRUE(f.ok()) << f.error().message;
      files.push_back(std::move(f).value());
    }
    const gguf::TensorInfo* const down = files[2].find_tensor("blk.1.ffn_down_exps.weight");
    ASSERT_NE(down, nullptr);
    EXPECT_EQ(down->dtype, keep ? DType::kFP8 : DType::kBF16);
    for (const gguf::TensorInfo& a : files[2].tensors())
      for (const gguf::File* other : {&files[0], &files[1]}) {
        const gguf::TensorInfo* const b = other->find_tensor(a.name);
        ASSERT_NE(b, nullptr) << a.name;
        ASSERT_EQ(a.bytes, b->bytes) << a.name;
        EXPECT_EQ(std::memcmp(a.data, b->data, static_cast<size_t>(a.bytes)), 0) << a.name;
      }
  }
}

}  // namespace
}  // namespace quire::test
