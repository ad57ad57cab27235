// Forcing kernels by name: the names that options accept are the names that operators look for, and a forced
// kernel really runs.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "ops/conformance/conformance.h"
#include "ops/registry.h"
#include "support/golden.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

// All (operator, table) pairs of calls such as entry("linear", linear_kernels()) in a source text.
std::set<std::pair<std::string, std::string>> calls(const std::string& text, const std::string& function) {
  std::set<std::pair<std::string, std::string>> out;
  const std::string begin = function + "(\"";
  for (size_t at = text.find(begin); at != std::string::npos; at = text.find(begin, at + 1)) {
    const size_t name = at + begin.size(), quote = text.find('"', name);
    const size_t table = text.find_first_not_of(", \n", quote + 1), open = text.find('(', table);
    out.emplace(text.substr(name, quote - name), text.substr(table, open - table));
  }
  return out;
}

// A misspelt name in the registry would make `--kernel` accept what dispatch() then ignores.
TEST(Kernels, RegistryAndDispatchUseTheSameNames) {
  const std::string ops = QUIRE_SOURCE_DIR "/src/ops/";
  std::string sources;
  for (const auto& f : std::filesystem::recursive_directory_iterator(ops))
    if (f.path().extension() == ".cpp") sources += read_whole_file(f.path());
  const auto dispatched = calls(sources, "dispatch");
  const auto registered = calls(read_whole_file(ops + "registry.cpp"), "entry");
  EXPECT_GT(dispatched.size(), 10u);
  EXPECT_EQ(dispatched, registered);
  for (const conformance::SuiteEntry& s : conformance::suites())
    EXPECT_TRUE(check_kernel_name(s.op, "reference").ok()) << s.op;
}

// Log-probabilities of a few greedy tokens: prompt and decode steps.
std::vector<float> logprobs(const ModelPtr& model, const KernelChoice& kernels) {
  const auto engine =
      std::move(Engine::create(model, {.threads = 2, .context = 256, .kernels = kernels})).value();
  Request r;
  for (TokenId t = 0; t < 100; ++t) r.prompt.push_back(t * 7 % 300);
  r.max_tokens = 24;
  r.ignore_eos = true;
  r.sampling.logprobs = 20;
  std::vector<float> out;
  EXPECT_TRUE(engine
                  ->submit(r,
                           [&](const TokenEvent& e) {
                             for (const TokenLogprob& t : e.top) out.push_back(t.logprob);
                           })
                  .ok());
  while (engine->busy()) engine->step();
  return out;
}

// Kernels of one operator add in different orders, so that forcing another one than the first shows in the
// bits, and in the bits only.
TEST(Kernels, AForcedKernelRuns) {
  std::set<std::string> seen;
  for (const TinyModel& m : tiny_models()) {
    if (!m.hybrid()) continue;
    SCOPED_TRACE(m.name);
    const TinyModelFile file(m);
    const ModelPtr model = load_or_die(file.path());
    const std::vector<float> usual = logprobs(model, {});
    for (const conformance::SuiteEntry& s : conformance::suites()) {
      const std::string op = s.op;
      for (const char* kernel : {"amx", "avx512", "avx2", "cpu", "reference"}) {
        if (!check_kernel_name(op, kernel).ok()) continue;
        SCOPED_TRACE(op + "=" + kernel);
        const std::vector<float> forced = logprobs(model, {.forced = {{op, kernel}}});
        ASSERT_EQ(forced.size(), usual.size());
        EXPECT_NEAR(forced.front(), usual.front(), 0.5);
        if (kernel == std::string("reference") && forced != usual) seen.insert(op);
      }
    }
  }
  for (const char* op : {"linear", "swiglu_mlp", "moe", "paged_attention", "gdn_chunked", "gdn_recurrent"})
    EXPECT_TRUE(seen.contains(op)) << op << ": forcing its reference changed nothing";
}

}  // namespace
}  // namespace quire::test
