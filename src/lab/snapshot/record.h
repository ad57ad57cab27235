// What a snapshot holds, and its JSON (docs/snapshot.md). Every number is in SI units: seconds, bytes, bytes a second.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "lab/load/load_report.h"

namespace quire::cli::snapshot {

inline constexpr std::string_view kSchema = "quire-snapshot/1";

// ---- The machine ----

struct CacheLevel {
  std::string name;   // "L1d", "L2"
  int64_t bytes = 0;  // of one
  int count = 0;      // that the machine has
};

struct Gpu {
  std::string name, capability, kernels;  // "9.0"; "wgmma"
  int multiprocessors = 0;
  int64_t memory = 0;
  double copy_bandwidth = 0;                     // measured; 0: not
  std::string unusable;                          // why this program cannot use it, or empty
  std::string driver, link, power_limit, links;  // as nvidia-smi tells; empty: it does not
};

struct Hardware {
  std::string cpu, cpu_features, system;  // "Intel(R) Xeon(R) ..."; "avx2 avx512"; "Linux 6.1.0 x86_64"
  int cpus = 0, usable_cpus = 0;
  std::vector<CacheLevel> caches;
  int64_t memory = 0, available_memory = 0;
  int64_t group_memory_limit = 0;  // 0: none
  double group_cpu_quota = 0;      // CPUs; 0: none
  double load_average = 0;         // of the last minute, when it began
  double read_bandwidth = 0, bf16_peak = 0;
  std::vector<Gpu> gpus;
  std::string no_gpu;  // why there is none in the list, or empty
};

// ---- What must hold ----

enum class GateResult { kPassed, kFailed, kSkipped };
std::string_view gate_result_name(GateResult r);  // "passed", "failed", "skipped"

struct Gate {
  std::string name, what;  // what it demands, in a sentence
  GateResult result = GateResult::kSkipped;
  std::string detail;  // what was found, or why it was skipped
};

struct ConformanceCount {
  std::string op, kernel;
  int passed = 0, failed = 0;
  std::string skipped;  // why it cannot run here; empty if it can
};

// ---- Speed ----

// One measurement, and how fast fixed loops ran on the same threads just before and after it (means of both).
struct Reading {
  double value = 0;
  double compute = 0;  // operations a second; 0: not measured (a GPU is nobody else's)
  double memory = 0;   // bytes a second
};

struct Figure {
  std::string name;  // "pp512", "npl8 decode", "decode linear"
  std::string unit;  // "tokens/s", "s"
  bool more_is_better = true;
  std::vector<Reading> readings;  // one of each round
};

// An operator's part of a phase.
struct Bucket {
  std::string phase, op;
  int64_t calls = 0;
  double seconds = 0;
  int64_t bytes = 0, flops = 0;  // of the operator's contract; 0: not known
};

// One load of one server: this program's, or a peer's.
struct ServedLoad {
  std::string server;  // "quire", or a peer's name
  load::LoadSummary summary;
};

struct MemorySample {
  double seconds = 0;  // since the start
  std::string stage;
  int64_t resident = 0;
  int64_t gpu_used = 0;  // by anybody; 0: no GPU
};

// ---- Quality ----

struct Quality {
  std::string text;  // name of the file; empty: nothing was scored
  int64_t windows = 0, window = 0;
  double perplexity = 0;
  std::string reference;  // empty: there was none
  double kl_mean = 0, kl_p99 = 0, top1_agreement = 0, reference_perplexity = 0;
};

struct Snapshot {
  std::string program, model, device, fingerprint, time;  // time: "2026-11-24T03:20:00Z"
  int threads = 0;
  bool quick = false;
  double seconds = 0;  // that it took
  Hardware hardware;
  std::vector<Gate> gates;
  std::vector<ConformanceCount> conformance;
  std::vector<Figure> figures;
  std::vector<Bucket> buckets;
  std::string buckets_missing;  // why there are none, or empty
  std::vector<ServedLoad> loads;
  std::vector<MemorySample> memory;
  Quality quality;

  int count(GateResult r) const;
};

nlohmann::ordered_json to_json(const Snapshot& s);

}  // namespace quire::cli::snapshot
