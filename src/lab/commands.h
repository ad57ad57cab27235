// The commands of quire-lab, which measure: commands.cpp lists them.
#pragma once

#include "command/command.h"

namespace quire::cli {

extern const Program kLab;

Action add_bench(Flags& flags);
Action add_bench_batch(Flags& flags);
Action add_bench_serve(Flags& flags);
Action add_compare(Flags& flags);
Action add_eval(Flags& flags);
Action add_explain(Flags& flags);
Action add_perplexity(Flags& flags);
Action add_profile(Flags& flags);
Action add_snapshot(Flags& flags);
Action add_synth(Flags& flags);
Action add_test_ops(Flags& flags);
Action add_tune(Flags& flags);

}  // namespace quire::cli
