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
#include "ops/sampling/sampling.h"

namespace quire {
namespace {

struct Entry {
  std::string_view op;
  std::vector<std::string_view> kernels;
};

template <class Args>
Entry entry(std::string_view op, std::span<const Kernel<Args>> table) {
  Entry e{op, {}};
  for (const Kernel<Args>& k : table) e.kernels.push_back(k.name);
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
      entry("sample", sample_kernels()),
  };
}

}  // namespace

Status check_kernel_name(std::string_view op, std::string_view kernel) {
  std::vector<std::string_view> ops;
  for (const Entry& e : entries()) {
    ops.push_back(e.op);
    if (e.op != op) continue;
    for (const std::string_view k : e.kernels)
      if (k == kernel) return {};
    return request_error("operator {} has no kernel {} (it has: {})", op, kernel, fmt::join(e.kernels, ", "));
  }
  return request_error("there is no operator {} (there are: {})", op, fmt::join(ops, ", "));
}

}  // namespace quire
