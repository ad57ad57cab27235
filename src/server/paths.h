// Paths as clients write them, whose base URL has a slash or a /v1 too many or too few.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace quire::server {

// The path that is meant: slashes that repeat are one, one at the end is none, what stands below /v1 may leave it out,
// and some paths have further names (kAliases).
std::string canonical_path(std::string_view path);

// For a path that there is none of: the one that was probably meant, or nothing if none is obvious. `is_route` says
// what there is, `routes` are the candidates for typing errors.
std::string nearest_path(std::string_view path, std::span<const std::string_view> routes,
                         const std::function<bool(const std::string& path)>& is_route);

}  // namespace quire::server
