// One of two programs that are measured in turns (tools/snapshot_diff.py --against), so that whatever the machine does
// happens to both.
//
// Each is started as `PROGRAM snapshot --turns ...`, several times. It prints one JSON object:
//   {"schema": "quire-turns/1", "program": "quire 0.1.0", "fingerprint": "...", "round_seconds": 1.5,
//    "tasks": [{"name": "one sequence", "figures": [{"name": "pp512", "unit": "tokens/s", "more_is_better": true}]}]}
// and then, for each line of its input that is the number of a task, an array of that task's figures. It ends when its
// input does.
#pragma once

#include "lab/snapshot/speed.h"

namespace quire::cli::snapshot {

inline constexpr std::string_view kTurnsSchema = "quire-turns/1";

// --turns: answers what standard input asks.
Status take_turns(SpeedTests& tests);

}  // namespace quire::cli::snapshot
