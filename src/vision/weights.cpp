#include "vision/weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "image/spec.h"
#include "quant/format.h"

namespace quire {
namespace {

using enum VisionRole;

// Of the tensors of one file.
class VisionLoader {
 public:
  VisionLoader(const gguf::File& file, const VisionConfig& config, WeightLoader::Arena& arena)
      : file_(file), c_(config), arena_(arena) {}

  Result<VisionWeights> run() {
    VisionWeights w;
    QUIRE_TRY(w.patch.w, patch_matrix());
    if (const int64_t zeros = c_.patch_columns() - c_.patch_width(); zeros > 0)
      w.padding = keep(std::vector<float>(static_cast<size_t>(zeros)));
    w.colours = colours();
    if (c_.rotates()) w.inv_freq = frequencies();
    QUIRE_CHECKED(c_.family == VisionFamily::kGemma4 ? gemma4(w) : others(w));
    QUIRE_CHECKED(check_unread());
    return w;
  }

 private:
  bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }

  Status others(VisionWeights& w) {
    QUIRE_TRY(w.patch.bias, vector(vision_stem(kPatch) + ".bias", {c_.width}));
    QUIRE_TRY(w.positions, vector(vision_stem(kPositions) + ".weight", {c_.positions, c_.width}));
    for (int64_t i = 0; i < c_.blocks; ++i) {
      QUIRE_TRY(VisionBlock b, block(i));
      w.blocks.push_back(std::move(b));
    }
    return c_.family == VisionFamily::kQwen3 ? mergers(w) : projection(w);
  }

  Status gemma4(VisionWeights& w) {
    QUIRE_TRY(const Tensor tables, vector(vision_stem(kPositions) + ".weight", {2, c_.positions, c_.width}));
    w.positions = tables.reshaped({2 * c_.positions, c_.width});
    for (int64_t i = 0; i < c_.blocks; ++i) {
      QUIRE_TRY(VisionBlock b, gemma4_block(i));
      w.blocks.push_back(std::move(b));
    }
    w.value_norm = keep(std::vector<float>(static_cast<size_t>(c_.head_dim()), 1.0f));
    if (has(vision_stem(kPooledShift)) || has(vision_stem(kPooledScale))) {
      QUIRE_TRY(w.pooled_shift, vector(vision_stem(kPooledShift), {c_.width}));
      QUIRE_TRY(w.pooled_scale, vector(vision_stem(kPooledScale), {c_.width}));
    }
    w.projection_norm = keep(std::vector<float>(static_cast<size_t>(c_.width), 1.0f));
    QUIRE_TRY(w.projection, matrix(vision_stem(kProjection) + ".weight", c_.out_width, c_.width));
    return {};
  }

  Result<VisionBlock> gemma4_block(int64_t i) {
    VisionBlock b;
    const auto norm_of = [&](VisionRole role, int64_t width, Tensor& to) -> Status {
      QUIRE_TRY(to, vector(vision_stem(role, i) + ".weight", {width}));
      return {};
    };
    const auto bounded = [&](VisionRole role, int64_t rows, int64_t cols, VisionLinear& to) -> Status {
      QUIRE_TRY(to, bounded_linear(vision_stem(role, i), rows, cols));
      return {};
    };
    QUIRE_CHECKED(norm_of(kNorm1, c_.width, b.norm1.weight));
    QUIRE_CHECKED(bounded(kQuery, c_.width, c_.width, b.q));
    QUIRE_CHECKED(bounded(kKey, c_.width, c_.width, b.k));
    QUIRE_CHECKED(bounded(kValue, c_.width, c_.width, b.value));
    QUIRE_CHECKED(norm_of(kQueryNorm, c_.head_dim(), b.q_norm));
    QUIRE_CHECKED(norm_of(kKeyNorm, c_.head_dim(), b.k_norm));
    QUIRE_CHECKED(bounded(kAttnOut, c_.width, c_.width, b.out));
    QUIRE_CHECKED(norm_of(kAttnOutNorm, c_.width, b.out_norm));
    QUIRE_CHECKED(norm_of(kNorm2, c_.width, b.norm2.weight));
    QUIRE_CHECKED(bounded(kGate, c_.ffn, c_.width, b.gate));
    QUIRE_CHECKED(bounded(kUp, c_.ffn, c_.width, b.up));
    QUIRE_CHECKED(bounded(kDown, c_.width, c_.ffn, b.down));
    QUIRE_CHECKED(norm_of(kFfnOutNorm, c_.width, b.ffn_norm));
    return b;
  }

