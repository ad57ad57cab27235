// The operators on Device::kCuda: each enqueues kernels on ctx.cuda's stream and returns. Arguments are checked before, as
// on every device. What goes wrong is kept in ctx.cuda (context.h). In a program compiled without CUDA nobody can make such
// a context, and these end it (none.cpp).
#pragma once

namespace quire {
struct OpContext;
struct EmbedArgs;
struct GatherRowsArgs;
struct ReducePartialsArgs;
struct AddRmsNormArgs;
struct GatedRmsNormArgs;
struct LinearArgs;
struct MlpArgs;
struct MoeArgs;
struct AttentionPrepareArgs;
struct PagedAttentionArgs;
struct GatedDeltaNetArgs;
struct CopySlotsArgs;
struct SampleArgs;
struct NoteTokensArgs;
}  // namespace quire

namespace quire::cuda {

void embed(const OpContext& ctx, const EmbedArgs& a);
void gather_rows(const OpContext& ctx, const GatherRowsArgs& a);
void reduce_partials(const OpContext& ctx, const ReducePartialsArgs& a);
void add_rms_norm(const OpContext& ctx, const AddRmsNormArgs& a);
void gated_rms_norm(const OpContext& ctx, const GatedRmsNormArgs& a);
void linear(const OpContext& ctx, const LinearArgs& a);
void swiglu_mlp(const OpContext& ctx, const MlpArgs& a);
void moe(const OpContext& ctx, const MoeArgs& a);
void attention_prepare(const OpContext& ctx, const AttentionPrepareArgs& a);
void paged_attention(const OpContext& ctx, const PagedAttentionArgs& a);
void gated_delta_net(const OpContext& ctx, const GatedDeltaNetArgs& a);
void copy_slots(const OpContext& ctx, const CopySlotsArgs& a);
void sample(const OpContext& ctx, const SampleArgs& a);
void note_tokens(const OpContext& ctx, const NoteTokensArgs& a);

}  // namespace quire::cuda
