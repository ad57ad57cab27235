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
  none("embed");
}
void gather_rows(const OpContext&, const GatherRowsArgs&) {
  none("gather_rows");
}
void add_rms_norm(const OpContext&, const AddRmsNormArgs&) {
  none("add_rms_norm");
}
void gated_rms_norm(const OpContext&, const GatedRmsNormArgs&) {
  none("gated_rms_norm");
}
void linear(const OpContext&, const LinearArgs&) {
  none("linear");
}
void swiglu_mlp(const OpContext&, const MlpArgs&) {
  none("swiglu_mlp");
}
void moe(const OpContext&, const MoeArgs&) {
  none("moe");
}
void attention_prepare(const OpContext&, const AttentionPrepareArgs&) {
  none("attention_prepare");
}
void paged_attention(const OpContext&, const PagedAttentionArgs&) {
  none("paged_attention");
}
void gated_delta_net(const OpContext&, const GatedDeltaNetArgs&) {
  none("gated_delta_net");
}
void copy_slots(const OpContext&, const CopySlotsArgs&) {
  none("copy_slots");
}
void sample(const OpContext&, const SampleArgs&) {
  none("sample");
}
void note_tokens(const OpContext&, const NoteTokensArgs&) {
  none("note_tokens");
}

}  // namespace quire::cuda
