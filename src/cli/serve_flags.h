// The flags of `quire serve`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/options.h"
#include "server/serve.h"

namespace quire::cli {

// The command line as typed; seconds and sizes become ServeOptions at the end.
struct ServeFlags {
  ModelOptions model;
  ComputeOptions compute;
  RopeFlags rope;
  server::ServeOptions o;
  double request_timeout = 600, drain_timeout = 30, responses_time = 3600, swap_space = 4, host_cache = 0,
         prefix_file_size = 8;
  std::string limits_file, reasoning = "auto", pooling = "last", uds_mode = "0600";
  bool no_access_log = false;

  void add(CLI::App& app);
  Result<server::ServeOptions> parsed() const;

 private:
  void add_model(CLI::App& app);
  void add_answers(CLI::App& app);
  void add_cache(CLI::App& app);
  void add_http(CLI::App& app);
  void add_limits(CLI::App& app);
};

}  // namespace quire::cli
