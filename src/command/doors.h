// Commands that are typed as this program's and are another one's, which lies beside it: each is a door, through which
// the command line goes there as it is.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/result.h"

namespace quire::cli {

struct Door {
  const char* name;
  const char* summary;
};

// The commands of quire-lab.
inline constexpr Door kLabDoors[] = {
    {"synth", "Write a model of real shapes and random weights, to measure speed with"},
    {"perplexity", "Measure how well a model predicts a text"},
    {"compare", "Measure how far a model's predictions are from a reference model's"},
    {"eval", "Count the tasks of a file that a model answers exactly"},
    {"bench", "Measure a model's speed beside the machine's limits"},
    {"bench-batch", "Measure prompts and generation of many sequences at once"},
    {"profile", "Measure what a GPU's time goes to, kernel by kernel"},
    {"explain", "Say which kernels a model's steps run, why, and the least time they can take"},
    {"tune", "Measure what decides between a GPU's kernels on the card at hand"},
    {"bench-serve", "Measure a server of the OpenAI API with many clients"},
    {"snapshot", "Check and measure everything at once, into one JSON file"},
    {"test-ops", "Check every kernel of every operator against its reference"},
};

// The command of quire-localai.
inline constexpr Door kLocalAiDoors[] = {{"localai", "Be a backend of LocalAI, over gRPC"}};

// A program that lies beside this one.
struct Neighbour {
  const char* program;
  std::span<const Door> doors;
  const char* missing;  // what to do where it is not there
};

// The one that has the command, or null.
const Neighbour* neighbour_with(std::span<const Neighbour> all, std::string_view command);

// Becomes that program, with these arguments. Returns only where that fails: why, and what to do.
Error hand_over(const Neighbour& to, std::string_view command, std::vector<std::string> arguments);

}  // namespace quire::cli
