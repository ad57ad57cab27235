#include "parts/delta_net/spec.h"

#include <algorithm>

#include "parts/keys.h"

namespace quire {

void DeltaSpec::keep(const Mixers& layers, const CacheUse&, CacheShape& caches) const {
  const auto of_kind = static_cast<int32_t>(std::ranges::count(layers, Mixer::kDelta));
  if (of_kind == 0) return;
  caches.delta = {.layers = of_kind,
                  .conv_taps = conv_kernel - 1,
                  .conv_channels = conv_channels(),
                  .value_heads = value_heads,
                  .value_dim = value_dim,
                  .key_heads = key_heads,
                  .key_dim = key_dim};
}

Result<std::vector<bool>> read_delta_layers(const ModelKeys& k, const Architecture& row) {
  constexpr std::string_view kList = "attention.recurrent_layers";
  std::vector<bool> deltas(static_cast<size_t>(k.layers()));
  if (!row.delta_net) return deltas;
  // A list says which, or it is every layer but each interval-th.
  std::vector<int32_t> list;
  int64_t interval = 0;
  if (k.has(kList)) {
    QUIRE_TRY(list, k.file().get_i32_per_layer(k.full(kList), k.blocks()));
  } else {
    QUIRE_CHECKED(k.number_or("full_attention_interval", 4, 1, kMaxBlocks, interval));
  }
  for (size_t i = 0; i < deltas.size(); ++i)
    deltas[i] = list.empty() ? (static_cast<int64_t>(i) + 1) % interval != 0 : list[i] != 0;
  return deltas;
}

Result<DeltaSpec> read_delta(const ModelKeys& k, const Architecture& row) {
  DeltaSpec d;
  d.grouped = row.grouped_value_heads;
  int64_t inner = 0;
  QUIRE_CHECKED(k.number32("ssm.conv_kernel", 2, 64, d.conv_kernel));
  QUIRE_CHECKED(k.number32("ssm.state_size", 1, kMaxHeadDim, d.key_dim));
  QUIRE_CHECKED(k.number32("ssm.group_count", 1, kMaxHeads, d.key_heads));
  QUIRE_CHECKED(k.number32("ssm.time_step_rank", 1, kMaxHeads, d.value_heads));
  QUIRE_CHECKED(k.number("ssm.inner_size", 1, kMaxWidth, inner));
  if (d.value_heads % d.key_heads != 0 || inner % d.value_heads != 0 || inner / d.value_heads > kMaxHeadDim)
    return file_error("{}: {} value heads over {} key heads with {} inner elements do not divide",
                      k.full("ssm.inner_size"), d.value_heads, d.key_heads, inner);
  d.value_dim = static_cast<int32_t>(inner / d.value_heads);
  return d;
}

}  // namespace quire
