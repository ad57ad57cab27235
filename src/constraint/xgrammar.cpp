// The one file that knows XGrammar. What it throws ends here.
#include "constraint/grammar.h"

#ifdef QUIRE_HAVE_XGRAMMAR

#include <dlpack/dlpack.h>
#include <xgrammar/work_limit.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "constraint/lark.h"
#include "constraint/pattern_reader.h"

namespace quire {
namespace {

// What the library logs while this thread compiles.
thread_local std::vector<std::string>* t_warnings = nullptr;

}  // namespace
}  // namespace quire

// XGRAMMAR_LOG_CUSTOMIZE: the library's messages come here.
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& /*file*/, int /*line*/, const std::string& message);
void LogMessageImpl(const std::string& /*file*/, int /*line*/, int /*level*/, const std::string& message);

void LogFatalImpl(const std::string& /*file*/, int /*line*/, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string& /*file*/, int /*line*/, int level, const std::string& message) {
  constexpr int kWarning = 2;
  constexpr size_t kMost = 16;
  if (level < kWarning || quire::t_warnings == nullptr) return;
  std::vector<std::string>& all = *quire::t_warnings;
  if (all.size() < kMost && std::find(all.begin(), all.end(), message) == all.end()) all.push_back(message);
}

}  // namespace xgrammar

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

// Of one call of a matcher, masks of states that nobody came to before aside: those have a limit of their own
// (cmake/xgrammar.patch). Neither has one of time: a busy machine would end an answer that an idle one goes on with.
constexpr int64_t kMatcherWork = 1'000'000;
// A matcher whose calls take more is not quick any more. About a millisecond.
constexpr int64_t kQuickWork = 10'000;
// White space between two parts of a JSON text: up to two line breaks (cmake/xgrammar.patch), and so many blanks behind
// them. A model that likes nothing else would go on for ever.
constexpr int kMostBlanks = 20;

class XgrammarMatcher final : public Matcher {
 public:
  XgrammarMatcher(const xgrammar::CompiledGrammar& grammar, bool ends_itself)
      : matcher_(grammar, std::nullopt, ends_itself), words_(mask_words(grammar.GetTokenizerInfo().GetVocabSize())) {}

  bool accept(TokenId token) override {
    return guarded([&] { return !matcher_.IsTerminated() && matcher_.AcceptToken(token); }, &token_work_);
  }
  bool accept_bytes(std::string_view bytes) override {
    return guarded([&] { return !matcher_.IsTerminated() && matcher_.AcceptString(std::string(bytes)); });
  }
  bool fill(std::span<uint32_t> mask) override {
    QUIRE_CHECK(std::ssize(mask) == words_, "a mask has {} words, not {}", mask.size(), words_);
    std::fill(mask.begin(), mask.end(), 0u);
    const auto fill_in = [&] {
      if (matcher_.IsTerminated()) return false;
      int64_t shape[] = {words_};
      DLTensor tensor{.data = mask.data(),
                      .device = {kDLCPU, 0},
                      .ndim = 1,
                      .dtype = xgrammar::GetBitmaskDLType(),
                      .shape = shape,
                      .strides = nullptr,
                      .byte_offset = 0};
      matcher_.FillNextTokenBitmask(&tensor);
      return true;
    };
    if (!guarded(fill_in, &mask_work_)) std::fill(mask.begin(), mask.end(), 0u);
    return std::any_of(mask.begin(), mask.end(), [](uint32_t word) { return word != 0; });
  }
  void rollback(int count) override {
    if (count > 0 && !broken_) matcher_.Rollback(count);
  }
  bool completed() const override { return !broken_ && matcher_.IsCompleted(); }
  bool ended() const override { return !broken_ && matcher_.IsTerminated(); }
  bool broken() const { return broken_; }  // something took too much
  std::string forced() override {
    std::string text;
    guarded([&] {
      if (!matcher_.IsTerminated()) text = matcher_.FindJumpForwardString();
      return true;
    });
    return text;
  }
  bool quick() const override {
    return broken_ || matcher_.IsTerminated() ||
           (std::max(mask_work_, token_work_) <= kQuickWork && matcher_.KnowsMasks());
  }

  bool prepare_next() override {
    return guarded([&] { return !matcher_.IsTerminated() && matcher_.ComputeNextMask(); });
  }

 private:
  // What was thrown may have left the matcher in the middle of a byte: it is of no further use.
  // `work`: where the units that it took are noted; null: nowhere.
  template <class F>
  bool guarded(F&& f, int64_t* work = nullptr) {
    if (broken_) return false;
    try {
      const xgrammar::WorkLimit limit(kMatcherWork, Clock::time_point::max());
      const bool done = f();
      if (work != nullptr) *work = limit.Used();
      return done;
    } catch (const std::exception&) {
      broken_ = true;
      return false;
    }
  }

  xgrammar::GrammarMatcher matcher_;
  int64_t words_;
  int64_t mask_work_ = 0, token_work_ = 0;  // of the last ones
  bool broken_ = false;
};

