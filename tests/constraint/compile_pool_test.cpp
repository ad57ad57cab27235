// Grammars compiled in processes of the program.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "constraint/compile_host.h"
#include "constraint/grammar_cache.h"
#include "core/heap.h"
#include "hostile_grammars.h"
#include "support/commands.h"
#include "support/sanitizers.h"

namespace quire::test {
namespace {

using std::chrono::milliseconds;
using testing::AnyOf;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

std::shared_ptr<const Vocabulary> vocabulary() {
  Vocabulary v;
  for (int i = 0; i < 256; ++i) v.bytes.emplace_back(1, static_cast<char>(i));
  for (const char* word : {"true", "{\"", "\":", "ab", "\",\""}) v.bytes.emplace_back(word);
  v.ends = {static_cast<TokenId>(v.bytes.size())};
  v.bytes.emplace_back();
  v.control = {static_cast<TokenId>(v.bytes.size())};
  v.bytes.emplace_back();
  return std::make_shared<const Vocabulary>(std::move(v));
}

[[maybe_unused]] const bool kIsHost = commands().emplace(kCompileHostCommand, run_compile_host).second;

GrammarCacheOptions in_processes() {
  return {.program = "/proc/self/exe", .threads = 1};
}

class CompileProcesses : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_grammars()) GTEST_SKIP() << "built without XGrammar";
  }
};

// The masks of a text, one behind the other, until it is complete or `most` tokens long: of those that are allowed the
// one whose number a simple generator draws.
std::vector<std::vector<uint32_t>> masks_of(const Grammar& grammar, uint32_t seed, int most) {
  const auto matcher = grammar.begin();
  std::vector<std::vector<uint32_t>> masks;
  const int64_t vocab = std::ssize(vocabulary()->bytes);
  for (int i = 0; i < most; ++i) {
    std::vector<uint32_t> mask(static_cast<size_t>(mask_words(vocab)));
    if (!matcher->fill(mask)) break;
    masks.push_back(mask);
    std::vector<TokenId> allowed;
    for (TokenId t = 0; t < vocab; ++t)
      if ((mask[static_cast<size_t>(t) / 32] >> (t % 32) & 1) != 0) allowed.push_back(t);
    seed = seed * 1664525u + 1013904223u;
    if (!matcher->accept(allowed[seed % allowed.size()])) break;
  }
  return masks;
}

const GrammarSpec kSpecs[] = {
    {GrammarKind::kJsonObject, "", false},
    {GrammarKind::kJsonSchema,
     R"({"type":"object","properties":{"name":{"type":"string","maxLength":9},"n":{"type":"integer","minimum":-3}},)"
     R"("required":["name","n"],"additionalProperties":false})",
     false},
    {GrammarKind::kJsonSchema,
     R"({"$ref":"#/$defs/t","$defs":{"t":{"anyOf":[{"type":"null"},{"type":"array",)"
     R"("items":{"$ref":"#/$defs/t"}}]}}})",
     true},
    {GrammarKind::kRegex, "(a|b){2,40}[^x]*\\d+", false},
    {GrammarKind::kEbnf, "root ::= \"yes\" | \"no\" [a-z]{3} root", true},
    {GrammarKind::kStructuralTag,
     R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<f="],"tags":[{"begin":"<f=a>",)"
     R"("content":{"type":"json_schema","json_schema":{"type":"object"}},"end":"</f>"}],"at_least_one":false}})",
     false},
};

TEST_F(CompileProcesses, GrammarsComeBackAsTheyAreCompiledHere) {
  GrammarCache there(vocabulary(), in_processes()), here(vocabulary(), {.threads = 1});
  for (const GrammarSpec& spec : kSpecs) {
    SCOPED_TRACE(spec.text);
    const auto far = there.get(spec);
    ASSERT_TRUE(far.ok()) << far.error().message;
    const auto near = here.get(spec).value();
    EXPECT_EQ((*far)->unenforced(), near->unenforced());
    for (uint32_t seed = 1; seed <= 20; ++seed) ASSERT_EQ(masks_of(**far, seed, 60), masks_of(*near, seed, 60)) << seed;
  }
  EXPECT_EQ(there.stats().compiled, std::ssize(kSpecs));
}

