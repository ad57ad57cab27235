#include "lab/snapshot/hardware.h"

#include <fcntl.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "core/cgroup.h"
#include "core/count.h"
#include "core/cpu.h"
#include "core/memory.h"
#include "engine/cuda_device.h"
#include "lab/snapshot/child.h"
#include "ops/probe/probe.h"

namespace quire::cli::snapshot {
namespace {

std::string trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\n");
  if (begin == text.npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(" \t\n") + 1 - begin));
}

std::string first_line(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return trimmed(line);
}

// Of a file of lines "key : value", the first value of this key.
std::string value_of(const std::string& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (colon != line.npos && trimmed(std::string_view(line).substr(0, colon)) == key)
      return trimmed(std::string_view(line).substr(colon + 1));
  }
  return {};
}

// Caches of all CPUs; those that several of them share count once.
std::vector<CacheLevel> caches_of(const std::string& cpus) {
  std::map<std::string, CacheLevel> levels;
  std::map<std::string, std::set<std::string>> seen;  // by name: which CPUs share each
  std::error_code failed;
  for (const auto& cpu : std::filesystem::directory_iterator(cpus, failed)) {
    if (!cpu.path().filename().string().starts_with("cpu")) continue;
    for (const auto& index : std::filesystem::directory_iterator(cpu.path() / "cache", failed)) {
      const std::string level = first_line(index.path() / "level"), type = first_line(index.path() / "type");
      const int64_t bytes = parse_cache_size(first_line(index.path() / "size"));
      if (level.empty() || bytes == 0) continue;
      const std::string name = "L" + level + (type == "Data" ? "d" : type == "Instruction" ? "i" : "");
      if (!seen[name].insert(first_line(index.path() / "shared_cpu_list")).second) continue;
      CacheLevel& l = levels[name];
      l = {.name = name, .bytes = bytes, .count = l.count + 1};
    }
    failed.clear();
  }
  std::vector<CacheLevel> all;
  for (auto& [name, level] : levels) all.push_back(level);
  return all;
}

// The driver's own tool knows limits and links: asked if it is there.
std::vector<std::string> ask_nvidia_smi(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {"nvidia-smi"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::vector<std::string> lines;
  Result<std::unique_ptr<Child>> child = Child::start(command, Child::Errors::kDropped);
  if (!child.ok()) return lines;
  while (const std::optional<std::string> line = (*child)->read_line()) lines.push_back(*line);
  return (*child)->wait() == 0 ? lines : std::vector<std::string>();
}

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find(',', begin), line.size());
    parts.push_back(trimmed(std::string_view(line).substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

// Lines of `nvidia-smi nvlink --status`: "GPU 0: ..." and then one for each link, with its speed.
std::vector<std::string> nvlinks() {
  std::vector<std::string> all;
  for (const std::string& line : ask_nvidia_smi({"nvlink", "--status"})) {
    if (line.starts_with("GPU "))
      all.emplace_back();
    else if (!all.empty() && line.find("GB/s") != line.npos)
      all.back() += (all.back().empty() ? "" : ", ") + trimmed(line);
  }
  return all;
}

void add_gpus(Hardware& h) {
  const Result<std::vector<GpuInfo>> gpus = list_gpus();
  if (!gpus.ok()) {
    h.no_gpu = gpus.error().message;
    return;
  }
  for (const GpuInfo& g : *gpus)
    h.gpus.push_back({.name = g.name,
                      .capability = fmt::format("{}.{}", g.major, g.minor),
                      .kernels = g.kernels,
                      .multiprocessors = g.multiprocessors,
                      .memory = g.memory,
                      .copy_bandwidth = g.copy_bandwidth,
                      .unusable = g.unusable});
  if (h.gpus.empty()) {
    h.no_gpu = "there is none";
    return;
  }
  // The tool counts all GPUs, the program those that it may use: told apart only where these are as many.
  const std::vector<std::string> told = ask_nvidia_smi(
      {"--query-gpu=driver_version,power.limit,pcie.link.gen.max,pcie.link.width.max,name", "--format=csv,noheader"});
  const std::vector<std::string> links = nvlinks();
  if (told.size() != h.gpus.size()) return;
  for (size_t i = 0; i < told.size(); ++i) {
    const std::vector<std::string> parts = split(told[i]);
    if (parts.size() < 5) continue;
    h.gpus[i].driver = parts[0];
    h.gpus[i].power_limit = parts[1];
    h.gpus[i].link = fmt::format("PCIe {}.0 x{}", parts[2], parts[3]);
    if (i < links.size()) h.gpus[i].links = links[i];
  }
}

}  // namespace

int64_t parse_cache_size(std::string_view text) {
  int64_t unit = 1;
  if (text.ends_with('K')) unit = 1 << 10;
  if (text.ends_with('M')) unit = 1 << 20;
  if (unit > 1) text.remove_suffix(1);
  int64_t n = 0;
  if (parse_count(text, n) != CountError::kNone || n < 0 || n > (int64_t{1} << 40)) return 0;
  return n * unit;
}

Hardware look_at_machine(const HardwareFiles& files) {
  Hardware h;
  h.cpu = value_of(files.cpuinfo, "model name");
  h.cpu_features = describe(cpu_features());
  utsname name{};
  if (uname(&name) == 0) h.system = fmt::format("{} {} {}", name.sysname, name.release, name.machine);
  h.cpus = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  h.usable_cpus = available_cpus();
  h.caches = caches_of(files.cpus);
  const std::string memory = value_of(files.meminfo, "MemTotal");  // "8069532 kB"
  int64_t kib = 0;
  if (parse_count(memory.substr(0, memory.find(' ')), kib) == CountError::kNone) h.memory = kib * 1024;
  if (const int64_t available = available_memory(); available != INT64_MAX) h.available_memory = available;
  // Version 1 of control groups says "none" with a number of its own, which no machine has.
  if (const int64_t limit = group_memory_limit(); limit < INT64_MAX / 2) h.group_memory_limit = limit;
  if (const double quota = group_cpu_quota(); std::isfinite(quota)) h.group_cpu_quota = quota;
  double load[1] = {};
  if (getloadavg(load, 1) == 1) h.load_average = load[0];
  return h;
}

void measure_machine(Hardware& h, int threads) {
  ThreadPool pool(threads);
  h.read_bandwidth = measure_read_bandwidth(pool);
  h.bf16_peak = measure_bf16_peak(pool);
  add_gpus(h);
}

}  // namespace quire::cli::snapshot
