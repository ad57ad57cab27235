// One file of a host that a MediaPolicy lists, by HTTP. What servers send is hostile.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "server/media/host_lookup.h"
#include "server/protocol/api_error.h"
#include "server/protocol/body_budget.h"
#include "server/protocol/media_policy.h"

namespace quire::server {

// How far a fetch may go.
struct FetchBounds {
  HostLookup::Clock::time_point deadline;
  std::function<bool()> stopped;  // ends it soon after it says so
  size_t max_bytes = 0;           // of the file
  // Whether there is room for so many more bytes of the file, which it takes. It is asked before they are kept.
  std::function<ApiStatus(size_t)> take;
};

// Redirects are followed, three at most, as far as the policy has it, and none from https to http. Every address that a
// host's name leads to is judged, and the connection goes to one of these very addresses. Errors: 400 with a sentence
// for the client, which begins with the host that the request named; what `take` says. They tell no address, and of
// redirects no host. `tls` may be null: no https.
ApiResult<std::vector<uint8_t>> fetch_url(const hub::Url& url, const MediaPolicy& policy, const HostLookup& lookup,
                                          const std::shared_ptr<const hub::TlsContext>& tls, const FetchBounds& bounds);

// A file below the policy's folder: regular, and no link on the way. Every failure is MediaPolicy::no_file().
ApiResult<std::vector<uint8_t>> read_media_file(const MediaFile& file, const FetchBounds& bounds);

}  // namespace quire::server
