#include <algorithm>

#include "cli/profile_report.h"

namespace quire::cli {
namespace {

enum class Role {
  kProduct,   // a matrix product: whose, its neighbours say
  kBoundary,  // between the parts of a layer: norms
  kMixer,     // attention or delta net
  kPlain,
  kRoute,    // begins the experts of a layer, after the router's product
  kCombine,  // ends them
  kExperts,  // all of them, after the router's product
  kSample,   // reads what the head's product wrote
};

struct KernelRule {
  std::string_view name;
  Bucket bucket;
  Role role = Role::kPlain;
  bool prompts = false;  // only steps with prompts have it
};
// Every __global__ function of src/ops/*/cuda.
constexpr KernelRule kRules[] = {
    {"stream_kernel", Bucket::kProjections, Role::kProduct},
    {"sweep_kernel", Bucket::kProjections, Role::kProduct},
    {"tile_kernel", Bucket::kProjections, Role::kProduct},
    {"tile_mma_kernel", Bucket::kProjections, Role::kProduct},
    {"add_segments", Bucket::kProjections, Role::kProduct},
    {"clear_words", Bucket::kProjections, Role::kProduct},  // before tiles that hand sums over
    {"decode_kernel", Bucket::kDelta, Role::kMixer},
    {"prepare_kernel", Bucket::kDelta, Role::kMixer, true},
    {"products_kernel", Bucket::kDelta, Role::kMixer, true},
    {"scan_kernel", Bucket::kDelta, Role::kMixer, true},
    {"prepare", Bucket::kAttention, Role::kMixer},
    {"decode_parts_kernel", Bucket::kAttention, Role::kMixer},
    {"add_parts", Bucket::kAttention, Role::kMixer},
    {"prompt_kernel", Bucket::kAttention, Role::kMixer, true},
    {"prompt_mma_kernel", Bucket::kAttention, Role::kMixer, true},
    {"route_kernel", Bucket::kRouting, Role::kRoute},
    {"route_small_kernel", Bucket::kRouting, Role::kRoute},
    {"sort_kernel", Bucket::kRouting},
    {"gather_kernel", Bucket::kExperts},
    {"combine_kernel", Bucket::kExperts, Role::kCombine},
    {"few_rows_kernel", Bucket::kExperts, Role::kExperts},
    {"embed", Bucket::kNorms, Role::kBoundary},
    {"add_rms_norm_kernel", Bucket::kNorms, Role::kBoundary},
    {"gather_rows", Bucket::kNorms, Role::kBoundary},
    {"gated_rms_norm_kernel", Bucket::kNorms},  // of the delta net's output
    {"reduce_partials", Bucket::kNorms},
    {"scan", Bucket::kSampling, Role::kSample},
    {"select", Bucket::kSampling, Role::kSample},
    {"note_ranges", Bucket::kSampling},
    {"copy_slots", Bucket::kCopies},
    {"pack_kernel", Bucket::kOther},
    {"unpack_kernel", Bucket::kOther},
};

const KernelRule* rule_of(std::string_view kernel) {
  const auto* const found = std::find_if(std::begin(kRules), std::end(kRules),
                                         [&](const KernelRule& r) { return r.name == kernel; });
  return found == std::end(kRules) ? nullptr : found;
}

// Walks the kernels of a stream. Products wait for the kernel that says whose they are.
class Sorter {
 public:
  explicit Sorter(std::vector<Bucket>& out) : out_(out) {}

  void see(size_t i, const KernelRule& rule) {
    out_[i] = rule.bucket;
    switch (rule.role) {
      case Role::kProduct:
        if (in_experts_)
          out_[i] = Bucket::kExperts;
        else
          waiting_.push_back(i);
        return;
      case Role::kBoundary:
        // Two products without attention or delta net before them: a dense feed-forward part.
        settle(mixed_ ? Bucket::kProjections : Bucket::kFeedForward);
        mixed_ = in_experts_ = false;
        return;
      case Role::kMixer:
        settle(Bucket::kProjections);
        mixed_ = true;
        return;
      case Role::kRoute:
        settle(Bucket::kRouting);
        in_experts_ = true;
        return;
      case Role::kCombine:
        in_experts_ = false;
        return;
      case Role::kExperts:
        settle(Bucket::kRouting);
        return;
      case Role::kSample:
        settle(Bucket::kHead);
        return;
      case Role::kPlain:
        return;
    }
  }
  void settle(Bucket b) {
    for (const size_t i : waiting_) out_[i] = b;
    waiting_.clear();
  }

