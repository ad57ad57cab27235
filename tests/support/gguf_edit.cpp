#include "support/gguf_edit.h"

#include "gguf/reader.h"

namespace quire::test {
namespace {

void require(const Status& s, const std::string& what) {
  QUIRE_CHECK(s.ok(), "{}: {}", what, s.error().message);
}

}  // namespace

void edit_gguf(const std::string& from, const std::string& to, const GgufEdit& edit) {
  const gguf::File in = std::move(gguf::File::open(from)).value();
  gguf::Writer w;
  for (const gguf::Metadata::Entry& e : in.entries())
    if (!edit.drop.contains(std::string(e.key))) w.add_value(e.key, e.value);
  if (edit.metadata) edit.metadata(w);

  std::vector<std::vector<std::byte>> payloads;
  const auto declare = [&](const std::string& name, DType dtype, const std::vector<int64_t>& dims,
                           const std::byte* data) {
    require(w.add_tensor(name, dtype, dims), name);
    int64_t elems = 1;
    for (const int64_t d : dims) elems *= d;
    const int64_t bytes = dtype_bytes(dtype, elems);
    payloads.emplace_back(static_cast<size_t>(bytes));
    if (data != nullptr) std::copy(data, data + bytes, payloads.back().begin());
  };
  for (const gguf::TensorInfo& t : in.tensors()) {
    const std::string name(t.name);
    if (edit.drop.contains(name)) continue;
    const auto shape = edit.reshape.find(name);
    const std::vector<int64_t> dims(t.dims.begin(), t.dims.begin() + t.n_dims);
    declare(name, t.dtype, shape == edit.reshape.end() ? dims : shape->second, t.data);
  }
  for (const auto& [tensor, name] : edit.copy) {
    const gguf::TensorInfo* t = in.find_tensor(tensor);
    QUIRE_CHECK(t != nullptr, "no tensor {}", tensor);
    declare(name, t->dtype, {t->dims.begin(), t->dims.begin() + t->n_dims}, t->data);
  }
  for (const GgufEdit::Tensor& t : edit.tensors) declare(t.name, t.dtype, t.dims, t.data.data());
  for (const auto& [name, dims] : edit.add) declare(name, DType::kF32, dims, nullptr);
  require(w.open(to), to);
  for (const std::vector<std::byte>& p : payloads) require(w.write_tensor(p), to);
  require(w.finish(), to);
}

GgufEdit with_mtp_block(uint32_t blocks) {
  GgufEdit e{.drop = {"qwen35.block_count"}, .metadata = [blocks](gguf::Writer& w) {
               w.add("qwen35.block_count", 4 + blocks);
               w.add("qwen35.nextn_predict_layers", blocks);
             }};
  for (const char* t : {"attn_norm", "post_attention_norm", "attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm",
                        "attn_k_norm", "ffn_gate", "ffn_up", "ffn_down"})
    e.copy.emplace_back(fmt::format("blk.1.{}.weight", t), fmt::format("blk.4.{}.weight", t));
  e.add = {{"blk.4.nextn.eh_proj.weight", {128, 64}},
           {"blk.4.nextn.enorm.weight", {64}},
           {"blk.4.nextn.hnorm.weight", {64}},
           {"blk.4.nextn.shared_head_norm.weight", {64}}};
  return e;
}

}  // namespace quire::test