  // A product, which may have all four bounds or none.
  Result<VisionLinear> bounded_linear(const std::string& stem, int64_t rows, int64_t cols) {
    VisionLinear l;
    QUIRE_TRY(l.w, matrix(stem + ".weight", rows, cols));
    QUIRE_CHECKED(bounds(stem + ".input", l.in));
    QUIRE_CHECKED(bounds(stem + ".output", l.out));
    if (has(stem + ".input_min") != has(stem + ".output_min"))
      return file_error("tensor {}.weight: has bounds for what it takes, or for what it puts out, and not for both",
                        stem);
    return l;
  }
  Status bounds(const std::string& stem, VisionBounds& to) {
    const std::string low = stem + "_min", high = stem + "_max";
    if (!has(low) && !has(high)) return {};
    QUIRE_TRY(const Tensor least, vector(low, {1}));
    QUIRE_TRY(const Tensor most, vector(high, {1}));
    to = {*least.as<float>(), *most.as<float>()};
    if (!(to.low <= to.high))
      return file_error("tensor {}: {} is not below {} of tensor {}", low, to.low, to.high, high);
    return {};
  }

  // The tensor, of exactly these dimensions, innermost first; trailing ones may be left out.
  Result<const gguf::TensorInfo*> tensor(const std::string& name, std::vector<int64_t> dims) {
    QUIRE_TRY(const gguf::TensorInfo* t, file_.get_tensor(name));
    used_.insert(name);
    std::array<int64_t, 4> padded{1, 1, 1, 1};
    std::copy(dims.begin(), dims.end(), padded.begin());
    if (t->dims != padded)
      return file_error("tensor {}: shape {} does not fit the tower, which needs [{}]", name, gguf::shape_text(*t),
                        fmt::join(dims, ", "));
    QUIRE_CHECKED(quant::check_decodable(name, t->dtype));
    return t;
  }

  Result<Weight> matrix(const std::string& name, int64_t rows, int64_t cols) {
    QUIRE_TRY(const gguf::TensorInfo* t, tensor(name, {cols, rows}));
    Weight w;
    w.dtype = t->dtype;
    w.data = t->data;
    w.rows = rows;
    w.cols = cols;
    return w;
  }

  // Float32 [dims], outermost first.
  Result<Tensor> vector(const std::string& name, std::initializer_list<int64_t> dims) {
    QUIRE_TRY(const gguf::TensorInfo* t,
              tensor(name, {std::make_reverse_iterator(dims.end()), std::make_reverse_iterator(dims.begin())}));
    if (t->dtype == DType::kF32) return make_tensor(const_cast<std::byte*>(t->data), DType::kF32, dims);
    std::vector<float> values(static_cast<size_t>(t->elems()));
    for (int64_t r = 0; r < t->rows(); ++r)
      quant::decode_row(t->dtype, t->data + r * t->row_bytes(), t->dims[0], values.data() + r * t->dims[0]);
    return make_tensor(keep(std::move(values)).data, DType::kF32, dims);
  }

  Tensor keep(std::vector<float> values) {
    arena_.bytes += std::ssize(values) * 4;
    std::vector<float>& kept = arena_.vectors.emplace_back(std::move(values));
    return make_tensor(kept.data(), {std::ssize(kept)});
  }
  std::byte* keep_bytes(int64_t bytes) {
    arena_.bytes += bytes;
    return arena_.matrices.emplace_back(static_cast<size_t>(bytes)).data();
  }

