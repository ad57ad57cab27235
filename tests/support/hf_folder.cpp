#include "support/hf_folder.h"

#include <cstring>
#include <fstream>
#include <map>

#include "gguf/reader.h"

namespace quire::test {

using nlohmann::json;

namespace {

// Each matrix of a stack with columns in place of rows.
HfTensor transposed(HfTensor t) {
  const size_t rows = static_cast<size_t>(t.shape[1]), cols = static_cast<size_t>(t.shape[2]);
  std::vector<bf16> values(t.values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t matrix = i / (rows * cols), row = i / cols % rows, col = i % cols;
    values[(matrix * cols + col) * rows + row] = t.values[i];
  }
  std::swap(t.shape[1], t.shape[2]);
  t.values = std::move(values);
  return t;
}

}  // namespace

std::vector<SafeTensor> safe_tensors(const TinyModel& m) {
  std::vector<SafeTensor> tensors;
  for (HfTensor t : m.hf_tensors()) {
    if (m.wrapped() && t.shape.size() == 3) t = transposed(std::move(t));
    if (m.wrapped() && t.name.starts_with("model.")) t.name.insert(6, "language_model.");
    tensors.push_back(safe_tensor(t.name, "BF16", t.shape, t.values));
  }
  return tensors;
}

std::string safetensors_file(std::string_view header, std::string_view data) {
  const uint64_t size = header.size();
  std::string file(sizeof size, '\0');
  std::memcpy(file.data(), &size, sizeof size);
  return file.append(header).append(data);
}

std::string safetensors_file(const std::vector<SafeTensor>& tensors) {
  json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const SafeTensor& t : tensors) {
    const size_t begin = data.size();
    data += t.bytes;
    header[t.name] = {{"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return safetensors_file(text, data);
}

namespace {

void add_gemma4(const TinyModel& m, json& c) {
  c.erase("hidden_act");
  c.erase("rope_theta");
  c["hidden_activation"] = "gelu_pytorch_tanh";
  c["hidden_size_per_layer_input"] = m.per_layer;
  c["vocab_size_per_layer_input"] = m.vocab;
  c["num_kv_shared_layers"] = m.shared_kv;
  c["use_double_wide_mlp"] = m.double_wide;
  c["global_head_dim"] = m.global_head_dim;
  c["final_logit_softcapping"] = m.soft_cap;
  c["use_bidirectional_attention"] = "vision";
  c["attention_k_eq_v"] = m.global_kv_heads > 0;
  if (m.global_kv_heads > 0) c["num_global_key_value_heads"] = m.global_kv_heads;
  c["enable_moe_block"] = m.experts > 0;
  const double share = 2.0 * static_cast<double>(m.rotated_pairs) / static_cast<double>(m.global_head_dim);
  c["rope_parameters"] = {
      {"full_attention",
       {{"rope_type", "proportional"}, {"rope_theta", m.rope_theta}, {"partial_rotary_factor", share}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", m.local_theta}}}};
  if (m.experts == 0) return;
  c.erase("num_experts_per_tok");
  c["top_k_experts"] = m.experts_used;
}

}  // namespace

json hf_config(const TinyModel& m) {
  const bool mixtral = m.architecture == "llama" && m.experts > 0;
  static const std::map<std::string, std::string> kClasses = {
      {"llama", "Llama"},       {"qwen2", "Qwen2"},         {"qwen3", "Qwen3"},
      {"qwen3moe", "Qwen3Moe"}, {"qwen35", "Qwen3_5"},      {"qwen35moe", "Qwen3_5Moe"},
      {"phi3", "Phi3"},         {"qwen3next", "Qwen3Next"}, {"glm4", "Glm4"},
      {"glm4moe", "Glm4Moe"},   {"gemma3", "Gemma3"},       {"gpt-oss", "GptOss"},
      {"gemma4", "Gemma4"},     {"qwen3vl", "Qwen3VL"},     {"qwen3vlmoe", "Qwen3VLMoe"}};
  const std::string class_name = mixtral ? "Mixtral" : m.mistral ? "Mistral" : kClasses.at(m.architecture);
  json c = {{"architectures", {class_name + "ForCausalLM"}},
            {"vocab_size", m.vocab},
            {"hidden_size", m.hidden},
            {"num_hidden_layers", m.layers},
            {"num_attention_heads", m.heads},
            {"num_key_value_heads", m.kv_heads},
            {"head_dim", m.head_dim},
            {"intermediate_size", m.ffn},
            {"max_position_embeddings", 2048},
            {"rms_norm_eps", m.rms_eps},
            {"rope_theta", m.rope_theta},
            {"hidden_act", "silu"},
            {"tie_word_embeddings", m.tied}};
  if (m.experts > 0 && m.gpt_oss()) {
    c["num_experts_per_tok"] = m.experts_used;
  } else if (m.experts > 0) {
    c[mixtral ? "num_local_experts" : "num_experts"] = m.experts;
    c["num_experts_per_tok"] = m.experts_used;
    if (!mixtral) c["moe_intermediate_size"] = m.expert_ffn;
    if (!mixtral) c["norm_topk_prob"] = true;
  }
  if (m.groups > 0) {
    c.erase("num_experts");
    c["n_routed_experts"] = m.experts;
    c["n_shared_experts"] = m.shared_ffn / m.expert_ffn;
    c["first_k_dense_replace"] = m.dense;
    c["n_group"] = m.groups;
    c["topk_group"] = m.used_groups;
    c["routed_scaling_factor"] = m.routed_scale;
    c["use_qk_norm"] = true;
  } else if (m.shared_ffn > 0) {
    c["shared_expert_intermediate_size"] = m.shared_ffn;
  }
  if (m.qkv_bias() && m.architecture != "qwen2") c["attention_bias"] = true;
  if (m.mistral) c["sliding_window"] = nullptr;
  if (m.n_rot > 0) c["partial_rotary_factor"] = static_cast<double>(m.n_rot) / static_cast<double>(m.head_dim);
  if (m.long_rope.original > 0) {
    c["original_max_position_embeddings"] = m.long_rope.original;
    c["rope_scaling"] = {{"type", "longrope"},
                         {"short_factor", m.short_factors()},
                         {"long_factor", m.long_factors()},
                         {"attention_factor", m.long_rope.magnitude}};
  }
  if (m.window > 0) {
    c["sliding_window"] = m.window;
    for (int64_t i = 0; i < m.layers; ++i)
      c["layer_types"].push_back(m.windowed(i) ? "sliding_attention" : "full_attention");
  }
  if (m.gemma4()) add_gemma4(m, c);
  if (m.gpt_oss()) {
    c["num_local_experts"] = m.experts;
    c["swiglu_limit"] = 7.0;
    c["rope_scaling"] = {
        {"rope_type", "yarn"}, {"factor", m.yarn.factor}, {"original_max_position_embeddings", m.yarn.original},
        {"beta_fast", 32.0},   {"beta_slow", 1.0},        {"truncate", false}};
  }
  if (m.scalar > 0) {
    c.erase("hidden_act");
    c["hidden_activation"] = "gelu_pytorch_tanh";
    c["sliding_window_pattern"] = m.window_interval;
    c["rope_local_base_freq"] = m.local_theta;
    c["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
    c["query_pre_attn_scalar"] = m.scalar;
  }
  if (m.llama3_rope)
    c["rope_scaling"] = {{"rope_type", "llama3"},
                         {"factor", 8.0},
                         {"low_freq_factor", 1.0},
                         {"high_freq_factor", 4.0},
                         {"original_max_position_embeddings", 64}};
  if (m.wrapped()) {
    c["rope_scaling"] = {{"rope_type", "default"},
                         {"mrope_interleaved", true},
                         {"mrope_section", {m.rope_sections[0], m.rope_sections[1], m.rope_sections[2]}}};
    return {{"architectures", {class_name + "ForConditionalGeneration"}},
            {"tie_word_embeddings", m.tied},
            {"text_config", std::move(c)}};
  }
  if (!m.hybrid()) return c;
  c.erase("rope_theta");
  c.erase("partial_rotary_factor");
  c["rope_parameters"] = {{"rope_theta", m.rope_theta},
                          {"rope_type", "default"},
                          {"partial_rotary_factor", static_cast<double>(m.n_rot) / static_cast<double>(m.head_dim)}};
  if (!m.rope_sections.empty())
    c["rope_parameters"]["mrope_section"] = {m.rope_sections[0], m.rope_sections[1], m.rope_sections[2]};
  c["linear_num_key_heads"] = m.k_heads;
  c["linear_num_value_heads"] = m.v_heads;
  c["linear_key_head_dim"] = m.state;
  c["linear_value_head_dim"] = m.state;
  c["linear_conv_kernel_dim"] = 4;
  c["full_attention_interval"] = m.interval;
  return c;
}

json hf_tokenizer(const TinyModel& m) {
  constexpr std::string_view kWords[] = {R"(\p{L}+)", R"([\p{L}\p{M}]+)"};
  const bool marks = m.hybrid();
  const std::string regex = fmt::format(
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?{}|\p{{N}}{}| ?[^\s\p{{L}}{}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      kWords[marks], m.architecture == "llama" ? "{1,3}" : "", marks ? R"(\p{M})" : "");
  json split = {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
  json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  json out = {{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
              {"model", {{"type", "BPE"}, {"ignore_merges", m.architecture == "llama"}}},
              {"added_tokens", json::array()}};
  if (m.architecture != "llama") out["normalizer"] = {{"type", "NFC"}};

  const TinyModelFile made(m);
  const gguf::File file = std::move(gguf::File::open(made.path())).value();
  const auto tokens = file.get_strings("tokenizer.ggml.tokens").value();
  const auto types = file.get_i32_array("tokenizer.ggml.token_type").value();
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (types[i] == 1) out["model"]["vocab"][std::string(tokens[i])] = i;
    if (types[i] == 3) out["added_tokens"].push_back({{"id", i}, {"content", tokens[i]}, {"special", true}});
  }
  const auto merges = file.get_strings("tokenizer.ggml.merges").value();
  for (const std::string_view merge : merges)
    out["model"]["merges"].push_back({merge.substr(0, merge.find(' ')), merge.substr(merge.find(' ') + 1)});
  return out;
}

HfFolder::HfFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "quire-hf-XXXXXX").string();
  folder_ = mkdtemp(pattern.data());
}

HfFolder::HfFolder(const TinyModel& m) : HfFolder() {
  write_json("config.json", hf_config(m));
  write_json("tokenizer.json", hf_tokenizer(m));
  const bool llama = m.architecture == "llama";
  json tokens = {{"eos_token", llama ? "<|end_of_text|>" : "<|im_end|>"}, {"add_bos_token", m.add_bos()}};
  if (llama)
    tokens["bos_token"] = {{"content", "<|begin_of_text|>"}};
  else
    tokens["pad_token"] = "<|endoftext|>";
  write_json("tokenizer_config.json", tokens);
  write("model.safetensors", safetensors_file(safe_tensors(m)));
}

HfFolder::~HfFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void HfFolder::write(const std::string& name, std::string_view bytes) const {
  std::ofstream(folder_ / name, std::ios::binary) << bytes;
}

}  // namespace quire::test
