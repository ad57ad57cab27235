#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>

#include "gguf/metadata.h"
#include "tokenizer/byte_alphabet.h"

namespace quire {
namespace {

// Words up to this many bytes scan for the best pair: below it that beats keeping a heap.
constexpr std::size_t kShortWord = 48;

// C0, C1 and F5..FF occur in no valid UTF-8, and text is made valid before it gets here.
bool occurs_in_utf8(int byte) {
  return byte < 0xC0 || (byte >= 0xC2 && byte <= 0xF4);
}

struct MergeParts {
  std::string_view left, right;
};

// "left right", cut at the first space that is not the first character.
std::optional<MergeParts> parse_merge(std::string_view merge) {
  const std::size_t space = merge.find(' ', 1);
  if (space == std::string_view::npos || space + 1 == merge.size()) return {};
  return MergeParts{merge.substr(0, space), merge.substr(space + 1)};
}

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

Result<Bpe> Bpe::create(const Vocab& vocab, std::span<const std::string_view> merges) {
  // Two new symbols at most per merge, besides the tokens: ids must stay below kNone.
  if (merges.size() > (kNone - static_cast<uint32_t>(vocab.size())) / 4) {
    return file_error("tokenizer.ggml.merges has {} entries, more than ranks can number", merges.size());
  }
  Bpe bpe;
  bpe.token_count_ = static_cast<uint32_t>(vocab.size());
  bpe.seed_ = SeededHash::seed() | 1;
  QUIRE_CHECKED(bpe.find_byte_symbols(vocab));
  bpe.rules_.resize(std::bit_ceil(2 * merges.size() + 2));
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
    const uint64_t pair = uint64_t{symbols.intern(parts->left)} << 32 | symbols.intern(parts->right);
    bpe.add_rule(pair, static_cast<uint32_t>(rank), symbols.intern(joined));
  }
  return bpe;
}

Status Bpe::find_byte_symbols(const Vocab& vocab) {
  byte_symbols_.fill(0);
  for (int byte = 0; byte < 256; ++byte) {
    const std::string_view letter = ByteAlphabet::get().letter(static_cast<uint8_t>(byte));
    const std::optional<TokenId> id = vocab.find_mergeable(letter);
    if (id) {
      byte_symbols_[static_cast<std::size_t>(byte)] = static_cast<Symbol>(*id);
    } else if (occurs_in_utf8(byte)) {
      return file_error(
          "tokenizer.ggml.tokens has no normal token '{}' for the byte 0x{:02X}: not every text could be "
          "encoded",
          letter, byte);
    }
  }
  return {};
}

// Multiplicative hashing by a random odd number: which pairs collide cannot be known when a file is made.
std::size_t Bpe::slot(uint64_t pair) const {
  const auto product = static_cast<unsigned __int128>(pair ^ seed_) * (seed_ * 0x9E3779B97F4A7C15u | 1);
  return (static_cast<uint64_t>(product >> 64) ^ static_cast<uint64_t>(product)) & (rules_.size() - 1);
}

void Bpe::add_rule(uint64_t pair, uint32_t rank, Symbol result) {
  for (std::size_t i = slot(pair);; i = (i + 1) & (rules_.size() - 1)) {
    if (rules_[i].pair == pair) return;  // a repeated pair keeps its first rank
    if (rules_[i].rank == kNone) {
      rules_[i] = {pair, rank, result};
      return;
    }
  }
}

const Bpe::Rule* Bpe::find_rule(Symbol left, Symbol right) const {
  const uint64_t pair = uint64_t{left} << 32 | right;
  for (std::size_t i = slot(pair); rules_[i].rank != kNone; i = (i + 1) & (rules_.size() - 1)) {
    if (rules_[i].pair == pair) return &rules_[i];
  }
  return nullptr;
}

void Bpe::update_pair(Scratch& scratch, uint32_t left, bool queued) const {
  auto& node = scratch.nodes[left];
  node.pair_rank = kNone;
  if (node.next == kNone) return;
  const Rule* rule = find_rule(node.symbol, scratch.nodes[node.next].symbol);
  if (rule == nullptr) return;
  node.pair_rank = rule->rank;
  node.pair_result = rule->result;
  if (!queued) return;
  scratch.queue.push_back(uint64_t{rule->rank} << 32 | left);
  std::push_heap(scratch.queue.begin(), scratch.queue.end(), std::greater<>{});
}

// The right neighbour goes into `left`. Two pairs change: the one that ends in `left` and the one that begins
// there.
void Bpe::merge_with_next(Scratch& scratch, uint32_t left, bool queued) const {
  auto& nodes = scratch.nodes;
  const uint32_t gone = nodes[left].next;
  nodes[left].symbol = nodes[left].pair_result;
  nodes[left].next = nodes[gone].next;
  if (nodes[left].next != kNone) nodes[nodes[left].next].previous = left;
  nodes[gone].pair_rank = kNone;  // makes its queue entry stale
  update_pair(scratch, left, queued);
  if (nodes[left].previous != kNone) update_pair(scratch, nodes[left].previous, queued);
}

void Bpe::merge_short(Scratch& scratch) const {
  const auto& nodes = scratch.nodes;
  while (true) {
    uint32_t best = 0;
    for (uint32_t i = 0; i != kNone; i = nodes[i].next) {
      if (nodes[i].pair_rank < nodes[best].pair_rank) best = i;
    }
    if (nodes[best].pair_rank == kNone) return;
    merge_with_next(scratch, best, false);
  }
}

void Bpe::merge_long(Scratch& scratch) const {
  auto& queue = scratch.queue;
  queue.clear();
  for (uint32_t i = 0; i < scratch.nodes.size(); ++i) {
    if (scratch.nodes[i].pair_rank != kNone) queue.push_back(uint64_t{scratch.nodes[i].pair_rank} << 32 | i);
  }
  std::make_heap(queue.begin(), queue.end(), std::greater<>{});
  while (!queue.empty()) {
    const auto rank = static_cast<uint32_t>(queue.front() >> 32);
    const auto left = static_cast<uint32_t>(queue.front());
    std::pop_heap(queue.begin(), queue.end(), std::greater<>{});
    queue.pop_back();
    // An entry is stale when the pair at `left` changed since. (Equal ranks are equal pairs: then it holds
    // after all.)
    if (scratch.nodes[left].pair_rank == rank) merge_with_next(scratch, left, true);
  }
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const {
  const auto n = static_cast<uint32_t>(word.size());
  auto& nodes = scratch.nodes;
  nodes.resize(n);
  for (uint32_t i = 0; i < n; ++i) {
    nodes[i] = {byte_symbols_[static_cast<uint8_t>(word[i])], i - 1, i + 1 < n ? i + 1 : kNone, kNone, 0};
  }
  static_assert(uint32_t{0} - 1 == kNone, "the first node has no previous one");
  for (uint32_t i = 0; i < n; ++i) update_pair(scratch, i, false);
  word.size() <= kShortWord ? merge_short(scratch) : merge_long(scratch);

  for (uint32_t i = 0; i != kNone; i = nodes[i].next) {
    if (nodes[i].symbol < token_count_) {
      out.push_back(static_cast<TokenId>(nodes[i].symbol));
      continue;
    }
    const uint32_t end = nodes[i].next == kNone ? n : nodes[i].next;
    for (uint32_t b = i; b < end; ++b) {
      out.push_back(static_cast<TokenId>(byte_symbols_[static_cast<uint8_t>(word[b])]));
    }
  }
}

}  // namespace quire