TEST_F(CompileProcesses, BytesThatAreNoGrammarAreRefused) {
  const auto compiler = make_grammar_compiler(*vocabulary());
  for (const GrammarSpec& spec : kSpecs) {
    const std::string bytes = compiler->compile(spec, {}).value()->to_bytes();
    ASSERT_TRUE(compiler->from_bytes(bytes).ok());
    EXPECT_FALSE(compiler->from_bytes(bytes + "x").ok());
    uint32_t seed = 7;
    for (int i = 0; i < 300; ++i) {
      seed = seed * 1664525u + 1013904223u;
      EXPECT_FALSE(compiler->from_bytes(std::string_view(bytes).substr(0, seed % bytes.size())).ok());
      std::string other = bytes;
      other[(seed >> 8) % other.size()] ^= static_cast<char>(1 + (seed >> 3) % 255);
      // A changed letter may be a grammar, too. It is walked through, and nothing is read that is not there.
      const auto changed = compiler->from_bytes(other);
      if (!changed.ok()) {
        EXPECT_EQ(changed.error().fault, Fault::kBug);
      }
    }
  }
}

TEST_F(CompileProcesses, RefusalsComeBackInWords) {
  GrammarCache cache(vocabulary(), in_processes());
  const auto bad = cache.get({GrammarKind::kRegex, "("});
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().fault, Fault::kRequest);
  EXPECT_THAT(bad.error().message, HasSubstr("the regular expression cannot be used"));
  EXPECT_FALSE(cache.get({GrammarKind::kRegex, "("}).ok());
  EXPECT_EQ(cache.stats().refused, 1);
  GrammarCache none(vocabulary(), {.program = "/nowhere/quire", .threads = 1});
  const auto failed = none.get({GrammarKind::kRegex, "a"});
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().fault, Fault::kCapacity);
  EXPECT_THAT(failed.error().message, HasSubstr("cannot be started"));
  GrammarCache other(vocabulary(), {.program = "/bin/true", .threads = 1});  // no process that compiles
  EXPECT_FALSE(other.get({GrammarKind::kRegex, "a"}).ok());
}

