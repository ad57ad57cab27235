// One file of a hub into the cache: several ranges at once, resumed, and checked before it has its name.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "hub/http.h"

namespace quire::hub {

struct Download {
  Url url;            // of the hub, which may redirect
  std::string shown;  // "ORG/NAME/file", for messages
  std::string model;  // its id
  std::string hash;   // what the content must have (hub/hash.h)
  uint64_t bytes = 0;
  std::string blob_path;
  int connections = 8;  // at most
};

// Blocks until the blob is there. `progress` is called on this thread, a few times a second and at the end, with the
// bytes of it that are there. What is there when it fails stays for the next time, unless its hash is wrong: then
// nothing stays. Only for who holds the blob's lock.
Status download(const Download& file, const HttpOptions& options, const std::function<void(uint64_t)>& progress);

}  // namespace quire::hub
