#include "convert/hf_rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "gguf/metadata.h"

namespace quire::convert {
namespace {

using gguf::printable;
using nlohmann::json;

constexpr int64_t kMaxSection = 1024;

// Whether a part of each head may rotate. The other classes of transformers read the key nowhere, unless frequencies
// are scaled: then they make too few of them and fail.
bool may_rotate_a_part(const HfConfig& c) {
  return c.row->rotary_share > 0;
}

// Sections of the multi-axis RoPE, padded to four.
Status read_sections(const json* list, HfConfig& c) {
  c.rope_sections = {24, 20, 20, 0};
  if (may_rotate_a_part(c)) c.rope_sections = {11, 11, 10, 0};
  if (list == nullptr) return {};
  if (!list->is_array() || list->empty() || list->size() > 4)
    return file_error("mrope_section: is not a list of one to four numbers");
  c.rope_sections.assign(4, 0);
  for (size_t i = 0; i < list->size(); ++i) {
    const json& x = (*list)[i];
    if (!x.is_number_integer() || x.get<int64_t>() < 0 || x.get<int64_t>() > kMaxSection)
      return file_error("mrope_section: entry {} is not a small whole number", i);
    c.rope_sections[i] = x.get<int32_t>();
  }
  return {};
}

// The factor, which transformers refuses to do without. Of yarn it may be null: then it is the ratio of the
// two context lengths.
Status read_factor(const json& r, HfConfig& c) {
  if (!r.contains("factor")) return file_error("rope scaling: factor: missing");
  const json* factor = find_member(r, "factor");
  if (factor == nullptr && c.rope.kind != RopeScaling::Kind::kYarn) return file_error("rope scaling: factor: is null");
  const double ratio = static_cast<double>(c.context) / static_cast<double>(c.rope.original_context);
  return positive_or(factor, "rope scaling: factor", ratio, c.rope.factor);
}

// Beside rope_parameters the key outranks the one inside: transformers writes it over that.
Status read_original_context(const HfKeys& k, const json& r, HfConfig& c) {
  constexpr std::string_view kKey = "original_max_position_embeddings";
  const json* v = k.find(kKey);
  const int64_t of_class = c.row->folder_defaults.original_context;  // as if it were beside
  if (v == nullptr && of_class == 0) v = find_member(r, kKey);
  double original = 0;
  QUIRE_CHECKED(positive_or(v, kKey, static_cast<double>(of_class > 0 ? of_class : c.context), original));
  if (original < 1 || original > INT32_MAX || original != std::floor(original))
    return file_error("{}: {} is not a context length", kKey, original);
  c.rope.original_context = static_cast<int64_t>(original);
  return {};
}

// Readers of GGUF blend between frequencies lo and hi; where these change places they and transformers go
// different ways.
Status check_yarn_range(const HfConfig& c) {
  const auto dims = static_cast<double>(c.n_rot);
  const auto turns_at = [&](double turns) {
    return dims * std::log(static_cast<double>(c.rope.original_context) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(c.rope_theta));
  };
  const double lo = std::max(std::floor(turns_at(32)), 0.0);
  const double hi = std::min(std::ceil(turns_at(1)), dims - 1);
  if (lo <= hi) return {};
  return file_error("rope scaling: yarn from a context of {} with rope_theta {} is not supported",
                    c.rope.original_context, c.rope_theta);
}

// What cosines and sines are multiplied with: attention_factor, else what mscale and mscale_all_dim make of
// the factor.
Status read_magnitude(const json& r, double factor, double& out) {
  const auto magnitude = [&](double scale) { return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1; };
  const auto scale = [&](std::string_view key, double& x) -> Status {
    const json* v = find_member(r, key);
    x = 0;
    if (v != nullptr && *v == json(0)) return {};  // counts as absent
    return positive_or(v, key, 0, x);
  };
  double of_scale = 0, of_all = 0;
  QUIRE_CHECKED(scale("mscale", of_scale));
  QUIRE_CHECKED(scale("mscale_all_dim", of_all));
  const double computed = of_scale > 0 && of_all > 0 ? magnitude(of_scale) / magnitude(of_all) : magnitude(1);
  return positive_or(find_member(r, "attention_factor"), "attention_factor", computed, out);
}

Status read_yarn(const json& r, HfConfig& c) {
  double fast = 32, slow = 1, magnitude = 0;
  QUIRE_CHECKED(positive_or(find_member(r, "beta_fast"), "beta_fast", 32, fast));
  QUIRE_CHECKED(positive_or(find_member(r, "beta_slow"), "beta_slow", 1, slow));
  if (fast != 32 || slow != 1)
    return file_error("rope scaling: beta_fast {} and beta_slow {} are not supported (32 and 1 are)", fast, slow);
  const json* truncate = find_member(r, "truncate");
  const bool exact = truncate != nullptr && *truncate == json(false);
  if (exact != c.row->exact_yarn)
    return file_error("rope scaling: truncate: only {} is supported for {}", !c.row->exact_yarn, c.row->name);
  QUIRE_CHECKED(check_yarn_range(c));
  QUIRE_CHECKED(read_magnitude(r, c.rope.factor, magnitude));
  // Readers multiply by this whatever the factor is: what is stored is the ratio to it.
  const double computed = 0.1 * std::log(c.rope.factor) + 1;
  if (!(computed > 0.01)) return file_error("rope scaling: factor: {} is too small for yarn", c.rope.factor);
  c.rope.attn_factor = magnitude / computed;
  return {};
}

Status read_llama3(const json& r, HfConfig& c) {
  for (const std::string_view key : {"low_freq_factor", "high_freq_factor"})
    if (find_member(r, key) == nullptr) return file_error("rope scaling: {}: missing", key);
  QUIRE_CHECKED(positive_or(find_member(r, "low_freq_factor"), "low_freq_factor", 1, c.rope.low_factor));
  QUIRE_CHECKED(positive_or(find_member(r, "high_freq_factor"), "high_freq_factor", 4, c.rope.high_factor));
  if (c.rope.high_factor <= c.rope.low_factor)
    return file_error("high_freq_factor: {} is not above low_freq_factor {}", c.rope.high_factor, c.rope.low_factor);
  return {};
}

// Divisors of the frequencies, one list up to the context of the first training and one beyond it, and what cosines and
// sines are multiplied with.
Status read_long_rope(const HfKeys& k, const json& r, HfConfig& c) {
  QUIRE_CHECKED(read_original_context(k, r, c));
  const auto factors = [&](std::string_view key, std::vector<float>& out) -> Status {
    const json* list = find_member(r, key);
    if (list == nullptr || !list->is_array() || std::ssize(*list) != c.n_rot / 2)
      return file_error("rope scaling: {}: is not a list of {} numbers", key, c.n_rot / 2);
    for (const json& x : *list) {
      double number = 0;
      QUIRE_CHECKED(positive_or(&x, key, 0, number));
      out.push_back(static_cast<float>(number));
    }
    return {};
  };
  QUIRE_CHECKED(factors("short_factor", c.rope.short_factors));
  QUIRE_CHECKED(factors("long_factor", c.rope.long_factors));
  const auto original = static_cast<double>(c.rope.original_context);
  double factor = 0;
  QUIRE_CHECKED(
      positive_or(find_member(r, "factor"), "rope scaling: factor", static_cast<double>(c.context) / original, factor));
  const double computed = factor <= 1 || original <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(original));
  return positive_or(find_member(r, "attention_factor"), "attention_factor", computed, c.rope.attn_factor);
}

// Of each head's pairs the first ones rotate, as if all did.
Status read_proportional(const HfKeys& k, const json& r, HfConfig& c) {
  c.n_rot = c.head_dim;
  QUIRE_TRY(const std::string kind, text_of(find_member(r, "rope_type"), "rope_type"));
  if (kind == "default") return {};
  if (!kind.empty() && kind != "proportional")
    return file_error("rope_type: {} is not supported for {} (default and proportional are)", printable(kind),
                      c.row->name);
  double share = 0, factor = 1;
  const json* said = find_member(r, "partial_rotary_factor");
  if (said == nullptr) said = k.find("partial_rotary_factor");
  QUIRE_CHECKED(positive_or(said, "partial_rotary_factor", r.empty() ? c.row->proportional_share : 1, share));
  QUIRE_CHECKED(positive_or(find_member(r, "factor"), "rope scaling: factor", 1, factor));
  if (share > 1) return file_error("partial_rotary_factor: {} is above 1", share);
  if (factor != 1) return file_error("rope scaling: factor: {} of a proportional RoPE is not supported", factor);
  c.rope.kind = RopeScaling::Kind::kProportional;
  c.rope.pairs = static_cast<int64_t>(share * static_cast<double>(c.head_dim) / 2);
  return {};
}

Status read_scaling(const HfKeys& k, const json& r, HfConfig& c) {
  using Kind = RopeScaling::Kind;
  const json* type = find_member(r, "rope_type");
  if (type == nullptr) type = find_member(r, "type");
  QUIRE_TRY(const std::string kind, text_of(type, "rope_type"));
  if (kind.empty() || kind == "default" || kind == "mrope") return {};
  // Phi-3 has one kind, under three names.
  if (c.row->fused_qkv && (kind == "longrope" || kind == "su" || kind == "yarn")) {
    c.rope.kind = Kind::kLongRope;
    return read_long_rope(k, r, c);
  }
  if (kind == "linear")
    c.rope.kind = Kind::kLinear;
  else if (kind == "yarn")
    c.rope.kind = Kind::kYarn;
  else if (kind == "llama3" && c.row->name == "llama")
    c.rope.kind = Kind::kLlama3;
  else
    return file_error("rope_type: {} is not supported for {} (default, linear and yarn are, and llama3 for llama)",
                      printable(kind), c.row->name);
  if (c.rope.kind != Kind::kLinear) QUIRE_CHECKED(read_original_context(k, r, c));
  QUIRE_CHECKED(read_factor(r, c));
  if (c.rope.kind == Kind::kYarn) return read_yarn(r, c);
  return c.rope.kind == Kind::kLlama3 ? read_llama3(r, c) : Status();
}

Status read_rotated_part(double share, HfConfig& c) {
  c.n_rot = c.head_dim;
  const auto rotated = static_cast<int64_t>(static_cast<double>(c.head_dim) * share);
  if (!may_rotate_a_part(c)) {
    if (rotated == c.head_dim) return {};
    if (c.rope.kind != RopeScaling::Kind::kNone)
      return file_error("partial_rotary_factor: {} beside a scaled RoPE is not supported by this class", share);
    c.notes.push_back(fmt::format("partial_rotary_factor {} is left out: {} rotates whole heads, in transformers too",
                                  share, c.class_name));
    return {};
  }
  if (share > 1) return file_error("partial_rotary_factor: {} is above 1", share);
  c.n_rot = rotated;
  if (c.n_rot < 2 || c.n_rot % 2 != 0)
    return file_error("partial_rotary_factor: {} of {} dimensions is not an even number", share, c.head_dim);
  return {};
}

// The base of layers with a window: of an object of their own, or of a key beside the others.
Status read_local_rope(const HfKeys& k, const json* own, HfConfig& c) {
  c.local_rope_theta = c.row->local_rope_theta;
  QUIRE_CHECKED(
      positive_or(k.find("rope_local_base_freq"), "rope_local_base_freq", c.row->local_rope_theta, c.local_rope_theta));
  if (own == nullptr) return {};
  if (!own->is_object()) return file_error("rope_parameters: sliding_attention: is no object");
  QUIRE_TRY(const std::string kind, text_of(find_member(*own, "rope_type"), "rope_type"));
  if (!kind.empty() && kind != "default")
    return file_error("rope_parameters: sliding_attention: rope_type: {} is not supported (default is)",
                      printable(kind));
  return positive_or(find_member(*own, "rope_theta"), "rope_theta", c.local_rope_theta, c.local_rope_theta);
}

// The object with the parameters: an older rope_scaling that says anything outranks rope_parameters.
Result<const json*> find_parameters(const HfKeys& k, HfConfig& c) {
  static const json kNothing = json::object();
  // Of gpt-oss: the class scales where nothing else is said.
  static const json kOwnYarn = {
      {"rope_type", "yarn"}, {"factor", 32.0}, {"truncate", false}, {"original_max_position_embeddings", 4096}};
  const json* r = c.row->exact_yarn ? &kOwnYarn : &kNothing;
  for (const std::string_view key : {"rope_parameters", "rope_scaling"}) {
    const json* v = k.find(key);
    if (v == nullptr) continue;
    if (!v->is_object()) return file_error("{}: is no object", key);
    if (!v->empty()) r = v;
  }
  if (c.row->local_rope_theta > 0) {
    QUIRE_CHECKED(read_local_rope(k, find_member(*r, "sliding_attention"), c));
    const json* full = find_member(*r, "full_attention");
    if (full != nullptr && !full->is_object()) return file_error("rope_parameters: full_attention: is no object");
    if (full != nullptr || r->contains("sliding_attention")) return full != nullptr ? full : &kNothing;
    return r;
  }
  for (const std::string_view layers : {"full_attention", "sliding_attention", "linear_attention"})
    if (r->contains(layers))
      return file_error("rope_parameters: a RoPE of its own for each kind of layer is not supported");
  return r;
}

}  // namespace

