// The tables of SentencePiece's BPE, made from a vocabulary with scores or merges.
#include <cmath>
#include <functional>

#include "core/utf8.h"
#include "gguf/metadata.h"
#include "tokenizer/bpe.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

// Bounds on what a file can make us compute: the tokens of real vocabularies have up to 100 bytes, and the largest
// about half a million ways to merge.
constexpr std::size_t kMaxTokenBytes = 512;
constexpr std::size_t kMaxRules = std::size_t{1} << 22;

}  // namespace

class SentencePiece::Builder {
 public:
  Builder(const Vocab& vocab, const TokenizerConfig& config, SentencePiece& out)
      : vocab_(vocab), config_(config), out_(out), next_symbol_(static_cast<Symbol>(vocab.size())) {}

  Status run() {
    out_.token_count_ = static_cast<uint32_t>(vocab_.size());
    for (TokenId id = 0; id < vocab_.size(); ++id)
      if (merges_into(id)) QUIRE_CHECKED(add_characters(id));
    out_.inner_pairs_.finish(SeededHash::seed());
    QUIRE_CHECKED(config_.merges.empty() ? read_scores() : read_merges());
    out_.rules_ = MergeRules(rules_.size());
    for (const Rule& r : rules_) out_.rules_.add(r.left, r.right, r.rank, r.result);
    return find_bytes();
  }

 private:
  struct Rule {
    Symbol left, right;
    uint32_t rank;
    Symbol result;
  };

  // Text that is no UTF-8 comes out of no merge.
  bool merges_into(TokenId id) const {
    const std::string_view text = vocab_.text(id);
    return vocab_.find_mergeable(text) == id && unicode::is_valid_utf8(text);
  }

  Status add_characters(TokenId id) {
    std::string_view text = vocab_.text(id);
    if (vocab_.type(id) == TokenType::kNormal && text.size() > kMaxTokenBytes)
      return file_error(
          "tokenizer.ggml.tokens[{}] has {} bytes; at most {} are supported in a token that text merges to", id,
          text.size(), kMaxTokenBytes);
    char32_t previous = 0;
    for (bool first = true; !text.empty(); first = false) {
      const unicode::Decoded d = unicode::decode(text);
      if (out_.symbols_.find(d.code_point) == MergeRules::kNone) {
        const auto token = vocab_.find_mergeable(text.substr(0, d.length));
        out_.symbols_.set(d.code_point, token ? static_cast<Symbol>(*token) : next_symbol_++);
      }
      if (!first) out_.inner_pairs_.add(previous, d.code_point);
      previous = d.code_point;
      text.remove_prefix(d.length);
    }
    return {};
  }

  // Of a token that text merges to, or of one character.
  Symbol symbol_of(std::string_view text) const {
    if (const auto token = vocab_.find_mergeable(text)) return static_cast<Symbol>(*token);
    const unicode::Decoded d = unicode::decode(text);
    return d.length == text.size() ? out_.symbols_.find(d.code_point) : MergeRules::kNone;
  }

  // Every way to make a token of two others, ranked by its score; equal scores have one rank. User-defined tokens are
  // no part of it: they are found before.
  Status read_scores() {
    QUIRE_TRY(const std::vector<uint32_t> ranks, score_ranks());
    for (TokenId id = 0; id < vocab_.size(); ++id) {
      if (vocab_.type(id) != TokenType::kNormal || !merges_into(id)) continue;
      const std::string_view text = vocab_.text(id);
      for (std::size_t k = unicode::decode(text).length; k < text.size(); k += unicode::decode(text.substr(k)).length) {
        const Symbol left = symbol_of(text.substr(0, k));
        if (left == MergeRules::kNone) continue;
        const Symbol right = symbol_of(text.substr(k));
        if (right == MergeRules::kNone) continue;
        rules_.push_back({left, right, ranks[static_cast<std::size_t>(id)], static_cast<Symbol>(id)});
      }
      if (rules_.size() > kMaxRules)
        return file_error("tokenizer.ggml.tokens: there are more than {} ways to merge tokens", kMaxRules);
    }
    return {};
  }

