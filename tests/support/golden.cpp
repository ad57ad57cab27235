#include "support/golden.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
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
  for (const Json& s : j.at("spread_top10")) p.spread.push_back({s.at("pos").get<int64_t>(), read_top(s.at("top10"))});
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

// log softmax after every position that is wanted; empty after the others.
std::vector<std::vector<double>> distributions(Scorer& scorer, std::span<const TokenId> tokens,
                                               const std::vector<bool>& wanted) {
  std::vector<std::vector<double>> out(tokens.size());
  const Status s = scorer.run(tokens, [&](int64_t position, std::span<const float> logits) {
    const auto i = static_cast<size_t>(position);
    if (wanted[i]) out[i] = log_softmax(logits);
  });
  EXPECT_TRUE(s.ok()) << s.error().message;
  return out;
}

// Of prompt and continuation: the positions that predict the latter.
std::vector<bool> generated_positions(const GoldenPrompt& p) {
  std::vector<bool> wanted(p.ids.size() + p.continuation.size());
  std::fill(wanted.begin() + static_cast<std::ptrdiff_t>(p.ids.size()) - 1, wanted.end(), true);
  return wanted;
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

std::string source_file(const std::string& path) {
  const std::string here = QUIRE_SOURCE_DIR "/" + path;
  return std::filesystem::exists(here) ? here : path;
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

const std::vector<std::vector<double>>& GoldenModel::reference(size_t prompt) {
  reference_.resize(golden_.prompts.size());
  std::vector<std::vector<double>>& out = reference_[prompt];
  if (!out.empty()) return out;
  const GoldenPrompt& p = golden_.prompts[prompt];
  std::vector<bool> wanted = generated_positions(p);
  for (const GoldenPrompt::Spread& s : p.spread) wanted[static_cast<size_t>(s.position)] = true;
  const auto scorer = make_scorer(model_, Device::kReference, static_cast<int64_t>(wanted.size()));
  return out = distributions(*scorer, p.all(), wanted);
}

void check_greedy(const ModelPtr& model, const Golden& golden, size_t longest_prompt) {
  const auto engine = std::move(Engine::create(model, {.device = Device::kReference})).value();
  std::vector<std::vector<TokenId>> got(golden.prompts.size());
  size_t asked = 0;
  for (size_t i = 0; i < golden.prompts.size(); ++i) {
    if (golden.prompts[i].ids.size() > longest_prompt) continue;
    Request r;
    r.prompt = golden.prompts[i].ids;
    r.max_tokens = static_cast<int64_t>(golden.prompts[i].continuation.size());
    r.ignore_eos = true;
    const auto listener = [&got, i](const TokenEvent& e) {
      if (e.token() >= 0) got[i].push_back(e.token());
    };
    ASSERT_TRUE(engine->submit(r, listener).ok());
    ++asked;
  }
  while (engine->busy()) engine->step();
  for (size_t i = 0; i < golden.prompts.size(); ++i)
    if (golden.prompts[i].ids.size() <= longest_prompt) {
      EXPECT_EQ(got[i], golden.prompts[i].continuation) << golden.prompts[i].name;
    }
  EXPECT_GT(2 * asked, golden.prompts.size());
}

void check_reference(GoldenModel& m, double bound) {
  double worst = 0;
  for (size_t i = 0; i < m.golden().prompts.size(); ++i) {
    const GoldenPrompt& p = m.golden().prompts[i];
    const auto& got = m.reference(i);
    for (size_t t = 0; t < p.continuation.size(); ++t) {
      const auto& after = got[p.ids.size() - 1 + t];
      EXPECT_EQ(std::max_element(after.begin(), after.end()) - after.begin(), p.continuation[t])
          << p.name << " step " << t;
    }
    for (const GoldenPrompt::Spread& s : p.spread)
      for (const GoldenTop& t : s.top) {
        const double x = got[static_cast<size_t>(s.position)][static_cast<size_t>(t.token)];
        worst = std::max(worst, std::fabs(x - t.logprob));
        EXPECT_NEAR(x, t.logprob, bound) << p.name << " position " << s.position << " token " << t.token;
      }
  }
  std::printf("largest difference of a log-probability: %.2g\n", worst);
}

void check_teacher_forced(GoldenModel& m, const TeacherBounds& bounds) {
  const Golden& golden = m.golden();
  const auto cpu = make_scorer(m.model(), Device::kCpu, longest(golden));
  std::vector<double> kl;
  double largest_turned = 0;
  int clear = 0;
  std::vector<std::string> lost;
  for (size_t prompt = 0; prompt < golden.prompts.size(); ++prompt) {
    const GoldenPrompt& p = golden.prompts[prompt];
    const auto& all_want = m.reference(prompt);
    const auto all_got = distributions(*cpu, p.all(), generated_positions(p));
    for (size_t i = 0; i < p.continuation.size(); ++i) {
      const auto &want = all_want[p.ids.size() - 1 + i], &got = all_got[p.ids.size() - 1 + i];
      kl.push_back(divergence(want, got));
      const auto best = std::max_element(got.begin(), got.end()) - got.begin();
      const bool turned = best != p.continuation[i];
      if (turned) largest_turned = std::max(largest_turned, p.gaps[i]);
      if (p.gaps[i] <= bounds.clear_gap) continue;
      ++clear;
      if (turned) lost.push_back(fmt::format("{} step {}, gap {:.3f}", p.name, i, p.gaps[i]));
    }
  }
  std::sort(kl.begin(), kl.end());
  const auto kept = kl.size() - static_cast<size_t>(bounds.lost * static_cast<double>(kl.size()));
  const double mean =
      std::accumulate(kl.begin(), kl.begin() + static_cast<std::ptrdiff_t>(kept), 0.0) / static_cast<double>(kept);
  std::printf(
      "%zu steps, %d with a gap above %.3f, largest gap that turned %.3g; KL mean %.3g (bound %.3g) of "
      "%zu steps, largest %.3g\n",
      kl.size(), clear, bounds.clear_gap, largest_turned, mean, bounds.mean_kl, kept, kl.back());
  EXPECT_GT(static_cast<size_t>(clear), kl.size() / 2);
  EXPECT_LE(static_cast<double>(lost.size()), bounds.lost * clear) << fmt::format("{}", fmt::join(lost, "\n"));
  EXPECT_LT(mean, bounds.mean_kl);
}

void check_generated(GoldenModel& m, size_t longest_prompt, double bound) {
  const int64_t window = longest(m.golden());
  const auto prompt = make_scorer(m.model(), Device::kCpu, window);
  const auto generated = std::move(Scorer::create(m.model(), {.window = window, .generated = true})).value();
  double as_generated = 0, as_prompt = 0;
  size_t steps = 0;
  for (size_t k = 0; k < m.golden().prompts.size(); ++k) {
    const GoldenPrompt& p = m.golden().prompts[k];
    if (p.ids.size() > longest_prompt) continue;
    const std::vector<bool> wanted = generated_positions(p);
    const auto& want = m.reference(k);
    const auto other = distributions(*prompt, p.all(), wanted), got = distributions(*generated, p.all(), wanted);
    for (size_t i = 0; i < want.size(); ++i) {
      if (!wanted[i]) continue;
      as_generated += divergence(want[i], got[i]);
      as_prompt += divergence(want[i], other[i]);
      ++steps;
    }
  }
  as_generated /= static_cast<double>(steps);
  std::printf("%zu steps: mean KL %.3g as generated tokens, %.3g as a prompt (bound %.3g)\n", steps, as_generated,
              as_prompt / static_cast<double>(steps), bound);
  EXPECT_LT(as_generated, bound);
}

void check_perplexity(const ModelPtr& model, const Golden& golden, Device device, size_t windows,
                      const PerplexityBounds& bounds) {
  const GoldenPerplexity& g = golden.perplexity;
  const std::vector<TokenId> tokens = g.ids.empty()
                                          ? model->tokenizer->encode(read_whole_file(golden_folder() + "ppl.txt"),
                                                                     {.add_special = false, .parse_special = false})
                                          : g.ids;
  const auto window = static_cast<size_t>(g.window);
  ASSERT_EQ(tokens.size() / window, g.window_nll.size());
  const size_t all = g.window_nll.size(), n = windows == 0 ? all : windows;
  const auto scorer = make_scorer(model, device, g.window);
  const auto scored = static_cast<double>(window - 1);
  double worst = 0, sum = 0;
  for (size_t i = 0; i < n; ++i) {
    const size_t w = i * all / n;
    const Result<double> nll = scorer->negative_log_likelihood(std::span(tokens).subspan(w * window, window));
    ASSERT_TRUE(nll.ok());
    const double difference = (*nll - g.window_nll[w]) / scored;  // of the logarithm: relative, as small as it is
    sum += difference;
    worst = std::max(worst, std::fabs(difference));
    EXPECT_NEAR(difference, 0, bounds.window) << "window " << w << ": perplexity " << std::exp(*nll / scored)
                                              << ", recorded " << std::exp(g.window_nll[w] / scored);
  }
  const double mean = sum / static_cast<double>(n);
  std::printf("perplexity of %zu windows: %+.4f%% (bound %.4f%%), the worst %.4f%% off (bound %.4f%%)\n", n, mean * 100,
              bounds.all * 100, worst * 100, bounds.window * 100);
  EXPECT_NEAR(mean, 0, bounds.all);
}

}  // namespace quire::test
