// Taking a snapshot: the parts in their order, each of which may be left out.
#pragma once

#include "command/options.h"
#include "lab/model_source.h"
#include "lab/snapshot/serving.h"
#include "lab/snapshot/speed.h"
#include "lab/snapshot/stages.h"

namespace quire::cli::snapshot {

struct TakeOptions {
  ModelSource source;
  ModelOptions model{.device = Device::kCpu};
  KvCacheOption kv_cache;
  std::string text, reference;  // files; empty: none
  double most_kl = 0;           // that passes; 0: any
  std::vector<Peer> peers;
  std::vector<std::string> skip;
  bool quick = false;
  int rounds = 0;  // of the speeds; 0: as many as take about 40 seconds, 6 to 12

  bool has_model() const { return !source.file.empty() || !source.preset.empty(); }
  Result<SpeedOptions> speed() const;
  // The same model on the same device, for another process of a quire.
  std::vector<std::string> arguments() const;
};

// What --skip may name, in the order in which they are done.
std::span<const std::string_view> part_names();
Status check_parts(std::span<const std::string> names);

// A part that cannot be done is a gate that failed, or was skipped with its reason. Errors: options that make no
// sense, a model that cannot be loaded.
Result<Snapshot> take_snapshot(const TakeOptions& options);

}  // namespace quire::cli::snapshot
