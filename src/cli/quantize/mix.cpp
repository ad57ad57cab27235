#include "cli/quantize/mix.h"

#include <fmt/format.h>

#include <algorithm>

#include "arch/architecture.h"
#include "arch/tensors.h"
#include "command/display.h"
#include "core/escape.h"

namespace quire::cli {
namespace {

// Types in place of others for rows that their blocks do not divide, each a little larger. Nothing: none is
// left.
std::optional<DType> fallback(DType type) {
  switch (type) {
    case DType::kQ3_K:
      return DType::kIQ4_NL;
    case DType::kQ4_K:
      return DType::kQ5_0;
    case DType::kQ5_K:
      return DType::kQ5_1;
    case DType::kQ6_K:
    case DType::kNVFP4:
      return DType::kQ8_0;
    default:
      return {};
  }
}

bool fits(DType type, const gguf::TensorInfo& t) {
  return t.dims[0] % dtype_info(type).block_elems == 0;
}

// Embeddings are read by row, not multiplied: other programs know no scale for them.
bool is_embedding(std::string_view name) {
  return name.ends_with("token_embd.weight") || name.find("nextn.embed_tokens") != name.npos;
}

std::string type_text(const std::optional<DType>& type) {
  return type ? std::string(dtype_name(*type)) : "as they were";
}

Choice choose(const gguf::TensorInfo& t, std::optional<DType> wanted) {
  if (!wanted || t.bytes == 0) return {.type = t.dtype};
  std::optional<DType> type = wanted;
  while (type && !fits(*type, t)) type = fallback(*type);
  Choice c{.type = type.value_or(t.dtype)};
  if (c.type != *wanted) c.wanted = wanted;
  return c;
}

Error misfit(const gguf::TensorInfo& t, const Override& o) {
  return request_error(
      "--tensor {}: rows of {} have {} elements, no multiple of {}'s block of {}; "
      "choose another type for it",
      escaped(o.text, 100), gguf::printable(t.name), t.dims[0], dtype_name(*o.type), dtype_info(*o.type).block_elems);
}

// What a pattern does.
struct OverrideUse {
  const gguf::TensorInfo* misfit = nullptr;  // the first matrix whose rows its type cannot have
  bool any = false;                          // there is another
};

// A pattern for a whole block also matches what no type with blocks can have, such as the convolution of a delta net:
// that stays as it would be without the pattern, and the summary names it.
Status override_choice(const gguf::TensorInfo& t, const Override& o, OverrideUse& use, Choice& c) {
  if (o.type && !fits(*o.type, t)) {
    if (use.misfit == nullptr) use.misfit = &t;
    c.wanted = o.type;
    return {};
  }
  if (o.type == DType::kNVFP4 && is_embedding(t.name))
    return request_error("--tensor {}: {} cannot be nvfp4, an embedding has no scale; choose q8_0",
                         escaped(o.text, 100), gguf::printable(t.name));
  use.any = true;
  c = {.type = o.type.value_or(t.dtype)};
  return {};
}

// Vectors and what is no weight keep their type whatever a pattern says.
bool can_be_overridden(const gguf::TensorInfo& t) {
  return t.n_dims >= 2 && t.n_dims <= 3 && t.name.ends_with(".weight") && t.bytes > 0;
}

bool is_hybrid(const gguf::File& f) {
  if (const auto name = f.get_string("general.architecture"); name.ok())
    if (const Architecture* const row = find_architecture(*name); row != nullptr) return row->delta_net;
  return std::any_of(f.tensors().begin(), f.tensors().end(),
                     [](const gguf::TensorInfo& t) { return t.name.find(".ssm_") != t.name.npos; });
}

// The first block that the model's own layers do not count; -1: there is none.
int64_t first_mtp_block(const gguf::File& f) {
  const auto name = f.get_string("general.architecture");
  if (!name.ok()) return -1;
  const auto blocks = f.get_u32(std::string(*name) + ".block_count");
  const auto mtp = f.get_u32(std::string(*name) + ".nextn_predict_layers");
  return blocks.ok() && mtp.ok() && *mtp > 0 && *mtp <= *blocks ? int64_t{*blocks} - *mtp : -1;
}

std::optional<DType> mtp_type(DType type) {
  for (const DType precise : {DType::kF32, DType::kF16, DType::kBF16})
    if (type == precise) return type;
  return DType::kQ8_0;
}

Mix mix_of_layers(DType type, bool hybrid) {
  Mix m{.ffn = type, .projection = type, .head = type};
  switch (type) {
    case DType::kQ3_K:
      m.projection = DType::kQ4_K;
      [[fallthrough]];
    case DType::kQ4_K:
      m.head = DType::kQ6_K;
      if (!hybrid) m.value = DType::kQ6_K;
      break;
    case DType::kQ5_K:
      m.head = DType::kQ6_K;
      if (!hybrid) m.value = DType::kQ6_K;
      if (hybrid) m.projection = DType::kQ8_0;
      return m;
    case DType::kQ5_0:
    case DType::kQ5_1:
      m.head = DType::kQ8_0;
      if (hybrid) m.projection = DType::kQ8_0;
      return m;
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kIQ4_NL:
    case DType::kMXFP4:
    case DType::kNVFP4:
      m.head = DType::kQ8_0;
      break;
    default:
      return m;
  }
  if (hybrid) m.projection.reset();
  return m;
}

}  // namespace

bool Mix::is_mtp(const gguf::TensorInfo& t) const {
  return first_mtp >= 0 && block_of(t.name) >= first_mtp;
}

std::optional<DType> Mix::of(const gguf::TensorInfo& t) const {
  const EncodingGroup group = encoding_group(t.name, t.n_dims);
  if (group != EncodingGroup::kKept && is_mtp(t)) return mtp;
  switch (group) {
    case EncodingGroup::kKept:
      return {};
    case EncodingGroup::kHead:
      return head;
    case EncodingGroup::kFfn:
      return ffn;
    case EncodingGroup::kProjection:
      return value && t.name.find("attn_v.") != t.name.npos ? value : projection;
  }
  return {};
}

std::string Mix::text() const {
  std::string out = fmt::format("feed-forward and experts {}; projections {}", type_text(ffn), type_text(projection));
  if (value) out += fmt::format(" (attn_v {})", type_text(value));
  if (first_mtp >= 0) out += fmt::format("; block for multi-token prediction {}", type_text(mtp));
  return out +
         fmt::format("; embedding and head {}; norms, routers, convolutions, vectors as they were", type_text(head));
}

Mix default_mix(DType type, const gguf::File& f) {
  Mix m = mix_of_layers(type, is_hybrid(f));
  m.mtp = mtp_type(type);
  m.first_mtp = first_mtp_block(f);
  return m;
}

std::string mixes_help() {
  return R"(Mixes of --type (also written into the file, as quire.quantize.mix):
  type                     feed-forward  projections      projections      embedding
                           and experts   (transformers)   (hybrids)        and head
  f32 f16 bf16 q8_0 q6_k   type          type             type             type
  q5_k                     q5_k          q5_k, attn_v q6_k  q8_0           q6_k
  q5_0 q5_1                type          type             q8_0             q8_0
  q4_k                     q4_k          q4_k, attn_v q6_k  as they were   q6_k
  q3_k                     q3_k          q4_k, attn_v q6_k  as they were   q6_k
  q4_0 q4_1 iq4_nl         type          type             as they were     q8_0
  mxfp4 nvfp4              type          type             as they were     q8_0
Hybrids are models with delta-net layers; their projections at 4 bits cost about 6% of perplexity.
Matrices of a block for multi-token prediction become q8_0 (f32, f16 and bf16: type), if --tensor does not say more.
Norms, routers, convolutions and vectors always stay as they are.
Rows that a type's blocks do not divide take another: q3_k iq4_nl, q4_k q5_0, q5_k q5_1, q6_k and nvfp4 q8_0;
rows that 32 does not divide stay as they are. The summary names them.)";
}

