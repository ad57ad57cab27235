// Speed over HTTP: of a server in this process, and of others by their URLs.
#pragma once

#include "engine/engine.h"
#include "lab/load/load.h"
#include "lab/snapshot/record.h"

namespace quire::cli::snapshot {

// A server of the model on a free port of 127.0.0.1, for as long as this lives. The model has a tokenizer.
class LocalServer {
 public:
  static Result<std::unique_ptr<LocalServer>> start(const std::shared_ptr<const LoadedModel>& model,
                                                    const std::string& name, const EngineOptions& engine);
  virtual ~LocalServer() = default;
  virtual load::Url url() const = 0;
};

struct SweepOptions {
  std::vector<int> clients = {1, 4, 16};  // at once, one load after the other
  size_t requests = 16;                   // of each load; at least two for each client
  int64_t prompt_tokens = 128, output_tokens = 32;
  std::chrono::milliseconds timeout{120'000};
};

struct Sweep {
  std::vector<ServedLoad> loads;
  Gate answered;    // every request was
  Gate same_texts;  // a request has the same answer at every load
};

// The same requests to every server. Never an error: a server that cannot be reached has failed its gate.
Sweep sweep(const std::string& name, const load::Url& url, const SweepOptions& options);

// "NAME=URL" of --peer.
struct Peer {
  std::string name;
  load::Url url;
};
Result<Peer> parse_peer(const std::string& text);

}  // namespace quire::cli::snapshot
