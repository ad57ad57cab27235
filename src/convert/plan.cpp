#include "convert/plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "gguf/metadata.h"

namespace quire::convert {
namespace {

// llama's rotary pairs are neighbours in GGUF and half a head apart in the checkpoint: row 2j + b of a head
// comes from row b * d/2 + j.
std::vector<int64_t> interleaved_rows(int64_t heads, int64_t head_dim) {
  std::vector<int64_t> order;
  for (int64_t row = 0; row < heads * head_dim; ++row) {
    const int64_t head = row / head_dim, r = row % head_dim;
    order.push_back(head * head_dim + r % 2 * (head_dim / 2) + r / 2);
  }
  return order;
}

// The checkpoint keeps the value heads of one key head together; GGUF goes round the key heads.
std::vector<int64_t> tiled_heads(const HfConfig& c) {
  std::vector<int64_t> order;
  const int64_t each = c.value_heads / c.key_heads;
  for (int64_t i = 0; i < c.value_heads; ++i) order.push_back(i % c.key_heads * each + i / c.key_heads);
  return order;
}

// That order for blocks of `size` rows, behind `before` rows that stay.
std::vector<int64_t> tiled_rows(const HfConfig& c, int64_t size, int64_t before = 0) {
  std::vector<int64_t> order;
  if (c.key_heads == c.value_heads) return order;
  for (int64_t i = 0; i < before; ++i) order.push_back(i);
  for (const int64_t head : tiled_heads(c))
    for (int64_t r = 0; r < size; ++r) order.push_back(before + head * size + r);
  return order;
}

DType plain_dtype(Element e) {
  switch (e) {
    case Element::kBF16:
      return DType::kBF16;
    case Element::kF16:
      return DType::kF16;
    default:
      return DType::kF32;
  }
}

struct Shape {
  int64_t rows, cols;
};

// As in OutTensor.
struct Orders {
  std::vector<int64_t> rows = {}, columns = {};
  int64_t column_block = 1;
};

class Planner {
 public:
  Planner(Source& source, HfConfig& config, std::optional<DType> type)
      : source_(source), c_(config), type_(type) {}

  Result<Plan> run() {
    QUIRE_CHECKED(source_.check());
    check_mtp();
    QUIRE_CHECKED(matrix("token_embd", "model.embed_tokens", {c_.vocab, c_.hidden}));
    if (c_.rope.kind == RopeScaling::Kind::kLlama3) add_rope_divisors();
    for (int64_t i = 0; i < c_.layers; ++i) {
      const bool recurrent = !c_.recurrent.empty() && c_.recurrent[static_cast<size_t>(i)];
      QUIRE_CHECKED(block(fmt::format("model.layers.{}.", i), fmt::format("blk.{}.", i), recurrent));
    }
    QUIRE_CHECKED(norm("output_norm.weight", "model.norm.weight", c_.hidden));
    QUIRE_CHECKED(head());
    if (c_.mtp_layers > 0) QUIRE_CHECKED(mtp());
    note_leftovers();
    find_main_type();
    return std::move(plan_);
  }

 private:
  OutTensor& add(std::string name, DType dtype, std::vector<int64_t> dims) {
    OutTensor& t = plan_.tensors.emplace_back();
    t.name = std::move(name);
    t.dtype = dtype;
    t.dims = std::move(dims);
    return t;
  }

  // ---- Kinds of tensors ----

  Status vector(const std::string& name, const std::string& hf, int64_t n, std::vector<int64_t> order = {},
                ValueChange change = ValueChange::kNone) {
    // One element a row, so that elements can be reordered; a row of all otherwise.
    QUIRE_TRY(Matrix m, order.empty() ? source_.tensor(hf, 1, n) : source_.tensor(hf, n, 1));
    OutTensor& t = add(name, DType::kF32, {n});
    t.parts.push_back(std::move(m));
    t.row_order = std::move(order);
    t.change = change;
    return {};
  }
  Status norm(const std::string& name, const std::string& hf, int64_t n) {
    return vector(name, hf, n, {}, c_.hybrid() ? ValueChange::kAddOne : ValueChange::kNone);
  }

