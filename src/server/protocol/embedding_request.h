// The body of POST /v1/embeddings.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/protocol/prompts.h"

namespace quire::server {

struct EmbeddingRequest {
  IgnoredFields ignored{};
  std::string model{};                  // empty: not said
  std::vector<Prompt> inputs{};         // at least one
  bool base64 = false;                  // vectors as the bytes of float32, else as numbers
  std::optional<int64_t> dimensions{};  // so many numbers of each vector are told; absent: all
  bool cut_inputs = false;              // what does not fit the context is left out at an input's end
  bool add_special = true;              // BOS and EOS where the model wants them
  int priority = 0;
  std::string cache_salt{};
};
// `ignored`: fields of the body that this one was made of, and that had no effect.
ApiResult<EmbeddingRequest> parse_embedding_request(JsonDocument body, const RequestLimits& limits,
                                                    IgnoredFields ignored = {});

}  // namespace quire::server
