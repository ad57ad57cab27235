#include "parts/dense/spec.h"

#include <algorithm>

#include "parts/keys.h"

namespace quire {

Result<GateActivation> read_gate_activation(const ModelKeys& k, const Architecture& row) {
  const std::string_view own = row.gelu ? "gelu_pytorch_tanh" : "silu";
  QUIRE_TRY(const std::string_view name, k.file().get_string_or(k.full("hidden_activation"), own));
  if (name == own)
    return row.gelu ? GateActivation::kGeluTanh : row.oai_experts ? GateActivation::kSwigluOai : GateActivation::kSilu;
  if (name.starts_with("gelu")) return k.unsupported("hidden_activation", "another activation than silu is");
  return file_error("{}: {} is not supported ({} is)", k.full("hidden_activation"), gguf::printable(name), own);
}

Result<DenseSpec> read_dense(const ModelKeys& k, const Architecture& row, bool everywhere) {
  constexpr std::string_view kKey = "feed_forward_length";
  DenseSpec f;
  QUIRE_TRY(f.activation, read_gate_activation(k, row));
  if (!everywhere) {
    QUIRE_CHECKED(k.number_or(kKey, 0, 0, kMaxWidth, f.d_ff));
    return f;
  }
  QUIRE_CHECKED(k.each(kKey, 1, kMaxWidth, f.widths));
  f.d_ff = *std::max_element(f.widths.begin(), f.widths.end());
  if (f.d_ff == *std::min_element(f.widths.begin(), f.widths.end())) f.widths.clear();
  return f;
}

}  // namespace quire
