
#include "core/output.h"
#include "lab/commands.h"
#include "ops/conformance/gpu.h"
#include "ops/registry.h"

namespace quire::cli {
namespace {

struct TestOpsOptions : conformance::Options {
  bool list = false, verbose = false;
  std::string device = "cpu";
  int gpu_number = 0;
};

void print(std::string_view op, const conformance::Suite& suite) {
  for (const conformance::Suite::Count& c : suite.counts()) {
    const std::string name = fmt::format("{} {}", op, c.kernel);
    if (!c.skipped.empty()) {
      print_out("{} skipped: {}\n", name, c.skipped);
      continue;
    }
    print_out("{} {}/{}\n", name, c.passed, c.passed + c.failed);
    for (const auto& [limit, cases] : c.not_taken) print_out("{} skipped {} cases: {}\n", name, cases, limit);
  }
  for (const std::string& f : suite.failures()) print_out("FAILED {}\n", f);
  if (suite.failed() > std::ssize(suite.failures()))
    print_out("... and {} more\n", suite.failed() - std::ssize(suite.failures()));
  (void)flush_output();
}

Status run(TestOpsOptions o) {
  if (o.list) {
    for (const OperatorInfo& op : operators()) print_out("{}\n", op.name);
    return {};
  }
  std::unique_ptr<conformance::Gpu> gpu;
  if (o.device == "cuda") {
    QUIRE_TRY(gpu, conformance::Gpu::create(o.gpu_number).context("--device cuda"));
    o.gpu = gpu.get();
  }
  if (o.verbose) o.each = [](const std::string& line) { print_out("{}\n", line); };
  print_out("{}: {}\n", o.device, gpu ? gpu->name() : describe(cpu_features()));
  int passed = 0, failed = 0;
  bool known = false;
  for (const OperatorInfo& op : operators()) {
    if (!o.op.empty() && o.op != op.name) continue;
    known = true;
    const conformance::Suite suite = conformance::run_suite(op, o);
    print(op.name, suite);
    passed += suite.passed();
    failed += suite.failed();
  }
  if (!known) return request_error("no operator '{}' to test; there are {}", o.op, operator_names());
  if (passed + failed == 0)
    return request_error("nothing was checked: no kernel that {} can run matches kernel '{}' and case '{}'",
                         gpu ? "this GPU" : "this CPU", o.kernel, o.case_name);
  print_out("total {}/{}, seed {}\n", passed, passed + failed, o.seed);
  if (failed > 0) return Error{Fault::kBug, fmt::format("{} of {} checks failed", failed, passed + failed)};
  return {};
}

}  // namespace

Action add_test_ops(Flags& flags) {
  auto o = std::make_shared<TestOpsOptions>();
  flags.add("--op", &o->op, "only this operator (see --list)");
  flags.add("--kernel", &o->kernel,
            "only this kernel of it: reference, avx2, avx512, amx, integer, ..., cuda, cuda_stream, ...");
  flags.add("--case", &o->case_name, "only cases whose name contains this");
  flags.add("--one-case", &o->one_case, "of each kernel only the first case that it fits");
  flags.add("--seed", &o->seed, "seed of the random inputs").any_bits();
  flags.add("-t,--threads", &o->threads, between(0, 1024), "threads to compute with; 0: all CPUs").range_in_help();
  flags.add("--device", chosen_text(&o->device, {{"cpu"}, {"cuda"}}),
            "cpu: all kernels that this CPU can run; cuda: all that a GPU can run");
  flags.add("--gpu", &o->gpu_number, between(0, 1023), "With --device cuda: which GPU, as `quire devices` counts them")
      .range_in_help();
  flags.add("--list", &o->list, "print the operators and stop");
  flags.add("--verbose", &o->verbose, "print every check");
  flags.footer(
      "Runs every kernel of every operator over its cases: against the reference within bounds derived from "
      "the\narithmetic, and bit for bit where rows, chunks or threads must not matter. Prints checks passed "
      "of checks\nmade for each kernel; a failure says how to repeat it. A kernel that this CPU can run and "
      "no case\nreaches has failed; one that it cannot run is skipped. With --device cuda, cases that a "
      "kernel\ndoes not take are counted with what it takes.");
  return [o]() -> Status { return run(*o); };
}

}  // namespace quire::cli