 private:
  std::vector<Bucket>& out_;
  std::vector<size_t> waiting_;
  bool mixed_ = false, in_experts_ = false;
};

bool of_prompts(const GpuActivity& a) {
  if (a.kind != GpuActivity::Kind::kKernel) return false;
  const KernelRule* const rule = rule_of(kernel_name(a.name));
  return rule != nullptr && rule->prompts;
}

}  // namespace

std::string_view bucket_name(Bucket b) {
  constexpr std::string_view kNames[] = {"experts",     "feed-forward", "delta net",       "attention",
                                         "projections", "head",         "norms, elements", "routing",
                                         "sampling",    "copies",       "other",           "idle"};
  static_assert(std::size(kNames) == kBuckets);
  return kNames[static_cast<size_t>(b)];
}

std::string_view kernel_name(std::string_view demangled) {
  // What comes before template arguments and parameters ends with it. "(anonymous namespace)" is no list of parameters.
  constexpr std::string_view kAnonymous = "(anonymous namespace)";
  size_t end = demangled.find_first_of("<(");
  while (end != demangled.npos && demangled.substr(end).starts_with(kAnonymous))
    end = demangled.find_first_of("<(", end + kAnonymous.size());
  const std::string_view name = demangled.substr(0, end);
  const size_t last = name.find_last_of(": ");
  return last == name.npos ? name : name.substr(last + 1);
}

bool is_known_kernel(std::string_view name) {
  return rule_of(name) != nullptr;
}

std::vector<Bucket> sort_into_buckets(std::span<const GpuActivity> activities) {
  std::vector<Bucket> out(activities.size(), Bucket::kCopies);
  Sorter sorter(out);
  for (size_t i = 0; i < activities.size(); ++i) {
    if (activities[i].kind != GpuActivity::Kind::kKernel) continue;
    const KernelRule* const rule = rule_of(kernel_name(activities[i].name));
    out[i] = Bucket::kOther;
    if (rule != nullptr) sorter.see(i, *rule);
  }
  sorter.settle(Bucket::kProjections);
  return out;
}

std::optional<ProfiledPhases> find_phases(std::span<const GpuActivity> activities, int64_t decode_steps) {
  std::vector<size_t> ends;  // one past the copy that ends each step
  size_t prompt_steps = 0;
  bool prompts = false;
  for (size_t i = 0; i < activities.size(); ++i) {
    prompts = prompts || of_prompts(activities[i]);
    if (activities[i].kind != GpuActivity::Kind::kToHost) continue;
    ends.push_back(i + 1);
    if (prompts) prompt_steps = ends.size();
    prompts = false;
  }
  if (prompt_steps == 0 || decode_steps < 1 || ends.size() < prompt_steps + static_cast<size_t>(decode_steps))
    return std::nullopt;
  const size_t middle = ends[prompt_steps - 1],
               end = ends[prompt_steps + static_cast<size_t>(decode_steps) - 1];
  const int64_t middle_ns = activities[middle - 1].end;
  return ProfiledPhases{.prompts = {.first = 0,
                                    .end = middle,
                                    .steps = static_cast<int64_t>(prompt_steps),
                                    .begin_ns = activities.front().begin,
                                    .end_ns = middle_ns},
                        .decode = {.first = middle,
                                   .end = end,
                                   .steps = decode_steps,
                                   .begin_ns = middle_ns,
                                   .end_ns = activities[end - 1].end}};
}

}  // namespace quire::cli
