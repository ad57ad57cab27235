// Finding special tokens in raw text, before it is normalised and split into words.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "core/id.h"
#include "tokenizer/aho_corasick.h"

namespace quire {

struct SpecialToken {
  std::string_view text;  // not empty, distinct; read only by the constructor
  TokenId id;
};

// The special tokens of a vocabulary, made ready to be searched for. Immutable: any number of threads may search.
class SpecialTokenFinder {
 public:
  SpecialTokenFinder() = default;
  explicit SpecialTokenFinder(std::vector<SpecialToken> tokens);

 private:
  friend class SpecialTokenSearch;
  AhoCorasick automaton_;
  std::vector<TokenId> ids_;     // by pattern
  std::size_t total_bytes_ = 0;  // of all texts
};

// Cuts one text into special tokens and the text between them, from left to right.
//
// Longest first, not leftmost first: a longer token wins over a shorter one that it overlaps, wherever it stands. Equal
// lengths: the lower id first; equal tokens: from the left.
//
// The text is searched window by window, so that the memory for it depends on the tokens alone: 20 bytes for each byte
// of a window, which has 4 KiB or four times the bytes of all tokens. What lies so far to the right of a token that
// nothing there can decide about it is in a later window: a token gives way to one that reaches further right only if
// that is longer, or as long with a lower id, and so does that one in its turn. Each token can come only once in such a
// chain, which therefore reaches no further than all tokens laid end to end.
class SpecialTokenSearch {
 public:
  // A special token, or (token < 0) ordinary text. Pieces tile the text; none is empty.
  struct Piece {
    std::size_t begin, end;
    TokenId token;
  };

  // Both must outlive this; the text has less than 2^32 bytes.
  SpecialTokenSearch(const SpecialTokenFinder& finder, std::string_view text);

  // The next piece; nothing at the end.
  std::optional<Piece> next();

  // Bytes that were looked at and candidates that were weighed so far: at most 3 (1 + log2(window)) for each byte.
  std::size_t steps() const { return steps_; }
  std::size_t window_bytes() const { return window_bytes_; }

 private:
  // The longest token that ends at `end` and may still fit. At most one of each end stands in the queue.
  struct Candidate {
    uint32_t length;
    TokenId id;
    uint32_t end;  // within the window
    AhoCorasick::State state;
  };
  struct ComesLater;

  void search_window();
  void find_candidates(std::string_view window);
  void take_candidates(std::string_view window);
  bool add(AhoCorasick::State state, std::size_t end, std::size_t max_length);

  const SpecialTokenFinder& finder_;
  std::string_view text_;
  std::size_t window_bytes_;
  std::size_t at_ = 0;         // pieces up to here were handed out
  std::size_t settled_ = 0;    // the special tokens up to here are known
  std::vector<Piece> tokens_;  // of the last window, those that are certain; handed out up to next_
  std::size_t next_ = 0;
  std::vector<Candidate> candidates_;  // a heap
  std::vector<uint32_t> taken_end_;    // for each byte of the window: end of the token over it, or 0
  std::size_t steps_ = 0;
};

}  // namespace quire
