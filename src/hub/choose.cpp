#include "hub/choose.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>

#include "core/escape.h"
#include "gguf/metadata.h"
#include "gguf/mmproj_name.h"

namespace quire::hub {
namespace {

// Kinds that Quire computes with, the first ones first. Those of about 4 bits come first: the least time a token at a
// loss that few notice. NVFP4 leads where a GPU computes it.
constexpr std::string_view kOrder[] = {"Q4_K_M",    "Q4_K_XL", "Q4_K_L", "Q4_K_S", "Q4_K",  "NVFP4",  "MXFP4",
                                       "MXFP4_MOE", "IQ4_XS",  "IQ4_NL", "Q4_1",   "Q4_0",  "Q5_K_M", "Q5_K_XL",
                                       "Q5_K_S",    "Q5_K",    "Q5_1",   "Q5_0",   "Q6_K",  "Q6_K_L", "Q6_K_XL",
                                       "Q8_0",      "Q8_K_XL", "BF16",   "F16",    "F32",   "Q3_K_L", "Q3_K_M",
                                       "Q3_K_S",    "Q3_K",    "Q2_K_L", "Q2_K",   "Q2_K_S"};
// Others that names speak of, which Quire does not compute with, or not surely.
constexpr std::string_view kOthers[] = {"IQ1_S",  "IQ1_M", "IQ2_XXS",  "IQ2_XS",   "IQ2_S",   "IQ2_M",   "IQ3_XXS",
                                        "IQ3_XS", "IQ3_S", "IQ3_M",    "TQ1_0",    "TQ2_0",   "Q3_K_XL", "Q2_K_XL",
                                        "Q1_0",   "Q2_0",  "Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8"};

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

std::string_view base_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

bool is_beside(std::string_view path) {
  return gguf::is_mmproj(path) || upper(base_name(path)).find("IMATRIX") != std::string::npos;
}

struct Split {
  std::string prefix;
  int index = 0, count = 0;
};

// Of "m-00002-of-00003.gguf".
std::optional<Split> split_of(std::string_view path) {
  constexpr std::string_view kForm = "-00000-of-00000.gguf";
  if (path.size() <= kForm.size()) return {};
  const std::string_view tail = path.substr(path.size() - kForm.size());
  for (size_t i = 0; i < kForm.size(); ++i)
    if (kForm[i] == '0' ? std::isdigit(static_cast<unsigned char>(tail[i])) == 0 : tail[i] != kForm[i]) return {};
  Split s{.prefix = std::string(path.substr(0, path.size() - kForm.size()))};
  std::from_chars(tail.data() + 1, tail.data() + 6, s.index);
  std::from_chars(tail.data() + 10, tail.data() + 15, s.count);
  if (s.index < 1 || s.index > s.count) return {};
  return s;
}

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// The kind that ends at a word's end, the longest first.
std::string kind_within(std::string_view text) {
  const std::string name = upper(text);
  std::string best;
  size_t best_end = 0;
  const auto consider = [&](std::string_view kind) {
    for (size_t at = name.find(kind); at != name.npos; at = name.find(kind, at + 1)) {
      const size_t end = at + kind.size();
      const bool whole = (at == 0 || std::isalnum(static_cast<unsigned char>(name[at - 1])) == 0) &&
                         (end == name.size() || !is_word(name[end]));
      if (!whole || (end < best_end || (end == best_end && kind.size() <= best.size()))) continue;
      const bool dynamic = at >= 3 && std::string_view(name).substr(at - 3, 3) == "UD-";
      best = (dynamic ? "UD-" : "") + std::string(kind);
      best_end = end;
    }
  };
  for (const std::string_view kind : kOrder) consider(kind);
  for (const std::string_view kind : kOthers) consider(kind);
  return best;
}

Variant folder_of(std::span<const NamedFile> files) {
  Variant folder{.kind = "safetensors", .folder = true};
  bool weights = false;
  for (const NamedFile& f : files) {
    if (f.path.find('/') != std::string::npos || f.path.starts_with(".")) continue;
    const std::string_view path = f.path;
    const bool is_weights = path.ends_with(".safetensors") && path.starts_with("model");
    const bool is_text = path.ends_with(".json") || path.ends_with(".jinja") || path.ends_with(".model") ||
                         path == "merges.txt" || path == "vocab.txt";
    if (!is_weights && !is_text) continue;
    weights |= is_weights;
    folder.files.push_back(f.path);
    folder.bytes += f.bytes;
  }
  if (!weights) folder.files.clear();
  return folder;
}

std::string listed(std::span<const Variant> variants) {
  std::string text;
  for (const Variant& v : variants)
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", escaped(v.kind, 60), size_text(v.bytes));
  return escaped(text);
}

// A kind's place in the order, smaller is better; nothing: it is not taken unasked.
std::optional<int> rank_of(const Variant& v, bool gpu) {
  const bool dynamic = v.kind.starts_with("UD-");
  const std::string_view kind = std::string_view(v.kind).substr(dynamic ? 3 : 0);
  if (gpu && kind == "NVFP4") return -1;
  for (size_t i = 0; i < std::size(kOrder); ++i)
    if (kOrder[i] == kind) return static_cast<int>(2 * i + (dynamic ? 1 : 0));
  if (v.folder) return 1000;
  return {};
}

Status check_whole(const Variant& v, const ModelName& name) {
  if (v.parts_missing == 0) return {};
  return file_error("{}: {} parts of {} are missing", name.text(), v.parts_missing, escaped(v.kind, 60));
}

Result<Choice> choose_named(std::span<const Variant> variants, const ModelName& name) {
  std::vector<const Variant*> found;
  for (const Variant& v : variants) {
    const bool named = name.names_file()
                           ? std::find(v.files.begin(), v.files.end(), name.choice) != v.files.end()
                           : upper(v.kind) == upper(name.choice) || "UD-" + upper(name.choice) == upper(v.kind);
    if (named) found.push_back(&v);
  }
  // "Q4_K_M" is that one, where there is "UD-Q4_K_M" too.
  const auto exact = [&](const Variant* v) { return upper(v->kind) == upper(name.choice); };
  if (found.size() > 1 && !name.names_file() && std::any_of(found.begin(), found.end(), exact))
    std::erase_if(found, [&](const Variant* v) { return !exact(v); });
  if (found.empty())
    return request_error("{} has no {}; there is {}", name.id, escaped(name.choice, 100),
                         variants.empty() ? "no model that can be run" : listed(variants));
  if (found.size() > 1)
    return request_error("{} has several files of kind {}; name one: {}:{} or {}:{}", name.id,
                         escaped(name.choice, 100), name.id, found[0]->files.front(), name.id, found[1]->files.front());
  QUIRE_CHECKED(check_whole(*found[0], name));
  return Choice{*found[0], "as asked for"};
}

}  // namespace

std::string size_text(uint64_t bytes) {
  const auto x = static_cast<double>(bytes);
  if (x < 1e6) return fmt::format("{:.0f} kB", x / 1e3);
  if (x < 1e9) return fmt::format("{:.0f} MB", x / 1e6);
  return fmt::format("{:.1f} GB", x / 1e9);
}

std::string kind_of(std::string_view path) {
  std::string_view name = base_name(path);
  if (name.ends_with(".gguf")) name.remove_suffix(5);
  std::string kind = kind_within(name);
  // Parts of a large model are often in a folder with the kind's name.
  if (kind.empty() && path.find('/') != path.npos) kind = kind_within(path.substr(0, path.rfind('/')));
  return kind;
}

std::vector<Variant> variants_of(std::span<const NamedFile> files) {
  std::vector<Variant> variants;
  std::map<std::pair<std::string, int>, size_t> splits;
  for (const NamedFile& f : files) {
    if (!f.path.ends_with(".gguf") || is_beside(f.path)) continue;
    const auto split = split_of(f.path);
    const std::string stem = split ? split->prefix : f.path.substr(0, f.path.size() - 5);
    size_t at = variants.size();
    if (split) at = splits.try_emplace({split->prefix, split->count}, at).first->second;
    if (at == variants.size()) {
      const std::string kind = kind_of(stem);
      variants.push_back({.kind = kind.empty() ? std::string(base_name(stem)) : kind});
      if (split) variants.back().parts_missing = split->count;
    }
    variants[at].files.push_back(f.path);  // sorted: parts come in order
    variants[at].bytes += f.bytes;
    if (split) --variants[at].parts_missing;
  }
  std::vector<std::string> paths;
  for (const NamedFile& f : files) paths.push_back(f.path);
  if (const std::optional<size_t> tower = gguf::best_mmproj(paths))
    for (Variant& v : variants) v.mmproj = files[*tower];
  if (Variant folder = folder_of(files); !folder.files.empty()) variants.push_back(std::move(folder));
  return variants;
}

Status keep_weights(Variant& folder, std::span<const std::string> weights) {
  std::erase_if(folder.files, [&](const std::string& f) {
    return f.ends_with(".safetensors") && !std::binary_search(weights.begin(), weights.end(), f);
  });
  std::vector<std::string_view> there(folder.files.begin(), folder.files.end());
  std::sort(there.begin(), there.end());
  for (const std::string& w : weights)
    if (!std::binary_search(there.begin(), there.end(), w))
      return file_error("names {}, which is not there", gguf::printable(w));
  return {};
}

bool fits(uint64_t bytes, const Place& place) {
  constexpr uint64_t kRest = uint64_t{512} << 20;  // caches, scratch, the program
  return bytes < uint64_t{1} << 60 && static_cast<int64_t>(bytes + bytes / 16 + kRest) <= place.bytes;
}

Result<Choice> choose(std::span<const Variant> variants, const ModelName& name, const Place& place) {
  if (!name.choice.empty()) return choose_named(variants, name);
  if (variants.empty())
    return request_error("{} has no model that can be run: neither a .gguf file nor model*.safetensors", name.id);
  const std::string room = fmt::format("the {} of {}", size_text(static_cast<uint64_t>(place.bytes)), place.what);
  if (variants.size() == 1) {
    QUIRE_CHECKED(check_whole(variants[0], name));
    return Choice{variants[0], fmt::format("it is the only one; its {} {} {}", size_text(variants[0].bytes),
                                           fits(variants[0].all_bytes(), place) ? "fit" : "do NOT fit", room)};
  }
  const Variant *best = nullptr, *smallest = nullptr;
  for (const Variant& v : variants) {
    const auto rank = rank_of(v, place.gpu);
    if (!rank || v.parts_missing > 0) continue;
    if (smallest == nullptr || v.bytes < smallest->bytes) smallest = &v;
    if (fits(v.all_bytes(), place) && (best == nullptr || *rank < *rank_of(*best, place.gpu))) best = &v;
  }
  if (smallest == nullptr)
    return request_error("{} has nothing of a kind that is known to run; name one of {}", name.id, listed(variants));
  if (best == nullptr)
    return request_error("{}: nothing fits {}; the smallest is {} with {}. To take it all the same: {}:{}", name.id,
                         room, smallest->kind, size_text(smallest->bytes), name.id, smallest->kind);
  const auto better = std::count_if(variants.begin(), variants.end(), [&](const Variant& v) {
    const auto rank = rank_of(v, place.gpu);
    return rank && *rank < *rank_of(*best, place.gpu);
  });
  return Choice{*best, fmt::format("of {} kinds the first in the order of preference{}; its {} fit {}", variants.size(),
                                   better > 0 ? " that fits" : "", size_text(best->bytes), room)};
}

}  // namespace quire::hub