  // "<stem>.weight" in the type that all its parts can have, and the scales of NVFP4.
  Status matrix(const std::string& stem, const std::string& hf, Shape shape, Orders orders = {}) {
    QUIRE_TRY(Matrix m, source_.linear(hf, shape.rows, shape.cols));
    std::vector<Matrix> parts;
    parts.push_back(std::move(m));
    return add_matrices(stem, std::move(parts), {shape.cols, shape.rows}, std::move(orders));
  }
  Status float_matrix(const std::string& stem, const std::string& hf, Shape shape) {
    QUIRE_TRY(Matrix m, source_.linear(hf, shape.rows, shape.cols));
    add(stem + ".weight", DType::kF32, {shape.cols, shape.rows}).parts.push_back(std::move(m));
    return {};
  }

  Status add_matrices(const std::string& stem, std::vector<Matrix> parts, std::vector<int64_t> dims,
                      Orders orders = {}) {
    const DType dtype = choose_type(parts, orders);
    OutTensor t;
    t.name = stem + ".weight";
    t.dtype = dtype;
    t.dims = std::move(dims);
    t.row_order = std::move(orders.rows);
    t.column_order = std::move(orders.columns);
    t.column_block = orders.column_block;
    std::vector<float> scales, inputs;
    for (const Matrix& m : parts) {
      scales.push_back(m.tensor_scale);
      if (m.input_scale) inputs.push_back(*m.input_scale);
    }
    t.parts = std::move(parts);
    plan_.tensors.push_back(std::move(t));
    if (dtype != DType::kNVFP4) return {};
    const auto n = static_cast<int64_t>(scales.size());
    add(stem + ".scale", DType::kF32, {n}).values = scales;
    if (inputs.size() == scales.size())
      add(stem + ".input_scale", DType::kF32, {n}).values = inputs;
    else if (!inputs.empty())
      ++partial_inputs_;
    return {};
  }

  // Codes are kept where all parts have the same kind and the columns make whole blocks.
  DType choose_type(const std::vector<Matrix>& parts, const Orders& orders) {
    if (type_) return *type_;
    const Matrix& first = parts.front();
    const bool alike = std::all_of(parts.begin(), parts.end(), [&](const Matrix& m) {
      return m.coding == first.coding && m.element == first.element;
    });
    switch (first.coding) {
      case Coding::kPlain:
        if (alike) return plain_dtype(first.element);
        break;
      case Coding::kFp8:
        ++decoded_["FP8"];
        return DType::kBF16;
      case Coding::kNvfp4:
        if (alike && first.cols % 64 == 0 && (orders.columns.empty() || orders.column_block % 16 == 0))
          return DType::kNVFP4;
        break;
      case Coding::kMxfp4:
        if (alike && (orders.columns.empty() || orders.column_block % 32 == 0)) return DType::kMXFP4;
        break;
    }
    ++decoded_[alike ? "4-bit (rows that make no whole blocks of GGUF)" : "mixed"];
    return DType::kBF16;
  }

  // As transformers loads it: a head of its own stays one, whatever config.json says, unless it equals the
  // embedding.
  Status head() {
    const bool own = source_.has_linear("lm_head");
    if (!own && c_.tied) return {};
    if (!own)
      return file_error(
          "tensor lm_head.weight is missing, and tie_word_embeddings{} does not say that the embedding "
          "stands for it",
          c_.class_name.ends_with("ForConditionalGeneration") ? " at the top of config.json" : "");
    if (c_.tied) {
      QUIRE_TRY(const Matrix matrix, source_.linear("lm_head", c_.vocab, c_.hidden));
      QUIRE_TRY(const Matrix embedding, source_.linear("model.embed_tokens", c_.vocab, c_.hidden));
      if (same_values(matrix, embedding)) {
        plan_.notes.push_back("lm_head is left out: it equals the embedding that the head is tied to");
        return {};
      }
      plan_.notes.push_back(
          "tie_word_embeddings is true, but lm_head differs from the embedding: it is kept as the head");
    }
    return matrix("output", "lm_head", {c_.vocab, c_.hidden});
  }

  // ---- Blocks ----