  Result<VisionNorm> norm(VisionRole role, int64_t block, int64_t width) {
    const std::string stem = vision_stem(role, block);
    VisionNorm n;
    QUIRE_TRY(n.weight, vector(stem + ".weight", {width}));
    QUIRE_TRY(n.bias, vector(stem + ".bias", {width}));
    return n;
  }
  Result<VisionLinear> linear_of(const std::string& stem, int64_t rows, int64_t cols) {
    VisionLinear l;
    QUIRE_TRY(l.w, matrix(stem + ".weight", rows, cols));
    QUIRE_TRY(l.bias, vector(stem + ".bias", {rows}));
    return l;
  }
  Result<VisionLinear> linear_of(VisionRole role, int64_t block, int64_t rows, int64_t cols) {
    return linear_of(vision_stem(role, block), rows, cols);
  }

  // Types whose elements are bytes of their own, so that elements can change places.
  Result<int64_t> element_bytes(const std::string& name, DType type) const {
    if (type == DType::kF32) return int64_t{4};
    if (type == DType::kF16 || type == DType::kBF16) return int64_t{2};
    return file_error("tensor {}: {} is not supported here (f32, f16 and bf16 are)", name, dtype_name(type));
  }

  // A patch is colours of frames of pixels; files have a convolution of its own for each frame.
  Result<Weight> patch_matrix() {
    const std::string first = vision_stem(kPatch) + ".weight";
    const int64_t plane = c_.patch * c_.patch;
    std::vector<const gguf::TensorInfo*> frames;
    for (int64_t f = 0; f < c_.frames; ++f) {
      const std::string name = f == 0 ? first : fmt::format("{}.{}", first, f);
      QUIRE_TRY(const gguf::TensorInfo* t, tensor(name, {c_.patch, c_.patch, 3, c_.width}));
      if (!frames.empty() && t->dtype != frames.front()->dtype)
        return file_error("tensor {}: is {}, but {} is {}", name, dtype_name(t->dtype), first,
                          dtype_name(frames.front()->dtype));
      frames.push_back(t);
    }
    QUIRE_TRY(const int64_t element, element_bytes(first, frames.front()->dtype));
    Weight w{.dtype = frames.front()->dtype, .rows = c_.width, .cols = c_.patch_columns()};
    const int64_t zeros = c_.patch_columns() - c_.patch_width();
    if (c_.frames == 1 && zeros == 0) {
      w.data = frames.front()->data;
      return w;
    }
    std::byte* to = keep_bytes(w.rows * w.cols * element);
    w.data = to;
    for (int64_t row_and_colour = 0; row_and_colour < c_.width * 3; ++row_and_colour) {
      for (const gguf::TensorInfo* t : frames) {
        std::memcpy(to, t->data + row_and_colour * plane * element, static_cast<size_t>(plane * element));
        to += plane * element;
      }
      if (row_and_colour % 3 == 2) to += zeros * element;  // what is kept begins as zeros
    }
    return w;
  }

  Tensor colours() {
    image::ImageSpec spec;
    std::ranges::copy(c_.image_mean, spec.mean.begin());
    std::ranges::copy(c_.image_std, spec.deviation.begin());
    std::vector<float> table = image::colour_table(spec);
    if (c_.family == VisionFamily::kGemma4)  // whose tower does this itself
      for (float& x : table) x = 2.0f * (x - 0.5f);
    return keep(std::move(table)).reshaped({3, 256});
  }

  Tensor frequencies() {
    const int64_t half = c_.head_dim() / 2;
    std::vector<float> f;
    for (int64_t i = 0; i < half / 2; ++i)
      f.push_back(1.0f / std::pow(c_.rope_theta, static_cast<float>(2 * i) / static_cast<float>(half)));
    return keep(std::move(f));
  }

