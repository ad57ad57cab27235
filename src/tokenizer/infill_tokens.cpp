#include "tokenizer/infill_tokens.h"

#include <initializer_list>
#include <string_view>

namespace quire {
namespace {

struct Names {
  std::string_view prefix, suffix, middle;
};
// A row for each family of models that has such tokens. Those of one row belong together.
constexpr Names kFamilies[] = {{"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
                               {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
                               {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
                               {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},
                               {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"},
                               {"▁<PRE>", "▁<SUF>", "▁<MID>"},
                               {"<PRE>", "<SUF>", "<MID>"}};

// The first of these keys that names a token. Converters write "none" as -1, also in unsigned fields.
std::optional<TokenId> id_of(const gguf::Metadata& m, const Tokenizer& t, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    const Result<int64_t> id = m.get_i64(key);
    if (id.ok() && *id >= 0 && *id < t.size()) return static_cast<TokenId>(*id);
  }
  return std::nullopt;
}

}  // namespace

std::optional<InfillTokens> find_infill_tokens(const Tokenizer& t, const gguf::Metadata& m) {
  std::optional<TokenId> repository = id_of(m, t, {"tokenizer.ggml.fim_rep_token_id"}),
                         separator = id_of(m, t, {"tokenizer.ggml.fim_sep_token_id"});
  for (const char* name : {"<|repo_name|>", "<|fim_repo|>"})
    if (!repository) repository = t.find_token(name);
  if (!separator) separator = t.find_token("<|file_sep|>");
  const auto prefix = id_of(m, t, {"tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"}),
             suffix = id_of(m, t, {"tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"}),
             middle = id_of(m, t, {"tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"});
  if (prefix && suffix && middle) return InfillTokens{*prefix, *suffix, *middle, repository, separator};
  for (const Names& n : kFamilies) {
    const auto a = t.find_token(n.prefix), b = t.find_token(n.suffix), c = t.find_token(n.middle);
    if (a && b && c) return InfillTokens{*a, *b, *c, repository, separator};
  }
  return std::nullopt;
}

}  // namespace quire