  Status block(const std::string& hf, const std::string& out, bool recurrent) {
    QUIRE_CHECKED(norm(out + "attn_norm.weight", hf + "input_layernorm.weight", c_.hidden));
    if (recurrent)
      QUIRE_CHECKED(delta_net(hf + "linear_attn.", out));
    else
      QUIRE_CHECKED(attention(hf + "self_attn.", out));
    QUIRE_CHECKED(norm(out + (c_.hybrid() ? "post_attention_norm.weight" : "ffn_norm.weight"),
                       hf + "post_attention_layernorm.weight", c_.hidden));
    if (!c_.moe()) return dense(hf + "mlp.", out, c_.ffn, "");
    return source_.has_any(hf + "block_sparse_moe.") ? mixtral_experts(hf + "block_sparse_moe.", out)
                                                     : experts(hf + "mlp.", out);
  }

  Status attention(const std::string& hf, const std::string& out) {
    const int64_t q = c_.heads * c_.head_dim, kv = c_.kv_heads * c_.head_dim;
    const bool interleaved = c_.architecture == "llama";
    const auto projection = [&](std::string_view from, std::string_view to, Shape shape, int64_t heads,
                                bool bias) -> Status {
      const std::string stem = fmt::format("{}{}", out, to), source = fmt::format("{}{}", hf, from);
      std::vector<int64_t> order;
      if (interleaved && heads > 0) order = interleaved_rows(heads, c_.head_dim);
      QUIRE_CHECKED(matrix(stem, source, shape, {.rows = order}));
      return bias ? vector(stem + ".bias", source + ".bias", shape.rows, order) : Status();
    };
    QUIRE_CHECKED(
        projection("q_proj", "attn_q", {c_.hybrid() ? 2 * q : q, c_.hidden}, c_.heads, c_.qkv_bias));
    QUIRE_CHECKED(projection("k_proj", "attn_k", {kv, c_.hidden}, c_.kv_heads, c_.qkv_bias));
    QUIRE_CHECKED(projection("v_proj", "attn_v", {kv, c_.hidden}, 0, c_.qkv_bias));
    QUIRE_CHECKED(projection("o_proj", "attn_output", {c_.hidden, q}, 0, c_.output_bias));
    if (!c_.architecture.starts_with("qwen3")) return {};
    QUIRE_CHECKED(norm(out + "attn_q_norm.weight", hf + "q_norm.weight", c_.head_dim));
    return norm(out + "attn_k_norm.weight", hf + "k_norm.weight", c_.head_dim);
  }

  Status delta_net(const std::string& hf, const std::string& out) {
    const int64_t keys = 2 * c_.key_heads * c_.key_dim, values = c_.value_heads * c_.value_dim;
    const int64_t heads = c_.value_heads, dim = c_.value_dim;
    QUIRE_CHECKED(matrix(out + "attn_qkv", hf + "in_proj_qkv", {keys + values, c_.hidden},
                         {.rows = tiled_rows(c_, dim, keys)}));
    QUIRE_CHECKED(
        matrix(out + "attn_gate", hf + "in_proj_z", {values, c_.hidden}, {.rows = tiled_rows(c_, dim)}));
    QUIRE_CHECKED(
        matrix(out + "ssm_alpha", hf + "in_proj_a", {heads, c_.hidden}, {.rows = tiled_rows(c_, 1)}));
    QUIRE_CHECKED(
        matrix(out + "ssm_beta", hf + "in_proj_b", {heads, c_.hidden}, {.rows = tiled_rows(c_, 1)}));
    QUIRE_TRY(Matrix taps, source_.tensor(hf + "conv1d.weight", c_.conv_channels(), c_.conv_kernel));
    OutTensor& conv = add(out + "ssm_conv1d.weight", DType::kF32, {c_.conv_kernel, c_.conv_channels()});
    conv.parts.push_back(std::move(taps));
    conv.row_order = tiled_rows(c_, dim, keys);
    QUIRE_CHECKED(vector(out + "ssm_a", hf + "A_log", heads, tiled_rows(c_, 1), ValueChange::kNegExp));
    QUIRE_CHECKED(vector(out + "ssm_dt.bias", hf + "dt_bias", heads, tiled_rows(c_, 1)));
    QUIRE_CHECKED(vector(out + "ssm_norm.weight", hf + "norm.weight", dim));
    Orders columns;
    if (c_.key_heads != c_.value_heads) columns = {.columns = tiled_heads(c_), .column_block = dim};
    return matrix(out + "ssm_out", hf + "out_proj", {c_.hidden, values}, std::move(columns));
  }

