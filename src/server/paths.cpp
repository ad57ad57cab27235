#include "server/paths.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace quire::server {
namespace {

struct Alias {
  std::string_view sent, meant;
};
// Other names of what there is, and of everything below it.
constexpr Alias kAliases[] = {{"/chat/completions", "/v1/chat/completions"},
                              {"/completions", "/v1/completions"},
                              {"/embeddings", "/v1/embeddings"},
                              {"/models", "/v1/models"},
                              {"/messages", "/v1/messages"},
                              {"/responses", "/v1/responses"},
                              {"/rerank", "/v1/rerank"},
                              {"/score", "/v1/score"},
                              {"/v2/rerank", "/v1/rerank"},
                              {"/v1/infill", "/infill"},
                              {"/ollama/v1", "/v1"},
                              {"/ollama/api", "/api"}};
// What does the same on other servers, from a body that differs.
constexpr Alias kElsewhere[] = {{"/generate", "/v1/completions"}};
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
  for (const auto& [sent, meant] : kAliases) {
    if (!p.starts_with(sent)) continue;
    const std::string_view rest = std::string_view(p).substr(sent.size());
    if (rest.empty() || rest.front() == '/') return std::string(meant).append(rest);
  }
  return p;
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
