// quire synth: a model file of real shapes with random weights, to measure speed with. Its text is noise.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>

#include "cli/command.h"
#include "cli/display.h"
#include "cli/encoding.h"
#include "cli/synth_shapes.h"
#include "core/progress.h"
#include "gguf/writer.h"
#include "quant/families.h"
#include "quant/format.h"

namespace quire::cli {
namespace {

struct SynthOptions {
  std::string output, preset = "0.6b", type = "bf16", ffn_type, head_type;
  int64_t layers = 0, vocab = 0;
  uint64_t seed = 1;
};

// ---- Random values of every type ----

// Where a block keeps its float16 scale, and its minimum as a multiple of the scale that makes the mean zero.
struct BlockScale {
  DType type;
  int scale_at, min_at;  // byte offsets; -1: no minimum
  float min_factor;
};
constexpr BlockScale kBlockScales[] = {
    {DType::kQ4_1, 0, 2, -7.5f}, {DType::kQ5_0, 0, -1, 0},    {DType::kQ5_1, 0, 2, -15.5f},
    {DType::kQ4_K, 0, 2, 7.5f},  {DType::kQ5_K, 0, 2, 15.5f}, {DType::kQ6_K, 208, -1, 0},
};

// Random bytes are valid blocks but for the scales, which are set so that the values have the wanted spread.
// The file's spread is measured on the bytes themselves: with a scale of one, decoded.
void fill_blocks(const BlockScale& b, float deviation, std::mt19937_64& random, std::vector<std::byte>& out) {
  const DTypeInfo& info = dtype_info(b.type);
  const auto size = static_cast<size_t>(info.block_bytes);
  const auto set_scale = [&](float scale) {
    for (size_t at = 0; at < out.size(); at += size) {
      quant::store_half(out.data() + at + b.scale_at, scale);
      if (b.min_at >= 0) quant::store_half(out.data() + at + b.min_at, scale * b.min_factor);
    }
  };
  for (size_t at = 0; at < out.size(); ++at) out[at] = static_cast<std::byte>(random() >> 56);
  set_scale(1);
  std::vector<float> sample(static_cast<size_t>(info.block_elems) * 64);
  quant::decode_row(b.type, out.data(), static_cast<int64_t>(sample.size()), sample.data());
  double squares = 0;
  for (const float x : sample) squares += double{x} * x;
  set_scale(deviation / static_cast<float>(std::sqrt(squares / static_cast<double>(sample.size()))));
}

// Values of one type and spread, a few megabytes; a tensor is a piece of them, repeated.
std::vector<std::byte> make_pattern(DType type, float deviation, std::mt19937_64& random) {
  const DTypeInfo& info = dtype_info(type);
  constexpr int64_t kElems = int64_t{1} << 20;
  std::vector<std::byte> out(static_cast<size_t>(dtype_bytes(type, kElems)));
  for (const BlockScale& b : kBlockScales)
    if (b.type == type) {
      fill_blocks(b, deviation, random, out);
      return out;
    }
  std::vector<float> row(static_cast<size_t>(info.block_elems) * 16);
  std::uniform_real_distribution<float> uniform(-deviation * std::sqrt(3.0f), deviation * std::sqrt(3.0f));
  const size_t step = static_cast<size_t>(dtype_bytes(type, static_cast<int64_t>(row.size())));
  for (size_t at = 0; at < out.size(); at += step) {
    for (float& x : row) x = uniform(random);
    const auto n = static_cast<int64_t>(row.size());
    const float tensor_scale = type == DType::kNVFP4 ? 2 * deviation / (6 * 448) : 1;
    quant::encode_row(type, row.data(), n, {.search = quant::Search::kNearest, .tensor_scale = tensor_scale},
                      out.data() + at);
  }
  return out;
}

// The bytes of tensors. Patterns are made once for each type and row length and grow by repetition.
class Payloads {
 public:
  explicit Payloads(uint64_t seed) : random_(seed) {}

  std::span<const std::byte> matrix(DType type, int64_t cols, int64_t elems) {
    std::vector<std::byte>& bytes = patterns_[{type, cols}];
    if (bytes.empty()) bytes = make_pattern(type, 1 / std::sqrt(static_cast<float>(cols)), random_);
    // Each tensor begins at another block, so that no two are equal.
    const auto begin = static_cast<size_t>(turn_++ % 61) * static_cast<size_t>(dtype_info(type).block_bytes);
    const auto size = static_cast<size_t>(dtype_bytes(type, elems));
    for (size_t have = bytes.size(); have < begin + size; have = bytes.size()) {
      bytes.resize(std::max(begin + size, have));
      for (size_t at = have; at < bytes.size(); at += have)
        std::memcpy(bytes.data() + at, bytes.data(), std::min(have, bytes.size() - at));
    }
    return std::span<const std::byte>(bytes).subspan(begin, size);
  }

  std::span<const std::byte> vector(SynthValues values, int64_t elems) {
    float low = 1, high = 1;
    if (values == SynthValues::kDecay) low = -4, high = -0.25f;
    if (values == SynthValues::kTimeStep) low = -4, high = -1;
    vector_.resize(static_cast<size_t>(elems));
    for (float& x : vector_) x = low + (high - low) * static_cast<float>(random_() >> 40) * 0x1p-24f;
    return std::as_bytes(std::span(vector_));
  }

 private:
  std::mt19937_64 random_;
  std::map<std::pair<DType, int64_t>, std::vector<std::byte>> patterns_;
  std::vector<float> vector_;
  uint64_t turn_ = 0;
};

// ---- The model ----

struct Types {
  DType projection = DType::kBF16, ffn = DType::kBF16, head = DType::kBF16;

