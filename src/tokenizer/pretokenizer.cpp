#include "tokenizer/pretokenizer.h"

#include <string>

#include "gguf/metadata.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

// The names that conversion scripts write, by behaviour. NFC is on where the original tokenizer is known to
// be Qwen's.
constexpr Pretokenizer kPretokenizers[] = {
    // name            splitter            nfc    bos    ignore_merges
    {"gpt-2", Splitter::kGpt2, false, false, false},
    {"phi-2", Splitter::kGpt2, false, false, false},
    {"jina-es", Splitter::kGpt2, false, false, false},
    {"jina-de", Splitter::kGpt2, false, false, false},
    {"jina-v2-es", Splitter::kGpt2, false, false, false},
    {"jina-v2-de", Splitter::kGpt2, false, false, false},
    {"gigachat", Splitter::kGpt2, false, false, false},
    {"a.x-4.0", Splitter::kGpt2, false, false, false},
    {"mellum", Splitter::kGpt2, false, false, false},
    {"modern-bert", Splitter::kGpt2, false, false, false},
    {"mpt", Splitter::kGpt2, false, false, false},
    {"olmo", Splitter::kGpt2, false, false, false},
    {"jais", Splitter::kGpt2, false, false, false},
    {"trillion", Splitter::kGpt2, false, false, false},
    {"granite-docling", Splitter::kGpt2, false, false, false},
    {"smollm", Splitter::kGpt2Digits, false, false, false},
    {"starcoder", Splitter::kGpt2Digits, false, false, false},
    {"refact", Splitter::kGpt2Digits, false, false, false},
    {"llama-bpe", Splitter::kLlama3, false, true, true},
    {"llama3", Splitter::kLlama3, false, true, true},
    {"llama-v3", Splitter::kLlama3, false, true, true},
    {"falcon3", Splitter::kLlama3, false, true, true},
    {"falcon-h1", Splitter::kLlama3, false, true, true},
    {"pixtral", Splitter::kLlama3, false, true, true},
    {"midm-2.0", Splitter::kLlama3, false, true, true},
    {"lfm2", Splitter::kLlama3, false, true, true},
    {"jina-v5-nano", Splitter::kLlama3, false, true, true},
    {"smaug-bpe", Splitter::kLlama3, false, false, false},
    {"dbrx", Splitter::kLlama3, false, false, false},
    {"glm4", Splitter::kLlama3, false, false, false},
    {"chatglm-bpe", Splitter::kLlama3, false, false, false},
    {"qwen2", Splitter::kQwen2, true, false, false},
    {"deepseek-r1-qwen", Splitter::kQwen2, true, false, false},
    {"kormo", Splitter::kQwen2, false, false, false},
    {"f2llmv2", Splitter::kQwen2, false, false, false},
    {"megrez", Splitter::kQwen2, false, false, false},
    {"stablelm2", Splitter::kQwen2, false, false, false},
    {"hunyuan", Splitter::kQwen2, false, false, false},
    {"solar-open", Splitter::kQwen2, false, false, false},
    {"grok-2", Splitter::kQwen2, false, false, false},
    {"qwen35", Splitter::kQwen35, true, false, false},
    {"gpt-4o", Splitter::kGpt4o, false, false, false},
    {"tekken", Splitter::kTekken, false, true, true},
};

bool is_newline(char32_t c) {
  return c == U'\r' || c == U'\n';
}
// Simple case folding (Unicode's CaseFolding.txt) as far as it ends in a letter of a contraction.
char32_t folded(char32_t c) {
  if (c == U'\u017F') return U's';  // the long s
  return c >= U'A' && c <= U'Z' ? c + 32 : c;
}

// Length of an English contraction ('s 't 're 've 'm 'll 'd) at `i`, or 0.
std::size_t contraction(std::u32string_view text, std::size_t i, bool any_case) {
  if (text[i] != U'\'' || i + 1 >= text.size()) return 0;
  const auto at = [&](std::size_t k) { return any_case ? folded(text[k]) : text[k]; };
  const char32_t a = at(i + 1);
  if (a == U's' || a == U't' || a == U'm' || a == U'd') return 2;
  if (i + 2 >= text.size()) return 0;
  const char32_t b = at(i + 2);
  return (a == U'r' && b == U'e') || (a == U'v' && b == U'e') || (a == U'l' && b == U'l') ? 3 : 0;
}

struct Scanner {
  std::u32string_view text;
  const unicode::ClassTable& classes;
  uint8_t word_bits;  // classes that make up words

  bool in(std::size_t i, uint8_t bits) const { return i < text.size() && (classes[text[i]] & bits) != 0; }
  bool word(std::size_t i) const { return in(i, word_bits); }
  bool number(std::size_t i) const { return in(i, unicode::kNumber); }
  bool space(std::size_t i) const { return in(i, unicode::kSpace); }
  bool other(std::size_t i) const {
    return i < text.size() && (classes[text[i]] & (word_bits | unicode::kNumber | unicode::kSpace)) == 0;
  }
  bool newline(std::size_t i) const { return i < text.size() && is_newline(text[i]); }

  template <class Predicate>
  std::size_t skip(std::size_t i, Predicate predicate) const {
    while (predicate(i)) ++i;
    return i;
  }
  std::size_t skip_word(std::size_t i) const {
    return skip(i, [this](std::size_t k) { return word(k); });
  }
  std::size_t skip_number(std::size_t i) const {
    return skip(i, [this](std::size_t k) { return number(k); });
  }
  std::size_t skip_other(std::size_t i) const {
    return skip(i, [this](std::size_t k) { return other(k); });
  }
  std::size_t skip_newlines(std::size_t i) const {
    return skip(i, [this](std::size_t k) { return newline(k); });
  }