class XgrammarGrammar final : public Grammar {
 public:
  XgrammarGrammar(xgrammar::CompiledGrammar grammar, bool ends_itself, std::vector<std::string> unenforced)
      : grammar_(std::move(grammar)), ends_itself_(ends_itself), unenforced_(std::move(unenforced)) {}
  std::unique_ptr<Matcher> begin() const override { return std::make_unique<XgrammarMatcher>(grammar_, ends_itself_); }
  void prepare(const std::function<bool()>& stop) const override {
    try {
      if (grammar_.ComputeMasks(stop)) prepared_ = true;
    } catch (const std::exception&) {
      // A state that takes too much: whoever comes to it is told.
    }
  }
  bool prepared() const override { return prepared_; }
  int64_t bytes() const override { return static_cast<int64_t>(grammar_.MemorySizeBytes()); }
  const std::vector<std::string>& unenforced() const override { return unenforced_; }

  // A byte for ends_itself, the count of notes, each with its length, and the library's own bytes.
  std::string to_bytes() const override {
    std::string bytes(1, ends_itself_ ? '1' : '0');
    const auto put = [&](uint32_t number) { bytes.append(reinterpret_cast<const char*>(&number), sizeof(number)); };
    put(static_cast<uint32_t>(unenforced_.size()));
    for (const std::string& note : unenforced_) {
      put(static_cast<uint32_t>(note.size()));
      bytes += note;
    }
    return bytes + grammar_.ToBytes();
  }

 private:
  xgrammar::CompiledGrammar grammar_;
  bool ends_itself_;
  std::vector<std::string> unenforced_;
  mutable std::atomic<bool> prepared_{false};
};

// XGrammar allows no token without bytes, wherever it is named. Control tokens get some that no text has: a byte that
// UTF-8 does not know, and their number.
std::vector<std::string> spelt(const Vocabulary& v) {
  std::vector<std::string> bytes = v.bytes;
  for (const TokenId id : v.control)
    if (bytes[static_cast<size_t>(id)].empty()) bytes[static_cast<size_t>(id)] = fmt::format("\xff{}", id);
  return bytes;
}

std::string canonical(std::string_view pattern) {
  std::variant<std::string, PatternProblem> read = canonical_pattern(pattern);
  if (const auto* const problem = std::get_if<PatternProblem>(&read)) throw std::runtime_error(problem->what);
  return std::get<std::string>(std::move(read));
}

std::string readable(std::string_view lark) {
  Result<std::string> plain = plain_lark(lark);
  if (!plain.ok()) throw std::runtime_error(plain.error().message);
  return std::move(*plain);
}

// Parts as other forms are: regular expressions, which the library would read in its own way, grammars of Lark's, which
// have no part of their own, and the white space of JSON.
void prepare_part(nlohmann::ordered_json& part) {
  const auto is_text = [&](const char* key) { return part.contains(key) && part[key].is_string(); };
  if (!part.is_object() || !is_text("type")) return;
  const std::string type = part["type"].get<std::string>();
  if (type == "regex" && is_text("pattern")) part["pattern"] = canonical(part["pattern"].get<std::string>());
  if (type == "grammar" && is_text("grammar") && is_lark(part["grammar"].get_ref<const std::string&>()))
    part["grammar"] = xgrammar::Grammar::FromLark(readable(part["grammar"].get<std::string>())).ToString();
  if (type == "json_schema" && !part.contains("max_whitespace_cnt")) part["max_whitespace_cnt"] = kMostBlanks;
}

std::string prepared_tag(const std::string& structural_tag) {
  using Tag = nlohmann::ordered_json;
  constexpr int kMostTagDepth = 500;  // writing it recurses
  const auto bounded = [](int depth, Tag::parse_event_t, const Tag&) {
    if (depth > kMostTagDepth) throw std::runtime_error("it is nested too deeply");
    return true;
  };
  Tag tag = Tag::parse(structural_tag, bounded, false);
  if (tag.is_discarded()) return structural_tag;  // the library says what is wrong with it
  std::vector<Tag*> left = {&tag};
  while (!left.empty()) {
    Tag& part = *left.back();
    left.pop_back();
    if (!part.is_structured()) continue;
    prepare_part(part);
    for (const auto& [key, value] : part.items())
      if (key != "json_schema") left.push_back(&value);  // of schemas, "type" says another thing
  }
  return tag.dump(-1, ' ', false, Tag::error_handler_t::replace);
}

class XgrammarCompiler final : public GrammarCompiler {
 public:
  // The library gives a third of what it may keep to masks of rules; whole grammars it does not keep (kKeepsGrammars).
  XgrammarCompiler(const Vocabulary& v, int64_t most_shared_bytes)
      : compiler_(xgrammar::TokenizerInfo(spelt(v), xgrammar::VocabType::RAW, static_cast<int>(v.bytes.size()), v.ends),
                  1, true, 3 * most_shared_bytes) {}

