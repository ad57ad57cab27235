// The table of all operators. A new one adds two lines here: its suite (the operator's test.cpp), and itself.
#include "ops/registry.h"

#include <string>

#include "ops/all_gather/all_gather.h"
#include "ops/all_reduce/all_reduce.h"
#include "ops/attention/attention.h"
#include "ops/copy/copy.h"
#include "ops/gated_delta/gated_delta.h"
#include "ops/gelu/gelu.h"
#include "ops/layer_norm/layer_norm.h"
#include "ops/linear/linear.h"
#include "ops/mix_rows/mix_rows.h"
#include "ops/mlp/mlp.h"
#include "ops/moe/moe.h"
#include "ops/norm/norm.h"
#include "ops/normalise_patches/normalise_patches.h"
#include "ops/rows/rows.h"
#include "ops/sampling/history.h"
#include "ops/sampling/sampling.h"
#include "ops/scale_clamp/scale_clamp.h"
#include "ops/vision_attention/vision_attention.h"

namespace quire {
namespace conformance {

void embed_conformance(Suite& s);
void gather_rows_conformance(Suite& s);
void reduce_partials_conformance(Suite& s);
void all_reduce_conformance(Suite& s);
void all_gather_conformance(Suite& s);
void soft_cap_conformance(Suite& s);
void gated_product_conformance(Suite& s);
void add_rms_norm_conformance(Suite& s);
void gated_rms_norm_conformance(Suite& s);
void linear_conformance(Suite& s);
void mlp_conformance(Suite& s);
void moe_conformance(Suite& s);
void attention_prepare_conformance(Suite& s);
void paged_attention_conformance(Suite& s);
void gdn_prepare_conformance(Suite& s);
void gdn_chunked_conformance(Suite& s);
void gdn_recurrent_conformance(Suite& s);
void gated_delta_net_conformance(Suite& s);
void update_history_conformance(Suite& s);
void sample_conformance(Suite& s);
void copy_slots_conformance(Suite& s);
void layer_norm_conformance(Suite& s);
void gelu_conformance(Suite& s);
void mix_rows_conformance(Suite& s);
void normalise_patches_conformance(Suite& s);
void scale_clamp_conformance(Suite& s);
void vision_attention_conformance(Suite& s);

}  // namespace conformance

namespace {

template <class Args>
OperatorInfo entry(const Operator<Args>& op, void (*conformance)(conformance::Suite&)) {
  OperatorInfo info{op.name, {}, conformance};
  for (const Kernel<Args>& k : op.kernels) info.kernels.push_back({k.name, k.needs});
  return info;
}

std::vector<OperatorInfo> table() {
  return {
      entry(kEmbedOp, conformance::embed_conformance),
      entry(kGatherRowsOp, conformance::gather_rows_conformance),
      entry(kReducePartialsOp, conformance::reduce_partials_conformance),
      entry(kAllReduceOp, conformance::all_reduce_conformance),
      entry(kAllGatherOp, conformance::all_gather_conformance),
      entry(kSoftCapOp, conformance::soft_cap_conformance),
      entry(kGatedProductOp, conformance::gated_product_conformance),
      entry(kAddRmsNormOp, conformance::add_rms_norm_conformance),
      entry(kGatedRmsNormOp, conformance::gated_rms_norm_conformance),
      entry(kLinearOp, conformance::linear_conformance),
      entry(kMlpOp, conformance::mlp_conformance),
      entry(kMoeOp, conformance::moe_conformance),
      entry(kAttentionPrepareOp, conformance::attention_prepare_conformance),
      entry(kPagedAttentionOp, conformance::paged_attention_conformance),
      entry(kGdnPrepareOp, conformance::gdn_prepare_conformance),
      entry(kGdnChunkedOp, conformance::gdn_chunked_conformance),
      entry(kGdnRecurrentOp, conformance::gdn_recurrent_conformance),
      entry(kGatedDeltaNetOp, conformance::gated_delta_net_conformance),
      entry(kUpdateHistoryOp, conformance::update_history_conformance),
      entry(kSampleOp, conformance::sample_conformance),
      entry(kCopySlotsOp, conformance::copy_slots_conformance),
      entry(kLayerNormOp, conformance::layer_norm_conformance),
      entry(kGeluOp, conformance::gelu_conformance),
      entry(kMixRowsOp, conformance::mix_rows_conformance),
      entry(kNormalisePatchesOp, conformance::normalise_patches_conformance),
      entry(kScaleClampOp, conformance::scale_clamp_conformance),
      entry(kVisionAttentionOp, conformance::vision_attention_conformance),
  };
}

Status check_forced(std::string_view op, std::string_view kernel, const Machine& m) {
  const std::span<const KernelInfo> kernels = kernels_of(op);
  if (kernels.empty()) return request_error("there is no operator {} (there are: {})", op, operator_names());
  std::vector<std::string_view> names;
  for (const KernelInfo& k : kernels) {
    if (is_for(m.device, k.needs)) names.push_back(k.name);
    if (k.name != kernel) continue;
    const bool unknown_gpu = m.device == Device::kCuda && m.gpu.major == 0;
    if (unknown_gpu ? is_for(m.device, k.needs) : reaches(m, k.needs)) return {};
    if (!is_for(m.device, k.needs))
      return request_error("{}={} needs {}, and --device is another one", op, kernel, describe(k.needs));
    if (m.device == Device::kCuda)
      return request_error("{}={} needs {}; this one is {}", op, kernel, describe(k.needs), describe(m));
    return request_error("{}={} needs {}; this one has {}", op, kernel, describe(k.needs), describe(m.cpu));
  }
  return request_error("operator {} has no kernel {} (it has: {})", op, kernel, fmt::join(names, ", "));
}

}  // namespace

std::span<const OperatorInfo> operators() {
  static const std::vector<OperatorInfo> all = table();
  return all;
}

std::string operator_names() {
  std::vector<std::string_view> names;
  for (const OperatorInfo& op : operators()) names.push_back(op.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::span<const KernelInfo> kernels_of(std::string_view op) {
  for (const OperatorInfo& info : operators())
    if (info.name == op) return info.kernels;
  return {};
}

Status check_forced(const KernelChoice& choice, const Machine& m) {
  for (const auto& [op, kernel] : choice.forced) {
    QUIRE_CHECKED(check_forced(op, kernel, m));
    if (choice.find(op) != kernel)
      return request_error("operator {} is forced to {} and to {}: give one", op, choice.find(op), kernel);
  }
  return {};
}

}  // namespace quire
