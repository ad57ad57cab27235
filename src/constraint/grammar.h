// Grammars that hold a text to a form. What compiles them is chosen when the program is built: without XGrammar there
// is none, and whoever asks for a grammar is told so.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/id.h"
#include "core/mask_words.h"
#include "core/result.h"

namespace quire {

class Tokenizer;

enum class GrammarKind {
  kJsonObject,     // any JSON object; the text is empty
  kJsonSchema,     // the text is a JSON schema
  kRegex,          // a regular expression, which the whole text matches
  kEbnf,           // rules NAME ::= ..., beginning at "root", as llama.cpp's GBNF writes them
  kStructuralTag,  // XGrammar's JSON for texts with parts of given forms
};

// "the JSON schema", as messages name it.
std::string_view describe(GrammarKind kind);

// What a text must be. Equal ones are compiled once (GrammarCache).
struct GrammarSpec {
  GrammarKind kind = GrammarKind::kJsonObject;
  std::string text;
  // A text that is complete ends there; otherwise it ends with a token that ends the answer.
  bool ends_itself = false;
  auto operator<=>(const GrammarSpec&) const = default;
};

// What a token stands for, as grammars see it.
struct Vocabulary {
  std::vector<std::string> bytes;  // by id; empty: the token belongs to no text (control tokens, ids without a token)
  std::vector<TokenId> ends;       // tokens that end an answer: allowed where a text is complete
  std::vector<TokenId> control;    // other control tokens: structural tags name them by id, and no text spells them
};
// `size`: ids that logits have, which may be more than the tokenizer knows.
Vocabulary vocabulary_of(const Tokenizer& tokenizer, int64_t size);

// Where one text stands in its grammar. Not thread-safe; several of a grammar are independent. What cannot be answered
// within a fixed amount of work (a grammar with very many readings of the same text) counts as refused.
class Matcher {
 public:
  virtual ~Matcher() = default;
  // The text goes on with this token; false: it must not, and nothing has changed. After ended(): false.
  virtual bool accept(TokenId token) = 0;
  // The same for bytes, which count as one token for rollback().
  virtual bool accept_bytes(std::string_view bytes) = 0;
  // Writes which tokens may follow; false: none.
  virtual bool fill(std::span<uint32_t> mask) = 0;
  // Takes back the last tokens.
  virtual void rollback(int count) = 0;
  // The text may end here.
  virtual bool completed() const = 0;
  // The text has ended: with a token that ends an answer, or by itself (GrammarSpec::ends_itself).
  virtual bool ended() const = 0;
  // Bytes that every continuation begins with; may be empty.
  virtual std::string forced() = 0;
  // Whether fill() takes no time to speak of: what it needs of the grammar is known, and the last calls were quick.
  virtual bool quick() const = 0;
  // Computes a part of what the next fill() lacks of the grammar; false: it lacks nothing.
  virtual bool prepare_next() = 0;
};

// A compiled grammar. Constant: any thread.
class Grammar {
 public:
  virtual ~Grammar() = default;
  virtual std::unique_ptr<Matcher> begin() const = 0;
  // Computes ahead of time what matchers would compute when they come to need it, until `stop` says so.
  virtual void prepare(const std::function<bool()>& stop) const = 0;
  virtual bool prepared() const = 0;  // all of that is known
  // Of memory, now: with the masks that its texts came to need. Takes no time to speak of.
  virtual int64_t bytes() const = 0;
  // What of the specification is not enforced, in the words of the library that compiled it.
  virtual const std::vector<std::string>& unenforced() const = 0;
  // The grammar with the masks that are known, for GrammarCompiler::from_bytes() of the same program on this machine.
  virtual std::string to_bytes() const = 0;
};

// How much compiling one grammar may take. The amount of work is counted, so that the same grammar is refused on every
// machine; some 100 bytes of memory belong to each unit.
struct CompileLimits {
  int64_t work = 8'000'000;
  std::chrono::milliseconds time{5000};
  // Bytes, of a process that compiles it (CompilePool); elsewhere there is no such limit.
  int64_t memory = int64_t{512} << 20;
};

// Compiles grammars for one vocabulary. Any thread.
class GrammarCompiler {
 public:
  virtual ~GrammarCompiler() = default;
  // Errors (Fault::kRequest): the text is no such grammar, or takes more than the limits.
  virtual Result<std::shared_ptr<const Grammar>> compile(const GrammarSpec& spec,
                                                         const CompileLimits& limits) const = 0;
  // The grammar that Grammar::to_bytes() of a compiler with the same vocabulary wrote. Errors (Fault::kBug): it is
  // none.
  virtual Result<std::shared_ptr<const Grammar>> from_bytes(std::string_view bytes) const = 0;
  virtual int64_t shared_bytes() const = 0;  // of the masks that it keeps for other grammars, now
};

// Whether this program can compile grammars.
bool has_grammars();
// Null without has_grammars(). Takes some 100 ms for a large vocabulary. Masks of rules that grammars have in common
// are kept for the next one that has them, up to `most_shared_bytes`.
std::unique_ptr<GrammarCompiler> make_grammar_compiler(const Vocabulary& vocabulary,
                                                       int64_t most_shared_bytes = int64_t{64} << 20);

}  // namespace quire
