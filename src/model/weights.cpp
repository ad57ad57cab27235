#include "model/weights.h"

#include <fmt/ranges.h>

#include <cmath>
#include <cstring>
#include <iterator>

#include "quant/format.h"

namespace quire {
namespace {

std::string dims_text(int64_t cols, int64_t rows, int64_t experts) {
  return experts == 1 ? fmt::format("[{}, {}]", cols, rows) : fmt::format("[{}, {}, {}]", cols, rows, experts);
}

// A file names the innermost dimension first.
std::vector<int64_t> reversed(std::initializer_list<int64_t> dims) {
  return {std::make_reverse_iterator(dims.end()), std::make_reverse_iterator(dims.begin())};
}

// Writers differ in whether a dimension of one is there; every other one counts, and so does their order.
std::vector<int64_t> without_ones(std::vector<int64_t> dims) {
  std::erase(dims, 1);
  return dims;
}

}  // namespace

const gguf::TensorInfo* find_scale(const gguf::File& file, std::string_view stem) {
  const gguf::TensorInfo* const t = file.find_tensor(fmt::format("{}.scale", stem));
  return t != nullptr ? t : file.find_tensor(fmt::format("{}.weight.scale", stem));
}

Result<const float*> WeightLoader::scale_of(const std::string& stem, int64_t experts) {
  // Static activation scales are not needed: activations stay in 16 bits.
  for (const char* name : {".input_scale", ".weight.input_scale"}) used_.insert(stem + name);
  const gguf::TensorInfo* const scale = find_scale(file_, stem);
  if (scale == nullptr) return static_cast<const float*>(nullptr);
  const std::string name(scale->name);
  QUIRE_TRY(const Tensor t, floats(name, {experts}));
  for (int64_t i = 0; i < experts; ++i)
    if (!std::isfinite(t.as<float>()[i])) return file_error("tensor {}: factor {} is not finite", name, i);
  return static_cast<const float*>(t.as<float>());
}

Result<Weight> WeightLoader::matrix(TensorRole role, int64_t block) {
  QUIRE_TRY(Weight w, matrix_without_scale(role, block));
  QUIRE_TRY(w.scale, scale_of(tensor_stem(role, block), w.experts));
  return w;
}

Result<Weight> WeightLoader::matrix_without_scale(TensorRole role, int64_t block) {
  const TensorSpec& spec = tensor_spec(role);
  const int64_t rows = size_of(spec.rows, sizes_), cols = size_of(spec.cols, sizes_);
  const int64_t experts = spec.kind == TensorKind::kExperts ? sizes_.experts : 1;
  const std::string name = tensor_name(role, block);
  QUIRE_TRY(const gguf::TensorInfo* t, file_.get_tensor(name));
  used_.insert(name);
  if (t->dims[0] != cols || t->dims[1] != rows || t->dims[2] != experts || t->dims[3] != 1)
    return file_error("tensor {}: shape {} does not fit the model, which needs {}", name, gguf::shape_text(*t),
                      dims_text(cols, rows, experts));
  QUIRE_CHECKED(quant::check_decodable(name, t->dtype));
  Weight w;
  w.dtype = t->dtype;
  w.data = t->data;
  w.rows = rows;
  w.cols = cols;
  w.experts = experts;
  return w;
}

Result<Weight> WeightLoader::optional_matrix(TensorRole role, int64_t block) {
  if (file_.find_tensor(tensor_name(role, block)) == nullptr) return Weight{};
  return matrix(role, block);
}

Result<Weight> WeightLoader::matrix_rows(TensorRole role, int64_t block, std::span<const int64_t> order) {
  QUIRE_TRY(Weight w, matrix(role, block));
  const auto row_bytes = static_cast<size_t>(w.row_bytes());
  std::vector<std::byte>& rows = arena_.matrices.emplace_back(order.size() * row_bytes);
  arena_.bytes += std::ssize(rows);
  for (size_t i = 0; i < order.size(); ++i)
    std::memcpy(rows.data() + i * row_bytes, w.data + static_cast<size_t>(order[i]) * row_bytes, row_bytes);
  w.data = rows.data();
  w.rows = std::ssize(order);
  return w;
}

Result<Tensor> WeightLoader::floats(const std::string& name, std::initializer_list<int64_t> dims) {
  QUIRE_TRY(const gguf::TensorInfo* t, file_.get_tensor(name));
  used_.insert(name);
  if (without_ones({t->dims.begin(), t->dims.end()}) != without_ones(reversed(dims)))
    return file_error("tensor {}: shape {} does not fit the model, which needs [{}]", name, gguf::shape_text(*t),
                      fmt::join(reversed(dims), ", "));
  if (t->dtype == DType::kF32) return make_tensor(const_cast<std::byte*>(t->data), DType::kF32, dims);
  QUIRE_CHECKED(quant::check_decodable(name, t->dtype));
  std::vector<float> values(static_cast<size_t>(t->elems()));
  for (int64_t r = 0; r < t->rows(); ++r)
    quant::decode_row(t->dtype, t->data + r * t->row_bytes(), t->dims[0], values.data() + r * t->dims[0]);
  return make_tensor(keep(std::move(values)).data, DType::kF32, dims);
}

Tensor WeightLoader::keep(std::vector<float> values) {
  arena_.bytes += std::ssize(values) * 4;
  std::vector<float>& kept = arena_.vectors.emplace_back(std::move(values));
  return make_tensor(kept.data(), {std::ssize(kept)});
}

Tensor WeightLoader::ones(int64_t n) {
  return keep(std::vector<float>(static_cast<size_t>(n), 1.0f));
}

Result<Tensor> WeightLoader::scaled_vector(TensorRole role, int64_t block, float factor) {
  QUIRE_TRY(const Tensor t, vector(role, block));
  std::vector<float> values(t.as<float>(), t.as<float>() + t.elems());
  for (float& x : values) x *= factor;
  return keep(std::move(values));
}

Result<Tensor> WeightLoader::vector(TensorRole role, int64_t block) {
  const TensorSpec& spec = tensor_spec(role);
  const int64_t cols = size_of(spec.cols, sizes_);
  const std::string name = tensor_name(role, block);
  return spec.rows == Extent::kOne ? floats(name, {cols}) : floats(name, {size_of(spec.rows, sizes_), cols});
}

Result<Tensor> WeightLoader::optional_vector(TensorRole role, int64_t block) {
  if (file_.find_tensor(tensor_name(role, block)) == nullptr) return Tensor{};
  return vector(role, block);
}

Result<Tensor> WeightLoader::optional_numbers(TensorRole role, int64_t block) {
  const std::string name = tensor_name(role, block);
  const gguf::TensorInfo* const t = file_.find_tensor(name);
  if (t == nullptr) return Tensor{};
  used_.insert(name);
  if (t->dims[0] != t->elems() || (t->dtype != DType::kI32 && t->dtype != DType::kI64))
    return file_error("tensor {}: {} of {}, but it must be a list of i32 or i64", name, gguf::shape_text(*t),
                      dtype_name(t->dtype));
  std::vector<int32_t>& numbers = arena_.numbers.emplace_back(static_cast<size_t>(t->elems()));
  arena_.bytes += t->elems() * 4;
  for (size_t i = 0; i < numbers.size(); ++i) {
    int64_t n = 0;
    int32_t narrow = 0;
    if (t->dtype == DType::kI64) std::memcpy(&n, t->data + i * sizeof n, sizeof n);
    std::memcpy(&narrow, t->data + i * sizeof narrow, t->dtype == DType::kI32 ? sizeof narrow : 0);
    if (t->dtype == DType::kI32) n = narrow;
    if (n != static_cast<int32_t>(n)) return file_error("tensor {}: element {} is {}", name, i, n);
    numbers[i] = static_cast<int32_t>(n);
  }
  return make_tensor(numbers.data(), {std::ssize(numbers)});
}

std::vector<std::string_view> WeightLoader::unread() const {
  std::vector<std::string_view> names;
  for (const gguf::TensorInfo& t : file_.tensors())
    if (!used_.contains(std::string(t.name))) names.push_back(t.name);
  return names;
}

using enum TensorRole;

namespace {

// Keys and values, where no tensor holds the queries' projection as well.
Status load_kv(WeightLoader& w, const Architecture& row, int64_t block, Mixer mixer, AttentionWeights& a) {
  QUIRE_TRY(a.k, w.matrix(kAttnK, block));
  if (!row.keys_as_values || mixer == Mixer::kWindowAttention || w.has(kAttnV, block)) {
    QUIRE_TRY(a.v, w.matrix(kAttnV, block));
  }
  QUIRE_TRY(a.k_bias, w.optional_vector(kAttnKBias, block));
  QUIRE_TRY(a.v_bias, w.optional_vector(kAttnVBias, block));
  return {};
}

}  // namespace

Result<AttentionWeights> load_attention(WeightLoader& w, const Architecture& row, const ModelConfig& c, int64_t block,
                                        Mixer mixer) {
  AttentionWeights a;
  const bool own_kv = c.own_kv(block);
  if (own_kv && (w.has(kAttnQkv, block) || (row.fused_qkv && !w.has(kAttnQ, block)))) {
    QUIRE_TRY(const Weight fused, w.matrix(kAttnQkv, block));
    const ModelSizes sizes = c.sizes(mixer);
    const int64_t q_rows = size_of(Extent::kQueryRows, sizes), kv_rows = size_of(Extent::kKvHeads, sizes);
    a.q = fused.row_slice(0, q_rows);
    a.k = fused.row_slice(q_rows, kv_rows);
    a.v = fused.row_slice(q_rows + kv_rows, kv_rows);
    QUIRE_TRY(const Tensor bias, w.optional_vector(kAttnQkvBias, block));
    if (!bias.empty()) {
      a.q_bias = bias.rows(0, q_rows);
      a.k_bias = bias.rows(q_rows, kv_rows);
      a.v_bias = bias.rows(q_rows + kv_rows, kv_rows);
    }
  } else {
    QUIRE_TRY(a.q, w.matrix(kAttnQ, block));
    QUIRE_TRY(a.q_bias, w.optional_vector(kAttnQBias, block));
    if (own_kv) QUIRE_CHECKED(load_kv(w, row, block, mixer, a));
  }
  QUIRE_TRY(a.out, w.matrix(kAttnOutput, block));
  QUIRE_TRY(a.out_bias, w.optional_vector(kAttnOutputBias, block));
  if (c.attention.qk_norm) {
    QUIRE_TRY(a.q_norm, w.vector(kAttnQNorm, block));
  }
  if (c.attention.qk_norm && own_kv) {
    QUIRE_TRY(a.k_norm, w.vector(kAttnKNorm, block));
  }
  if (c.attention.value_norm && own_kv) a.v_norm = w.ones(c.heads_of(mixer).head_dim);
  if (c.attention.sinks) {
    QUIRE_TRY(a.sinks, w.vector(kAttnSinks, block));
  }
  return a;
}

namespace {

// beta and alpha in one: of each key head its value heads' rows of beta, then those of alpha.
Status load_packed_gates(WeightLoader& w, const DeltaSpec& d, int64_t block, DeltaWeights& g) {
  const int64_t each = d.value_heads / d.key_heads;
  std::vector<int64_t> beta, alpha;
  for (int64_t head = 0; head < d.key_heads; ++head)
    for (int64_t r = 0; r < each; ++r) {
      beta.push_back(2 * head * each + r);
      alpha.push_back((2 * head + 1) * each + r);
    }
  QUIRE_TRY(g.beta, w.matrix_rows(kDeltaBetaAlpha, block, beta));
  QUIRE_TRY(g.alpha, w.matrix_rows(kDeltaBetaAlpha, block, alpha));
  return {};
}

}  // namespace

Result<DeltaWeights> load_delta(WeightLoader& w, const ModelConfig& c, int64_t block) {
  DeltaWeights g;
  QUIRE_TRY(g.qkv, w.matrix(kDeltaQkv, block));
  QUIRE_TRY(g.z, w.matrix(kDeltaZ, block));
  if (c.delta.grouped) {
    QUIRE_CHECKED(load_packed_gates(w, c.delta, block, g));
  } else {
    QUIRE_TRY(g.alpha, w.matrix(kDeltaAlpha, block));
    QUIRE_TRY(g.beta, w.matrix(kDeltaBeta, block));
  }
  QUIRE_TRY(g.out, w.matrix(kDeltaOut, block));
  QUIRE_TRY(g.conv, w.vector(kDeltaConv, block));
  QUIRE_TRY(g.a, w.vector(kDeltaA, block));
  QUIRE_TRY(g.dt_bias, w.vector(kDeltaDtBias, block));
  QUIRE_TRY(g.norm, w.vector(kDeltaNorm, block));
  return g;
}

namespace {

Result<DenseWeights> load_dense(WeightLoader& w, const Architecture& row, const FeedForwardSpec& spec, int64_t block) {
  DenseWeights f;
  if (row.fused_gate_up && !w.has(kFfnGate, block)) {
    QUIRE_TRY(const Weight fused, w.matrix(kFfnGateUp, block));
    f.gate = fused.row_slice(0, spec.width(block));
    f.up = fused.row_slice(spec.width(block), spec.width(block));
  } else {
    QUIRE_TRY(f.gate, w.matrix(kFfnGate, block));
    QUIRE_TRY(f.up, w.matrix(kFfnUp, block));
  }
  QUIRE_TRY(f.down, w.matrix(kFfnDown, block));
  QUIRE_TRY(f.gate_bias, w.optional_vector(kFfnGateBias, block));
  QUIRE_TRY(f.up_bias, w.optional_vector(kFfnUpBias, block));
  QUIRE_TRY(f.down_bias, w.optional_vector(kFfnDownBias, block));
  return f;
}

Result<ExpertWeights> load_experts(WeightLoader& w, const Architecture& row, const FeedForwardSpec& spec,
                                   int64_t block) {
  ExpertWeights f;
  if (row.dense_beside_experts) {
    QUIRE_TRY(f.router, w.matrix_without_scale(kRouter, block));
  } else {
    QUIRE_TRY(f.router, w.matrix(kRouter, block));
  }
  if (row.any_router) {
    QUIRE_TRY(f.selection_bias, w.vector(kRouterSelectionBias, block));
  }
  if (w.has(kExpertsGateUp, block) || (row.dense_beside_experts && !w.has(kExpertsGate, block))) {
    QUIRE_TRY(const Weight fused, w.matrix(kExpertsGateUp, block));
    f.gate = fused.row_slice(0, spec.d_ff_expert);
    f.up = fused.row_slice(spec.d_ff_expert, spec.d_ff_expert);
  } else {
    QUIRE_TRY(f.gate, w.matrix(kExpertsGate, block));
    QUIRE_TRY(f.up, w.matrix(kExpertsUp, block));
  }
  QUIRE_TRY(f.down, w.matrix(kExpertsDown, block));
  if (spec.biases) {
    QUIRE_TRY(f.router_bias, w.vector(kRouterBias, block));
    QUIRE_TRY(f.gate_bias, w.vector(kExpertsGateBias, block));
    QUIRE_TRY(f.up_bias, w.vector(kExpertsUpBias, block));
    QUIRE_TRY(f.down_bias, w.vector(kExpertsDownBias, block));
  }
  if (spec.d_ff_shared == 0) return f;
  QUIRE_TRY(f.shared_gate, w.matrix(kSharedGate, block));
  QUIRE_TRY(f.shared_up, w.matrix(kSharedUp, block));
  QUIRE_TRY(f.shared_down, w.matrix(kSharedDown, block));
  if (row.shared_router) {
    QUIRE_TRY(f.shared_router, w.vector(kSharedRouter, block));
  }
  return f;
}

Result<ParallelWeights> load_parallel(WeightLoader& w, const Architecture& row, const ModelConfig& c, int64_t block) {
  ParallelWeights f;
  QUIRE_TRY(f.dense, load_dense(w, row, c.ffn, block));
  QUIRE_TRY(f.dense_out_norm, w.vector(kPostDenseNorm, block));
  QUIRE_TRY(f.router_norm, w.scaled_vector(kRouterScale, block, 1.0f / std::sqrt(static_cast<float>(c.d_model))));
  QUIRE_TRY(f.experts_norm, w.vector(kExpertsNorm, block));
  QUIRE_TRY(f.experts, load_experts(w, row, c.ffn, block));
  QUIRE_TRY(f.experts_out_norm, w.vector(kPostExpertsNorm, block));
  return f;
}

Status load_per_layer(WeightLoader& w, int64_t block, PerLayerWeights& p) {
  QUIRE_TRY(p.gate, w.matrix(kPerLayerGate, block));
  QUIRE_TRY(p.out, w.matrix(kPerLayerOut, block));
  QUIRE_TRY(p.norm, w.vector(kPostPerLayerNorm, block));
  return {};
}

// One number; 1 where the file has none.
Status load_layer_scale(WeightLoader& w, int64_t block, float& scale) {
  QUIRE_TRY(const Tensor t, w.optional_vector(kLayerScale, block));
  if (t.empty()) return {};
  scale = *t.as<float>();
  return std::isfinite(scale) ? Status() : file_error("tensor {}: is not finite", tensor_name(kLayerScale, block));
}

}  // namespace

Result<FeedForwardWeights> load_feed_forward(WeightLoader& w, const Architecture& row, const ModelConfig& c,
                                             int64_t block) {
  if (!c.ffn.dense(block) && c.ffn.beside_experts) {
    QUIRE_TRY(ParallelWeights both, load_parallel(w, row, c, block));
    return FeedForwardWeights(both);
  }
  if (!c.ffn.dense(block)) {
    QUIRE_TRY(ExpertWeights experts, load_experts(w, row, c.ffn, block));
    return FeedForwardWeights(experts);
  }
  QUIRE_TRY(DenseWeights dense, load_dense(w, row, c.ffn, block));
  return FeedForwardWeights(dense);
}

Result<LayerWeights> load_layer(WeightLoader& w, const Architecture& row, const ModelConfig& c, int64_t block,
                                Mixer mixer) {
  w.use(c.layer_sizes(block, mixer));
  LayerWeights l;
  QUIRE_TRY(l.mixer_norm, w.vector(kAttnNorm, block));
  QUIRE_TRY(l.ffn_norm, w.vector(row.ffn_norm, block));
  if (row.norms_after) {
    QUIRE_TRY(l.mixer_out_norm, w.vector(kPostAttentionNorm, block));
    QUIRE_TRY(l.ffn_out_norm, w.vector(kPostFfnNorm, block));
  }
  if (mixer == Mixer::kDelta) {
    QUIRE_TRY(l.mixer, load_delta(w, c, block));
  } else {
    QUIRE_TRY(l.mixer, load_attention(w, row, c, block, mixer));
  }
  QUIRE_TRY(l.ffn, load_feed_forward(w, row, c, block));
  if (c.d_per_layer > 0) QUIRE_CHECKED(load_per_layer(w, block, l.per_layer));
  if (c.layer_scales) QUIRE_CHECKED(load_layer_scale(w, block, l.out_scale));
  return l;
}

// ---- Visiting: what is constant comes with a visitor that only looks ----

namespace {

template <class Weights, class Visitor>
void visit_attention(Weights& w, Visitor& v) {
  for (auto* m : {&w.q, &w.k, &w.v, &w.out}) v.matrix(*m);
  for (auto* t : {&w.q_bias, &w.k_bias, &w.v_bias, &w.out_bias, &w.q_norm, &w.k_norm, &w.v_norm, &w.sinks})
    v.vector(*t);
}

template <class Weights, class Visitor>
void visit_delta(Weights& w, Visitor& v) {
  for (auto* m : {&w.qkv, &w.z, &w.alpha, &w.beta, &w.out}) v.matrix(*m);
  for (auto* t : {&w.conv, &w.a, &w.dt_bias, &w.norm}) v.vector(*t);
}

template <class Weights, class Visitor>
void visit_dense(Weights& w, Visitor& v) {
  v.gate_up(w.gate, w.up);
  v.matrix(w.down);
  for (auto* t : {&w.gate_bias, &w.up_bias, &w.down_bias}) v.vector(*t);
}

template <class Weights, class Visitor>
void visit_experts(Weights& w, Visitor& v) {
  v.matrix(w.router);
  for (auto* t : {&w.router_bias, &w.selection_bias, &w.gate_bias, &w.up_bias, &w.down_bias}) v.vector(*t);
  v.experts(w.gate, w.up, w.down, w.shared_gate, w.shared_up, w.shared_down);
  v.vector(w.shared_router);
}

template <class Weights, class Visitor>
void visit_parallel(Weights& w, Visitor& v) {
  visit_dense(w.dense, v);
  for (auto* t : {&w.dense_out_norm, &w.router_norm, &w.experts_norm}) v.vector(*t);
  visit_experts(w.experts, v);
  v.vector(w.experts_out_norm);
}

template <class Layer, class Visitor>
void visit_layer(Layer& l, Visitor& v) {
  v.vector(l.mixer_norm);
  if (auto* attention = std::get_if<AttentionWeights>(&l.mixer))
    visit_attention(*attention, v);
  else
    visit_delta(std::get<DeltaWeights>(l.mixer), v);
  v.vector(l.mixer_out_norm);
  v.vector(l.ffn_norm);
  if (auto* dense = std::get_if<DenseWeights>(&l.ffn))
    visit_dense(*dense, v);
  else if (auto* both = std::get_if<ParallelWeights>(&l.ffn))
    visit_parallel(*both, v);
  else
    visit_experts(std::get<ExpertWeights>(l.ffn), v);
  v.vector(l.ffn_out_norm);
  v.matrix(l.per_layer.gate);
  v.matrix(l.per_layer.out);
  v.vector(l.per_layer.norm);
}

}  // namespace

void visit(const LayerWeights& l, WeightVisitor& v) {
  visit_layer(l, v);
}

void visit(LayerWeights& l, WeightPlacer& v) {
  visit_layer(l, v);
}

}  // namespace quire
