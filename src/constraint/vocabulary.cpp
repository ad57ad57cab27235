#include "constraint/grammar.h"
#include "tokenizer/tokenizer.h"

namespace quire {

Vocabulary vocabulary_of(const Tokenizer& tokenizer, int64_t size) {
  Vocabulary v;
  v.bytes.resize(static_cast<size_t>(size));
  for (int64_t id = 0; id < size; ++id)
    v.bytes[static_cast<size_t>(id)] = tokenizer.token_bytes(static_cast<TokenId>(id));
  for (const TokenId id : tokenizer.eog_tokens())
    if (id < size) v.ends.push_back(id);
  for (const TokenId id : v.ends) v.bytes[static_cast<size_t>(id)].clear();
  std::vector<bool> possible(static_cast<size_t>(size), true);
  for (const TokenId id : tokenizer.suppress_tokens())
    if (id < size) v.bytes[static_cast<size_t>(id)].clear(), possible[static_cast<size_t>(id)] = false;
  for (TokenId id = 0; id < size; ++id)
    if (tokenizer.is_control(id) && !tokenizer.is_eog(id) && possible[static_cast<size_t>(id)]) v.control.push_back(id);
  return v;
}

}  // namespace quire
