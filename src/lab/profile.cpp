// quire profile: what a GPU's time goes to while prompts are read and while sequences generate.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "command/display.h"
#include "command/options.h"
#include "core/atomic_file.h"
#include "core/escape.h"
#include "core/output.h"
#include "engine/cuda_device.h"
#include "lab/batch_workload.h"
#include "lab/commands.h"
#include "lab/model_source.h"
#include "lab/profile_report.h"

namespace quire::cli {
namespace {

struct ProfileOptions {
  ModelSource source;
  ModelOptions model{.device = Device::kCuda};
  ComputeOptions compute;
  int64_t prompt = 128, generate = 64;
  int32_t sequences = 1, batch_tokens = 0;
  uint64_t seed = 1;
  std::string trace, cupti;
  bool json = false;

  Status check() const;
  BatchShape shape() const { return {.sequences = sequences, .prompt = prompt, .generate = generate}; }
};

Status ProfileOptions::check() const {
  QUIRE_CHECKED(source.check());
  if (model.device != Device::kCuda)
    return request_error("--device {}: the kernels of a GPU are profiled; `quire bench` measures a CPU",
                         name_of(kPlaces, model.device));
  return {};
}

// One recorded run, after one that touches memory and captures graphs.
struct Recording {
  BatchRun run;
  std::vector<GpuActivity> activities;
  LoggedSteps steps;
};
Result<Recording> record(const ProfileOptions& o, Engine& engine, CudaProfiler& profiler, LaunchLog& log) {
  BatchWorkload workload(engine, o.seed);
  QUIRE_TRY([[maybe_unused]] const BatchRun warm, workload.run(o.shape()));
  (void)log.take();
  QUIRE_CHECKED(profiler.start());
  Recording r;
  QUIRE_TRY(r.run, workload.run(o.shape()));
  QUIRE_TRY(r.activities, profiler.stop());
  r.steps = log.take();
  return r;
}

struct Report {
  PhaseHeading prompts, decode;
  PhaseProfile prompt_profile, decode_profile;
};

Result<Report> make_report(const ProfileOptions& o, const Recording& r, const Attribution& a, const GpuInfo& gpu) {
  const std::optional<Phases> phases = find_phases(r.activities, a, r.run.decode_steps);
  if (!phases)
    return Error{Fault::kBug, fmt::format("{} recorded steps do not hold a prompt and {} steps of generated tokens",
                                          a.steps.size(), r.run.decode_steps)};
  return Report{.prompts = {.title = fmt::format("prompts, {} of {} tokens", o.sequences, o.prompt),
                            .tokens = o.sequences * o.prompt,
                            .bandwidth = gpu.copy_bandwidth},
                .decode = {.title = fmt::format("generation, {} sequences", o.sequences),
                           .tokens = o.sequences * r.run.decode_steps,
                           .bandwidth = gpu.copy_bandwidth},
                .prompt_profile = profile_phase(r.activities, a, phases->prompts),
                .decode_profile = profile_phase(r.activities, a, phases->decode)};
}

void print_report(const ProfileOptions& o, const Report& r, const Recording& recording, const GpuInfo& gpu) {
  if (o.json) {
    const nlohmann::ordered_json out = {{"version", QUIRE_VERSION},
                                        {"model", o.source.name()},
                                        {"gpu", gpu.name},
                                        {"bandwidth", gpu.copy_bandwidth},
                                        {"sequences", o.sequences},
                                        {"prompt_tokens", o.prompt},
                                        {"step_host_seconds", recording.run.step_host_seconds},
                                        {"prompts", phase_json(r.prompt_profile, r.prompts)},
                                        {"decode", phase_json(r.decode_profile, r.decode)}};
    print_out("{}\n", out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return;
  }
  print_out("{} on {}, copies {:.2f} TB/s; recording makes everything a little slower\n\n{}\n{}",
            escaped(o.source.name()), gpu.name, gpu.copy_bandwidth * 1e-12, phase_table(r.prompt_profile, r.prompts),
            phase_table(r.decode_profile, r.decode));
}

Status profile(const ProfileOptions& o) {
  QUIRE_CHECKED(o.check());
  // First of all: graphs that are made before it are not recorded kernel by kernel.
  QUIRE_TRY(const std::unique_ptr<CudaProfiler> profiler, CudaProfiler::create(o.cupti));
  QUIRE_TRY(const std::vector<GpuInfo> gpus, list_gpus());
  const auto gpu = static_cast<size_t>(o.model.gpu);
  if (gpu >= gpus.size()) return request_error("there is no NVIDIA GPU {} to profile", gpu);
  LaunchLog log;
  EngineOptions options;
  options.launches = &log;
  QUIRE_CHECKED(o.model.apply(options));
  QUIRE_CHECKED(o.compute.apply(options));
  QUIRE_TRY(const std::shared_ptr<const LoadedModel> model, o.source.load(Device::kCuda));
  const BatchShape shapes[] = {o.shape()};
  QUIRE_TRY(const std::unique_ptr<Engine> engine,
            Engine::create(model, options_for(shapes, std::move(options), o.batch_tokens)));
  QUIRE_TRY(const Recording recording, record(o, *engine, *profiler, log));
  QUIRE_TRY(const Attribution owners, attribute(recording.activities, recording.steps));
  if (!o.trace.empty()) QUIRE_CHECKED(write_file(o.trace, chrome_trace(recording.activities, owners)));
  QUIRE_TRY(const Report report, make_report(o, recording, owners, gpus[gpu]));
  print_report(o, report, recording, gpus[gpu]);
  return {};
}

}  // namespace

Action add_profile(Flags& flags) {
  auto o = std::make_shared<ProfileOptions>();
  o->compute.speculative.method = Speculative::kOff;
  o->source.add(flags);
  o->model.add_compute(flags);
  o->compute.add(flags);
  flags.add("-npp,--npp", &o->prompt, between(1, 1 << 20), "Tokens of every prompt");
  flags.add("-ntg,--ntg", &o->generate, between(1, 1 << 14), "Tokens that every sequence generates after its first");
  flags.add("-npl,--npl", &o->sequences, between(1, 4096), "Sequences at once");
  flags.add("--batch-tokens", &o->batch_tokens, at_least(0), "Rows of a step: the largest piece of prompts; 0: 8192");
  flags.add("--seed", &o->seed, "Seed of the random prompts").any_bits();
  flags.add("--trace FILE", &o->trace, "Write every kernel and step, for chrome://tracing or ui.perfetto.dev");
  flags.add("--cupti FILE", &o->cupti, "Path of libcupti.so.13, if it is not where CUDA's toolkit puts it");
  flags.add("--json", &o->json, "Print one JSON object, with every kernel");
  flags.footer(
      "Runs the workload of bench-batch once to warm up and once recorded. Time is that of operators, each "
      "with the kernels "
      "that it\nlaunched. Moments at which several kernels run count for the one that started first. The "
      "limit is the "
      "bandwidth of copies\nwithin the GPU, measured before; bytes are those that the operators' contracts "
      "name.");
  return [o] { return profile(*o); };
}

}  // namespace quire::cli
