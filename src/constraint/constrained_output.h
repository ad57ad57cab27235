// Holds one answer to what its request demands of it: a grammar from some point on, tokens that it may have, words that
// it must not.
#pragma once

#include "constraint/grammar.h"

namespace quire {

// What a request demands. Constant; shared by the answers to it.
struct Constraint {
  std::shared_ptr<const Vocabulary> vocabulary;  // the grammar's; needed with a grammar
  std::shared_ptr<const Grammar> grammar;        // null: none
  // The grammar holds behind the first place where the answer has this text; empty: from the beginning.
  std::string after;
  // The answer is free, and `after` not looked for, until it has had this text; empty: from the beginning on.
  std::string not_before;
  // When a text of the grammar has ended by itself, the answer is free until `after` comes again. Otherwise the answer
  // ends with it.
  bool repeats = false;
  std::vector<uint32_t> allowed;                // a mask of all tokens that there may be; empty: any
  std::vector<std::vector<TokenId>> bad_words;  // tokens that must not follow one another; none is empty

  bool empty() const { return grammar == nullptr && allowed.empty() && bad_words.empty(); }
  // Whether the answer's first character is one of the grammar's text.
  bool forms_the_beginning() const { return grammar != nullptr && after.empty(); }
};

// The answer so far. Not thread-safe.
class ConstrainedOutput {
 public:
  // `words`: of a mask.
  ConstrainedOutput(std::shared_ptr<const Constraint> constraint, int64_t words);

  // Whether the next token has a mask. It depends on all tokens before it where depends() says so.
  bool masked() const {
    return matcher_ != nullptr || !constraint_->allowed.empty() || !constraint_->bad_words.empty();
  }
  // Whether masks depend on what was generated, or will: the next one can be made only when all tokens are known.
  bool depends() const { return constraint_->grammar != nullptr || !constraint_->bad_words.empty(); }

  // Whether the next mask takes no time to speak of.
  bool quick() const { return matcher_ == nullptr || matcher_->quick(); }
  // Whether that is so of masks behind tokens that are not known yet, too.
  bool stays_quick() const { return constraint_->grammar == nullptr || (constraint_->grammar->prepared() && quick()); }

  // Computes a part of what takes time; false: nothing is left.
  bool prepare_next() { return matcher_ != nullptr && matcher_->prepare_next(); }
  int64_t words() const { return words_; }  // of a mask

  // How many of these tokens may come next, one after the other: no more than lead to the next place where the grammar
  // begins or ends, or to one whose mask is not quick().
  int32_t cut(std::span<const TokenId> drafts);
  // Masks of the next token and of the one behind each draft (1 + drafts.size() of them, one after the other), where
  // masked(). The drafts passed cut(). False: no token may be next.
  bool fill(std::span<const TokenId> drafts, std::span<uint32_t> masks);
  // Bytes that come next whatever the model says; may be empty.
  std::string forced() { return matcher_ != nullptr ? matcher_->forced() : std::string(); }

  // The token is next. False: it must not be, and the answer cannot go on.
  bool commit(TokenId token);
  // The answer has ended: the grammar's text is complete and nothing may follow it.
  bool ended() const { return ended_; }
  // A text of the grammar has begun, and may end here.
  bool complete() const { return matcher_ != nullptr && matcher_->completed(); }

 private:
  std::string_view bytes_of(TokenId token) const;
  void look_for_begin(std::string_view bytes);
  const std::string& awaited() const;
  static size_t find_end(const std::string& what, std::string& tail, std::string_view bytes);
  void restrict(std::span<const TokenId> drafts, std::span<uint32_t> mask) const;

  std::shared_ptr<const Constraint> constraint_;
  int64_t words_;
  std::unique_ptr<Matcher> matcher_;  // null while the answer is free
  std::string tail_;                  // while it is: what may be the beginning of awaited()
  bool may_begin_ = false;            // Constraint::not_before has come
  std::vector<TokenId> last_;         // as many of the last tokens as bad words look back on
  size_t look_back_ = 0;
  bool ended_ = false;
};

}  // namespace quire
