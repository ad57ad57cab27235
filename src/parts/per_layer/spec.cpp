#include "parts/per_layer/spec.h"

#include "parts/dense/spec.h"
#include "parts/keys.h"

namespace quire {

Result<PerLayerSpec> read_per_layer(const ModelKeys& k, const Architecture& row) {
  constexpr std::string_view kKey = "embedding_length_per_layer_input";
  PerLayerSpec p{.layers = k.layers()};
  QUIRE_CHECKED(k.number_or(kKey, 0, 0, kMaxWidth / k.layers(), p.width));  // those of all layers are one row
  if (p.width > 0 && !row.per_layer_embeddings) return k.unsupported(kKey, "embeddings of each layer are");
  QUIRE_TRY(p.activation, read_gate_activation(k, row));
  return p;
}

}  // namespace quire
