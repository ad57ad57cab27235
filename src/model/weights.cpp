#include "model/weights.h"

#include <fmt/ranges.h>

#include <iterator>

#include "quant/format.h"

namespace quire {
namespace {

std::string dims_text(int64_t cols, int64_t rows, int64_t experts) {
  return experts == 1 ? fmt::format("[{}, {}]", cols, rows)
                      : fmt::format("[{}, {}, {}]", cols, rows, experts);
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

Result<const float*> WeightLoader::scale_of(const std::string& stem, int64_t experts) {
  used_.insert(stem +
               ".input_scale");  // static activation scales are not needed: activations stay in 16 bits
  if (file_.find_tensor(stem + ".scale") == nullptr) return static_cast<const float*>(nullptr);
  QUIRE_TRY(const Tensor t, vector(stem + ".scale", experts));
  for (int64_t i = 0; i < experts; ++i)
    if (!std::isfinite(t.as<float>()[i]))
      return file_error("tensor {}.scale: factor {} is not finite", stem, i);
  return static_cast<const float*>(t.as<float>());
}

Result<Weight> WeightLoader::matrix(const std::string& stem, int64_t rows, int64_t cols, int64_t experts) {
  const std::string name = stem + ".weight";
  QUIRE_TRY(const gguf::TensorInfo* t, file_.get_tensor(name));
  used_.insert(name);
  if (t->dims[0] != cols || t->dims[1] != rows || t->dims[2] != experts || t->dims[3] != 1)
    return file_error("tensor {}: shape {} does not fit the model, which needs {}", name,
                      gguf::shape_text(*t), dims_text(cols, rows, experts));
  QUIRE_CHECKED(quant::check_decodable(name, t->dtype));
  QUIRE_TRY(const float* scale, scale_of(stem, experts));
  Weight w;
  w.dtype = t->dtype;
  w.data = t->data;
  w.rows = rows;
  w.cols = cols;
  w.experts = experts;
  w.scale = scale;
  return w;
}

Result<Weight> WeightLoader::optional_matrix(const std::string& stem, int64_t rows, int64_t cols,
                                             int64_t experts) {
  if (file_.find_tensor(stem + ".weight") == nullptr) return Weight{};
  return matrix(stem, rows, cols, experts);
}

Result<Tensor> WeightLoader::floats(const std::string& name, std::initializer_list<int64_t> dims) {
  QUIRE_TRY(const gguf::TensorInfo* t, file_.get_tensor(name));
  used_.insert(name);
  if (without_ones({t->dims.begin(), t->dims.end()}) != without_ones(reversed(dims)))
    return file_error("tensor {}: shape {} does not fit the model, which needs [{}]", name,
                      gguf::shape_text(*t), fmt::join(reversed(dims), ", "));
  if (t->dtype == DType::kF32) return make_tensor(const_cast<std::byte*>(t->data), DType::kF32, dims);
  QUIRE_CHECKED(quant::check_decodable(name, t->dtype));
  arena_.vectors.emplace_back(static_cast<size_t>(t->elems()));
  arena_.bytes += t->elems() * 4;
  float* out = arena_.vectors.back().data();
  for (int64_t r = 0; r < t->rows(); ++r)
    quant::decode_row(t->dtype, t->data + r * t->row_bytes(), t->dims[0], out + r * t->dims[0]);
  return make_tensor(out, DType::kF32, dims);
}

Result<Tensor> WeightLoader::vector(const std::string& name, int64_t n) {
  return floats(name, {n});
}

Result<Tensor> WeightLoader::optional_vector(const std::string& name, int64_t n) {
  if (file_.find_tensor(name) == nullptr) return Tensor{};
  return floats(name, {n});
}

Result<Tensor> WeightLoader::table(const std::string& name, int64_t rows, int64_t cols) {
  return floats(name, {rows, cols});
}

std::vector<std::string> WeightLoader::unused() const {
  std::vector<std::string> names;
  for (const gguf::TensorInfo& t : file_.tensors())
    if (!used_.contains(std::string(t.name))) names.emplace_back(t.name);
  return names;
}

Result<AttentionWeights> load_attention(WeightLoader& w, const ModelConfig& c, const std::string& p) {
  AttentionWeights a;
  const int64_t d = c.d_model, q_rows = int64_t{c.heads} * c.head_dim * (c.hybrid ? 2 : 1);
  const int64_t kv_rows = int64_t{c.kv_heads} * c.head_dim;
  QUIRE_TRY(const Weight fused, w.optional_matrix(p + "attn_qkv", q_rows + 2 * kv_rows, d));
  if (!fused.empty()) {
    a.q = fused.row_slice(0, q_rows);
    a.k = fused.row_slice(q_rows, kv_rows);
    a.v = fused.row_slice(q_rows + kv_rows, kv_rows);
    QUIRE_TRY(const Tensor bias, w.optional_vector(p + "attn_qkv.bias", q_rows + 2 * kv_rows));
    if (!bias.empty()) {
      a.q_bias = bias.rows(0, q_rows);
      a.k_bias = bias.rows(q_rows, kv_rows);
      a.v_bias = bias.rows(q_rows + kv_rows, kv_rows);
    }
  } else {
    QUIRE_TRY(a.q, w.matrix(p + "attn_q", q_rows, d));
    QUIRE_TRY(a.k, w.matrix(p + "attn_k", kv_rows, d));
    QUIRE_TRY(a.v, w.matrix(p + "attn_v", kv_rows, d));
    QUIRE_TRY(a.q_bias, w.optional_vector(p + "attn_q.bias", q_rows));
    QUIRE_TRY(a.k_bias, w.optional_vector(p + "attn_k.bias", kv_rows));
    QUIRE_TRY(a.v_bias, w.optional_vector(p + "attn_v.bias", kv_rows));
  }
  QUIRE_TRY(a.out, w.matrix(p + "attn_output", d, int64_t{c.heads} * c.head_dim));
  QUIRE_TRY(a.out_bias, w.optional_vector(p + "attn_output.bias", d));
  if (c.qk_norm) {
    QUIRE_TRY(a.q_norm, w.vector(p + "attn_q_norm.weight", c.head_dim));
    QUIRE_TRY(a.k_norm, w.vector(p + "attn_k_norm.weight", c.head_dim));
  }
  return a;
}

Result<DeltaWeights> load_delta(WeightLoader& w, const ModelConfig& c, const std::string& p) {
  DeltaWeights g;
  const DeltaConfig& s = c.delta;
  const int64_t d = c.d_model, inner = int64_t{s.value_heads} * s.value_dim;
  QUIRE_TRY(g.qkv, w.matrix(p + "attn_qkv", s.conv_channels(), d));
  QUIRE_TRY(g.z, w.matrix(p + "attn_gate", inner, d));
  QUIRE_TRY(g.alpha, w.matrix(p + "ssm_alpha", s.value_heads, d));
  QUIRE_TRY(g.beta, w.matrix(p + "ssm_beta", s.value_heads, d));
  QUIRE_TRY(g.out, w.matrix(p + "ssm_out", d, inner));
  QUIRE_TRY(g.conv, w.table(p + "ssm_conv1d.weight", s.conv_channels(), s.conv_kernel));
  QUIRE_TRY(g.a, w.vector(p + "ssm_a", s.value_heads));
  QUIRE_TRY(g.dt_bias, w.vector(p + "ssm_dt.bias", s.value_heads));
  QUIRE_TRY(g.norm, w.vector(p + "ssm_norm.weight", s.value_dim));
  return g;
}

namespace {

Result<FfnWeights> load_experts(WeightLoader& w, const ModelConfig& c, const std::string& p) {
  FfnWeights f;
  const int64_t d = c.d_model, fe = c.d_ff_expert, fs = c.d_ff_shared, e = c.experts;
  QUIRE_TRY(f.router, w.matrix(p + "ffn_gate_inp", e, d));
  QUIRE_TRY(const Weight fused, w.optional_matrix(p + "ffn_gate_up_exps", 2 * fe, d, e));
  if (!fused.empty()) {
    f.gate = fused.row_slice(0, fe);
    f.up = fused.row_slice(fe, fe);
  } else {
    QUIRE_TRY(f.gate, w.matrix(p + "ffn_gate_exps", fe, d, e));
    QUIRE_TRY(f.up, w.matrix(p + "ffn_up_exps", fe, d, e));
  }
  QUIRE_TRY(f.down, w.matrix(p + "ffn_down_exps", d, fe, e));
  if (fs == 0) return f;
  QUIRE_TRY(f.shared_gate, w.matrix(p + "ffn_gate_shexp", fs, d));
  QUIRE_TRY(f.shared_up, w.matrix(p + "ffn_up_shexp", fs, d));
  QUIRE_TRY(f.shared_down, w.matrix(p + "ffn_down_shexp", d, fs));
  QUIRE_TRY(f.shared_router, w.vector(p + "ffn_gate_inp_shexp.weight", d));
  return f;
}

}  // namespace

Result<FfnWeights> load_ffn(WeightLoader& w, const ModelConfig& c, const std::string& p) {
  if (c.experts > 0) return load_experts(w, c, p);
  FfnWeights f;
  QUIRE_TRY(f.gate, w.matrix(p + "ffn_gate", c.d_ff, c.d_model));
  QUIRE_TRY(f.up, w.matrix(p + "ffn_up", c.d_ff, c.d_model));
  QUIRE_TRY(f.down, w.matrix(p + "ffn_down", c.d_model, c.d_ff));
  QUIRE_TRY(f.gate_bias, w.optional_vector(p + "ffn_gate.bias", c.d_ff));
  QUIRE_TRY(f.up_bias, w.optional_vector(p + "ffn_up.bias", c.d_ff));
  QUIRE_TRY(f.down_bias, w.optional_vector(p + "ffn_down.bias", c.d_model));
  return f;
}

void visit(AttentionWeights& w, WeightVisitor& v) {
  for (Weight* m : {&w.q, &w.k, &w.v, &w.out}) v.matrix(*m);
  for (Tensor* t : {&w.q_bias, &w.k_bias, &w.v_bias, &w.out_bias, &w.q_norm, &w.k_norm}) v.vector(*t);
}

void visit(DeltaWeights& w, WeightVisitor& v) {
  for (Weight* m : {&w.qkv, &w.z, &w.alpha, &w.beta, &w.out}) v.matrix(*m);
  for (Tensor* t : {&w.conv, &w.a, &w.dt_bias, &w.norm}) v.vector(*t);
}

void visit(FfnWeights& w, WeightVisitor& v) {
  v.matrix(w.router);
  v.experts(w.gate, w.up, w.down, w.shared_gate, w.shared_up, w.shared_down);
  for (Tensor* t : {&w.gate_bias, &w.up_bias, &w.down_bias, &w.shared_router}) v.vector(*t);
}

}  // namespace quire
