// What a load comes to: times, rates, and whether texts agree.
#pragma once

#include <string>
#include <vector>

#include "lab/load/load.h"
#include "server/protocol/json.h"

namespace quire::cli::load {

struct Spread {
  size_t count = 0;                            // of values; of none nothing is known
  double mean = 0, p50 = 0, p90 = 0, p99 = 0;  // quantiles are interpolated between neighbours
  static Spread of(std::vector<double> values);
};

struct LoadSummary {
  std::string load;  // "8 clients", "3.5 requests/s"
  size_t requests = 0, errors = 0;
  std::string first_error;
  double seconds = 0;                     // from the first request to the last answer
  int64_t prompt_tokens = 0, tokens = 0;  // of answered requests
  Spread ttft, itl;                       // seconds
  Spread sequence_rate;                   // tokens a second of one request after its first
  double decode_rate() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
  double prompt_rate() const { return seconds > 0 ? static_cast<double>(prompt_tokens) / seconds : 0; }
};

LoadSummary summarize(std::string load, const std::vector<Sample>& samples);
std::string load_table(const std::vector<LoadSummary>& levels);
server::Json load_json(const LoadSummary& level);

// How many texts are the same, and where the first that is not begins to differ.
struct Agreement {
  size_t compared = 0, equal = 0;
  std::string first_difference;  // empty: none
};
Agreement compare_texts(const std::vector<std::string>& a, const std::vector<std::string>& b);

}  // namespace quire::cli::load
