#include "ops/registry.h"

#include <string>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/copy/copy.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/linear/linear.h"
#include "ops/mlp/mlp.h"
#include "ops/moe/moe.h"
#include "ops/norm/norm.h"
#include "ops/rows/rows.h"
#include "ops/sampling/history.h"
#include "ops/sampling/sampling.h"

namespace quire {
namespace {

struct Entry {
  std::string_view op;
  std::vector<KernelInfo> kernels;
};

template <class Args>
Entry entry(std::string_view op, std::span<const Kernel<Args>> table) {
  Entry e{op, {}};
  for (const Kernel<Args>& k : table) e.kernels.push_back({k.name, k.needs});
  return e;
}

std::vector<Entry> entries() {
  return {
      entry("embed", embed_kernels()),
      entry("gather_rows", gather_rows_kernels()),
      entry("add_rms_norm", add_rms_norm_kernels()),
      entry("gated_rms_norm", gated_rms_norm_kernels()),
      entry("linear", linear_kernels()),
      entry("swiglu_mlp", mlp_kernels()),
      entry("moe", moe_kernels()),
      entry("attention_prepare", attention_prepare_kernels()),
      entry("paged_attention", paged_attention_kernels()),
      entry("gdn_prepare", gdn_prepare_kernels()),
      entry("gdn_chunked", gdn_chunked_kernels()),
      entry("gdn_recurrent", gdn_recurrent_kernels()),
      entry("copy_slots", copy_slots_kernels()),
      entry("note_tokens", note_tokens_kernels()),
      entry("sample", sample_kernels()),
  };
}

Status check_forced(std::string_view op, std::string_view kernel, const CpuFeatures& cpu) {
  std::vector<std::string_view> names;
  const std::vector<KernelInfo> kernels = kernels_of(op);
  if (kernels.empty()) {
    for (const Entry& e : entries()) names.push_back(e.op);
    return request_error("there is no operator {} (there are: {})", op, fmt::join(names, ", "));
  }
  for (const KernelInfo& k : kernels) {
    names.push_back(k.name);
    if (k.name != kernel) continue;
    if (reaches(cpu, k.needs)) return {};
    return request_error("{}={} needs a CPU with {}; this one has {}", op, kernel, cpu_level_name(k.needs),
                         describe(cpu));
  }
  return request_error("operator {} has no kernel {} (it has: {})", op, kernel, fmt::join(names, ", "));
}

}  // namespace

std::vector<KernelInfo> kernels_of(std::string_view op) {
  for (Entry& e : entries())
    if (e.op == op) return std::move(e.kernels);
  return {};
}

Status check_forced(const KernelChoice& choice, const CpuFeatures& cpu) {
  for (const auto& [op, kernel] : choice.forced) {
    QUIRE_CHECKED(check_forced(op, kernel, cpu));
    if (choice.find(op) != kernel)
      return request_error("operator {} is forced to {} and to {}: give one", op, choice.find(op), kernel);
  }
  return {};
}

}  // namespace quire
