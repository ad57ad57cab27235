#include "tokenizer/bpe.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "gguf/metadata.h"
#include "tokenizer/byte_alphabet.h"

namespace quire {
namespace {

// Symbols of texts, by first come.
class SymbolTable {
 public:
  explicit SymbolTable(const Vocab& vocab) : vocab_(vocab), next_(static_cast<Bpe::Symbol>(vocab.size())) {}
  Bpe::Symbol intern(std::string_view text) {
    if (const auto token = vocab_.find_mergeable(text)) return static_cast<Bpe::Symbol>(*token);
    const auto [it, inserted] = others_.try_emplace(std::string(text), next_);
    if (inserted) ++next_;
    return it->second;
  }

 private:
  const Vocab& vocab_;
  Bpe::Symbol next_;
  std::unordered_map<std::string, Bpe::Symbol, SeededHash> others_;
};

}  // namespace

std::optional<MergeParts> parse_merge(std::string_view merge) {
  const std::size_t space = merge.find(' ', 1);
  if (space == std::string_view::npos || space + 1 == merge.size()) return {};
  return MergeParts{merge.substr(0, space), merge.substr(space + 1)};
}

Result<Bpe> Bpe::create(const Vocab& vocab, std::span<const std::string_view> merges, std::optional<TokenId> unknown) {
  // Two new symbols at most per merge, besides the tokens: ids must stay below MergeRules::kNone.
  if (merges.size() > (MergeRules::kNone - static_cast<uint32_t>(vocab.size())) / 4) {
    return file_error("tokenizer.ggml.merges has {} entries, more than ranks can number", merges.size());
  }
  Bpe bpe;
  bpe.token_count_ = static_cast<uint32_t>(vocab.size());
  QUIRE_CHECKED(bpe.find_byte_symbols(vocab, unknown));
  bpe.rules_ = MergeRules(merges.size());
  const ByteAlphabet& alphabet = ByteAlphabet::get();
  SymbolTable symbols(vocab);
  std::string joined;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::optional<MergeParts> parts = parse_merge(merges[rank]);
    if (!parts) {
      return file_error("tokenizer.ggml.merges[{}] is {}; a merge is two texts with a space between", rank,
                        gguf::printable(merges[rank]));
    }
    joined.assign(parts->left).append(parts->right);
    if (!alphabet.decode(joined)) {
      return file_error("tokenizer.ggml.merges[{}] is {}, which is not written in the byte alphabet", rank,
                        gguf::printable(merges[rank]));
    }
    const Bpe::Symbol left = symbols.intern(parts->left), right = symbols.intern(parts->right);
    bpe.rules_.add(left, right, static_cast<uint32_t>(rank), symbols.intern(joined));
  }
  return bpe;
}

Status Bpe::find_byte_symbols(const Vocab& vocab, std::optional<TokenId> unknown) {
  const Symbol otherwise = unknown ? static_cast<Symbol>(*unknown) : MergeRules::kNone;
  bool any = false;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string_view letter = ByteAlphabet::get().letter(static_cast<uint8_t>(byte));
    const std::optional<TokenId> id = vocab.find_mergeable(letter);
    byte_symbols_[static_cast<std::size_t>(byte)] = id ? static_cast<Symbol>(*id) : otherwise;
    any = any || id;
    whole_ = whole_ && (id || unknown || !occurs_in_utf8(byte));
  }
  if (any) return {};
  return file_error(
      "tokenizer.ggml.tokens has no normal token for any byte ('!' for 0x21): no text could be encoded; convert the "
      "model again with a current converter");
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const {
  std::string kept;
  if (!whole_ && std::any_of(word.begin(), word.end(), [this](char c) { return leaves_out(c); })) {
    std::copy_if(word.begin(), word.end(), std::back_inserter(kept), [this](char c) { return !leaves_out(c); });
    if (kept.empty()) return;
    word = kept;
  }
  const auto n = static_cast<uint32_t>(word.size());
  auto& nodes = scratch.nodes;
  scratch.reset(n);
  for (uint32_t i = 0; i < n; ++i) nodes[i].symbol = byte_symbols_[static_cast<uint8_t>(word[i])];
  rules_.apply(scratch);

  for (uint32_t i = 0; i != MergeRules::kNone; i = nodes[i].next) {
    if (nodes[i].symbol < token_count_) {
      out.push_back(static_cast<TokenId>(nodes[i].symbol));
      continue;
    }
    const uint32_t end = nodes[i].next == MergeRules::kNone ? n : nodes[i].next;
    for (uint32_t b = i; b < end; ++b) {
      out.push_back(static_cast<TokenId>(byte_symbols_[static_cast<uint8_t>(word[b])]));
    }
  }
}

}  // namespace quire
