// Splitting text into words before BPE. Each splitter is defined by a regular expression in the model's own
// tokenizer; here it is a scanner that finds the same words in one pass (compared with PCRE2 in the tests).
#pragma once

#include <cstddef>
#include <string_view>

#include "core/result.h"

namespace quire {

enum class Splitter {
  // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kGpt2,
  // \p{N} alone, and what lies between by kGpt2, as if it ended there: SmolLM's.
  kGpt2Digits,
  // (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
  // ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+        (?i:) has the long s, U+017F, for an s as well
  kLlama3,
  // As kLlama3 with \p{N}: one digit at a time.
  kQwen2,
  // As kQwen2 with [\p{L}\p{M}] for \p{L}: combining marks belong to words.
  kQwen35,
  // [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+C|
  // [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*C|\p{N}{1,3}|
  //  ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+        C is (?i:'s|'t|'re|'ve|'m|'ll|'d)?
  kGpt4o,
  // As kGpt4o without C, and one digit at a time.
  kTekken,
};

// What `tokenizer.ggml.pre` stands for.
struct Pretokenizer {
  std::string_view name;
  Splitter splitter;
  bool nfc;            // text between special tokens is normalised first, as the model's own tokenizer does
  bool add_bos;        // default of tokenizer.ggml.add_bos_token
  bool ignore_merges;  // a word that is a token is that token, whatever the merges would make of it
};

// An unknown name is an error that lists the known ones.
Result<Pretokenizer> find_pretokenizer(std::string_view name);

// The end of the word that begins at `begin` (< text.size()); words are never empty and tile the text. `text`
// ends where a special token begins. Walking over all words reads each code point a bounded number of times.
std::size_t word_end(Splitter splitter, std::u32string_view text, std::size_t begin);

}  // namespace quire
