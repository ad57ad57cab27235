#include "cli/options.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>

#include "core/output.h"
#include "ops/registry.h"

namespace quire::cli {

void ModelOptions::add(CLI::App& app) {
  app.add_option(kModelNames, model, kModelHelp)->required()->type_name("FILE");
  add_compute(app);
}

void ModelOptions::add_compute(CLI::App& app) {
  app.add_option("--device", device,
                 "Where to compute: cpu, cuda (an NVIDIA GPU), or reference (plain float32 loops, slow)")
      ->capture_default_str();
  app.add_option("--gpu", gpu, "With --device cuda: which GPU, as `quire devices` counts them")->capture_default_str();
  app.add_option("-t,--threads", threads, "Threads; 0: all CPUs. The output does not depend on it")
      ->capture_default_str();
  app.add_option("--kernel", kernels,
                 "Force one operator to one kernel, to bisect a difference (repeatable). What it does not take "
                 "runs as usual, and is counted at the end")
      ->type_name("OP=NAME");
}

Result<Device> ModelOptions::parsed_device() const {
  if (gpu < 0) return request_error("--gpu {}: GPUs are counted from 0", gpu);
  if (gpu > 0 && device != "cuda")
    return request_error("--gpu {}: --device {} does not use one; add --device cuda", gpu, device);
  if (device == "cpu") return Device::kCpu;
  if (device == "reference") return Device::kReference;
  if (device == "cuda") return Device::kCuda;
  return request_error("--device {}: must be cpu, cuda or reference", device);
}

void KvCacheOption::add(CLI::App& app) {
  app.add_option("--kv-cache-dtype", type,
                 "What keys and values are kept in: auto (bf16), bf16, or fp8 (E4M3: half the memory, and on a "
                 "GPU half the reading). The output depends on it")
      ->capture_default_str();
}

Result<KvCacheType> KvCacheOption::parsed() const {
  const std::string name = CLI::detail::to_lower(type);
  if (name == "auto") return KvCacheType::kAuto;
  if (name == "bf16" || name == "bfloat16") return KvCacheType::kBf16;
  if (name == "fp8" || name == "fp8_e4m3") return KvCacheType::kFp8;
  return request_error("--kv-cache-dtype {}: must be auto, bf16 or fp8", type);
}

void ArithmeticOption::add(CLI::App& app) {
  app.add_option("--arithmetic", name,
                 "Kernels of generated tokens on a CPU: latency (integers), throughput, or auto: the first where there "
                 "are two sequences at most. The output depends on it in the last bits")
      ->capture_default_str();
}

Result<Arithmetic> ArithmeticOption::parsed() const {
  if (name == "auto") return Arithmetic::kAuto;
  if (name == "latency") return Arithmetic::kLatency;
  if (name == "throughput") return Arithmetic::kThroughput;
  return request_error("--arithmetic {}: must be auto, latency or throughput", name);
}

void ComputeOptions::add(CLI::App& app) {
  app.add_option("--gpu-memory-utilization", gpu_memory,
                 "Share of the GPU's memory that may be in use; what weights and scratch leave of it holds "
                 "the KV cache")
      ->capture_default_str();
  kv_cache.add(app);
  arithmetic.add(app);
  app.add_option("--depth", depth, "Steps under way at a time, 1 or 2; 0: 2 on a GPU. The output does not depend on it")
      ->capture_default_str();
  app.add_flag("!--no-graphs", graphs, "Launch every kernel by itself on a GPU. The output is the same");
  speculative.add(app);
  card_costs.add(app);
}

Status ComputeOptions::apply(EngineOptions& to) const {
  QUIRE_CHECKED(card_costs.apply(to.device, to.gpu));
  QUIRE_TRY(to.kv_cache, kv_cache.parsed());
  to.gpu_memory_utilization = gpu_memory;
  to.depth = depth;
  to.graphs = graphs;
  QUIRE_TRY(to.speculative, speculative.parsed());
  QUIRE_TRY(to.arithmetic, arithmetic.parsed());
  return {};
}

Result<KernelChoice> ModelOptions::parsed_kernels() const {
  KernelChoice choice;
  for (const std::string& k : kernels) {
    const size_t eq = k.find('=');
    if (eq == std::string::npos) return request_error("--kernel {}: write it as operator=kernel", k);
    const std::string op = k.substr(0, eq), name = k.substr(eq + 1);
    choice.forced.emplace_back(op, name);
  }
  QUIRE_TRY(const Device where, parsed_device());
  QUIRE_CHECKED(check_forced(choice, {.device = where}));
  return choice;
}

void report_forced(std::span<const ForcedCount> counts) {
  for (const ForcedCount& c : counts)
    tell_line(fmt::format("[{}={}: ran {} of {} calls]", c.op, c.kernel, c.ran, c.ran + c.replaced));
}

void SamplingOptions::add(CLI::App& app) {
  const auto add_default = [&](const char* names, auto& to, const char* help) {
    return app.add_option(names, to, help)->capture_default_str();
  };
  temperature_ =
      add_default("--temperature,--temp", params.temperature,
                  "0: always the likeliest token. This and the next ones: if not given, what the file recommends");
  top_k_ = add_default("--top-k", params.top_k, "Keep the k likeliest tokens; 0: all");
  top_p_ = add_default("--top-p", params.top_p, "Keep the likeliest tokens that reach this probability");
  min_p_ =
      add_default("--min-p", params.min_p, "Keep tokens of at least this share of the likeliest one's probability");
  app.add_option("--typical-p", params.typical_p, "Locally typical sampling; 1: off")->capture_default_str();
  repetition_penalty_ = add_default("--repetition-penalty,--repeat-penalty", params.repetition_penalty,
                                    "On tokens of prompt and output; 1: off");
  app.add_option("--presence-penalty", params.presence_penalty, "On tokens of the output")->capture_default_str();
  app.add_option("--frequency-penalty", params.frequency_penalty, "On tokens of the output, per occurrence")
      ->capture_default_str();
  app.add_option("--logit-bias", bias, "Added to a token's logit (repeatable)")->type_name("TOKEN=VALUE");
  app.add_option("-s,--seed", params.seed, "Same seed, same text")->capture_default_str();
  app.add_option("--logprobs", params.logprobs, "Report log-probabilities of the token and of so many likeliest ones");
}

void SamplingOptions::take_defaults(const SamplingDefaults& recommended) {
  SamplingParams p = params;
  recommended.apply(p);
  const auto take = [](const CLI::Option* option, auto& to, auto from) {
    if (option->count() == 0) to = from;
  };
  take(temperature_, params.temperature, p.temperature);
  take(top_k_, params.top_k, p.top_k);
  take(top_p_, params.top_p, p.top_p);
  take(min_p_, params.min_p, p.min_p);
  take(repetition_penalty_, params.repetition_penalty, p.repetition_penalty);
}

Result<SamplingParams> SamplingOptions::parsed() const {
  SamplingParams p = params;
  for (const std::string& b : bias) {
    int32_t token = 0;
    float value = 0.0f;
    const char* const end = b.data() + b.size();
    const auto [eq, token_error] = std::from_chars(b.data(), end, token);
    if (token_error != std::errc{} || eq == end || *eq != '=')
      return request_error("--logit-bias {}: write it as token=value", b);
    const auto [rest, value_error] = std::from_chars(eq + 1, end, value);
    if (value_error != std::errc{} || rest != end)
      return request_error("--logit-bias {}: the value is not a number", b);
    p.logit_bias[token] = value;
  }
  return p;
}

namespace {

// /dev/zero and what else goes on for ever. A terminal ends when its user says so, and /dev/null has nothing.
bool is_endless(int fd) {
  struct stat s {};
  if (fstat(fd, &s) != 0) return false;
  return S_ISBLK(s.st_mode) || (S_ISCHR(s.st_mode) && isatty(fd) == 0 && s.st_rdev != makedev(1, 3));
}

}  // namespace

Result<std::string> read_text(const std::string& path, int64_t most, std::string_view why) {
  struct Close {
    void operator()(std::FILE* f) const {
      if (f != stdin) std::fclose(f);
    }
  };
  const std::unique_ptr<std::FILE, Close> file(path == "-" ? stdin : std::fopen(path.c_str(), "rb"));
  const std::string name = path == "-" ? "standard input" : path;
  if (!file) return request_error("{}: {}", name, std::strerror(errno));
  if (is_endless(fileno(file.get()))) return request_error("{} is a device, not a text; give a file", name);
  std::string text;
  char buffer[65536];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, file.get())) {
    text.append(buffer, n);
    if (static_cast<int64_t>(text.size()) > most)
      return request_error("{} has more than {} bytes: {}", name, most, why);
  }
  if (std::ferror(file.get()) != 0) return request_error("{}: {}", name, std::strerror(errno));
  return text;
}

