// quire snapshot: the gates and the speeds of this program on this machine, as one JSON file. tools/snapshot_page.py
// makes a page of it, and tools/snapshot_diff.py tells what differs between two of them.
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "command/ending.h"
#include "core/atomic_file.h"
#include "core/escape.h"
#include "core/output.h"
#include "lab/commands.h"
#include "lab/snapshot/published.h"
#include "lab/snapshot/take.h"
#include "lab/snapshot/turns.h"

namespace quire::cli {
namespace {

using snapshot::GateResult;
using snapshot::Snapshot;

struct SnapshotOptions {
  snapshot::TakeOptions take;
  std::string out = "snapshot.json";
  std::vector<std::string> peers;
  bool turns = false;

  Status check() const;
};

Status SnapshotOptions::check() const {
  if (take.has_model()) return take.source.check();
  if (turns) return request_error("give a model: either a file (-m FILE) or random weights (--synth)");
  return {};
}

void print_gates(const Snapshot& s) {
  for (const snapshot::Gate& g : s.gates)
    print_out("{:<8}{:<24}{}\n", gate_result_name(g.result), escaped(g.name, 60), escaped(g.detail, 300));
  print_out("{} gates passed, {} failed, {} skipped\n", s.count(GateResult::kPassed), s.count(GateResult::kFailed),
            s.count(GateResult::kSkipped));
}

Status take(SnapshotOptions& o) {
  for (const std::string& text : o.peers) {
    QUIRE_TRY(snapshot::Peer peer, snapshot::parse_peer(text));
    o.take.peers.push_back(std::move(peer));
  }
  QUIRE_TRY(const PlannedOutput planned, PlannedOutput::create(o.out));
  QUIRE_TRY(const Snapshot s, snapshot::take_snapshot(o.take));
  QUIRE_CHECKED(
      write_file(o.out, to_json(s).dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n"));
  print_gates(s);
  if (const std::string speeds = speeds_text(s); !speeds.empty()) print_out("\n{}\n", speeds);
  tell_line(fmt::format("{} is written; tools/snapshot_page.py makes a page of it", o.out));
  if (s.count(GateResult::kFailed) > 0) conclude(kExitFailed);
  return {};
}

Status turns(const SnapshotOptions& o) {
  QUIRE_TRY(snapshot::SpeedOptions speed, o.take.speed());
  QUIRE_TRY(const auto model, o.take.source.load(speed.engine.device));
  QUIRE_TRY(const std::unique_ptr<snapshot::SpeedTests> tests, snapshot::SpeedTests::create(model, std::move(speed)));
  return take_turns(*tests);
}

Status run(SnapshotOptions& o) {
  QUIRE_CHECKED(o.check());
  return o.turns ? turns(o) : take(o);
}

}  // namespace

Action add_snapshot(Flags& flags) {
  auto o = std::make_shared<SnapshotOptions>();
  o->take.source.add(flags);
  o->take.model.add_compute(flags);
  o->take.kv_cache.add(flags);
  flags.add("-o,--out FILE", &o->out, "The JSON file (docs/snapshot.md)");
  flags.add("--text FILE", &o->take.text, "A text for perplexity, and for --reference");
  flags.add("--reference FILE", &o->take.reference,
            "Logits of a reference model over that text, as `quire compare --save-logits` writes them");
  flags.add("--max-kl", &o->take.most_kl, "The mean divergence from the reference that passes (default: any)")
      .default_text("");
  flags.add("--peer NAME=URL", &o->peers,
            "Another server of the OpenAI API that gets the same requests; may be repeated");
  flags
      .add("--skip PART,...", &o->take.skip,
           fmt::format("Parts to leave out: {}", fmt::join(snapshot::part_names(), ", ")))
      .separated();
  flags.add("--rounds", &o->take.rounds, between(0, 1000),
            "Rounds of the speeds; 0: as many as take about 40 seconds, 6 to 12");
  flags.add("--quick", &o->take.quick, "Small shapes, few rounds, one case of each kernel: to see that all works");
  flags.add(
      "--turns", &o->turns,
      "Instead: measure what standard input asks for, line by line, as tools/snapshot_diff.py --against does of two "
      "programs in turns");
  flags.footer(
      "Gates that fail end with code 1. Without a model there are the machine, the conformance of its kernels, and "
      "peers."
      "\ntools/snapshot_page.py makes a page of the file, and tools/snapshot_diff.py tells what differs between two.");
  return [o] { return run(*o); };
}

}  // namespace quire::cli
