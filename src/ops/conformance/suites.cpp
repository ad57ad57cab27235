// The list of suites. A new operator adds a declaration and a line here.
#include "ops/conformance/conformance.h"

namespace quire::conformance {

void add_rms_norm_conformance(Suite& s);
void attention_prepare_conformance(Suite& s);
void copy_slots_conformance(Suite& s);
void embed_conformance(Suite& s);
void gated_rms_norm_conformance(Suite& s);
void gather_rows_conformance(Suite& s);
void sample_conformance(Suite& s);
void note_tokens_conformance(Suite& s);
void paged_attention_conformance(Suite& s);
void gdn_chunked_conformance(Suite& s);
void gdn_prepare_conformance(Suite& s);
void gdn_recurrent_conformance(Suite& s);
void linear_conformance(Suite& s);
void mlp_conformance(Suite& s);
void moe_conformance(Suite& s);

namespace {

constexpr SuiteEntry kSuites[] = {
    {"embed", embed_conformance},
    {"gather_rows", gather_rows_conformance},
    {"add_rms_norm", add_rms_norm_conformance},
    {"gated_rms_norm", gated_rms_norm_conformance},
    {"note_tokens", note_tokens_conformance},
    {"sample", sample_conformance},
    {"attention_prepare", attention_prepare_conformance},
    {"linear", linear_conformance},
    {"swiglu_mlp", mlp_conformance},
    {"moe", moe_conformance},
    {"paged_attention", paged_attention_conformance},
    {"gdn_prepare", gdn_prepare_conformance},
    {"gdn_chunked", gdn_chunked_conformance},
    {"gdn_recurrent", gdn_recurrent_conformance},
    {"copy_slots", copy_slots_conformance},
};

}  // namespace

std::span<const SuiteEntry> suites() {
  return kSuites;
}

}  // namespace quire::conformance
