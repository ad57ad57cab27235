// Model folders of quantised weights with random codes, and what the codes stand for, worked out from the layouts'
// definitions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "convert/convert.h"
#include "gguf/reader.h"
#include "quant/format.h"
#include "support/hf_folder.h"
#include "support/tiny_models.h"

namespace quire::test {

enum class Layout {
  kModelOpt,
  kCompressedTensors,
  kMxfp4,
  kFp8Block,
  kFp8Row,
  kFp8Tensor,
  kPacked,       // compressed-tensors' 4-bit integers, less 8
  kPackedZeros,  // less a zero point of their group
  kGptq,
  kGptq8,  // all zero points 8
  kAwq,
};
inline constexpr const char* kLayoutNames[] = {
    "ModelOpt", "CompressedTensors", "Mxfp4", "Fp8Block", "Fp8Row", "Fp8Tensor",
    "Packed",   "PackedZeros",       "Gptq",  "Gptq8",    "Awq"};

inline constexpr float kCodes[16] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6, -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6};

inline double e4m3(uint8_t code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// Random codes of one matrix, the tensors that hold them, and their values.
class RandomMatrix {
 public:
  // Scales of FP8 are powers of two, so that bf16 has all products, or any floats.
  RandomMatrix(Layout layout, std::string stem, int64_t rows, int64_t cols, std::mt19937& random,
               bool any_scales = false)
      : stem_(std::move(stem)), rows_(rows), cols_(cols), random_(random), any_scales_(any_scales) {
    if (layout == Layout::kModelOpt || layout == Layout::kCompressedTensors)
      nvfp4(layout);
    else if (layout == Layout::kMxfp4)
      mxfp4();
    else if (layout >= Layout::kPacked)
      int4(layout);
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
  float factor() {
    const float power = std::ldexp(1.0F, std::uniform_int_distribution<int>(-9, -5)(random_));
    return any_scales_ ? power * std::uniform_real_distribution<float>(1, 2)(random_) : power;
  }
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

  // Words of eight 4-bit numbers: number i of word w is number_of(w, i).
  template <class Number>
  SafeTensor words(const char* name, std::vector<int64_t> shape, Number&& number_of) {
    std::vector<uint32_t> out(static_cast<size_t>(shape[0] * shape[1]));
    for (size_t w = 0; w < out.size(); ++w)
      for (int i = 0; i < 8; ++i) out[w] |= static_cast<uint32_t>(number_of(static_cast<int64_t>(w), i)) << (4 * i);
    return safe_tensor(stem_ + name, "I32", std::move(shape), out);
  }
  void int4(Layout layout) {
    constexpr int64_t kGroup = 32;
    constexpr int kAwqOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    const int64_t groups = cols_ / kGroup, n = rows_;
    const auto codes = bytes(rows_ * cols_, 0, 15);
    auto zeros = bytes(rows_ * groups, 1, 15);
    if (layout == Layout::kPacked || layout == Layout::kGptq8) std::fill(zeros.begin(), zeros.end(), uint8_t{8});
    const auto code = [&](int64_t row, int64_t col) { return codes[static_cast<size_t>(row * cols_ + col)]; };
    const auto zero = [&](int64_t row, int64_t g) {
      return row < n ? zeros[static_cast<size_t>(row * groups + g)] : uint8_t{0};
    };
    std::vector<half> scales;  // of each row's groups
    for (int64_t i = 0; i < rows_ * groups; ++i)
      scales.push_back(to_half(std::ldexp(static_cast<float>(1024 + bytes(1, 0, 255)[0]), -18)));
    for (int64_t i = 0; i < rows_ * cols_; ++i)
      values_.push_back(static_cast<float>(code(i / cols_, i % cols_) - zero(i / cols_, i % cols_ / kGroup)) *
                        to_float(scales[static_cast<size_t>(i / kGroup)]));
    if (layout == Layout::kPacked || layout == Layout::kPackedZeros) {
      tensors.push_back(words(".weight_packed", {rows_, cols_ / 8},
                              [&](int64_t w, int i) { return code(w / (cols_ / 8), w % (cols_ / 8) * 8 + i); }));
      tensors.push_back(safe_tensor(stem_ + ".weight_scale", "F16", {rows_, groups}, scales));
      tensors.push_back(safe_tensor(stem_ + ".weight_shape", "I64", {2}, std::vector<int64_t>{rows_, cols_}));
      if (layout == Layout::kPackedZeros)
        tensors.push_back(words(".weight_zero_point", {(rows_ + 7) / 8, groups},
                                [&](int64_t w, int i) { return zero(w / groups * 8 + i, w % groups); }));
      return;
    }
    std::vector<half> by_group;
    for (int64_t g = 0; g < groups; ++g)
      for (int64_t r = 0; r < n; ++r) by_group.push_back(scales[static_cast<size_t>(r * groups + g)]);
    tensors.push_back(safe_tensor(stem_ + ".scales", "F16", {groups, n}, by_group));
    const bool awq = layout == Layout::kAwq;
    const auto column = [&](int64_t w, int i) { return w % (n / 8) * 8 + (awq ? kAwqOrder[i] : i); };
    tensors.push_back(words(".qzeros", {groups, n / 8},
                            [&](int64_t w, int i) { return zero(column(w, i), w / (n / 8)) - (awq ? 0 : 1); }));
    if (awq) {
      tensors.push_back(
          words(".qweight", {cols_, n / 8}, [&](int64_t w, int i) { return code(column(w, i), w / (n / 8)); }));
      return;
    }
    tensors.push_back(words(".qweight", {cols_ / 8, n}, [&](int64_t w, int i) { return code(w % n, w / n * 8 + i); }));
    std::vector<int32_t> group_of;
    for (int64_t c = 0; c < cols_; ++c) group_of.push_back(static_cast<int32_t>(c / kGroup));
    tensors.push_back(safe_tensor(stem_ + ".g_idx", "I32", {cols_}, group_of));
  }

  std::string stem_;
  int64_t rows_, cols_;
  std::mt19937& random_;
  bool any_scales_;
  std::vector<float> values_;
};

// The tensors of packed experts as one for each expert and role, under the names of that generation of
// model folders.
inline std::vector<SafeTensor> unpack_experts(const TinyModel& m) {
  const bool mixtral = m.architecture == "llama";
  std::vector<SafeTensor> out;
  for (const HfTensor& of : m.hf_tensors()) {
    const SafeTensor t = safe_tensor(of.name, "BF16", of.shape, of.values);
    const bool beside = m.gemma4();  // experts are no part of "mlp"
    const size_t at = t.name.find(beside ? "experts." : "mlp.");
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
    const std::string prefix = t.name.substr(0, at) + (beside    ? "experts."
                                                       : mixtral ? "block_sparse_moe.experts."
                                                                 : "mlp.experts.");
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

inline gguf::File convert_folder(const HfFolder& folder, const std::string& name,
                                 convert::ConvertSummary* summary = nullptr) {
  Result<convert::ConvertSummary> s =
      convert::convert({.folder = folder.path(), .output = folder.path(name), .threads = 2});
  QUIRE_CHECK(s.ok(), "{}", s.error().message);
  if (summary != nullptr) *summary = *s;
  return std::move(gguf::File::open(folder.path(name))).value();
}

inline std::vector<float> values_of(const gguf::File& f, const gguf::TensorInfo& t) {
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

// A model's tensors with its linear maps quantised, and with their values instead; of the others, experts one by one,
// both have the same. Rows that are no multiple of `columns` stay as they are.
struct QuantisedPair {
  std::vector<SafeTensor> quantised, plain;
  int64_t linears = 0;
};
inline QuantisedPair quantise(const TinyModel& m, Layout layout, unsigned seed, int64_t columns = 32,
                              bool any_scales = false) {
  std::mt19937 random(seed);
  QuantisedPair out;
  for (SafeTensor& t : unpack_experts(m)) {
    const bool linear = t.name.ends_with("proj.weight") || t.name.ends_with("w1.weight") ||
                        t.name.ends_with("w2.weight") || t.name.ends_with("w3.weight");
    const bool words = layout < Layout::kPacked || t.shape.front() % 8 == 0;
    if (!linear || t.shape.back() % columns != 0 || !words) {
      out.quantised.push_back(t);
      out.plain.push_back(std::move(t));
      continue;
    }
    ++out.linears;
    RandomMatrix made(layout, t.name.substr(0, t.name.size() - 7), t.shape[0], t.shape[1], random, any_scales);
    for (SafeTensor& part : made.tensors) out.quantised.push_back(std::move(part));
    out.plain.push_back(made.plain());
  }
  return out;
}

}  // namespace quire::test