  Result<std::vector<uint32_t>> score_ranks() const {
    const auto size = static_cast<std::size_t>(vocab_.size());
    if (config_.scores.size() != size)
      return file_error("tokenizer.ggml.scores has {} entries for {} tokens", config_.scores.size(), size);
    for (std::size_t i = 0; i < size; ++i)
      if (!std::isfinite(config_.scores[i]))
        return file_error("tokenizer.ggml.scores[{}] is {}; scores are finite numbers", i, config_.scores[i]);
    std::vector<float> distinct(config_.scores.begin(), config_.scores.end());
    std::sort(distinct.begin(), distinct.end(), std::greater<>{});
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    std::vector<uint32_t> ranks(size);
    for (std::size_t i = 0; i < size; ++i) {
      const auto at = std::lower_bound(distinct.begin(), distinct.end(), config_.scores[i], std::greater<>{});
      ranks[i] = static_cast<uint32_t>(at - distinct.begin());
    }
    return ranks;
  }

  Status read_merges() {
    if (config_.merges.size() > kMaxRules)
      return file_error("tokenizer.ggml.merges has {} entries; at most {} are supported", config_.merges.size(),
                        kMaxRules);
    std::string joined;
    for (std::size_t rank = 0; rank < config_.merges.size(); ++rank) {
      const std::string_view merge = config_.merges[rank];
      const std::optional<MergeParts> parts = parse_merge(merge);
      if (!parts)
        return file_error("tokenizer.ggml.merges[{}] is {}; a merge is two texts with a space between", rank,
                          gguf::printable(merge));
      joined.assign(parts->left).append(parts->right);
      for (const std::string_view text : {parts->left, parts->right, std::string_view(joined)})
        if (!vocab_.find(text))
          return file_error("tokenizer.ggml.merges[{}] is {}, but {} is no token", rank, gguf::printable(merge),
                            gguf::printable(text));
      // Control and byte tokens are no text: nothing merges to them or goes on from them.
      const auto result = vocab_.find_mergeable(joined);
      const Symbol left = symbol_of(parts->left), right = symbol_of(parts->right);
      if (!result || left == MergeRules::kNone || right == MergeRules::kNone) continue;
      rules_.push_back({left, right, static_cast<uint32_t>(rank), static_cast<Symbol>(*result)});
    }
    return {};
  }

  Status find_bytes() {
    out_.byte_tokens_.fill(kNoToken);
    for (TokenId id = 0; id < vocab_.size(); ++id)
      if (vocab_.type(id) == TokenType::kByte && vocab_.bytes(id).size() == 1)
        out_.byte_tokens_[static_cast<uint8_t>(vocab_.bytes(id).front())] = id;
    for (int byte = 0; byte < 256; ++byte)
      if (occurs_in_utf8(byte) && out_.byte_tokens_[static_cast<std::size_t>(byte)] == kNoToken)
        return find_unknown(byte);
    return {};
  }

  // What stands for characters of which a byte (`missing`) is no token.
  Status find_unknown(int missing) {
    for (TokenId id = 0; id < vocab_.size() && !out_.unknown_; ++id)
      if (vocab_.type(id) == TokenType::kUnknown) out_.unknown_ = id;
    if (config_.unknown && vocab_.contains(*config_.unknown)) out_.unknown_ = static_cast<TokenId>(*config_.unknown);
    if (!out_.unknown_)
      return file_error(
          "tokenizer.ggml.tokens has neither a byte token <0x{:02X}> nor an unknown one: not every text could be "
          "encoded",
          missing);
    return {};
  }

  const Vocab& vocab_;
  const TokenizerConfig& config_;
  SentencePiece& out_;
  Symbol next_symbol_;
  std::vector<Rule> rules_;
};

Result<std::unique_ptr<SentencePiece>> SentencePiece::create(const Vocab& vocab, const TokenizerConfig& config) {
  auto out = std::unique_ptr<SentencePiece>(new SentencePiece());
  out->cut_at_newlines_ = config.model == "gemma4";
  out->space_prefix_ =
      config.space_prefix.value_or(config.model == "llama" ? SpacePrefix::kPrepend : SpacePrefix::kNever);
  out->remove_extra_spaces_ = config.remove_extra_spaces;
  QUIRE_CHECKED(Builder(vocab, config, *out).run());
  return out;
}

}  // namespace quire