  // \s+(?!\S)|\s+ : a run leaves its last character to the word after it, unless it is that character alone.
  std::size_t spaces_end(std::size_t begin, std::size_t run_end) const {
    return run_end < text.size() && run_end - begin > 1 ? run_end - 1 : run_end;
  }

  std::size_t gpt2(std::size_t i) const {
    if (const std::size_t n = contraction(text, i, false)) return i + n;
    const std::size_t k = i + (text[i] == U' ');
    if (word(k)) return skip_word(k);
    if (number(k)) return skip_number(k);
    if (other(k)) return skip_other(k);
    return spaces_end(i, skip(i, [this](std::size_t s) { return space(s); }));
  }

  // A digit ends what is before it as the end of a text does: a run of spaces leaves none to it.
  std::size_t gpt2_digits(std::size_t i) const {
    if (number(i)) return i + 1;
    const std::size_t run_end = skip(i, [this](std::size_t s) { return space(s); });
    return number(run_end) ? run_end : gpt2(i);
  }

  std::size_t llama3(std::size_t i, std::size_t max_digits) const {
    if (const std::size_t n = contraction(text, i, true)) return i + n;
    if (!newline(i) && !number(i) && (word(i) || word(i + 1))) return skip_word(i + 1);
    if (number(i)) {
      std::size_t end = i + 1;
      while (end < i + max_digits && number(end)) ++end;
      return end;
    }
    const std::size_t k = i + (text[i] == U' ');
    if (other(k)) return skip_newlines(skip_other(k));
    return blank(i);
  }

  // \s*[\r\n]+|\s+(?!\S)|\s+
  std::size_t blank(std::size_t i) const {
    std::size_t run_end = i;
    std::size_t after_newline = i;  // past the last line break of the run
    for (; space(run_end); ++run_end) {
      if (newline(run_end)) after_newline = run_end + 1;
    }
    return after_newline > i ? after_newline : spaces_end(i, run_end);
  }

  // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and [\p{Ll}\p{Lm}\p{Lo}\p{M}]: they share what has no case.
  bool not_lower(std::size_t i) const { return in(i, unicode::kLetter | unicode::kMark) && !in(i, unicode::kLower); }
  bool not_upper(std::size_t i) const { return in(i, unicode::kLetter | unicode::kMark) && !in(i, unicode::kUpper); }
  // The end of a word of capitals, then small letters, of which there is at least one (or one without a case); 0: there
  // is no such word.
  std::size_t word_with_small(std::size_t i) const {
    const std::size_t small = skip(i, [this](std::size_t k) { return not_lower(k); });
    if (not_upper(small)) return skip(small, [this](std::size_t k) { return not_upper(k); });
    // The expression gives back capitals until one of them is no capital after all.
    for (std::size_t k = small; k > i; --k)
      if (not_upper(k - 1)) return k;
    return 0;
  }
  // Capitals alone.
  std::size_t word_of_capitals(std::size_t i) const {
    const std::size_t end = skip(i, [this](std::size_t k) { return not_lower(k); });
    return end > i ? end : 0;
  }
  std::size_t cased_word(std::size_t i) const {
    const bool prefix = !newline(i) && !in(i, unicode::kLetter | unicode::kNumber);
    std::size_t end = prefix ? word_with_small(i + 1) : 0;
    if (end == 0) end = word_with_small(i);
    if (end == 0 && prefix) end = word_of_capitals(i + 1);
    return end != 0 ? end : word_of_capitals(i);
  }
  std::size_t gpt4o(std::size_t i, std::size_t max_digits, bool contractions) const {
    if (const std::size_t end = cased_word(i); end != 0)
      return end + (contractions && end < text.size() ? contraction(text, end, true) : 0);
    if (number(i)) {
      std::size_t end = i + 1;
      while (end < i + max_digits && number(end)) ++end;
      return end;
    }
    const std::size_t k = i + (text[i] == U' ');
    if (other(k)) return skip(skip_other(k), [this](std::size_t n) { return newline(n) || slash(n); });
    return blank(i);
  }
  bool slash(std::size_t i) const { return i < text.size() && text[i] == U'/'; }
};

}  // namespace

Result<Pretokenizer> find_pretokenizer(std::string_view name) {
  std::string known;
  for (const Pretokenizer& p : kPretokenizers) {
    if (p.name == name) return p;
    known.append(known.empty() ? "" : ", ").append(p.name);
  }
  return file_error("tokenizer.ggml.pre is {}, a pre-tokenizer that Quire does not know; it knows {}",
                    gguf::printable(name), known);
}

std::size_t word_end(Splitter splitter, std::u32string_view text, std::size_t begin) {
  const uint8_t word_bits = splitter == Splitter::kQwen35 ? unicode::kLetter | unicode::kMark : unicode::kLetter;
  const Scanner scanner{text, unicode::ClassTable::get(), word_bits};
  switch (splitter) {
    case Splitter::kGpt2:
      return scanner.gpt2(begin);
    case Splitter::kGpt2Digits:
      return scanner.gpt2_digits(begin);
    case Splitter::kLlama3:
      return scanner.llama3(begin, 3);
    case Splitter::kQwen2:
    case Splitter::kQwen35:
      return scanner.llama3(begin, 1);
    case Splitter::kGpt4o:
      return scanner.gpt4o(begin, 3, true);
    case Splitter::kTekken:
      return scanner.gpt4o(begin, 1, false);
  }
  return text.size();
}

}  // namespace quire
