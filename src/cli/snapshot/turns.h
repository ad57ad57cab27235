// Measuring two programs in turns within one run, so that whatever the machine does happens to both.
//
// Each is started as `PROGRAM snapshot --turns ...`, several times. It prints one JSON object:
//   {"schema": "quire-turns/1", "program": "quire 0.1.0", "fingerprint": "...", "round_seconds": 1.5,
//    "tasks": [{"name": "one sequence", "figures": [{"name": "pp512", "unit": "tokens/s", "more_is_better": true}]}]}
// and then, for each line of its input that is the number of a task, an array of that task's figures. It ends when its
// input does.
#pragma once

#include "cli/snapshot/speed.h"
#include "cli/snapshot/statistics.h"

namespace quire::cli::snapshot {

inline constexpr std::string_view kTurnsSchema = "quire-turns/1";

// --turns: answers what standard input asks.
Status take_turns(SpeedTests& tests);

struct AgainstOptions {
  std::vector<std::string> mine, other;  // command lines, --turns among them
  int launches = 10;                     // of each program
  int rounds = 3;                        // of each launch
};

struct Against {
  std::string program, fingerprint, other_program, other_fingerprint;
  std::vector<FigureChange> changes;  // of the other to this one: "slower" is what this program is
  std::vector<std::string> left_out;  // figures that only one of them has
};

// Runs both. Errors: a program that does not start, does not answer, or answers something else.
Result<Against> run_against(const AgainstOptions& options);

}  // namespace quire::cli::snapshot
