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

void SamplingOptions::add_numbers(CLI::App& app, const char* unless_given, bool with_defaults) {
  const auto add_one = [&](const char* name, const char* names, auto& to, const std::string& help) {
    CLI::Option* const o = app.add_option(names, to, help);
    if (with_defaults) o->capture_default_str();
    options_.emplace_back(name, o);
  };
  add_one("temperature", "--temperature,--temp", params.temperature,
          fmt::format("0: always the likeliest token. This and the next ones: if not given, {}", unless_given));
  add_one("top_k", "--top-k", params.top_k, "Keep the k likeliest tokens; 0: all");
  add_one("top_p", "--top-p", params.top_p, "Keep the likeliest tokens that reach this probability");
  add_one("min_p", "--min-p", params.min_p, "Keep tokens of at least this share of the likeliest one's probability");
  add_one("typical_p", "--typical-p", params.typical_p, "Locally typical sampling; 1: off");
  add_one("repetition_penalty", "--repetition-penalty,--repeat-penalty", params.repetition_penalty,
          "On tokens of prompt and output; 1: off");
  add_one("presence_penalty", "--presence-penalty", params.presence_penalty, "On tokens of the output");
  add_one("frequency_penalty", "--frequency-penalty", params.frequency_penalty,
          "On tokens of the output, per occurrence");
  add_one("seed", "-s,--seed", params.seed, "Same seed, same text");
}

void SamplingOptions::add(CLI::App& app) {
  add_numbers(app, "what the file recommends, or for a chat else what the makers of its family publish", true);
  app.add_option("--logit-bias", bias, "Added to a token's logit (repeatable)")->type_name("TOKEN=VALUE");
  app.add_option("--logprobs", params.logprobs, "Report log-probabilities of the token and of so many likeliest ones");
}

void SamplingOptions::add_of_requests(CLI::App& app) {
  add_numbers(app, "as the server chooses", false);
}

bool SamplingOptions::given(std::string_view name) const {
  return std::any_of(options_.begin(), options_.end(),
                     [&](const auto& o) { return o.first == name && o.second->count() > 0; });
}

std::set<std::string> SamplingOptions::all_given() const {
  std::set<std::string> names;
  for (const auto& [name, option] : options_)
    if (option->count() > 0) names.insert(name);
  return names;
}

void SamplingOptions::take_defaults(const SamplingDefaults& recommended) {
  SamplingParams p = params;
  recommended.apply(p);
  const auto take = [&](const char* name, auto& to, auto from) {
    if (!given(name)) to = from;
  };
  take("temperature", params.temperature, p.temperature);
  take("top_k", params.top_k, p.top_k);
  take("top_p", params.top_p, p.top_p);
  take("min_p", params.min_p, p.min_p);
  take("repetition_penalty", params.repetition_penalty, p.repetition_penalty);
  take("presence_penalty", params.presence_penalty, p.presence_penalty);
}

void RopeFlags::add(CLI::App& app) {
  scaling_ = app.add_option("--rope-scaling", scaling,
                            "For contexts longer than those of the training: yarn or linear, with --rope-scale; none: "
                            "not even what the file says (default: as the file says). Short prompts change too, and "
                            "are answered a little worse: leave it out where the context suffices")
                 ->type_name("none|linear|yarn");
  factor_ = app.add_option("--rope-scale", factor, "How many times longer contexts become");
  original_context_ = app.add_option("--yarn-orig-ctx", original_context,
                                     "Context that the model was trained for (default: as the file says)");
  attn_factor_ = app.add_option("--yarn-attn-factor", attn_factor,
                                "Multiplies what YaRN makes of the size of queries and keys (default: 1)");
  ext_factor_ = app.add_option("--yarn-ext-factor", ext_factor,
                               "How far high frequencies stay as they are: 1 wholly, 0 not at all (default: 1)");
  beta_fast_ = app.add_option("--yarn-beta-fast", beta_fast,
                              "Frequencies with more turns than this in the original context stay (default: 32)");
  beta_slow_ =
      app.add_option("--yarn-beta-slow", beta_slow, "Those with fewer turns than this are scaled wholly (default: 1)");
}

Result<RopeOverride> RopeFlags::parsed() const {
  RopeOverride rope;
  const auto take = [](const CLI::Option* option, auto& to, const auto& from) {
    if (option->count() > 0) to = from;
  };
  take(scaling_, rope.scaling, CLI::detail::to_lower(scaling));
  take(factor_, rope.factor, factor);
  take(original_context_, rope.original_context, original_context);
  take(attn_factor_, rope.attn_factor, attn_factor);
  take(ext_factor_, rope.ext_factor, ext_factor);
  take(beta_fast_, rope.beta_fast, beta_fast);
  take(beta_slow_, rope.beta_slow, beta_slow);
  QUIRE_CHECKED(rope.check());
  return rope;
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
