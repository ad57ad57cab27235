#include "convert/plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "arch/architecture.h"
#include "convert/hf_rope.h"
#include "convert/leftovers.h"
#include "convert/orders.h"
#include "convert/type_choice.h"
#include "gguf/metadata.h"

namespace quire::convert {
namespace {

using enum TensorRole;

// Where a block's tensors are: in the folder behind `source`, in GGUF in this block. Without a block: of the model.
struct Block {
  std::string source;
  int64_t number = 0;
  bool mixtral = false;  // its experts have Mixtral's names
};

// As in OutTensor.
struct Orders {
  std::vector<int64_t> rows = {}, columns = {};
  int64_t column_block = 1;
};

class Planner {
 public:
  Planner(Source& source, HfConfig& config, const PlanOptions& options)
      : source_(source), c_(config), sizes_(config.sizes()), types_(options) {}

  Result<Plan> run() {
    QUIRE_CHECKED(source_.check());
    check_mtp();
    QUIRE_CHECKED(embedding(kTokenEmbedding, {}));
    if (c_.d_per_layer > 0) QUIRE_CHECKED(per_layer_embeddings());
    if (std::vector<float> divisors = rope_divisors(c_); !divisors.empty())
      add(tensor_name(kRopeFreqs), DType::kF32, {cols_of(kRopeFreqs)}).values = std::move(divisors);
    if (c_.rope.kind == RopeScaling::Kind::kLongRope) {
      add(tensor_name(kRopeLong), DType::kF32, {cols_of(kRopeLong)}).values = c_.rope.long_factors;
      add(tensor_name(kRopeShort), DType::kF32, {cols_of(kRopeShort)}).values = c_.rope.short_factors;
    }
    for (int64_t i = 0; i < c_.layers; ++i) {
      const bool recurrent = !c_.recurrent.empty() && c_.recurrent[static_cast<size_t>(i)];
      QUIRE_CHECKED(block({fmt::format("model.layers.{}.", i), i}, recurrent));
    }
    QUIRE_CHECKED(norm(kOutputNorm, {}));
    QUIRE_CHECKED(head());
    if (c_.mtp_layers > 0) QUIRE_CHECKED(mtp());
    QUIRE_CHECKED(settle_leftovers());
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

  // ---- Names and shapes ----

  std::string source_name(TensorRole role, const Block& b) const {
    const TensorSpec& spec = tensor_spec(role);
    for (const FolderTensorName& own : c_.row->folder_names)
      if (!own.name.empty() && own.role == role) return fmt::format("{}{}", b.source, own.name);
    return fmt::format("{}{}", b.source, b.mixtral && !spec.mixtral.empty() ? spec.mixtral : placed(spec.in_folder));
  }
  // Experts beside a dense feed-forward are no part of "mlp".
  std::string_view placed(std::string_view name) const {
    if (c_.row->dense_beside_experts && name.starts_with("mlp.experts.")) name.remove_prefix(4);
    return name;
  }
  std::string source_stem(TensorRole role, const Block& b) const {
    return std::string(without_weight(source_name(role, b)));
  }
  int64_t rows_of(TensorRole role) const { return size_of(tensor_spec(role).rows, sizes_); }
  int64_t cols_of(TensorRole role) const { return size_of(tensor_spec(role).cols, sizes_); }

  // ---- Kinds of tensors ----

  Status vector(TensorRole role, const Block& b, std::vector<int64_t> order = {},
                ValueChange change = ValueChange::kNone) {
    const int64_t rows = rows_of(role), cols = cols_of(role);
    const bool table = tensor_spec(role).rows != Extent::kOne;
    // One element a row, so that elements can be reordered; a row of all otherwise.
    const bool column = !table && !order.empty();
    QUIRE_TRY(Matrix m, source_.tensor(source_name(role, b), column ? cols : rows, column ? 1 : cols));
    OutTensor& t = add(tensor_name(role, b.number), DType::kF32,
                       table ? std::vector<int64_t>{cols, rows} : std::vector<int64_t>{cols});
    t.parts.push_back(std::move(m));
    t.row_order = std::move(order);
    t.change = change;
    return {};
  }
  Status norm(TensorRole role, const Block& b) {
    return vector(role, b, {}, c_.row->centred_norms ? ValueChange::kAddOne : ValueChange::kNone);
  }

  // "<stem>.weight" in the type that all its parts can have, and the scales of NVFP4.
  Status matrix(TensorRole role, const Block& b, Orders orders = {}) {
    QUIRE_TRY(Matrix m, source_.linear(source_stem(role, b), rows_of(role), cols_of(role)));
    std::vector<Matrix> parts;
    parts.push_back(std::move(m));
    return add_matrices(tensor_stem(role, b.number), std::move(parts), {cols_of(role), rows_of(role)},
                        std::move(orders));
  }
  // Rows are looked up one by one, for which operators do not know FP8.
  Status embedding(TensorRole role, const Block& b) {
    const bool keep_fp8 = std::exchange(types_.keep_fp8, false);
    const Status made = matrix(role, b);
    types_.keep_fp8 = keep_fp8;
    return made;
  }
  // Some rows of the matrix of another role.
  Status rows_of_matrix(TensorRole role, TensorRole from, const Block& b, std::vector<int64_t> rows) {
    QUIRE_TRY(Matrix m, source_.linear(source_stem(from, b), rows_of(from), cols_of(from)));
    std::vector<Matrix> parts;
    parts.push_back(std::move(m));
    return add_matrices(tensor_stem(role, b.number), std::move(parts), {cols_of(role), rows_of(role)},
                        {.rows = std::move(rows)});
  }
  Status float_matrix(TensorRole role, const Block& b) {
    QUIRE_TRY(Matrix m, source_.linear(source_stem(role, b), rows_of(role), cols_of(role)));
    add(tensor_name(role, b.number), DType::kF32, {cols_of(role), rows_of(role)}).parts.push_back(std::move(m));
    return {};
  }
  Status experts_matrix(TensorRole role, const Block& b, std::vector<Matrix> parts, Orders orders = {}) {
    return add_matrices(tensor_stem(role, b.number), std::move(parts), {cols_of(role), rows_of(role), c_.experts},
                        std::move(orders));
  }

  Status add_matrices(const std::string& stem, std::vector<Matrix> parts, std::vector<int64_t> dims,
                      Orders orders = {}) {
    const DType dtype = types_.choose(parts, !orders.columns.empty(), orders.column_block);
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

  // Of all layers: those of tokens, and what the model's are projected to.
  Status per_layer_embeddings() {
    QUIRE_CHECKED(embedding(kPerLayerEmbedding, {}));
    QUIRE_CHECKED(matrix(kPerLayerProjection, {}));
    return norm(kPerLayerNorm, {});
  }

  // As transformers loads it: a head of its own stays one, whatever config.json says, unless it equals the
  // embedding.
  Status head() {
    const std::string stem = source_stem(kOutput, {});
    const bool own = source_.has_linear(stem);
    if (!own && c_.tied) return {};
    if (!own)
      return file_error(
          "tensor lm_head.weight is missing, and tie_word_embeddings{} does not say that the embedding stands for it",
          c_.class_name.ends_with("ForConditionalGeneration") ? " at the top of config.json" : "");
    if (c_.tied) {
      QUIRE_TRY(const Matrix own_head, source_.linear(stem, c_.vocab, c_.hidden));
      QUIRE_TRY(const Matrix embedding, source_.linear(source_stem(kTokenEmbedding, {}), c_.vocab, c_.hidden));
      if (same_values(own_head, embedding)) {
        plan_.notes.push_back("lm_head is left out: it equals the embedding that the head is tied to");
        return {};
      }
      plan_.notes.push_back(
          "tie_word_embeddings is true, but lm_head differs from the embedding: it is kept as the head");
    }
    return matrix(kOutput, {});
  }

  // ---- Blocks ----

  Status block(Block b, bool recurrent) {
    sizes_ = c_.layer_sizes(b.number);
    b.mixtral = c_.moe() && source_.has_any(b.source + "block_sparse_moe.");
    QUIRE_CHECKED(norm(kAttnNorm, b));
    QUIRE_CHECKED(recurrent ? delta_net(b) : attention(b));
    if (c_.row->norms_after) QUIRE_CHECKED(norm(kPostAttentionNorm, b));
    QUIRE_CHECKED(norm(c_.row->ffn_norm, b));
    QUIRE_CHECKED(c_.dense(b.number) ? dense(b) : c_.row->dense_beside_experts ? parallel(b) : experts(b));
    if (c_.row->norms_after) QUIRE_CHECKED(norm(kPostFfnNorm, b));
    if (c_.d_per_layer > 0) {
      QUIRE_CHECKED(matrix(kPerLayerGate, b));
      QUIRE_CHECKED(matrix(kPerLayerOut, b));
      QUIRE_CHECKED(norm(kPostPerLayerNorm, b));
    }
    return c_.row->layer_scales ? vector(kLayerScale, b) : Status();
  }

  Status attention(const Block& b) {
    // Model folders with a row of partial rotation have neighbours rotate as well: nothing changes places.
    const bool interleaved = c_.row->rope == RopePairs::kNeighbours && c_.row->rotary_share == 0;
    const auto projection = [&](TensorRole weight, TensorRole bias, bool has_bias, int64_t heads) -> Status {
      std::vector<int64_t> order;
      if (interleaved && heads > 0) order = interleaved_rows(heads, c_.head_dim);
      QUIRE_CHECKED(matrix(weight, b, {.rows = order}));
      return has_bias ? vector(bias, b, std::move(order)) : Status();
    };
    const bool own_kv = c_.own_kv(b.number);
    if (c_.row->fused_qkv) {
      QUIRE_CHECKED(matrix(kAttnQkv, b));
    } else {
      QUIRE_CHECKED(projection(kAttnQ, kAttnQBias, c_.qkv_bias, c_.heads));
      if (own_kv) QUIRE_CHECKED(projection(kAttnK, kAttnKBias, c_.qkv_bias, c_.kv_heads));
      const bool own_values = own_kv && (!c_.keys_as_values || c_.has_window(b.number));
      if (own_values) QUIRE_CHECKED(projection(kAttnV, kAttnVBias, c_.qkv_bias, 0));
    }
    if (c_.row->sinks) QUIRE_CHECKED(vector(kAttnSinks, b));
    QUIRE_CHECKED(projection(kAttnOutput, kAttnOutputBias, c_.output_bias, 0));
    if (!c_.qk_norm) return {};
    QUIRE_CHECKED(norm(kAttnQNorm, b));
    return own_kv ? norm(kAttnKNorm, b) : Status();
  }

  Status delta_net(const Block& b) {
    const int64_t keys = 2 * c_.key_heads * c_.key_dim, dim = c_.value_dim;
    if (c_.row->grouped_value_heads) {
      QUIRE_CHECKED(rows_of_matrix(kDeltaQkv, kDeltaPackedIn, b, unpacked_rows(c_, 0, 2)));
      QUIRE_CHECKED(rows_of_matrix(kDeltaZ, kDeltaPackedIn, b, unpacked_rows(c_, 3, 3)));
      QUIRE_CHECKED(matrix(kDeltaBetaAlpha, b));
    } else {
      QUIRE_CHECKED(matrix(kDeltaQkv, b, {.rows = tiled_rows(c_, dim, keys)}));
      QUIRE_CHECKED(matrix(kDeltaZ, b, {.rows = tiled_rows(c_, dim)}));
      QUIRE_CHECKED(matrix(kDeltaAlpha, b, {.rows = tiled_rows(c_, 1)}));
      QUIRE_CHECKED(matrix(kDeltaBeta, b, {.rows = tiled_rows(c_, 1)}));
    }
    QUIRE_CHECKED(vector(kDeltaConv, b, tiled_rows(c_, dim, keys)));
    QUIRE_CHECKED(vector(kDeltaA, b, tiled_rows(c_, 1), ValueChange::kNegExp));
    QUIRE_CHECKED(vector(kDeltaDtBias, b, tiled_rows(c_, 1)));
    QUIRE_CHECKED(vector(kDeltaNorm, b));
    Orders columns;
    if (!c_.row->grouped_value_heads && c_.key_heads != c_.value_heads)
      columns = {.columns = tiled_heads(c_), .column_block = dim};
    return matrix(kDeltaOut, b, std::move(columns));
  }

  Status dense(const Block& b) {
    if (c_.row->fused_gate_up) {
      QUIRE_CHECKED(matrix(kFfnGateUp, b));
      return matrix(kFfnDown, b);
    }
    constexpr std::pair<TensorRole, TensorRole> kParts[] = {
        {kFfnGate, kFfnGateBias}, {kFfnUp, kFfnUpBias}, {kFfnDown, kFfnDownBias}};
    for (const auto& [weight, bias] : kParts) {
      QUIRE_CHECKED(matrix(weight, b));
      if (c_.mlp_bias) QUIRE_CHECKED(vector(bias, b));
    }
    return {};
  }

  Status parallel(const Block& b) {
    QUIRE_CHECKED(dense(b));
    QUIRE_CHECKED(norm(kPostDenseNorm, b));
    QUIRE_CHECKED(vector(kRouterScale, b));
    QUIRE_CHECKED(norm(kExpertsNorm, b));
    QUIRE_CHECKED(experts(b));
    QUIRE_CHECKED(scale_experts(b));
    return norm(kPostExpertsNorm, b);
  }

  // The weight of each expert becomes the factor of its down matrix, or a part of it.
  Status scale_experts(const Block& b) {
    QUIRE_TRY(Matrix weights, source_.tensor(b.source + "router.per_expert_scale", 1, c_.experts));
    const std::string name = tensor_stem(kExpertsDown, b.number) + ".scale";
    const auto scale =
        std::find_if(plan_.tensors.begin(), plan_.tensors.end(), [&](const OutTensor& t) { return t.name == name; });
    if (scale == plan_.tensors.end()) {
      add(name, DType::kF32, {c_.experts}).parts.push_back(std::move(weights));
      return {};
    }
    std::vector<double> factors(static_cast<size_t>(c_.experts));
    decode_row(weights, 0, factors.data());
    for (size_t i = 0; i < factors.size(); ++i) scale->values[i] *= static_cast<float>(factors[i]);
    return {};
  }

  Status experts(const Block& b) {
    QUIRE_CHECKED(float_matrix(kRouter, b));
    if (c_.row->oai_experts) return oai_experts(b);
    if (c_.row->any_router) QUIRE_CHECKED(vector(kRouterSelectionBias, b));
    if (!b.mixtral && source_.has(packed_name(kExpertsGateUp, b)))
      QUIRE_CHECKED(packed_experts(b));
    else
      QUIRE_CHECKED(single_experts(b));
    if (c_.shared_ffn == 0) return {};
    for (const TensorRole role : {kSharedGate, kSharedUp, kSharedDown}) QUIRE_CHECKED(matrix(role, b));
    return c_.row->shared_router ? float_matrix(kSharedRouter, b) : Status();
  }

  // The rows of gate and up in turns, and a bias of each matrix and of the router.
  Status oai_experts(const Block& b) {
    QUIRE_CHECKED(vector(kRouterBias, b));
    const auto stem = [&](TensorRole role) { return packed_name(role, b); };
    QUIRE_TRY(const std::vector<Matrix> both,
              source_.oai_experts(stem(kExpertsGateUp), c_.experts, rows_of(kExpertsGateUp), cols_of(kExpertsGateUp)));
    // A row of one element for each of the biases, so that an order of rows takes them apart as well.
    QUIRE_TRY(const Matrix biases,
              source_.tensor(source_name(kExpertsGateUpBias, b), c_.experts * cols_of(kExpertsGateUpBias), 1));
    constexpr std::pair<TensorRole, TensorRole> kInTurns[] = {{kExpertsGate, kExpertsGateBias},
                                                              {kExpertsUp, kExpertsUpBias}};
    for (size_t turn = 0; turn < std::size(kInTurns); ++turn) {
      const auto [role, bias] = kInTurns[turn];
      const std::vector<int64_t> order = every_other(static_cast<int64_t>(turn), c_.expert_ffn);
      QUIRE_CHECKED(experts_matrix(role, b, both, {.rows = order}));
      OutTensor& t = add(tensor_name(bias, b.number), DType::kF32, {c_.expert_ffn, c_.experts});
      for (int64_t e = 0; e < c_.experts; ++e)
        t.parts.push_back(biases.slice(e * 2 * c_.expert_ffn, 2 * c_.expert_ffn));
      t.row_order = order;
    }
    QUIRE_TRY(std::vector<Matrix> down,
              source_.oai_experts(stem(kExpertsDown), c_.experts, rows_of(kExpertsDown), cols_of(kExpertsDown)));
    QUIRE_CHECKED(experts_matrix(kExpertsDown, b, std::move(down)));
    return vector(kExpertsDownBias, b);
  }

  // One tensor for each expert: stacked.
  Status single_experts(const Block& b) {
    std::map<TensorRole, std::vector<Matrix>> all;
    for (const TensorRole role : {kExpertsGate, kExpertsUp, kExpertsDown}) {
      const std::string name = source_stem(role, b);
      for (int64_t e = 0; e < c_.experts; ++e) {
        QUIRE_TRY(Matrix m, source_.linear(fmt::format(fmt::runtime(name), e), rows_of(role), cols_of(role)));
        all[role].push_back(std::move(m));
      }
    }
    QUIRE_CHECKED(gate_and_up(b, std::move(all[kExpertsGate]), std::move(all[kExpertsUp])));
    return experts_matrix(kExpertsDown, b, std::move(all[kExpertsDown]));
  }

  // Of all experts. In one tensor where the architecture has it so and no codes bring factors of their own.
  Status gate_and_up(const Block& b, std::vector<Matrix> gate, std::vector<Matrix> up) {
    if (!c_.row->dense_beside_experts || gate.front().coding != Coding::kPlain) {
      QUIRE_CHECKED(experts_matrix(kExpertsGate, b, std::move(gate)));
      return experts_matrix(kExpertsUp, b, std::move(up));
    }
    std::vector<Matrix> both;
    for (size_t e = 0; e < gate.size(); ++e) {
      both.push_back(std::move(gate[e]));
      both.push_back(std::move(up[e]));
    }
    return experts_matrix(kExpertsGateUp, b, std::move(both));
  }

  std::string packed_name(TensorRole role, const Block& b) const {
    return fmt::format("{}{}", b.source, placed(tensor_spec(role).packed));
  }

  // All experts out of one tensor [E, rows, columns], as one matrix, or [E, columns, rows], as one for each. Folders of
  // architectures that have the transpose may have either, which transformers finds out by the shape, too.
  Result<std::vector<Matrix>> from_one_tensor(TensorRole role, const Block& b) {
    const int64_t rows = rows_of(role), cols = cols_of(role);
    const std::string name = packed_name(role, b);
    const std::array<int64_t, 3> as_it_is = {c_.experts, rows, cols};
    if (c_.row->transposed_experts && !source_.has_shape(name, as_it_is))
      return source_.transposed_experts(name, c_.experts, rows, cols);
    QUIRE_TRY(Matrix all, source_.tensor(name, c_.experts * rows, cols));
    return std::vector<Matrix>{std::move(all)};
  }

  // gate_up_proj has of each expert the gate's rows, then those of `up`.
  Status packed_experts(const Block& b) {
    const int64_t f = c_.expert_ffn;
    QUIRE_TRY(const std::vector<Matrix> both, from_one_tensor(kExpertsGateUp, b));
    std::vector<Matrix> gate, up;
    for (const Matrix& m : both)
      for (int64_t row = 0; row < m.rows; row += 2 * f) {
        gate.push_back(m.slice(row, f));
        up.push_back(m.slice(row + f, f));
      }
    QUIRE_CHECKED(gate_and_up(b, std::move(gate), std::move(up)));
    QUIRE_TRY(std::vector<Matrix> down, from_one_tensor(kExpertsDown, b));
    return experts_matrix(kExpertsDown, b, std::move(down));
  }

  // ---- Multi-token prediction ----

  void check_mtp() {
    if (c_.mtp_layers == 0 || source_.has_any("mtp.")) return;
    plan_.notes.push_back("config.json has an MTP block, but the model folder has none of its tensors: left out");
    c_.mtp_layers = 0;
  }

  Status mtp() {
    QUIRE_CHECKED(block({"mtp.layers.0.", c_.layers}, false));
    const Block b{"mtp.", c_.layers};
    QUIRE_CHECKED(matrix(kMtpProjection, b));
    QUIRE_CHECKED(norm(kMtpEmbeddingNorm, b));
    QUIRE_CHECKED(norm(kMtpHiddenNorm, b));
    if (source_.has(source_name(kMtpHeadNorm, b))) QUIRE_CHECKED(norm(kMtpHeadNorm, b));
    if (source_.has_linear(source_stem(kMtpEmbedding, b))) QUIRE_CHECKED(embedding(kMtpEmbedding, b));
    if (source_.has_linear(source_stem(kMtpHead, b))) QUIRE_CHECKED(matrix(kMtpHead, b));
    int64_t bytes = 0;
    for (const OutTensor& t : plan_.tensors)
      if (block_of(t.name) == c_.layers) bytes += t.bytes();
    plan_.notes.push_back(
        fmt::format("the block for multi-token prediction takes {:.1f} MB; it drafts tokens where speculation is on",
                    static_cast<double>(bytes) * 1e-6));
    return {};
  }

  // ---- The rest ----

  void note(int64_t count, std::string_view what) {
    if (count > 0) plan_.notes.push_back(fmt::format("{} {}", count, what));
  }

  Status settle_leftovers() {
    for (const auto& [what, count] : types_.decoded) note(count, fmt::format("{} matrices are decoded to bf16", what));
    note(partial_inputs_, "input_scale vectors are left out: not every expert has one");
    QUIRE_TRY(const std::vector<std::string> notes, check_leftovers(source_, c_));
    plan_.notes.insert(plan_.notes.end(), notes.begin(), notes.end());
    return {};
  }

  // Of the blocks' matrices, whatever the embedding is.
  void find_main_type() {
    std::map<DType, int64_t> elems;
    for (const OutTensor& t : plan_.tensors)
      if (t.dims.size() > 1 && block_of(t.name) >= 0) elems[t.dtype] += t.elems();
    const auto most =
        std::max_element(elems.begin(), elems.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most != elems.end()) plan_.mostly = most->first;
  }

  Source& source_;
  HfConfig& c_;
  ModelSizes sizes_;
  TypeChoice types_;
  Plan plan_;
  int64_t partial_inputs_ = 0;
};

}  // namespace

int64_t OutTensor::elems() const {
  int64_t n = 1;
  for (const int64_t d : dims) n *= d;
  return n;
}

Result<Plan> make_plan(Source& source, HfConfig& config, const PlanOptions& options) {
  return Planner(source, config, options).run();
}

}  // namespace quire::convert