Result<std::vector<TokenId>> parse_token_list(std::string_view text) {
  constexpr std::string_view kBetween = " ,:[]{}\t\r\n";
  if (const size_t key = text.find("\"tokens\""); key != text.npos) text.remove_prefix(key + 8);
  std::vector<TokenId> tokens;
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p != end) {
    if (kBetween.find(*p) != kBetween.npos) {
      ++p;
    } else if (*p == '\'' && !tokens.empty()) {
      p = std::find(p, end, '\n');  // the token's text, which ends its line
    } else {
      TokenId t = 0;
      const auto [next, error] = std::from_chars(p, end, t);
      if (error != std::errc{} || t < 0)
        return request_error("--tokens: expected token ids as `quire tokenize` prints them, at byte {}",
                             p - text.data() + 1);
      tokens.push_back(t);
      p = next;
    }
  }
  if (tokens.empty()) return request_error("--tokens: no token given");
  return tokens;
}

Result<std::vector<TokenId>> parse_tokens(std::string_view text) {
  std::vector<TokenId> tokens;
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p != end) {
    TokenId t = 0;
    const auto [next, error] = std::from_chars(p, end, t);
    if (error != std::errc{} || (next != end && (*next != ',' || next + 1 == end)))
      return request_error("--tokens: expected numbers separated by commas, at character {}", p - text.data() + 1);
    tokens.push_back(t);
    p = next == end ? end : next + 1;
  }
  if (tokens.empty()) return request_error("--tokens: no token given");
  return tokens;
}

}  // namespace quire::cli