Status read_hf_rope(const HfKeys& k, HfConfig& c) {
  QUIRE_TRY(const json* r, find_parameters(k, c));
  const auto either = [&](std::string_view key) {
    const json* v = find_member(*r, key);
    return v != nullptr ? v : k.find(key);
  };
  const double default_theta = c.class_name == "MixtralForCausalLM" ? 1e6 : c.row->folder_defaults.rope_theta;
  QUIRE_CHECKED(positive_or(either("rope_theta"), "rope_theta", default_theta, c.rope_theta));
  if (c.row->proportional_share > 0) return read_proportional(k, *r, c);
  const double default_share = may_rotate_a_part(c) ? c.row->rotary_share : 1;
  double share = 1;
  QUIRE_CHECKED(positive_or(either("partial_rotary_factor"), "partial_rotary_factor", default_share, share));
  if (c.row->rope_sections) QUIRE_CHECKED(read_sections(either("mrope_section"), c));
  if (may_rotate_a_part(c)) {
    QUIRE_CHECKED(read_rotated_part(share, c));
    return read_scaling(k, *r, c);
  }
  c.n_rot = c.head_dim;
  QUIRE_CHECKED(read_scaling(k, *r, c));
  return read_rotated_part(share, c);
}

std::vector<float> rope_divisors(const HfConfig& c) {
  constexpr float kStill = 1e30F;  // of pairs that do not rotate
  std::vector<float> divisors;
  const RopeScaling& r = c.rope;
  for (int64_t j = 0; j < c.n_rot / 2; ++j) {
    if (r.kind == RopeScaling::Kind::kProportional) divisors.push_back(j < r.pairs ? 1 : kStill);
    if (r.kind != RopeScaling::Kind::kLlama3) continue;
    // 1 for short wavelengths, the factor for long ones, a blend between.
    const double exponent = 2.0 * static_cast<double>(j) / static_cast<double>(c.n_rot);
    const double wavelength = 2 * std::numbers::pi * std::pow(c.rope_theta, exponent);
    const double a =
        (static_cast<double>(r.original_context) / wavelength - r.low_factor) / (r.high_factor - r.low_factor);
    divisors.push_back(static_cast<float>(a > 1 ? 1 : a < 0 ? r.factor : 1 / ((1 - a) / r.factor + a)));
  }
  return divisors;
}

}  // namespace quire::convert
