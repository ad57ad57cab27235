#include <cstdio>

#include "cli/command.h"
#include "ops/conformance/conformance.h"
#include "ops/registry.h"

namespace quire::cli {
namespace {

struct Options : conformance::Options {
  bool list = false, verbose = false;
  std::string device = "cpu";
};

Status run(Options o) {
  // A GPU's kernels take other layouts (packed weights, KV blocks), so they have cases of their own.
  if (o.device == "cuda")
    return request_error(
        "--device cuda: the kernels of a GPU are checked by the program cuda_checks of the preset cuda "
        "(docs/gpu.md)");
  if (o.device != "cpu") return request_error("--device {}: must be cpu or cuda", o.device);
  if (o.list) {
    for (const OperatorInfo& op : operators()) std::printf("%s\n", std::string(op.name).c_str());
    return {};
  }
  if (o.verbose) o.each = [](const std::string& line) { std::printf("%s\n", line.c_str()); };
  std::printf("cpu: %s\n", describe(cpu_features()).c_str());
  int passed = 0, failed = 0;
  bool known = false;
  for (const OperatorInfo& op : operators()) {
    if (!o.op.empty() && o.op != op.name) continue;
    known = true;
    const conformance::Suite suite = conformance::run_suite(op, o);
    for (const conformance::Suite::Count& c : suite.counts()) {
      if (c.skipped.empty())
        std::printf("%s %s %d/%d\n", std::string(op.name).c_str(), c.kernel.c_str(), c.passed,
                    c.passed + c.failed);
      else
        std::printf("%s %s skipped: %s\n", std::string(op.name).c_str(), c.kernel.c_str(), c.skipped.c_str());
    }
    for (const std::string& f : suite.failures()) std::printf("FAILED %s\n", f.c_str());
    if (suite.failed() > std::ssize(suite.failures()))
      std::printf("... and %td more\n", suite.failed() - std::ssize(suite.failures()));
    std::fflush(stdout);
    passed += suite.passed();
    failed += suite.failed();
  }
  if (!known) return request_error("no operator '{}' to test; there are {}", o.op, operator_names());
  if (passed + failed == 0)
    return request_error(
        "nothing was checked: no kernel that this CPU can run matches kernel '{}' and case '{}'", o.kernel,
        o.case_name);
  std::printf("total %d/%d, seed %llu\n", passed, passed + failed, static_cast<unsigned long long>(o.seed));
  if (failed > 0) return Error{Fault::kBug, fmt::format("{} of {} checks failed", failed, passed + failed)};
  return {};
}

}  // namespace

Action add_test_ops(CLI::App& app) {
  auto o = std::make_shared<Options>();
  app.add_option("--op", o->op, "only this operator (see --list)");
  app.add_option("--kernel", o->kernel, "only this kernel of it: reference, avx2, avx512, amx, integer, ...");
  app.add_option("--case", o->case_name, "only cases whose name contains this");
  app.add_flag("--one-case", o->one_case, "of each kernel only the first case that it fits");
  app.add_option("--seed", o->seed, "seed of the random inputs")->capture_default_str();
  app.add_option("--threads", o->threads, "threads to compute with; 0: all CPUs")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option("--device", o->device, "cpu; what checks cuda is said")->capture_default_str();
  app.add_flag("--list", o->list, "print the operators and stop");
  app.add_flag("--verbose", o->verbose, "print every check");
  app.footer(
      "Runs every kernel of every operator over its cases: against the reference within bounds derived from "
      "the\narithmetic, and bit for bit where rows, chunks or threads must not matter. Prints checks passed "
      "of checks\nmade for each kernel; a failure says how to repeat it. A kernel that this CPU can run and "
      "no case\nreaches has failed; one that it cannot run is skipped.");
  return [o]() -> Status { return run(*o); };
}

}  // namespace quire::cli
