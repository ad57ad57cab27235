// Checkpoints with FP8, NVFP4 and MXFP4 weights. Each model is written twice with random codes: quantised,
// and as the float32 values that the codes stand for, worked out here from the layouts' definitions. Scales
// have few significant bits, so that both give the same numbers exactly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "convert/convert.h"
#include "convert/matrix.h"
#include "convert/produce.h"
#include "gguf/reader.h"
#include "quant/format.h"
#include "support/bytes.h"
#include "support/hf_folder.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

enum class Layout { kModelOpt, kCompressedTensors, kMxfp4, kFp8Block, kFp8Row, kFp8Tensor };
constexpr const char* kLayoutNames[] = {"ModelOpt", "CompressedTensors", "Mxfp4", "Fp8Block", "Fp8Row", "Fp8Tensor"};

constexpr float kCodes[16] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6, -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};

double e4m3(uint8_t code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// Random codes of one matrix, the tensors that hold them, and their values.
class RandomMatrix {
 public:
  RandomMatrix(Layout layout, std::string stem, int64_t rows, int64_t cols, std::mt19937& random)
      : stem_(std::move(stem)), rows_(rows), cols_(cols), random_(random) {
    if (layout == Layout::kModelOpt || layout == Layout::kCompressedTensors)
      nvfp4(layout);
    else if (layout == Layout::kMxfp4)
      mxfp4();
    else
      fp8(layout);
  }
  std::vector<SafeTensor> tensors;
  SafeTensor plain() const { return safe_tensor(stem_ + ".weight", "F32", {rows_, cols_}, values_); }

 private:
  std::vector<uint8_t> bytes(int64_t n, int lo, int hi) {
    std::uniform_int_distribution<int> one(lo, hi);
    std::vector<uint8_t> out(static_cast<size_t>(n));
    for (uint8_t& b : out) b = static_cast<uint8_t>(one(random_));
    return out;
  }
  float factor() { return std::ldexp(1.0F, std::uniform_int_distribution<int>(-9, -5)(random_)); }
  float nibble(const std::vector<uint8_t>& codes, int64_t i) const {
    const uint8_t pair = codes[static_cast<size_t>(i / 2)];
    return kCodes[i % 2 == 0 ? pair & 15 : pair >> 4];
  }

  void nvfp4(Layout layout) {
    const auto codes = bytes(rows_ * cols_ / 2, 0, 255), scales = bytes(rows_ * cols_ / 16, 0, 0x7e);
    const float scale = factor(), input = factor();
    const bool modelopt = layout == Layout::kModelOpt;
    tensors.push_back(safe_tensor(stem_ + (modelopt ? ".weight" : ".weight_packed"), "U8", {rows_, cols_ / 2}, codes));
    tensors.push_back(safe_tensor(stem_ + ".weight_scale", "F8_E4M3", {rows_, cols_ / 16}, scales));
    const auto scalar = [&](const char* name, std::vector<int64_t> shape, float x) {
      tensors.push_back(safe_tensor(stem_ + name, "F32", std::move(shape), std::vector<float>{x}));
    };
    if (modelopt) {
      scalar(".weight_scale_2", {}, scale);
      scalar(".input_scale", {}, input);
    } else {
      scalar(".weight_global_scale", {1}, 1 / scale);
      scalar(".input_global_scale", {1}, 1 / input);
    }
    for (int64_t i = 0; i < rows_ * cols_; ++i)
      values_.push_back(static_cast<float>(nibble(codes, i) * e4m3(scales[static_cast<size_t>(i / 16)]) * scale));
  }
  void mxfp4() {
    const auto codes = bytes(rows_ * cols_ / 2, 0, 255), scales = bytes(rows_ * cols_ / 32, 110, 130);
    tensors.push_back(safe_tensor(stem_ + ".weight_packed", "U8", {rows_, cols_ / 2}, codes));
    tensors.push_back(safe_tensor(stem_ + ".weight_scale", "U8", {rows_, cols_ / 32}, scales));
    for (int64_t i = 0; i < rows_ * cols_; ++i)
      values_.push_back(std::ldexp(nibble(codes, i), scales[static_cast<size_t>(i / 32)] - 127));
  }
  void fp8(Layout layout) {
    auto codes = bytes(rows_ * cols_, 0, 255);
    for (uint8_t& c : codes)
      if ((c & 0x7f) == 0x7f) c = 0;  // not a number
    tensors.push_back(safe_tensor(stem_ + ".weight", "F8_E4M3", {rows_, cols_}, codes));
    const int64_t high = layout == Layout::kFp8Block ? 128 : layout == Layout::kFp8Row ? 1 : rows_;
    const int64_t wide = layout == Layout::kFp8Block ? 128 : cols_;
    const int64_t down = (rows_ + high - 1) / high, across = (cols_ + wide - 1) / wide;
    std::vector<float> scales;
    for (int64_t i = 0; i < down * across; ++i) scales.push_back(factor());
    std::vector<int64_t> shape = {down, across};
    if (layout == Layout::kFp8Tensor) shape.clear();
    const char* name = layout == Layout::kFp8Block ? ".weight_scale_inv" : ".weight_scale";
    tensors.push_back(safe_tensor(stem_ + name, "F32", shape, scales));
    for (int64_t r = 0; r < rows_; ++r)
      for (int64_t c = 0; c < cols_; ++c)
        values_.push_back(static_cast<float>(e4m3(codes[static_cast<size_t>(r * cols_ + c)]) *
                                             scales[static_cast<size_t>(r / high * across + c / wide)]));
  }

  std::string stem_;
  int64_t rows_, cols_;
  std::mt19937& random_;
  std::vector<float> values_;
};

// The tensors of packed experts as one for each expert and role, under the names of that generation of
// checkpoints.
std::vector<SafeTensor> unpack_experts(const TinyModel& m) {
  const bool mixtral = m.architecture == "llama";
  std::vector<SafeTensor> out;
  for (const SafeTensor& t : safe_tensors(m)) {
    const size_t at = t.name.find("mlp.");
    if (mixtral && t.name.ends_with("mlp.gate.weight")) {
      out.push_back(t);
      out.back().name.replace(at, 3, "block_sparse_moe");
      continue;
    }
    const bool both = t.name.ends_with("gate_up_proj");
    if (!both && !t.name.ends_with("experts.down_proj")) {
      out.push_back(t);
      continue;
    }
    const std::string prefix = t.name.substr(0, at) + (mixtral ? "block_sparse_moe" : "mlp") + ".experts.";
    const auto add = [&](int64_t expert, const char* role, int64_t rows, int64_t cols, size_t begin) {
      out.push_back({fmt::format("{}{}.{}.weight", prefix, expert, role),
                     "BF16",
                     {rows, cols},
                     t.bytes.substr(begin, static_cast<size_t>(rows * cols * 2))});
    };
    const int64_t width = m.expert_width();
    const auto half = static_cast<size_t>(width * m.hidden * 2);
    for (int64_t e = 0; e < m.experts; ++e) {
      const size_t begin = static_cast<size_t>(e) * half;
      if (!both) {
        add(e, mixtral ? "w2" : "down_proj", m.hidden, width, begin);
        continue;
      }
      add(e, mixtral ? "w1" : "gate_proj", width, m.hidden, 2 * begin);
      add(e, mixtral ? "w3" : "up_proj", width, m.hidden, 2 * begin + half);
    }
  }
  return out;
}

gguf::File convert_folder(const HfFolder& folder, const std::string& name, convert::ConvertSummary* summary = nullptr) {
  Result<convert::ConvertSummary> s =
      convert::convert({.folder = folder.path(), .output = folder.path(name), .threads = 2});
  QUIRE_CHECK(s.ok(), "{}", s.error().message);
  if (summary != nullptr) *summary = *s;
  return std::move(gguf::File::open(folder.path(name))).value();
}

std::vector<float> values_of(const gguf::File& f, const gguf::TensorInfo& t) {
  std::vector<float> out(static_cast<size_t>(t.elems()));
  std::string scale_name(t.name);
  if (scale_name.ends_with(".weight")) scale_name.replace(scale_name.size() - 6, 6, "scale");
  const gguf::TensorInfo* scale = f.find_tensor(scale_name);
  for (int64_t r = 0; r < t.rows(); ++r) {
    float* row = out.data() + r * t.dims[0];
    quant::decode_row(t.dtype, t.data + r * t.row_bytes(), t.dims[0], row);
    float factor = 1;
    if (scale != nullptr && scale != &t) std::memcpy(&factor, scale->data + r / t.dims[1] * 4, 4);
    for (int64_t i = 0; i < t.dims[0]; ++i) row[i] *= factor;
  }
  return out;
}

struct Case {
  std::string model;
  Layout layout;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model << ' ' << kLayoutNames[static_cast<int>(c.layout)];
}
class QuantisedCheckpoint : public testing::TestWithParam<Case> {};

TEST_P(QuantisedCheckpoint, HoldsTheSameValues) {
  const Case& c = GetParam();
  TinyModel m;
  for (const TinyModel& t : tiny_models())
    if (t.name == c.model) m = t;
  constexpr unsigned kSeed = 20;
  std::mt19937 random(kSeed);
  std::vector<SafeTensor> quantised, plain;
  int64_t linears = 0;
  for (SafeTensor& t : unpack_experts(m)) {
    const bool linear = t.name.ends_with("proj.weight") || t.name.ends_with("w1.weight") ||
                        t.name.ends_with("w2.weight") || t.name.ends_with("w3.weight");
    if (!linear || t.shape.back() % 32 != 0) {  // the 80 and 112 wide ones: see FallsBackWhereBlocksDoNotFit
      quantised.push_back(t);
      plain.push_back(std::move(t));
      continue;
    }
    ++linears;
    RandomMatrix made(c.layout, t.name.substr(0, t.name.size() - 7), t.shape[0], t.shape[1], random);
    for (SafeTensor& part : made.tensors) quantised.push_back(std::move(part));
    plain.push_back(made.plain());
  }
  ASSERT_GT(linears, 10);
  const HfFolder folder(m);
  folder.write("model.safetensors", safetensors_file(plain));
  const gguf::File want = convert_folder(folder, "plain.gguf");
  folder.write("model.safetensors", safetensors_file(quantised));
  convert::ConvertSummary summary;
  const gguf::File got = convert_folder(folder, "quantised.gguf", &summary);
  EXPECT_TRUE(summary.unused.empty()) << summary.unused.front();

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
    if (b->dtype == DType::kMXFP4) ++kept;
    if (b->dtype != DType::kNVFP4) continue;
    ++kept;
    const std::string stem(a.name.substr(0, a.name.size() - 7));
    const gguf::TensorInfo* input = got.find_tensor(stem + ".input_scale");
    ASSERT_NE(input, nullptr);
    EXPECT_EQ(input->elems(), a.dims[2]);
  }
  if (nvfp4 || c.layout == Layout::kMxfp4) {
    EXPECT_GT(kept, 5);
  } else {
    EXPECT_THAT(summary.notes.at(0), HasSubstr("FP8 matrices are decoded to bf16"));
  }
  if (nvfp4) {
    EXPECT_EQ(got.get_u32("general.file_type").value(), 39u);
  }
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const char* model : {"tiny-llama", "tiny-mixtral", "tiny-qwen3", "tiny-qwen3moe", "tiny-qwen35"})
    for (const Layout layout : {Layout::kModelOpt, Layout::kCompressedTensors, Layout::kMxfp4, Layout::kFp8Block,
                                Layout::kFp8Row, Layout::kFp8Tensor})
      out.push_back({model, layout});
  return out;
}
INSTANTIATE_TEST_SUITE_P(All, QuantisedCheckpoint, testing::ValuesIn(cases()), [](const auto& c) {
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
    if (m.experts == 0) continue;
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
      {{raw("l.weight_packed", "I32", {2, 8}, 64), scales}, "do not make the [2, 64]"},
      {{raw("l.weight", "I32", {2, 64}, 512)}, "type I32 holds no weights"},
  };
  for (const BadScales& c : bad) {
    SCOPED_TRACE(c.reason);
    const std::string file = safetensors_file(c.tensors);
    const auto checkpoint = convert::Checkpoint::parse(std::as_bytes(std::span(file)));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    convert::Source source(*checkpoint);
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
  const auto checkpoint = convert::Checkpoint::parse(std::as_bytes(std::span(file)));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  convert::Source source(*checkpoint);
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

}  // namespace
}  // namespace quire::test