  Result<std::shared_ptr<const Grammar>> compile(const GrammarSpec& spec, const CompileLimits& limits) const override {
    std::vector<std::string> warnings;
    t_warnings = &warnings;
    Result<std::shared_ptr<const Grammar>> done = compile_noting(spec, limits, warnings);
    t_warnings = nullptr;
    return done;
  }

  Result<std::shared_ptr<const Grammar>> from_bytes(std::string_view bytes) const override {
    const Error none{Fault::kBug, "what the process that compiles grammars sent is no grammar"};
    const auto take = [&](size_t size) {
      const std::string_view taken = bytes.substr(0, size);
      bytes.remove_prefix(taken.size());
      return taken;
    };
    const auto number = [&] {
      uint32_t n = 0;
      if (const std::string_view at = take(sizeof(n)); at.size() == sizeof(n)) std::memcpy(&n, at.data(), sizeof(n));
      return n;
    };
    const bool ends_itself = take(1) == "1";
    std::vector<std::string> unenforced;
    for (uint32_t notes = number(); notes > 0; --notes) {
      if (bytes.empty()) return none;
      unenforced.emplace_back(take(number()));
    }
    try {
      return std::shared_ptr<const Grammar>(
          std::make_shared<XgrammarGrammar>(compiler_.FromBytes(bytes), ends_itself, std::move(unenforced)));
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception&) {
      return none;
    }
  }

  int64_t shared_bytes() const override { return compiler_.GetCacheSizeBytes(); }

 private:
  Result<std::shared_ptr<const Grammar>> compile_noting(const GrammarSpec& spec, const CompileLimits& limits,
                                                        std::vector<std::string>& warnings) const {
    try {
      const xgrammar::WorkLimit limit(limits.work, Clock::now() + limits.time);
      xgrammar::CompiledGrammar compiled = compile_kind(spec);
      QUIRE_CHECKED(check_beginning(compiled, spec));
      return std::shared_ptr<const Grammar>(
          std::make_shared<XgrammarGrammar>(std::move(compiled), spec.ends_itself, std::move(warnings)));
    } catch (const xgrammar::WorkLimit::Error& e) {
      return request_error(
          "{} is too large: compiling it takes {}", describe(spec.kind),
          e.is_time ? fmt::format("longer than {} ms", limits.time.count()) : "more memory and work than is allowed");
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& e) {
      std::string_view why = e.what();
      while (!why.empty() && (why.back() == '\n' || why.back() == ' ')) why.remove_suffix(1);
      constexpr size_t kMost = 400;
      return request_error("{} cannot be used: {}", describe(spec.kind), why.substr(0, kMost));
    }
  }

  // What no text can begin is found out here, and so is what takes too much from its first token on: on this thread,
  // and not on that of the engine when the request has begun.
  static Status check_beginning(const xgrammar::CompiledGrammar& compiled, const GrammarSpec& spec) {
    XgrammarMatcher matcher(compiled, spec.ends_itself);
    std::vector<uint32_t> mask(static_cast<size_t>(mask_words(compiled.GetTokenizerInfo().GetVocabSize())));
    if (matcher.fill(mask)) return {};
    if (matcher.broken())
      return request_error("{} is too large: finding what a text may begin with takes more work than is allowed",
                           describe(spec.kind));
    return request_error("{} cannot be used: no text satisfies it", describe(spec.kind));
  }

  xgrammar::CompiledGrammar compile_kind(const GrammarSpec& spec) const {
    switch (spec.kind) {
      case GrammarKind::kJsonObject:
        return compile_schema(R"({"type":"object"})");
      case GrammarKind::kJsonSchema:
        return compile_schema(spec.text);
      case GrammarKind::kRegex:
        return compiler_.CompileRegex(canonical(spec.text));
      case GrammarKind::kEbnf:
        // The library reads a text up to its first NUL.
        if (spec.text.find('\0') != std::string::npos) throw std::runtime_error("it holds a NUL (write \\x00)");
        if (is_lark(spec.text)) return compiler_.CompileLark(readable(spec.text));
        return compiler_.CompileGrammar(spec.text, "root");
      case GrammarKind::kStructuralTag:
        return compiler_.CompileStructuralTag(prepared_tag(spec.text));
    }
    throw std::runtime_error("a kind that nobody knows");
  }
  xgrammar::CompiledGrammar compile_schema(const std::string& schema) const {
    return compiler_.CompileJSONSchema(schema, true, std::nullopt, std::nullopt, false, kMostBlanks, false);
  }

  mutable xgrammar::GrammarCompiler compiler_;
};

}  // namespace

bool has_grammars() {
  return true;
}

std::unique_ptr<GrammarCompiler> make_grammar_compiler(const Vocabulary& vocabulary, int64_t most_shared_bytes) {
  return std::make_unique<XgrammarCompiler>(vocabulary, most_shared_bytes);
}

}  // namespace quire

#else

namespace quire {

bool has_grammars() {
  return false;
}

std::unique_ptr<GrammarCompiler> make_grammar_compiler(const Vocabulary&, int64_t) {
  return nullptr;
}

}  // namespace quire

#endif
