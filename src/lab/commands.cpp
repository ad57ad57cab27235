#include "lab/commands.h"

#include <string_view>

namespace quire::cli {
namespace {

constexpr bool kTakesHubModels = true;

// A command that is also a door of quire's, with the door's line of help.
consteval Command behind_door(std::string_view name, Action (*add)(Flags&), bool takes_hub_models = false) {
  for (const Door& d : kLabDoors)
    if (d.name == name) return {d.name, d.summary, add, takes_hub_models};
  throw "there is no such door";
}

constexpr Command kCommands[] = {
    behind_door("synth", add_synth),
    behind_door("perplexity", add_perplexity, kTakesHubModels),
    behind_door("compare", add_compare, kTakesHubModels),
    behind_door("eval", add_eval, kTakesHubModels),
    behind_door("bench", add_bench, kTakesHubModels),
    behind_door("bench-batch", add_bench_batch, kTakesHubModels),
    behind_door("profile", add_profile, kTakesHubModels),
    behind_door("explain", add_explain, kTakesHubModels),
    behind_door("tune", add_tune),
    behind_door("bench-serve", add_bench_serve),
    behind_door("snapshot", add_snapshot, kTakesHubModels),
    behind_door("test-ops", add_test_ops),
    {"options", "Print the options of a command as a table", [](Flags& flags) { return add_options(flags, kLab); }},
    {"completions", "Print what a shell needs to complete command lines",
     [](Flags& flags) { return add_completions(flags, kLab); }},
};
static_assert(std::size(kCommands) == std::size(kLabDoors) + 2, "every door leads to a command");

}  // namespace

constinit const Program kLab{"quire-lab", "What measures Quire: its models, its kernels, its servers.", kCommands};

}  // namespace quire::cli
