// A GGUF file that is somewhere else: what its header says, by requests for ranges, without its weights.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gguf/reader.h"
#include "hub/http.h"

namespace quire::hub {

struct RemoteGguf {
  std::shared_ptr<const void> memory;  // what `file` points into: addresses as long as the files, zero but for headers
  gguf::File file;                     // every tensor's bytes read as zero
  uint64_t header_bytes = 0;           // that were fetched
};

// Of one file, or of all parts of a split one in order. `model` is for messages.
Result<RemoteGguf> read_remote_gguf(HttpClient& client, const std::vector<Url>& parts, const std::string& model);

// Bytes that metadata and tensors' records take, if all of them are in `bytes`, which begin a file; nothing: more are
// needed. An error where no file begins like this.
Result<std::optional<uint64_t>> gguf_header_bytes(std::span<const std::byte> bytes);

}  // namespace quire::hub
