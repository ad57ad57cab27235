// Stands in for the CUDA operators where the program is compiled without them.
#include "core/result.h"
#include "ops/cuda/ops.h"

namespace quire::cuda {
namespace {

[[noreturn]] void none(const char* op) {
  fatal(__FILE__, __LINE__, fmt::format("{} on a GPU: this program is compiled without CUDA", op));
}

}  // namespace

void embed(const OpContext&, const EmbedArgs&) {
  none(__func__);
}
void gather_rows(const OpContext&, const GatherRowsArgs&) {
  none(__func__);
}
void reduce_partials(const OpContext&, const ReducePartialsArgs&) {
  none(__func__);
}
void add_rms_norm(const OpContext&, const AddRmsNormArgs&) {
  none(__func__);
}
void gated_rms_norm(const OpContext&, const GatedRmsNormArgs&) {
  none(__func__);
}
void linear(const OpContext&, const LinearArgs&) {
  none(__func__);
}
void swiglu_mlp(const OpContext&, const MlpArgs&) {
  none(__func__);
}
void moe(const OpContext&, const MoeArgs&) {
  none(__func__);
}
void attention_prepare(const OpContext&, const AttentionPrepareArgs&) {
  none(__func__);
}
void paged_attention(const OpContext&, const PagedAttentionArgs&) {
  none(__func__);
}
void gated_delta_net(const OpContext&, const GatedDeltaNetArgs&) {
  none(__func__);
}
void copy_slots(const OpContext&, const CopySlotsArgs&) {
  none(__func__);
}
void sample(const OpContext&, const SampleArgs&) {
  none(__func__);
}
void note_tokens(const OpContext&, const NoteTokensArgs&) {
  none(__func__);
}

}  // namespace quire::cuda
