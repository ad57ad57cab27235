// The flags of `quire serve`.
#pragma once

#include <string>

#include "command/options.h"
#include "server/serve.h"

namespace quire::cli {

// The groups of flags that are about HTTP alone, and about routers before a server.
inline constexpr char kHttpGroup[] = "HTTP", kRoutersGroup[] = "For routers";

// The command line as typed; seconds and sizes become ServeOptions at the end.
struct ServeFlags {
  ModelOptions model;
  ComputeOptions compute;
  RopeFlags rope;
  VisionFlags vision;
  server::ServeOptions o;
  double request_timeout = 600, drain_timeout = 30, responses_time = 3600, swap_space = 4, host_cache = 0,
         prefix_file_size = 8;
  int data_parallel = 1;
  std::string gpus, limits_file, uds_mode = "0600";
  bool no_access_log = false;

  void add(Flags& flags);
  Result<server::ServeOptions> parsed() const;

 private:
  void add_model(Flags& flags);
  void add_answers(Flags& flags);
  void add_cache(Flags& flags);
  void add_http(Flags& flags);
  void add_kv_events(Flags& flags);
  void add_limits(Flags& flags);
  Result<std::vector<int>> engines_on() const;
};

}  // namespace quire::cli