  // `suffix`: of the shared expert.
  Status dense(const std::string& hf, const std::string& out, int64_t width, const std::string& suffix) {
    for (const std::string_view role : {"gate", "up", "down"}) {
      const bool down = role == "down";
      const std::string stem = fmt::format("{}ffn_{}{}", out, role, suffix),
                        source = fmt::format("{}{}_proj", hf, role);
      QUIRE_CHECKED(matrix(stem, source, down ? Shape{c_.hidden, width} : Shape{width, c_.hidden}));
      if (c_.mlp_bias) QUIRE_CHECKED(vector(stem + ".bias", source + ".bias", down ? c_.hidden : width));
    }
    return {};
  }

  Status experts(const std::string& hf, const std::string& out) {
    QUIRE_CHECKED(float_matrix(out + "ffn_gate_inp", hf + "gate", {c_.experts, c_.hidden}));
    if (source_.has(hf + "experts.gate_up_proj"))
      QUIRE_CHECKED(packed_experts(hf + "experts.", out));
    else
      QUIRE_CHECKED(single_experts(hf + "experts.", out, {"gate_proj", "up_proj", "down_proj"}));
    if (c_.shared_ffn == 0) return {};
    QUIRE_CHECKED(dense(hf + "shared_expert.", out, c_.shared_ffn, "_shexp"));
    return float_matrix(out + "ffn_gate_inp_shexp", hf + "shared_expert_gate", {1, c_.hidden});
  }

  Status mixtral_experts(const std::string& hf, const std::string& out) {
    QUIRE_CHECKED(float_matrix(out + "ffn_gate_inp", hf + "gate", {c_.experts, c_.hidden}));
    return single_experts(hf + "experts.", out, {"w1", "w3", "w2"});
  }

