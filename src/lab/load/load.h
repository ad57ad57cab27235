// Sends a workload to a server and records when each token came.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lab/load/url.h"
#include "lab/load/workload.h"

namespace quire::cli::load {

struct LoadOptions {
  Url url;
  std::string model;
  std::string authorization;  // value of the header, or empty
  bool chat = false;          // /v1/chat/completions; else /v1/completions
  bool ignore_eos = true;     // vLLM's and llama.cpp's extension: exactly max_tokens tokens
  float temperature = 0;
  uint64_t seed = 0;
  std::chrono::milliseconds timeout{600'000};
  int clients = 1;  // closed loop: so many requests at any time
  double rate = 0;  // > 0: requests a second, arriving as a Poisson process, however many are under way
};

// What became of one request. Seconds since the start of the load.
struct Sample {
  int status = 0;     // of HTTP; 0: no response
  std::string error;  // empty: answered to the end
  double sent = 0, first = 0, last = 0, end = 0;
  std::vector<double> gaps;               // between pieces of the text, in seconds
  int64_t prompt_tokens = 0, tokens = 0;  // as the server counts; pieces where it does not
  std::string text, finish;
};

// In the order of the items. Blocks; `progress` is called after each request.
Result<std::vector<Sample>> run_load(const LoadOptions& options, const std::vector<WorkItem>& items,
                                     const std::function<void()>& progress);

// The name of the first model that a server lists, over HTTP.
Result<std::string> first_model(const Url& url, const std::string& authorization);

}  // namespace quire::cli::load
