#include "server/paths.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>
#include <vector>

namespace quire::server {
namespace {

constexpr std::array<std::string_view, 8> kBelowV1 = {"/chat/completions", "/completions", "/embeddings", "/models",
                                                      "/messages",         "/responses",   "/rerank",     "/score"};
// What does the same on other servers.
constexpr std::pair<std::string_view, std::string_view> kElsewhere[] = {
    {"/generate", "/v1/completions"},
    {"/api/embeddings", "/api/embed"},
};
constexpr size_t kMaxTypo = 2, kMaxCompared = 128;

// How many characters must be inserted, removed or replaced to make one of the other.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string canonical_path(std::string_view path) {
  std::string p;
  for (const char c : path)
    if (c != '/' || !p.ends_with('/')) p += c;
  if (p.size() > 1 && p.ends_with('/')) p.pop_back();
  for (const std::string_view below : kBelowV1)
    if (p == below) return "/v1" + p;
  return p.starts_with("/models/") ? "/v1" + p : p;
}

std::string nearest_path(std::string_view path, std::span<const std::string_view> routes,
                         const std::function<bool(const std::string& path)>& is_route) {
  if (path.size() > kMaxCompared) return {};
  const std::string p = canonical_path(path);
  for (const auto& [theirs, ours] : kElsewhere)
    if (p == theirs) return std::string(ours);
  for (size_t slash = p.find('/', 1); slash != std::string::npos; slash = p.find('/', slash + 1))
    if (std::string tail = canonical_path(p.substr(slash)); is_route(tail)) return tail;  // /v1/v1/..., /api/v1/...
  for (const std::string_view route : routes)
    if (p.size() > 1 && route.starts_with(p + "/")) return std::string(route);
  std::string_view best;
  size_t fewest = kMaxTypo + 1;
  for (const std::string_view route : routes)
    for (const std::string& written : {p, "/v1" + p})
      if (const size_t n = edit_distance(written, route); n < fewest) {
        fewest = n;
        best = route;
      }
  return std::string(best);
}

}  // namespace quire::server
