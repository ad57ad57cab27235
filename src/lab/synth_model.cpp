#include "lab/synth_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "arch/tensors.h"
#include "lab/synth_values.h"
#include "quant/format.h"

namespace quire::cli {
namespace {

Result<DType> parse_type(const std::string& name) {
  const auto info = find_dtype(name);
  if (info && quant::can_decode(info->type)) return info->type;
  return request_error(
      "unknown type '{}': choose one of f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q2_k, q3_k, q4_k, "
      "q5_k, q6_k, "
      "iq4_nl, iq4_xs, mxfp4, nvfp4",
      name);
}

Result<SynthShape> choose_shape(const SynthOptions& o) {
  std::string known;
  for (const SynthShape& preset : synth_shapes()) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", preset.name);
    if (preset.name != o.preset) continue;
    SynthShape s = preset;
    s.layers = o.layers.value_or(s.layers);
    s.vocab = o.vocab.value_or(s.vocab);
    s.mtp = o.mtp;
    s.images = o.images;
    if (s.images && !s.sees()) return request_error("--images: the models of {} take none", s.name);
    if (s.mtp && !s.hybrid()) return request_error("--mtp: the models of {} have no such block", s.name);
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

int64_t matrices(const SynthTensor& t) {
  return t.dims.size() > 2 ? t.dims[2] : 1;
}

}  // namespace

std::string synth_presets() {
  std::string presets;
  for (const SynthShape& s : synth_shapes())
    presets += fmt::format("{}{} ({})", presets.empty() ? "" : ", ", s.name, s.summary);
  return presets;
}

void SynthOptions::add(Flags& flags, const std::string& needed) {
  const auto add_one = [&](const char* names, Member member, const char* help) {
    flags.add(names, std::move(member), help).needs(needed);
  };
  add_one("--type", &type,
          "Type of all matrices; nvfp4: of the feed-forward ones, with bf16 projections and a q8_0 embedding and head");
  add_one("--ffn-type", &ffn_type, "Another type for feed-forward and expert matrices");
  add_one("--head-type", &head_type, "Another type for the embedding and the head");
  add_one("--layers", &layers, "Number of layers (default: the model's)");
  add_one("--vocab", &vocab, "Size of the vocabulary (default: the model's)");
  add_one("--mtp", &mtp, "With a block for multi-token prediction, where the model has one");
}

void SynthPayload::copy_to(std::byte* out) const {
  for (size_t done = 0, from = begin; done < bytes; from = 0) {
    const size_t n = std::min(bytes - done, pattern.size() - from);
    std::memcpy(out + done, pattern.data() + from, n);
    done += n;
  }
}

// What does not fit a row length becomes bf16.
DType SynthModel::Types::of(const SynthTensor& t) const {
  DType type = DType::kF32;
  switch (t.group()) {
    case EncodingGroup::kKept:
      return DType::kF32;
    case EncodingGroup::kHead:
      type = head;
      break;
    case EncodingGroup::kFfn:
      type = ffn;
      break;
    case EncodingGroup::kProjection:
      type = projection;
      break;
  }
  return t.dims[0] % dtype_info(type).block_elems == 0 ? type : DType::kBF16;
}

// nvfp4 stands for the mixture that such files are: NVFP4 feed-forward, bf16 projections, Q8_0 embedding and
// head.
Result<SynthModel::Types> SynthModel::choose_types(const SynthOptions& o) {
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

Result<SynthModel> SynthModel::choose(const SynthOptions& o) {
  QUIRE_TRY(const SynthShape shape, choose_shape(o));
  QUIRE_TRY(const Types types, choose_types(o));
  return SynthModel(shape, types, o.seed);
}

Status SynthModel::declare(gguf::Writer& w) const {
  add_synth_metadata(shape_, w);
  w.add("general.file_type", gguf::file_type_code(types_.ffn));
  w.add("general.quantization_version", uint32_t{2});
  for (const SynthTensor& t : tensors_) {
    QUIRE_CHECKED(w.add_tensor(t.name, types_.of(t), t.dims));
    const int64_t scales[] = {matrices(t)};
    if (types_.of(t) == DType::kNVFP4)
      QUIRE_CHECKED(w.add_tensor(fmt::format("{}.scale", without_weight(t.name)), DType::kF32, scales));
  }
  return {};
}

Status SynthModel::fill(const Sink& sink) const {
  SynthValueSource source(seed_);
  for (const SynthTensor& t : tensors_) {
    const DType type = types_.of(t);
    QUIRE_CHECKED(sink(t.values == SynthValues::kMatrix ? source.matrix(type, t.dims[0], elems_of(t))
                                                        : source.vector(t.values, elems_of(t))));
    if (type == DType::kNVFP4) QUIRE_CHECKED(sink(source.constants(synth_nvfp4_scale(t.dims[0]), matrices(t))));
  }
  return {};
}

}  // namespace quire::cli
