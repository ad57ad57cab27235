// quire snapshot: the gates and the speeds of this program on this machine, as one JSON file and one HTML page.
#include <fmt/ranges.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/ending.h"
#include "cli/snapshot/diff.h"
#include "cli/snapshot/page.h"
#include "cli/snapshot/take.h"
#include "cli/snapshot/turns.h"
#include "cli/text_input.h"
#include "core/atomic_file.h"
#include "core/escape.h"
#include "core/output.h"

namespace quire::cli {
namespace {

using snapshot::GateResult;
using snapshot::Snapshot;

constexpr int64_t kMostSnapshot = int64_t{64} << 20;

struct SnapshotOptions {
  snapshot::TakeOptions take;
  std::string out = "snapshot.json", page = "snapshot.html", against;
  std::vector<std::string> peers, diff;
  int launches = 10;
  bool turns = false;

  Status check() const;
};

Status SnapshotOptions::check() const {
  if (static_cast<int>(!diff.empty()) + static_cast<int>(!against.empty()) + static_cast<int>(turns) > 1)
    return request_error("--diff, --against and --turns exclude each other");
  if (!diff.empty() && take.has_model()) return request_error("--diff compares two files and takes no model");
  if (take.has_model()) return take.source.check();
  if (!against.empty() || turns)
    return request_error("give a model: either a file (-m FILE) or random weights (--synth)");
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
  std::vector<PlannedOutput> planned;
  for (const std::string* output : {&o.out, &o.page}) {
    QUIRE_TRY(PlannedOutput one, PlannedOutput::create(*output));
    planned.push_back(std::move(one));
  }
  QUIRE_TRY(const Snapshot s, snapshot::take_snapshot(o.take));
  QUIRE_CHECKED(
      write_file(o.out, to_json(s).dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n"));
  QUIRE_CHECKED(write_file(o.page, snapshot_page(s)));
  print_gates(s);
  tell_line(fmt::format("{} and {} are written", o.out, o.page));
  if (s.count(GateResult::kFailed) > 0) conclude(kExitFailed);
  return {};
}

Status diff(const SnapshotOptions& o) {
  std::vector<Snapshot> two;
  for (const std::string& path : o.diff) {
    QUIRE_TRY(const std::string text, read_text(path, kMostSnapshot, "that is too much for a snapshot"));
    QUIRE_TRY(Snapshot s, snapshot::parse_snapshot(text, path));
    two.push_back(std::move(s));
  }
  const snapshot::SnapshotDiff d = snapshot::diff(two[0], two[1]);
  write_out(diff_table(d));
  if (d.count(snapshot::Verdict::kSlower) > 0 || d.newly_failed > 0) conclude(kExitFailed);
  return {};
}

Status against(const SnapshotOptions& o) {
  const auto command = [&](const std::string& program) {
    std::vector<std::string> all = {program, "snapshot", "--turns"};
    for (std::string& a : o.take.arguments()) all.push_back(std::move(a));
    if (o.take.quick) all.emplace_back("--quick");
    return all;
  };
  snapshot::AgainstOptions a{.mine = command(std::filesystem::read_symlink("/proc/self/exe").string()),
                             .other = command(o.against),
                             .launches = o.launches};
  if (o.take.rounds > 0) a.rounds = o.take.rounds;
  QUIRE_TRY(const snapshot::Against found, run_against(a));
  print_out("before: {}, {}\nafter:  {} (this program), {}\n\n", escaped(o.against), escaped(found.other_fingerprint),
            escaped(found.program), escaped(found.fingerprint));
  write_out(changes_table(found.changes));
  snapshot::SnapshotDiff d{.changes = found.changes};
  for (const std::string& f : found.left_out) print_out("not compared: {} (only one has it)\n", escaped(f, 60));
  print_out("\n{} figures: {} slower, {} faster, {} without change\n", d.changes.size(),
            d.count(snapshot::Verdict::kSlower), d.count(snapshot::Verdict::kFaster),
            d.count(snapshot::Verdict::kSame));
  if (d.count(snapshot::Verdict::kSlower) > 0) conclude(kExitFailed);
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
  if (!o.diff.empty()) return diff(o);
  if (!o.against.empty()) return against(o);
  return o.turns ? turns(o) : take(o);
}

}  // namespace

Action add_snapshot(Flags& flags) {
  auto o = std::make_shared<SnapshotOptions>();
  o->take.source.add(flags);
  o->take.model.add_compute(flags);
  o->take.kv_cache.add(flags);
  flags.add("-o,--out FILE", &o->out, "The JSON file (docs/snapshot.md)");
  flags.add("--html FILE", &o->page, "The page");
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
            "Rounds of the speeds; 0: as many as take about 40 seconds, 6 to 12 (with --against: of each launch, "
            "0: 3)");
  flags.add("--quick", &o->take.quick, "Small shapes, few rounds, one case of each kernel: to see that all works");
  flags.add("--diff BEFORE AFTER", &o->diff, "Instead: what differs between two snapshots beyond noise").words(2, 2);
  flags.add("--against PROGRAM", &o->against,
            "Instead: measure this program and another quire in turns, and say where this one is slower or faster");
  flags.add("--launches", &o->launches, between(3, 1000), "With --against: how often each program is launched");
  flags.add("--turns", &o->turns, "What --against starts: measures what its input asks for, line by line");
  flags.footer(
      "Gates that fail, and with --diff or --against figures that are slower, end with code 1. Without a model there "
      "are\nthe machine, the conformance of its kernels, and peers.");
  return [o] { return run(*o); };
}

}  // namespace quire::cli
