#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "command/options.h"
#include "command/text_input.h"
#include "command/windows.h"
#include "core/output.h"
#include "core/progress.h"
#include "eval/scorer.h"
#include "lab/commands.h"
#include "lab/perplexity.h"

namespace quire::cli {
namespace {

struct PerplexityOptions {
  ModelOptions model{.device = Device::kCpu};
  KvCacheOption kv_cache;
  ActivationsOption activations;
  RopeFlags rope;
  std::string file;
  WindowOptions cut;
  bool json = false;
  bool generated = false;
};

Status run(const PerplexityOptions& o) {
  QUIRE_CHECKED(o.cut.check());
  QUIRE_TRY(const Place place, o.model.place());
  QUIRE_TRY(const RopeOverride rope, o.rope.parsed());
  QUIRE_TRY(const std::shared_ptr<const LoadedModel> model, load_model(o.model.model, {.rope = rope, .vision = false}));
  if (!model->tokenizer)
    return request_error("{}: perplexity needs a tokenizer, and this file has none", o.model.model);
  QUIRE_TRY(const std::string text, read_text(o.file));
  const std::vector<TokenId> tokens = model->tokenizer->encode(text, {.add_special = false, .parse_special = false});
  QUIRE_TRY(const int64_t windows, o.cut.count(o.file, std::ssize(tokens)));
  QUIRE_TRY(const std::unique_ptr<Scorer> scorer, Scorer::create(model, {.device = place.device,
                                                                         .gpu = o.model.gpu,
                                                                         .threads = o.model.threads,
                                                                         .window = o.cut.window,
                                                                         .kernels = place.kernels,
                                                                         .kv_cache = o.kv_cache.type,
                                                                         .activations = o.activations.activations,
                                                                         .generated = o.generated}));
  QUIRE_TRY(const TextScore score,
            score_text(*scorer, tokens, {.window = o.cut.window, .windows = windows}, o.model.model, o.file));
  report_forced(scorer->forced_kernels());
  if (o.json) {
    const nlohmann::ordered_json j = {{"tokens_in_file", tokens.size()},
                                      {"window", o.cut.window},
                                      {"windows", windows},
                                      {"scored", score.scored()},
                                      {"nll", score.nll},
                                      {"mean_nll", score.mean()},
                                      {"ppl", score.perplexity()},
                                      {"window_nll", score.window_nll}};
    print_out("{}\n", j.dump(1));
  } else {
    print_out("perplexity {:.6f} over {} windows of {} tokens (mean negative log-likelihood {:.6f})\n",
              score.perplexity(), windows, o.cut.window, score.mean());
  }
  return {};
}

}  // namespace

double TextScore::perplexity() const {
  return std::exp(mean());
}

Result<TextScore> score_text(Scorer& scorer, std::span<const TokenId> tokens, const WindowOptions& cut,
                             const std::string& model, const std::string& text) {
  TextScore score{.window = cut.window, .windows = cut.windows};
  Progress progress("scoring", cut.windows, Progress::Unit::kItems);
  for (int64_t w = 0; w < cut.windows; ++w) {
    const auto begin = static_cast<size_t>(w * cut.window);
    QUIRE_TRY(const double x, scorer.negative_log_likelihood(tokens.subspan(begin, static_cast<size_t>(cut.window))));
    if (!std::isfinite(x))
      return file_error("{}: the model computes values that are not finite (window {} of {})", model, w, text);
    score.window_nll.push_back(x);
    score.nll += x;
    progress.add(1);
  }
  return score;
}

Action add_perplexity(Flags& flags) {
  auto o = std::make_shared<PerplexityOptions>();
  o->model.add(flags);
  o->kv_cache.add(flags);
  o->activations.add(flags);
  o->rope.add(flags);
  flags.add("-f,--file FILE", &o->file, "Text to score; - for standard input").required();
  o->cut.add(flags);
  flags.add("--generated", &o->generated,
            "Compute the text as `quire run` computes what it generates: with block formats other kernels than a "
            "prompt's");
  flags.add("--json", &o->json, "Print one JSON object");
  return [o] { return run(*o); };
}

}  // namespace quire::cli
