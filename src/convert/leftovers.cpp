#include "convert/leftovers.h"

#include <algorithm>
#include <array>

#include "gguf/metadata.h"

namespace quire::convert {
namespace {

using gguf::printable;

// What the text model has no part in.
constexpr std::string_view kOtherSenses[] = {"model.visual.",          "visual.",
                                             "vision_tower.",          "model.vision_tower.",
                                             "multi_modal_projector.", "model.multi_modal_projector.",
                                             "audio_tower.",           "model.audio_tower.",
                                             "model.embed_vision.",    "model.embed_audio."};

// Factors for rounding keys, values, queries and scores to 8 bits: none of these is rounded so here.
constexpr std::string_view kCacheScales[] = {".k_scale",
                                             ".v_scale",
                                             ".q_scale",
                                             ".prob_scale",
                                             ".kv_scale",
                                             ".self_attn.k_proj.output_scale",
                                             ".self_attn.v_proj.output_scale"};

// Factors for rounding what a matrix is multiplied with: it is not rounded here.
constexpr std::string_view kInputScales[] = {".input_scale", "_input_scale", ".input_global_scale", ".input_scale_ub"};

// Buffers that older versions of libraries saved and that follow from the configuration.
constexpr std::string_view kBuffers[] = {".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached",
                                         ".self_attn.masked_bias"};

bool begins_with_any(std::string_view name, std::span<const std::string_view> all) {
  return std::any_of(all.begin(), all.end(), [&](std::string_view x) { return name.starts_with(x); });
}
bool ends_with_any(std::string_view name, std::span<const std::string_view> all) {
  return std::any_of(all.begin(), all.end(), [&](std::string_view x) { return name.ends_with(x); });
}

// Some quantisers write a bias for every matrix, of zeros where the model has none, and zero points of symmetric codes.
bool adds_nothing(std::string_view name, const SourceTensor& t) {
  return (name.ends_with(".bias") || name.ends_with("_zero_point")) &&
         std::all_of(t.data.begin(), t.data.end(), [](std::byte b) { return b == std::byte{0}; });
}

// What would change where a tensor of this name is left out.
std::string_view meaning_of(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kMeanings[] = {
      {".pre_quant_scale", "activations are multiplied by it (AWQ of ModelOpt), which is not supported"},
      {".act.scales", "activations are divided by it (AWQ), which is not supported"},
      {".g_idx", "columns are in another order"},
      {"_zero_point", "codes are counted from it, which is not supported here"},
      {".bias", "config.json says that the layer has no bias (attention_bias, mlp_bias)"},
  };
  for (const auto& [suffix, meaning] : kMeanings)
    if (name.ends_with(suffix)) return meaning;
  return "this architecture has no place for it";
}

Status refuse(const std::vector<std::string>& names, const HfConfig& c) {
  if (names.empty()) return {};
  const std::string& first = names.front();
  const std::string more = names.size() == 1 ? "" : fmt::format(", and {} more", names.size() - 1);
  return file_error(
      "tensor {} of the model folder would not be computed{}: {}. The answers would be others than the model's; start "
      "from a model folder that {} of transformers reads without it",
      printable(first), more, meaning_of(first), c.class_name);
}

class Leftovers {
 public:
  Leftovers(Source& source, const HfConfig& config) : source_(source), c_(config) {}

  Result<std::vector<std::string>> run() {
    drop([](std::string_view n, const SourceTensor&) { return begins_with_any(n, kOtherSenses); },
         "vision and audio tensors are left out: the file holds the text model");
    if (c_.tied)
      drop([](std::string_view n, const SourceTensor&) { return n.starts_with("lm_head.") && !n.ends_with(".bias"); },
           "lm_head tensors are left out: the head is tied to the embedding");
    drop_mtp();
    drop_shared_kv();
    drop([](std::string_view n, const SourceTensor&) { return ends_with_any(n, kCacheScales); },
         "KV cache scales are left out");
    drop(adds_nothing, "biases and zero points of zeros are left out");
    source_.drop([](std::string_view n, const SourceTensor&) {
      return ends_with_any(n, kInputScales) || ends_with_any(n, kBuffers) || n == "model.rotary_emb.inv_freq";
    });
    QUIRE_CHECKED(refuse(source_.unused(), c_));
    return std::move(notes_);
  }

 private:
  template <class Wanted>
  void drop(Wanted&& wanted, std::string_view what) {
    note(source_.drop(wanted), what);
  }
  void note(int64_t count, std::string_view what) {
    if (count > 0) notes_.push_back(fmt::format("{} {}", count, what));
  }

  // They draft tokens, which the model itself then checks.
  void drop_mtp() {
    if (c_.mtp_layers == 0)
      drop([](std::string_view n, const SourceTensor&) { return n.starts_with("mtp."); }, "MTP tensors are left out");
    if (c_.row->mtp_left_out)
      drop([prefix = fmt::format("model.layers.{}.", c_.layers)](std::string_view n,
                                                                 const SourceTensor&) { return n.starts_with(prefix); },
           "MTP tensors are left out");
  }

  void drop_shared_kv() {
    int64_t shared = 0;
    for (int64_t i = c_.layers - c_.shared_kv_layers; i < c_.layers; ++i) {
      const auto attention = fmt::format("model.layers.{}.self_attn.", i);
      shared += source_.drop([&](std::string_view n, const SourceTensor&) {
        return n.starts_with(attention + "k_") || n.starts_with(attention + "v_");
      });
    }
    note(shared, "tensors of keys and values are left out: their layers attend to those of others");
  }

  Source& source_;
  const HfConfig& c_;
  std::vector<std::string> notes_;
};

}  // namespace

Result<std::vector<std::string>> check_leftovers(Source& source, const HfConfig& config) {
  return Leftovers(source, config).run();
}

}  // namespace quire::convert