  // One tensor for each expert and role: stacked.
  Status single_experts(const std::string& hf, const std::string& out,
                        std::array<std::string_view, 3> names) {
    constexpr std::array<std::string_view, 3> kRoles = {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"};
    for (size_t role = 0; role < kRoles.size(); ++role) {
      const Shape shape = role == 2 ? Shape{c_.hidden, c_.expert_ffn} : Shape{c_.expert_ffn, c_.hidden};
      std::vector<Matrix> parts;
      for (int64_t e = 0; e < c_.experts; ++e) {
        QUIRE_TRY(Matrix m,
                  source_.linear(fmt::format("{}{}.{}", hf, e, names[role]), shape.rows, shape.cols));
        parts.push_back(std::move(m));
      }
      QUIRE_CHECKED(add_matrices(fmt::format("{}{}", out, kRoles[role]), std::move(parts),
                                 {shape.cols, shape.rows, c_.experts}));
    }
    return {};
  }

  // gate_up_proj [E, 2F, D]: of each expert the gate's rows, then those of `up`.
  Status packed_experts(const std::string& hf, const std::string& out) {
    const int64_t e = c_.experts, f = c_.expert_ffn, d = c_.hidden;
    QUIRE_TRY(const Matrix both, source_.tensor(hf + "gate_up_proj", e * 2 * f, d));
    std::vector<Matrix> gate, up;
    for (int64_t i = 0; i < e; ++i) {
      gate.push_back(both.slice(2 * i * f, f));
      up.push_back(both.slice((2 * i + 1) * f, f));
    }
    QUIRE_CHECKED(add_matrices(out + "ffn_gate_exps", std::move(gate), {d, f, e}));
    QUIRE_CHECKED(add_matrices(out + "ffn_up_exps", std::move(up), {d, f, e}));
    QUIRE_TRY(Matrix down, source_.tensor(hf + "down_proj", e * d, f));
    std::vector<Matrix> parts;
    parts.push_back(std::move(down));
    return add_matrices(out + "ffn_down_exps", std::move(parts), {f, d, e});
  }

  // ---- Multi-token prediction ----

  void check_mtp() {
    if (c_.mtp_layers == 0 || source_.has_any("mtp.")) return;
    plan_.notes.push_back(
        "config.json has an MTP block, but the checkpoint has none of its tensors: left out");
    c_.mtp_layers = 0;
  }

  Status mtp() {
    const std::string out = fmt::format("blk.{}.", c_.layers);
    QUIRE_CHECKED(block("mtp.layers.0.", out, false));
    QUIRE_CHECKED(matrix(out + "nextn.eh_proj", "mtp.fc", {c_.hidden, 2 * c_.hidden}));
    QUIRE_CHECKED(norm(out + "nextn.enorm.weight", "mtp.pre_fc_norm_embedding.weight", c_.hidden));
    QUIRE_CHECKED(norm(out + "nextn.hnorm.weight", "mtp.pre_fc_norm_hidden.weight", c_.hidden));
    if (source_.has("mtp.norm.weight"))
      QUIRE_CHECKED(norm(out + "nextn.shared_head_norm.weight", "mtp.norm.weight", c_.hidden));
    if (source_.has_linear("mtp.embed_tokens"))
      QUIRE_CHECKED(matrix(out + "nextn.embed_tokens", "mtp.embed_tokens", {c_.vocab, c_.hidden}));
    if (source_.has_linear("mtp.lm_head"))
      QUIRE_CHECKED(matrix(out + "nextn.shared_head_head", "mtp.lm_head", {c_.vocab, c_.hidden}));
    return {};
  }

  // ---- The rest ----

  // Divisors of the rotary frequencies: 1 for short wavelengths, the factor for long ones, a blend between.
  void add_rope_divisors() {
    OutTensor& t = add("rope_freqs.weight", DType::kF32, {c_.n_rot / 2});
    const RopeScaling& r = c_.rope;
    for (int64_t j = 0; j < c_.n_rot / 2; ++j) {
      const double exponent = 2.0 * static_cast<double>(j) / static_cast<double>(c_.n_rot);
      const double wavelength = 2 * std::numbers::pi * std::pow(c_.rope_theta, exponent);
      const double a = (static_cast<double>(r.original_context) / wavelength - r.low_factor) /
                       (r.high_factor - r.low_factor);
      const double f = a > 1 ? 1 : a < 0 ? r.factor : 1 / ((1 - a) / r.factor + a);
      t.values.push_back(static_cast<float>(f));
    }
  }

  void note(int64_t count, std::string_view what) {
    if (count > 0) plan_.notes.push_back(fmt::format("{} {}", count, what));
  }

  void note_leftovers() {
    for (const auto& [what, count] : decoded_)
      note(count, fmt::format("{} matrices are decoded to bf16", what));
    note(partial_inputs_, "input_scale vectors are left out: not every expert has one");
    note(source_.drop([](std::string_view n) {
      return n.starts_with("model.visual.") || n.starts_with("visual.") || n.starts_with("vision_tower.") ||
             n.starts_with("model.vision_tower.") || n.starts_with("multi_modal_projector.") ||
             n.starts_with("model.multi_modal_projector.") || n.starts_with("audio_tower.");
    }),
         "vision and audio tensors are left out: the file holds the text model");
    if (c_.tied)
      note(source_.drop([](std::string_view n) { return n.starts_with("lm_head."); }),
           "lm_head tensors are left out: the head is tied to the embedding");
    if (c_.mtp_layers == 0)
      note(source_.drop([](std::string_view n) { return n.starts_with("mtp."); }),
           "MTP tensors are left out");
    note(source_.drop([](std::string_view n) { return n.ends_with(".k_scale") || n.ends_with(".v_scale"); }),
         "KV cache scales are left out");
    source_.drop([](std::string_view n) { return n.ends_with(".rotary_emb.inv_freq"); });
    plan_.unused = source_.unused();
  }

  // Of the blocks' matrices, whatever the embedding is.
  void find_main_type() {
    std::map<DType, int64_t> elems;
    for (const OutTensor& t : plan_.tensors)
      if (t.dims.size() > 1 && t.name.starts_with("blk.")) elems[t.dtype] += t.elems();
    const auto most = std::max_element(elems.begin(), elems.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most != elems.end()) plan_.mostly = most->first;
  }

  Source& source_;
  HfConfig& c_;
  std::optional<DType> type_;
  Plan plan_;
  std::map<std::string, int64_t> decoded_;
  int64_t partial_inputs_ = 0;
};

}  // namespace

int64_t OutTensor::elems() const {
  int64_t n = 1;
  for (const int64_t d : dims) n *= d;
  return n;
}

Result<Plan> make_plan(Source& source, HfConfig& config, std::optional<DType> type) {
  return Planner(source, config, type).run();
}

}  // namespace quire::convert
