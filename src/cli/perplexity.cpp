#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/options.h"
#include "cli/windows.h"
#include "core/output.h"
#include "core/progress.h"
#include "eval/scorer.h"

namespace quire::cli {
namespace {

struct Options {
  ModelOptions model;
  KvCacheOption kv_cache;
  std::string file;
  WindowOptions cut;
  bool json = false;
  bool generated = false;
};

// Consecutive windows that do not overlap, the incomplete last one dropped; each from an empty state, tokens
// 1 ... n-1 scored given the earlier ones of the same window.
Status run(const Options& o) {
  QUIRE_CHECKED(o.cut.check());
  QUIRE_TRY(const Device device, o.model.parsed_device());
  QUIRE_TRY(const KernelChoice kernels, o.model.parsed_kernels());
  QUIRE_TRY(const KvCacheType kv, o.kv_cache.parsed());
  QUIRE_TRY(const std::shared_ptr<const LoadedModel> model, load_model(o.model.model));
  if (!model->tokenizer)
    return request_error("{}: perplexity needs a tokenizer, and this file has none", o.model.model);
  QUIRE_TRY(const std::string text, read_text(o.file));
  const std::vector<TokenId> tokens = model->tokenizer->encode(text, {.add_special = false, .parse_special = false});
  QUIRE_TRY(const int64_t windows, o.cut.count(o.file, std::ssize(tokens)));
  QUIRE_TRY(const std::unique_ptr<Scorer> scorer, Scorer::create(model, {.device = device,
                                                                         .gpu = o.model.gpu,
                                                                         .threads = o.model.threads,
                                                                         .window = o.cut.window,
                                                                         .kernels = kernels,
                                                                         .kv_cache = kv,
                                                                         .generated = o.generated}));
  double nll = 0.0;
  std::vector<double> each;
  {
    Progress progress("scoring", windows, Progress::Unit::kItems);
    for (int64_t w = 0; w < windows; ++w) {
      const auto begin = static_cast<size_t>(w * o.cut.window);
      QUIRE_TRY(const double x,
                scorer->negative_log_likelihood(std::span(tokens).subspan(begin, static_cast<size_t>(o.cut.window))));
      if (!std::isfinite(x))
        return file_error("{}: the model computes values that are not finite (window {} of {})", o.model.model, w,
                          o.file);
      each.push_back(x);
      nll += x;
      progress.add(1);
    }
  }
  report_forced(scorer->forced_kernels());
  const int64_t scored = windows * (o.cut.window - 1);
  const double mean = nll / static_cast<double>(scored), ppl = std::exp(mean);
  if (o.json) {
    const nlohmann::ordered_json j = {{"tokens_in_file", tokens.size()},
                                      {"window", o.cut.window},
                                      {"windows", windows},
                                      {"scored", scored},
                                      {"nll", nll},
                                      {"mean_nll", mean},
                                      {"ppl", ppl},
                                      {"window_nll", each}};
    print_out("{}\n", j.dump(1));
  } else {
    print_out("perplexity {:.6f} over {} windows of {} tokens (mean negative log-likelihood {:.6f})\n", ppl, windows,
              o.cut.window, mean);
  }
  return {};
}

}  // namespace

Action add_perplexity(CLI::App& app) {
  auto o = std::make_shared<Options>();
  o->model.add(app);
  o->kv_cache.add(app);
  app.add_option("-f,--file", o->file, "Text to score; - for standard input")->required()->type_name("FILE");
  o->cut.add(app);
  app.add_flag("--generated", o->generated,
               "Compute the text as `quire run` computes what it generates: with block formats other kernels than a "
               "prompt's");
  app.add_flag("--json", o->json, "Print one JSON object");
  return [o] { return run(*o); };
}

}  // namespace quire::cli
