// What a GPU's time went to: records of kernels, each given to the operator that launched it, and how that is printed.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/cuda_profiler.h"
#include "engine/launch_log.h"

namespace quire::cli {

using LoggedSteps = std::vector<std::shared_ptr<const LoggedStep>>;

// "stream_kernel" of "void quire::gemm::stream_kernel<...>(...)".
std::string kernel_name(std::string_view demangled);

// Records [first, end) of one step. A step ends with the copy of its results to the host.
struct ProfiledStep {
  size_t first = 0, end = 0;
  const LoggedStep* logged = nullptr;
};
struct Attribution {
  std::vector<ProfiledStep> steps;
  std::vector<const LoggedLaunch*> of;  // of each record: whose kernel it is; null: a copy's
};
// The records of a stream, in order, and what was launched, in the same order, step by step; both outlive the result.
// An error where they are not of the same steps and kernels.
Result<Attribution> attribute(std::span<const GpuActivity> activities, const LoggedSteps& steps);

// Steps that belong together, one after the other.
struct Phase {
  size_t first = 0, end = 0;  // of Attribution::steps
  int64_t begin_ns = 0, end_ns = 0;
  int64_t steps() const { return static_cast<int64_t>(end - first); }
};
struct Phases {
  Phase prompts, decode;
};
// The steps up to the last one with prompts, and the `decode_steps` after it. Nothing if there are not as many.
std::optional<Phases> find_phases(std::span<const GpuActivity> activities, const Attribution& a, int64_t decode_steps);

// Time and launches in a phase. Kernels may overlap (the next one starts while the last one ends): a moment belongs to
// the one that started first, so that everything adds up to the phase.
struct ProfiledTime {
  double seconds = 0;
  int64_t launches = 0;
};
struct PhaseProfile {
  Phase phase;
  struct Row {
    std::string name;  // of an operator, or "copies" or "idle", which are the last
    ProfiledTime time;
    Traffic traffic;  // of all calls
  };
  std::vector<Row> rows;  // operators in the order of their first calls
  struct Kernel {
    std::string name, op, kernel;  // of the function; of the operator, and of its table's entry
    ProfiledTime time;
  };
  std::vector<Kernel> kernels;  // the longest first

  double seconds() const { return static_cast<double>(phase.end_ns - phase.begin_ns) * 1e-9; }
};
PhaseProfile profile_phase(std::span<const GpuActivity> activities, const Attribution& a, const Phase& phase);

// `tokens`: of the phase. `bandwidth`: bytes a second that the GPU moves; 0: not known.
struct PhaseHeading {
  std::string title;
  int64_t tokens = 0;
  double bandwidth = 0;
};
std::string phase_table(const PhaseProfile& p, const PhaseHeading& h);
nlohmann::ordered_json phase_json(const PhaseProfile& p, const PhaseHeading& h);

// The Chrome trace format (chrome://tracing, ui.perfetto.dev): a row for each operator, one for the steps.
std::string chrome_trace(std::span<const GpuActivity> activities, const Attribution& a);

}  // namespace quire::cli