Result<std::vector<Override>> parse_overrides(const std::vector<std::string>& given) {
  std::vector<Override> out;
  for (const std::string& text : given) {
    const size_t equals = text.rfind('=');
    if (equals == text.npos || equals == 0)
      return request_error("--tensor {}: give REGEX=TYPE, for example ffn_down=q6_k", escaped(text, 100));
    auto pattern = Pattern::compile(std::string_view(text).substr(0, equals));
    if (!pattern.ok()) return pattern.take_error().context("--tensor");
    Override o{std::move(pattern).value(), {}, text};
    if (const std::string type = text.substr(equals + 1); type != "keep") {
      auto parsed = parse_encodable(type);
      if (!parsed.ok()) return request_error("--tensor {}: {}, or keep", escaped(text, 100), parsed.error().message);
      o.type = *parsed;
    }
    out.push_back(std::move(o));
  }
  return out;
}

Result<std::vector<Choice>> choose_types(const gguf::File& f, const Mix& mix, const std::vector<Override>& overrides) {
  std::vector<Choice> out;
  std::vector<OverrideUse> uses(overrides.size());
  for (const gguf::TensorInfo& t : f.tensors()) {
    Choice c = choose(t, mix.of(t));
    if (can_be_overridden(t)) {
      for (size_t i = 0; i < overrides.size(); ++i) {  // the last one that matches decides
        QUIRE_TRY(const bool found, overrides[i].pattern.found_in(t.name));
        if (!found) continue;
        QUIRE_CHECKED(override_choice(t, overrides[i], uses[i], c));
      }
    }
    c.mtp = mix.is_mtp(t);
    out.push_back(c);
  }
  for (size_t i = 0; i < overrides.size(); ++i) {
    if (uses[i].any) continue;
    if (uses[i].misfit != nullptr) return misfit(*uses[i].misfit, overrides[i]);
    return request_error("--tensor {} matches no matrix; `quire inspect FILE --tensors` lists the names",
                         escaped(overrides[i].text, 100));
  }
  return out;
}

}  // namespace quire::cli
