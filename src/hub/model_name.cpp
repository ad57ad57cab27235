#include "hub/model_name.h"

#include <algorithm>

#include "core/escape.h"
#include "core/utf8.h"

namespace quire::hub {
namespace {

constexpr std::string_view kPrefix = "hf:";
constexpr size_t kMaxId = 96;

bool is_id_part(std::string_view part) {
  constexpr char kLetters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._";
  return !part.empty() && part.find_first_not_of(kLetters) == part.npos &&
         std::string_view("-.").find(part.front()) == std::string_view::npos &&
         std::string_view("-.").find(part.back()) == std::string_view::npos;
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const unicode::Decoded c = unicode::decode(text);
    if (c.status != unicode::Utf8::kValid) return false;
    text.remove_prefix(c.length);
  }
  return true;
}

// The hub's own rule: the folder's name in the cache can then be read back as the model's.
bool is_id(std::string_view id) {
  const size_t slash = id.find('/');
  if (id.size() > kMaxId || id.find("--") != id.npos || id.find("..") != id.npos) return false;
  if (slash == id.npos) return is_id_part(id);
  return is_id_part(id.substr(0, slash)) && is_id_part(id.substr(slash + 1));
}

}  // namespace

bool is_hub_name(std::string_view text) {
  return text.starts_with(kPrefix);
}

bool looks_like_hub_name(std::string_view text) {
  const std::string_view id = text.substr(0, text.find(':'));
  return is_id(id) && id.find('/') != id.npos && !id.ends_with(".gguf") && ModelName::parse(text).ok();
}

std::vector<std::string> ids_called(std::string_view word, const std::vector<std::string>& ids) {
  const auto lower = [](std::string_view text) {
    std::string out(text);
    for (char& c : out)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return out;
  };
  std::string wanted = lower(word);
  std::replace(wanted.begin(), wanted.end(), ':', '-');
  constexpr std::string_view kSuffix = "-gguf";
  std::vector<std::string> exact, without_suffix, begun;
  for (const std::string& id : ids) {
    const std::string name = lower(std::string_view(id).substr(id.rfind('/') + 1));
    if (name == wanted) exact.push_back(id);
    if (name == wanted + std::string(kSuffix)) without_suffix.push_back(id);
    if (!wanted.empty() && name.starts_with(wanted + "-")) begun.push_back(id);
  }
  return !exact.empty() ? exact : !without_suffix.empty() ? without_suffix : begun;
}

Result<ModelName> ModelName::parse(std::string_view text, std::string_view revision) {
  ModelName name;
  if (is_hub_name(text)) text.remove_prefix(kPrefix.size());
  const size_t colon = text.find(':');
  name.id = text.substr(0, colon);
  if (!is_id(name.id))
    return request_error(
        "'{}' is no model's name on a hub; it has the form ORG/NAME[:QUANT|FILE], as in "
        "Qwen/Qwen3-4B-GGUF:Q4_K_M",
        escaped(text, 200));
  if (colon != text.npos) {
    name.choice = text.substr(colon + 1);
    if (name.choice.empty()) return request_error("'{}': nothing follows the colon", escaped(text, 200));
    QUIRE_CHECKED(check_path(name.choice).context(name.id));
  }
  name.revision = revision;
  QUIRE_CHECKED(check_path(name.revision).context("--revision"));
  return name;
}

bool ModelName::names_file() const {
  return choice.find('/') != std::string::npos || choice.ends_with(".gguf") || choice.ends_with(".safetensors");
}

std::string ModelName::folder() const {
  std::string folder = "models--" + id;
  if (const size_t slash = folder.find('/'); slash != std::string::npos) folder.replace(slash, 1, "--");
  return folder;
}

Status check_path(std::string_view path) {
  const auto refuse = [&](const char* why) {
    return request_error("'{}' is not taken as the path of a file: {}", escaped(path, 200), why);
  };
  if (path.size() > 1024) return refuse("it is too long");
  for (const char c : path)
    if (static_cast<unsigned char>(c) < ' ' || c == 127) return refuse("it has control characters");
  if (path.find('\\') != path.npos) return refuse("it has a backslash");
  if (!is_utf8(path)) return refuse("it is not valid UTF-8");
  for (size_t at = 0; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, end - at);
    if (part.empty() || part == "." || part == "..") return refuse("it is absolute, or has an empty part, '.' or '..'");
    if (part.size() > 240) return refuse("a part of it is too long");
    at = end + 1;
  }
  return {};
}

bool is_hex(std::string_view text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

}  // namespace quire::hub
