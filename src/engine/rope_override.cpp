#include "engine/rope_override.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <vector>

namespace quire {
namespace {

constexpr float kMaxFactor = 1024.0f;

// Keys and values that a file's metadata points to.
class Replaced {
 public:
  void text(const std::string& key, const std::string& value) {
    gguf::Value v{.type = gguf::ValueType::kString};
    v.strings.push_back(kept(value));
    entries_.push_back({kept(key), std::move(v)});
  }
  void real(const std::string& key, float value) { number(key, gguf::ValueType::kFloat32, &value, sizeof value); }
  void whole(const std::string& key, int64_t value) {
    const auto v = static_cast<uint32_t>(value);
    number(key, gguf::ValueType::kUint32, &v, sizeof v);
  }

  // The file's entries, with those of the same name replaced and new ones behind them.
  std::vector<gguf::Metadata::Entry> over(std::span<const gguf::Metadata::Entry> given) const {
    std::vector<gguf::Metadata::Entry> all(given.begin(), given.end());
    for (const gguf::Metadata::Entry& e : entries_) {
      const auto same = std::find_if(all.begin(), all.end(), [&](const auto& x) { return x.key == e.key; });
      if (same == all.end())
        all.push_back(e);
      else
        same->value = e.value;
    }
    return all;
  }

 private:
  std::string_view kept(const std::string& text) { return texts_.emplace_back(text); }
  void number(const std::string& key, gguf::ValueType type, const void* bytes, size_t size) {
    gguf::Value v{.type = type};
    std::string& payload = texts_.emplace_back(size, '\0');
    std::memcpy(payload.data(), bytes, size);
    v.payload = reinterpret_cast<const std::byte*>(payload.data());
    entries_.push_back({kept(key), std::move(v)});
  }

  std::deque<std::string> texts_;  // whose elements stay where they are
  std::vector<gguf::Metadata::Entry> entries_;
};

Status check_range(const char* name, const std::optional<float>& value, float least, float most) {
  if (!value || (*value >= least && *value <= most)) return {};
  return request_error("{} {}: must be between {} and {}", name, *value, least, most);
}

}  // namespace

bool RopeOverride::any() const {
  return scaling || factor || original_context || attn_factor || ext_factor || beta_fast || beta_slow;
}

Status RopeOverride::check() const {
  if (scaling && *scaling != "none" && *scaling != "linear" && *scaling != "yarn")
    return request_error("--rope-scaling {}: must be none, linear or yarn", *scaling);
  if (scaling == "none" && (factor || original_context))
    return request_error("--rope-scaling none takes no --rope-scale and no --yarn-orig-ctx");
  if (scaling && *scaling != "yarn" && (attn_factor || ext_factor || beta_fast || beta_slow))
    return request_error("--yarn-... options are for --rope-scaling yarn, not for {}", *scaling);
  QUIRE_CHECKED(check_range("--rope-scale", factor, 1.0f, kMaxFactor));
  QUIRE_CHECKED(check_range("--yarn-attn-factor", attn_factor, 1e-3f, 1e3f));
  QUIRE_CHECKED(check_range("--yarn-ext-factor", ext_factor, 0.0f, 1.0f));
  QUIRE_CHECKED(check_range("--yarn-beta-fast", beta_fast, 1e-3f, 1e6f));
  QUIRE_CHECKED(check_range("--yarn-beta-slow", beta_slow, 1e-3f, 1e6f));
  if (original_context && (*original_context < 1 || *original_context > INT32_MAX))
    return request_error("--yarn-orig-ctx {}: must be at least 1 and at most {}", *original_context, INT32_MAX);
  if (beta_fast.value_or(32.0f) <= beta_slow.value_or(1.0f))
    return request_error("--yarn-beta-fast {} must be above --yarn-beta-slow {}", beta_fast.value_or(32.0f),
                         beta_slow.value_or(1.0f));
  return {};
}

Result<std::shared_ptr<const void>> replace_rope(const RopeOverride& rope, gguf::File& file) {
  QUIRE_CHECKED(rope.check());
  QUIRE_TRY(const std::string_view architecture, file.get_string("general.architecture"));
  const auto key = [&](const char* name) { return fmt::format("{}.{}", architecture, name); };
  const std::string context_key = key("context_length"), original_key = key("rope.scaling.original_context_length"),
                    type_key = key("rope.scaling.type"), factor_key = key("rope.scaling.factor");
  QUIRE_TRY(const uint32_t context, file.get_u32(context_key));
  QUIRE_TRY(const uint32_t own_original, file.get_u32_or(original_key, context));
  QUIRE_TRY(const std::string_view own_type, file.get_string_or(type_key, "none"));
  QUIRE_TRY(const float own_factor, file.get_f32_or(factor_key, 1.0f));
  const std::string type = rope.scaling.value_or(std::string(own_type));
  const bool scales = type == "yarn" || type == "linear";
  if (!scales && rope.any() && type != rope.scaling)
    return request_error("the model's positions are not scaled: say how with --rope-scaling yarn (or linear)");
  const int64_t original = rope.original_context.value_or(own_original);
  const float factor = !scales ? 1.0f : rope.factor.value_or(own_factor);
  if (scales && !(factor > 1.0f))
    return request_error(
        "--rope-scaling {}: say how many times longer contexts become, with --rope-scale 4 for example", type);
  const auto replaced = std::make_shared<Replaced>();
  replaced->text(type_key, type);
  replaced->real(factor_key, factor);
  replaced->whole(original_key, original);
  const auto take = [&](const char* name, const std::optional<float>& value) {
    if (value) replaced->real(key(name), *value);
  };
  take("rope.scaling.attn_factor", rope.attn_factor);
  take("rope.scaling.yarn_ext_factor", rope.ext_factor);
  take("rope.scaling.yarn_beta_fast", rope.beta_fast);
  take("rope.scaling.yarn_beta_slow", rope.beta_slow);
  const double longest = std::floor(static_cast<double>(original) * static_cast<double>(factor));
  if (scales && longest > context) replaced->whole(context_key, static_cast<int64_t>(std::min(longest, 2147483647.0)));
  QUIRE_TRY(gguf::Metadata made, gguf::Metadata::make(replaced->over(file.entries())));
  static_cast<gguf::Metadata&>(file) = std::move(made);
  return std::shared_ptr<const void>(replaced);
}

}  // namespace quire
