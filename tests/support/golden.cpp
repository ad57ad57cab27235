#include "support/golden.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

namespace quire::test {
namespace {

using Json = nlohmann::json;

std::vector<GoldenTop> read_top(const Json& j) {
  std::vector<GoldenTop> top;
  for (const Json& t : j) top.push_back({t.at(0).get<TokenId>(), t.at(1).get<double>()});
  return top;
}

GoldenPrompt read_prompt(const Json& j) {
  GoldenPrompt p;
  p.name = j.at("name");
  if (j.contains("text") && j["text"].is_string()) p.text = j["text"].get<std::string>();
  p.ids = j.at("ids").get<std::vector<TokenId>>();
  p.continuation = j.at("continuation_ids").get<std::vector<TokenId>>();
  p.gaps = j.at("continuation_gap").get<std::vector<double>>();
  for (const Json& s : j.at("spread_top10"))
    p.spread.push_back({s.at("pos").get<int64_t>(), read_top(s.at("top10"))});
  p.spread.push_back({static_cast<int64_t>(p.ids.size()) - 1, read_top(j.at("last_top10"))});
  return p;
}

std::unique_ptr<Scorer> make_scorer(const ModelPtr& model, Device device, int64_t window) {
  return std::move(Scorer::create(model, {.device = device, .window = window})).value();
}

std::vector<double> log_softmax(std::span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float l : logits) sum += std::exp(l - top);
  std::vector<double> out;
  for (const float l : logits) out.push_back(l - top - std::log(sum));
  return out;
}

// log softmax after every position from `first` on.
std::vector<std::vector<double>> distributions(Scorer& scorer, std::span<const TokenId> tokens,
                                               int64_t first) {
  std::vector<std::vector<double>> out;
  const Status s = scorer.run(tokens, [&](int64_t position, std::span<const float> logits) {
    if (position >= first) out.push_back(log_softmax(logits));
  });
  EXPECT_TRUE(s.ok()) << s.error().message;
  return out;
}

double divergence(const std::vector<double>& p, const std::vector<double>& q) {
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) kl += std::exp(p[i]) * (p[i] - q[i]);
  return kl;
}

int64_t longest(const Golden& golden) {
  size_t n = 0;
  for (const GoldenPrompt& p : golden.prompts) n = std::max(n, p.ids.size() + p.continuation.size());
  return static_cast<int64_t>(n);
}

}  // namespace

std::vector<TokenId> GoldenPrompt::all() const {
  std::vector<TokenId> tokens = ids;
  tokens.insert(tokens.end(), continuation.begin(), continuation.end());
  return tokens;
}

std::string golden_folder() {
  return QUIRE_SOURCE_DIR "/tests/data/golden/";
}