// Each is compiled or refused within its time, this process goes on, and it keeps little of it.
TEST_F(CompileProcesses, NothingThatIsSentEndsOrFillsTheServer) {
  if (kSlow) GTEST_SKIP() << "sanitizers take memory and time of their own";
  GrammarCacheOptions options = in_processes();
  options.limits.time = milliseconds(1'500);
  GrammarCache cache(vocabulary(), options);
  ASSERT_TRUE(cache.get({GrammarKind::kRegex, "a"}).ok());
  const int64_t before = heap_use().used;
  for (const HostileGrammar& hostile : hostile_grammars()) {
    SCOPED_TRACE(hostile.name);
    ASSERT_LE(hostile.spec.text.size(), size_t{1} << 20);
    const auto begin = Clock::now();
    const auto done = cache.get(hostile.spec);
    const auto took = std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
    EXPECT_LT(took, milliseconds(6'000));
    std::printf("%-40s %6ld ms  %s\n", hostile.name.c_str(), static_cast<long>(took.count()),
                done.ok() ? "compiled" : done.error().message.c_str());
    if (done.ok()) {
      masks_of(**done, 1, 40);
      continue;
    }
    EXPECT_EQ(done.error().fault, Fault::kRequest) << done.error().message;
    EXPECT_THAT(done.error().message,
                AnyOf(HasSubstr("too large"), HasSubstr("too deep"), HasSubstr("cannot be used")));
  }
  EXPECT_LT(heap_use().used - before, int64_t{200} << 20);
  EXPECT_TRUE(cache.get({GrammarKind::kRegex, "b"}).ok());
}

// A client that has both places for what takes long and many that wait holds nobody else up.
TEST_F(CompileProcesses, SmallGrammarsOfOthersDoNotWait) {
  GrammarCache cache(vocabulary(), in_processes());
  ASSERT_TRUE(cache.get({GrammarKind::kRegex, "a"}).ok());
  std::atomic<bool> gone{false};
  std::vector<std::thread> slow;
  for (int i = 0; i < 12; ++i)
    slow.emplace_back([&, i] {
      const GrammarSpec spec{GrammarKind::kRegex, repeated("a?", 20'000) + std::to_string(i)};
      EXPECT_FALSE(cache.get(spec, {.client = i % 2 == 0 ? "a" : "b", .gone = [&] { return gone.load(); }}).ok());
    });
  milliseconds longest{0};
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(milliseconds(50));
    const auto begin = Clock::now();
    EXPECT_TRUE(cache.get({GrammarKind::kRegex, "[a-z]" + std::to_string(i)}, {.client = "c", .gone = {}}).ok());
    longest = std::max(longest, std::chrono::duration_cast<milliseconds>(Clock::now() - begin));
  }
  EXPECT_LT(longest, milliseconds(kSlow ? 5'000 : 1'500));  // a quiet machine: under 250
  std::printf("longest wait of another client: %ld ms\n", static_cast<long>(longest.count()));
  // Who has gone is let go of at once, and what was compiled for them ends.
  const auto left = Clock::now();
  gone = true;
  for (std::thread& t : slow) t.join();
  EXPECT_LT(Clock::now() - left, milliseconds(2'000));
}

// Where nobody looked for longer than a compilation may take, it has ended once, whichever place it had.
TEST_F(CompileProcesses, ThePoolMayBeLate) {
  CompilePool pool(vocabulary(), {.program = "/proc/self/exe", .places = 3, .limits = {.time = milliseconds(100)}});
  std::atomic<int> refused{0};
  const auto told = [&](const Result<std::string>& bytes, double) { refused += !bytes.ok(); };
  ASSERT_TRUE(pool.submit({GrammarKind::kRegex, "a"}, "b", [](const Result<std::string>&, double) {}).ok());
  std::this_thread::sleep_for(milliseconds(500));  // the process is there
  const std::string left = [] {
    std::string rules = "root ::= r0\n";
    for (int i = 0; i < 2'000; ++i) rules += fmt::format("r{} ::= r{} \"a\" | \"b\"\n", i, (i + 1) % 2'000);
    return rules;
  }();
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(pool.submit({GrammarKind::kEbnf, left + repeated("#", i)}, "a", told).ok());
  ASSERT_TRUE(pool.submit({GrammarKind::kRegex, "b"}, "b",
                          [](const Result<std::string>&, double) { std::this_thread::sleep_for(milliseconds(1'200)); })
                  .ok());
  for (int i = 0; i < 500 && refused < 2; ++i) std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(refused, 2);
  std::atomic<bool> goes_on{false};
  ASSERT_TRUE(pool.submit({GrammarKind::kRegex, "c"}, "a",
                          [&](const Result<std::string>& bytes, double) { goes_on = bytes.ok(); })
                  .ok());
  for (int i = 0; i < 500 && !goes_on; ++i) std::this_thread::sleep_for(milliseconds(20));
  EXPECT_TRUE(goes_on);
  pool.stop();
}

TEST_F(CompileProcesses, EndsInTheMiddle) {
  auto cache = std::make_unique<GrammarCache>(vocabulary(), in_processes());
  std::vector<std::thread> askers;
  for (int i = 0; i < 6; ++i)
    askers.emplace_back([&, i] {
      const auto done = cache->get({GrammarKind::kRegex, repeated("a?", 20'000) + std::to_string(i)});
      ASSERT_FALSE(done.ok());
      EXPECT_THAT(done.error().message, HasSubstr("shutting down"));
    });
  std::this_thread::sleep_for(milliseconds(300));
  const auto begin = Clock::now();
  cache->stop();
  for (std::thread& t : askers) t.join();
  EXPECT_LT(Clock::now() - begin, milliseconds(2'000));
  EXPECT_FALSE(cache->get({GrammarKind::kRegex, "a"}).ok());
}

// Several who ask for the same wait for one compilation; one of them leaving ends it for nobody else.
TEST_F(CompileProcesses, ACompilationIsSharedUntilTheLastHasGone) {
  GrammarCache cache(vocabulary(), in_processes());
  const GrammarSpec spec{GrammarKind::kEbnf, "root ::= \"a\" root | \"b\""};
  std::vector<std::shared_ptr<const Grammar>> got(8);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < got.size(); ++i)
    threads.emplace_back([&, i] {
      const auto done = cache.get(spec, {.client = std::to_string(i), .gone = [i] { return i == 0; }});
      if (done.ok()) got[i] = *done;
    });
  for (std::thread& t : threads) t.join();
  for (size_t i = 1; i < got.size(); ++i) EXPECT_NE(got[i], nullptr);
  EXPECT_EQ(cache.stats().compiled, 1);
}

}  // namespace
}  // namespace quire::test