  Result<VisionBlock> block(int64_t i) {
    VisionBlock b;
    QUIRE_TRY(b.norm1, norm(kNorm1, i, c_.width));
    QUIRE_TRY(b.norm2, norm(kNorm2, i, c_.width));
    if (vision_row(c_.family).fused_qkv) {
      QUIRE_TRY(b.qkv, linear_of(kQkv, i, 3 * c_.width, c_.width));
    } else {
      QUIRE_TRY(b.q, linear_of(kQuery, i, c_.width, c_.width));
      QUIRE_TRY(b.k, linear_of(kKey, i, c_.width, c_.width));
      QUIRE_TRY(b.value, linear_of(kValue, i, c_.width, c_.width));
    }
    QUIRE_TRY(b.out, linear_of(kAttnOut, i, c_.width, c_.width));
    // Older writers call the two the other way round, which their shapes show.
    std::string up = vision_stem(kUp, i), down = vision_stem(kDown, i);
    const gguf::TensorInfo* const first = file_.find_tensor(up + ".weight");
    if (first != nullptr && c_.ffn != c_.width && first->dims[0] == c_.ffn && first->dims[1] == c_.width)
      std::swap(up, down);
    QUIRE_TRY(b.up, linear_of(up, c_.ffn, c_.width));
    QUIRE_TRY(b.down, linear_of(down, c_.width, c_.ffn));
    return b;
  }

  Status mergers(VisionWeights& w) {
    const int64_t merged = c_.merged_width();
    QUIRE_TRY(w.merger.norm, norm(kPostNorm, 0, c_.width));
    QUIRE_TRY(w.merger.up, linear_of(kMergeUp, 0, merged, merged));
    QUIRE_TRY(w.merger.down, linear_of(kMergeDown, 0, c_.out_width, merged));
    for (const int64_t block : c_.deepstack) {
      VisionMerger m;
      QUIRE_TRY(m.norm, norm(kStackNorm, block, merged));
      QUIRE_TRY(m.up, linear_of(kStackUp, block, merged, merged));
      QUIRE_TRY(m.down, linear_of(kStackDown, block, c_.out_width, merged));
      w.deepstack.push_back(std::move(m));
    }
    return {};
  }

  Status projection(VisionWeights& w) {
    QUIRE_TRY(w.post_norm, norm(kPostNorm, 0, c_.width));
    QUIRE_TRY(w.projection_norm, vector(vision_stem(kProjectionNorm) + ".weight", {c_.width}));
    const std::string name = vision_stem(kProjection) + ".weight";
    QUIRE_TRY(const gguf::TensorInfo* t, tensor(name, {c_.out_width, c_.width}));
    QUIRE_TRY(const int64_t element, element_bytes(name, t->dtype));
    std::byte* const to = keep_bytes(t->bytes);
    for (int64_t in = 0; in < c_.width; ++in)
      for (int64_t out = 0; out < c_.out_width; ++out)
        std::memcpy(to + (out * c_.width + in) * element, t->data + (in * c_.out_width + out) * element,
                    static_cast<size_t>(element));
    w.projection = {.dtype = t->dtype, .data = to, .rows = c_.out_width, .cols = c_.width};
    return {};
  }

  // What is left of the tower would change what it computes. A file may have another one for sound.
  Status check_unread() const {
    for (const gguf::TensorInfo& t : file_.tensors())
      if ((t.name.starts_with("v.") || (t.name.starts_with("mm.") && !t.name.starts_with("mm.a."))) &&
          !used_.contains(std::string(t.name)))
        return file_error("tensor {}: is not computed in a tower with the projector {}", gguf::printable(t.name),
                          vision_row(c_.family).projector);
    return {};
  }

  const gguf::File& file_;
  const VisionConfig& c_;
  WeightLoader::Arena& arena_;
  std::unordered_set<std::string> used_;
};

}  // namespace

Result<VisionWeights> load_vision_weights(const gguf::File& file, const VisionConfig& config,
                                          WeightLoader::Arena& arena) {
  return VisionLoader(file, config, arena).run();
}

}  // namespace quire