std::string read_whole_file(const std::string& path) {
  const std::ifstream in(path, std::ios::binary);
  QUIRE_CHECK(in.good(), "{} cannot be read", path);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

Golden load_golden(const std::string& path, const std::string& ppl_path) {
  const Json j = Json::parse(read_whole_file(path));
  Golden g;
  for (const Json& p : j.at("prompts")) g.prompts.push_back(read_prompt(p));
  const Json ppl = ppl_path.empty() ? j.at("ppl") : Json::parse(read_whole_file(ppl_path));
  if (ppl.contains("ids")) g.perplexity.ids = ppl["ids"].get<std::vector<TokenId>>();
  g.perplexity.window = ppl.at("window");
  g.perplexity.window_nll = ppl.at("window_nll").get<std::vector<double>>();
  if (j.contains("bf16_compute")) g.bf16_mean_kl = j["bf16_compute"].at("mean_kl");
  return g;
}

ModelPtr load_or_die(const std::string& path) {
  Result<ModelPtr> model = load_model(path);
  QUIRE_CHECK(model.ok(), "{}", model.error().message);
  return std::move(model).value();
}

void check_encoding(const ModelPtr& model, const Golden& golden) {
  int with_text = 0;
  for (const GoldenPrompt& p : golden.prompts) {
    if (!p.text) continue;
    ++with_text;
    EXPECT_EQ(model->tokenizer->encode(*p.text), p.ids) << p.name;
  }
  EXPECT_GT(with_text, 3);
}

void check_greedy(const ModelPtr& model, const Golden& golden, Device device) {
  const auto engine = std::move(Engine::create(model, {.device = device})).value();
  std::vector<std::vector<TokenId>> got(golden.prompts.size());
  for (size_t i = 0; i < golden.prompts.size(); ++i) {
    Request r;
    r.prompt = golden.prompts[i].ids;
    r.max_tokens = static_cast<int64_t>(golden.prompts[i].continuation.size());
    r.ignore_eos = true;
    ASSERT_TRUE(engine->submit(r, [&got, i](const TokenEvent& e) { got[i].push_back(e.token); }).ok());
  }
  while (engine->busy()) engine->step();
  for (size_t i = 0; i < golden.prompts.size(); ++i)
    EXPECT_EQ(got[i], golden.prompts[i].continuation) << golden.prompts[i].name;
}

void check_top(const ModelPtr& model, const Golden& golden, Device device, double bound) {
  const auto scorer = make_scorer(model, device, longest(golden));
  double worst = 0;
  for (const GoldenPrompt& p : golden.prompts) {
    const auto got = distributions(*scorer, p.ids, 0);
    ASSERT_EQ(got.size(), p.ids.size());
    for (const GoldenPrompt::Spread& s : p.spread)
      for (const GoldenTop& t : s.top) {
        const double x = got[static_cast<size_t>(s.position)][static_cast<size_t>(t.token)];
        worst = std::max(worst, std::fabs(x - t.logprob));
        EXPECT_NEAR(x, t.logprob, bound) << p.name << " position " << s.position << " token " << t.token;
      }
  }
  std::printf("largest difference of a log-probability: %.2g\n", worst);
}

void check_teacher_forced(const ModelPtr& model, const Golden& golden, const TeacherBounds& bounds) {
  const auto reference = make_scorer(model, Device::kReference, longest(golden));
  const auto cpu = make_scorer(model, Device::kCpu, longest(golden));
  std::vector<double> kl;
  double largest_turned = 0;
  int clear = 0;
  std::vector<std::string> lost;
  for (const GoldenPrompt& p : golden.prompts) {
    const std::vector<TokenId> tokens = p.all();
    const auto first = static_cast<int64_t>(p.ids.size()) - 1;
    const auto want = distributions(*reference, tokens, first), got = distributions(*cpu, tokens, first);
    for (size_t i = 0; i < p.continuation.size(); ++i) {
      kl.push_back(divergence(want[i], got[i]));
      const auto best = std::max_element(got[i].begin(), got[i].end()) - got[i].begin();
      const bool turned = best != p.continuation[i];
      if (turned) largest_turned = std::max(largest_turned, p.gaps[i]);
      if (p.gaps[i] <= bounds.clear_gap) continue;
      ++clear;
      if (turned) lost.push_back(fmt::format("{} step {}, gap {:.3f}", p.name, i, p.gaps[i]));
    }
  }
  std::sort(kl.begin(), kl.end());
  const auto kept = kl.size() - static_cast<size_t>(bounds.lost * static_cast<double>(kl.size()));
  const double mean = std::accumulate(kl.begin(), kl.begin() + static_cast<std::ptrdiff_t>(kept), 0.0) /
                      static_cast<double>(kept);
  std::printf(
      "%zu steps, %d with a gap above %.3f, largest gap that turned %.3g; KL mean %.3g (bound %.3g) of "
      "%zu steps, largest %.3g\n",
      kl.size(), clear, bounds.clear_gap, largest_turned, mean, bounds.mean_kl, kept, kl.back());
  EXPECT_GT(static_cast<size_t>(clear), kl.size() / 2);
  EXPECT_LE(static_cast<double>(lost.size()), bounds.lost * clear)
      << fmt::format("{}", fmt::join(lost, "\n"));
  EXPECT_LT(mean, bounds.mean_kl);
}

void check_generated(const ModelPtr& model, const Golden& golden, double bound) {
  const int64_t window = longest(golden);
  const auto reference = make_scorer(model, Device::kReference, window),
             prompt = make_scorer(model, Device::kCpu, window);
  const auto generated = std::move(Scorer::create(model, {.window = window, .generated = true})).value();
  double as_generated = 0, as_prompt = 0;
  size_t steps = 0;
  for (const GoldenPrompt& p : golden.prompts) {
    const std::vector<TokenId> tokens = p.all();
    const auto first = static_cast<int64_t>(p.ids.size()) - 1;
    const auto want = distributions(*reference, tokens, first), other = distributions(*prompt, tokens, first),
               got = distributions(*generated, tokens, first);
    for (size_t i = 0; i < want.size(); ++i, ++steps) {
      as_generated += divergence(want[i], got[i]);
      as_prompt += divergence(want[i], other[i]);
    }
  }
  as_generated /= static_cast<double>(steps);
  std::printf("%zu steps: mean KL %.3g as generated tokens, %.3g as a prompt (bound %.3g)\n", steps,
              as_generated, as_prompt / static_cast<double>(steps), bound);
  EXPECT_LT(as_generated, bound);
}

void check_perplexity(const ModelPtr& model, const Golden& golden, Device device, size_t windows,
                      double bound) {
  const GoldenPerplexity& g = golden.perplexity;
  const std::vector<TokenId> tokens =
      g.ids.empty() ? model->tokenizer->encode(read_whole_file(golden_folder() + "ppl.txt"),
                                               {.add_special = false, .parse_special = false})
                    : g.ids;
  const auto window = static_cast<size_t>(g.window);
  ASSERT_EQ(tokens.size() / window, g.window_nll.size());
  const size_t n = windows == 0 ? g.window_nll.size() : windows;
  const auto scorer = make_scorer(model, device, g.window);
  double got = 0, want = 0;
  for (size_t w = 0; w < n; ++w) {
    const Result<double> nll = scorer->negative_log_likelihood(std::span(tokens).subspan(w * window, window));
    ASSERT_TRUE(nll.ok());
    got += *nll;
    want += g.window_nll[w];
  }
  const auto scored = static_cast<double>(n * (window - 1));
  const double got_ppl = std::exp(got / scored), want_ppl = std::exp(want / scored);
  std::printf("perplexity %.6f, recorded %.6f (%+.4f%%) over %zu windows\n", got_ppl, want_ppl,
              (got_ppl / want_ppl - 1) * 100, n);
  EXPECT_NEAR(got_ppl / want_ppl, 1, bound);
}

}  // namespace quire::test