  // What does not fit a row length becomes bf16.
  DType of(const SynthTensor& t) const {
    DType type = DType::kF32;
    switch (t.role()) {
      case TensorRole::kKept:
        return DType::kF32;
      case TensorRole::kHead:
        type = head;
        break;
      case TensorRole::kFfn:
        type = ffn;
        break;
      case TensorRole::kProjection:
        type = projection;
        break;
    }
    return t.dims[0] % dtype_info(type).block_elems == 0 ? type : DType::kBF16;
  }
};

Result<DType> parse_type(const std::string& name) {
  const auto info = find_dtype(name);
  if (info && quant::can_decode(info->type)) return info->type;
  return request_error(
      "unknown type '{}': choose one of f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k, "
      "mxfp4, nvfp4",
      name);
}

// nvfp4 stands for the mixture that such files are: NVFP4 feed-forward, bf16 projections, Q8_0 embedding and
// head.
Result<Types> choose_types(const SynthOptions& o) {
  Types types;
  QUIRE_TRY(const DType main, parse_type(o.type));
  types.projection = types.ffn = types.head = main;
  if (main == DType::kNVFP4) {
    types.projection = DType::kBF16;
    types.head = DType::kQ8_0;
  }
  if (!o.ffn_type.empty()) {
    QUIRE_TRY(types.ffn, parse_type(o.ffn_type));
  }
  if (!o.head_type.empty()) {
    QUIRE_TRY(types.head, parse_type(o.head_type));
    if (types.head == DType::kNVFP4) return request_error("--head-type nvfp4 is not supported: choose q8_0");
  }
  return types;
}

Result<SynthShape> choose_shape(const SynthOptions& o) {
  std::string known;
  for (const SynthShape& preset : synth_shapes()) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", preset.name);
    if (preset.name != o.preset) continue;
    SynthShape s = preset;
    if (o.layers != 0) s.layers = o.layers;
    if (o.vocab != 0) s.vocab = o.vocab;
    if (s.layers < 1 || s.layers > 512) return request_error("--layers {}: must be 1 to 512", s.layers);
    if (s.vocab < kMinSynthVocab || s.vocab > 1 << 20)
      return request_error("--vocab {}: must be {} to {}", s.vocab, kMinSynthVocab, 1 << 20);
    return s;
  }
  return request_error("unknown preset '{}': choose one of {}", o.preset, known);
}

int64_t elems_of(const SynthTensor& t) {
  int64_t n = 1;
  for (const int64_t d : t.dims) n *= d;
  return n;
}

Status synth(const SynthOptions& o) {
  QUIRE_TRY(const SynthShape shape, choose_shape(o));
  QUIRE_TRY(const Types types, choose_types(o));
  const std::vector<SynthTensor> tensors = synth_tensors(shape);
  gguf::Writer w;
  add_synth_metadata(shape, w);
  w.add("general.file_type", gguf::file_type_code(types.ffn));
  w.add("general.quantization_version", uint32_t{2});
  const auto matrices = [](const SynthTensor& t) { return t.dims.size() > 2 ? t.dims[2] : int64_t{1}; };
  for (const SynthTensor& t : tensors) {
    QUIRE_CHECKED(w.add_tensor(t.name, types.of(t), t.dims));
    const int64_t scales[] = {matrices(t)};
    if (types.of(t) == DType::kNVFP4)
      QUIRE_CHECKED(w.add_tensor(fmt::format("{}.scale", tensor_stem(t.name)), DType::kF32, scales));
  }
  QUIRE_CHECKED(w.open(o.output));
  Payloads payloads(o.seed);
  Progress progress("writing", static_cast<int64_t>(w.file_bytes()), Progress::Unit::kBytes);
  for (const SynthTensor& t : tensors) {
    const DType type = types.of(t);
    const auto bytes = t.values == SynthValues::kMatrix ? payloads.matrix(type, t.dims[0], elems_of(t))
                                                        : payloads.vector(t.values, elems_of(t));
    QUIRE_CHECKED(w.write_tensor(bytes));
    if (type == DType::kNVFP4) {
      const float scale = 2 / std::sqrt(static_cast<float>(t.dims[0])) / (6 * 448);
      const std::vector<float> scales(static_cast<size_t>(matrices(t)), scale);
      QUIRE_CHECKED(w.write_tensor(std::as_bytes(std::span(scales))));
    }
    progress.add(static_cast<int64_t>(bytes.size()));
  }
  QUIRE_CHECKED(w.finish());
  fmt::print("{}: {} ({}), {} layers, {}\n", o.output, shape.name, shape.summary, shape.layers,
             human_bytes(w.file_bytes()));
  return {};
}

}  // namespace

Action add_synth(CLI::App& app) {
  auto o = std::make_shared<SynthOptions>();
  std::string presets;
  for (const SynthShape& s : synth_shapes())
    presets += fmt::format("{}{} ({})", presets.empty() ? "" : ", ", s.name, s.summary);
  app.add_option("output", o->output, "File to write")->required();
  app.add_option("--preset", o->preset, "Shapes: " + presets)->capture_default_str();
  app.add_option("--type", o->type,
                 "Type of all matrices; nvfp4: of the feed-forward ones, with bf16 projections and a q8_0 "
                 "embedding and head")
      ->capture_default_str();
  app.add_option("--ffn-type", o->ffn_type, "Another type for feed-forward and expert matrices");
  app.add_option("--head-type", o->head_type, "Another type for the embedding and the head");
  app.add_option("--layers", o->layers, "Number of layers (default: the model's)");
  app.add_option("--vocab", o->vocab, "Size of the vocabulary (default: the model's)");
  app.add_option("--seed", o->seed, "Seed of the random weights")->capture_default_str();
  return [o] { return synth(*o); };
}

}  // namespace quire::cli
