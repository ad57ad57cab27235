// quire imatrix: how large the inputs of each weight matrix are over a text, for `quire quantize`.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "arch/tensors.h"
#include "cli/commands.h"
#include "command/display.h"
#include "command/encoding.h"
#include "command/options.h"
#include "command/text_input.h"
#include "command/windows.h"
#include "core/atomic_file.h"
#include "core/escape.h"
#include "core/output.h"
#include "core/progress.h"
#include "eval/importance_collector.h"
#include "eval/scorer.h"

namespace quire::cli {
namespace {

using Json = nlohmann::ordered_json;

struct ImatrixOptions {
  ModelOptions model{.device = Device::kCpu};
  std::string file, output;
  std::vector<std::string> merge;
  WindowOptions cut;
  bool parse_special = false;
  bool json = false;
};

// What running a text gave.
struct Run {
  int64_t windows = 0, tokens_in_file = 0;
  double nll = 0.0, seconds = 0.0;
  std::vector<std::string> unseen;  // matrices of the model that nothing was multiplied by

  double perplexity(int64_t window) const { return std::exp(nll / static_cast<double>(windows * (window - 1))); }
};

Status check_options(const ImatrixOptions& o) {
  if (o.model.model.empty() != o.file.empty())
    return request_error("give a model (-m) and a text (-f) together, or only files to --merge");
  if (o.model.model.empty() && o.merge.empty())
    return request_error("give a model (-m) and a text (-f), or files to --merge");
  return o.cut.check();
}

// That every tensor of the importance file is one of the model, and of its shape.
Status check_belongs(const quant::Importance& file, const gguf::File& model) {
  for (const quant::Importance::Entry& e : file.entries()) {
    const gguf::TensorInfo* t = model.find_tensor(e.tensor);
    if (t == nullptr)
      return file_error("it has the importance of {}, which the model lacks; it was made with another model",
                        gguf::printable(e.tensor));
    QUIRE_CHECKED(file.check(e.tensor, t->dims[0], t->dims[2] * t->dims[3]));
  }
  return {};
}

Status merge_files(const ImatrixOptions& o, const LoadedModel* model, quant::ImportanceTotals& totals) {
  for (const std::string& path : o.merge) {
    QUIRE_TRY(const quant::Importance file, quant::Importance::open(path));
    if (model != nullptr) QUIRE_CHECKED(check_belongs(file, model->file).context(path));
    QUIRE_CHECKED(totals.add(file).context(path));
  }
  return {};
}

// Consecutive windows that do not overlap, the incomplete last one dropped; each from an empty state.
Result<Run> run_text(const ImatrixOptions& o, std::shared_ptr<const LoadedModel> model,
                     quant::ImportanceTotals& totals) {
  QUIRE_TRY(const Place place, o.model.place());
  if (!model->tokenizer) return request_error("{}: imatrix needs a tokenizer, and this file has none", o.model.model);
  QUIRE_TRY(const std::string text, read_text(o.file));
  const std::vector<TokenId> tokens =
      model->tokenizer->encode(text, {.add_special = false, .parse_special = o.parse_special});
  Run run;
  run.tokens_in_file = static_cast<int64_t>(tokens.size());
  QUIRE_TRY(run.windows, o.cut.count(o.file, std::ssize(tokens)));
  ImportanceCollector collector(model->file);
  QUIRE_TRY(const std::unique_ptr<Scorer> scorer, Scorer::create(model, {.device = place.device,
                                                                         .threads = o.model.threads,
                                                                         .window = o.cut.window,
                                                                         .kernels = place.kernels,
                                                                         .observer = &collector}));
  const auto start = std::chrono::steady_clock::now();
  Progress progress("collecting", run.windows * o.cut.window, Progress::Unit::kItems);
  for (int64_t w = 0; w < run.windows; ++w) {
    const auto window =
        std::span(tokens).subspan(static_cast<size_t>(w * o.cut.window), static_cast<size_t>(o.cut.window));
    QUIRE_TRY(const double nll, scorer->negative_log_likelihood(window));
    if (!std::isfinite(nll))
      return file_error("{}: the model computes values that are not finite (window {} of {})", o.model.model, w,
                        o.file);
    run.nll += nll;
    progress.add(o.cut.window);
  }
  report_forced(scorer->forced_kernels());
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::string name = o.file == "-" ? "stdin" : std::filesystem::path(o.file).filename().string();
  QUIRE_CHECKED(totals.add_text(name, static_cast<uint32_t>(run.windows), static_cast<uint32_t>(o.cut.window)));
  QUIRE_CHECKED(collector.add_to(totals));
  for (const gguf::TensorInfo& t : model->file.tensors())
    if (encoding_group(t.name, t.n_dims) != EncodingGroup::kKept && !totals.tensors().contains(t.name))
      run.unseen.emplace_back(t.name);
  return run;
}

// Experts that no token chose, by block ("blk.3"), and how many there are in all.
struct Experts {
  int64_t all = 0, unreached = 0;
  std::map<std::string, std::vector<int64_t>> by_block;
};

Experts find_unreached(const quant::ImportanceTotals& totals) {
  Experts x;
  for (const auto& [name, t] : totals.tensors()) {
    // All of a block's experts' matrices are reached together.
    const std::optional<TensorId> id = find_tensor_spec(name);
    if (!id || id->spec->role != TensorRole::kExpertsDown) continue;
    x.all += t.matrices;
    for (int64_t e = 0; e < t.matrices; ++e) {
      if (t.counts[static_cast<size_t>(e)] > 0) continue;
      ++x.unreached;
      x.by_block[fmt::format("blk.{}", id->block)].push_back(e);
    }
  }
  return x;
}

void print_json(const ImatrixOptions& o, const std::optional<Run>& run, const quant::ImportanceTotals& totals,
                const Experts& experts) {
  Json j = {{"file", o.output},
            {"bytes", std::filesystem::file_size(o.output)},
            {"tensors", totals.tensors().size()},
            {"datasets", totals.origin().datasets},
            {"windows", totals.origin().chunk_count},
            {"window", totals.origin().chunk_size},
            {"experts", experts.all},
            {"experts_unreached", experts.unreached},
            {"unreached", experts.by_block}};
  if (run)
    j["run"] = {{"tokens_in_file", run->tokens_in_file},
                {"windows", run->windows},
                {"window", o.cut.window},
                {"tokens", run->windows * o.cut.window},
                {"ppl", run->perplexity(o.cut.window)},
                {"seconds", run->seconds},
                {"unseen_matrices", run->unseen}};
  print_out("{}\n", j.dump(1, ' ', false, Json::error_handler_t::replace));
}

// "3, 17, 18, ... (12 in all)"
template <class T>
std::string short_list(const std::vector<T>& items) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(items.size(), kShown); ++i) text += fmt::format("{}{}", i == 0 ? "" : ", ", items[i]);
  if (items.size() > kShown) text += fmt::format(", ... ({} in all)", items.size());
  return text;
}

void print_summary(const ImatrixOptions& o, const std::optional<Run>& run, const quant::ImportanceTotals& totals,
                   const Experts& experts) {
  if (run) {
    const int64_t tokens = run->windows * o.cut.window;
    print_out("{} tokens in {} windows of {}, {:.0f} tokens/s, perplexity {:.4f}\n", tokens, run->windows, o.cut.window,
              static_cast<double>(tokens) / run->seconds, run->perplexity(o.cut.window));
    if (!run->unseen.empty()) print_out("no product uses {}: without importance\n", short_list(run->unseen));
  }
  if (experts.all > 0) print_out("{} of {} experts reached\n", experts.all - experts.unreached, experts.all);
  for (const auto& [block, list] : experts.by_block)
    print_out("  {}: no token chose {}\n", escaped(block), short_list(list));
  if (!o.merge.empty())
    print_out("{} windows in all, with those of {} {}\n", totals.origin().chunk_count, o.merge.size(),
              o.merge.size() == 1 ? "file" : "files");
  print_out("{}: importance of {} tensors, {}\n", o.output, totals.tensors().size(),
            human_bytes(std::filesystem::file_size(o.output)));
}

Status collect(const ImatrixOptions& o) {
  QUIRE_CHECKED(check_options(o));
  QUIRE_TRY([[maybe_unused]] const PlannedOutput planned, PlannedOutput::create(o.output));
  std::shared_ptr<const LoadedModel> model;
  if (!o.model.model.empty()) {
    QUIRE_TRY(model, load_model(o.model.model, {.vision = false}));
  }
  quant::ImportanceTotals totals;
  QUIRE_CHECKED(merge_files(o, model.get(), totals));
  std::optional<Run> run;
  if (model != nullptr) {
    QUIRE_TRY(run, run_text(o, model, totals));
  }
  QUIRE_CHECKED(totals.write(o.output));
  const Experts experts = find_unreached(totals);
  if (o.json) {
    print_json(o, run, totals, experts);
  } else {
    print_summary(o, run, totals, experts);
  }
  return {};
}

}  // namespace

Action add_imatrix(Flags& flags) {
  auto o = std::make_shared<ImatrixOptions>();
  o->model.add(flags);
  flags.find("--model")->required(false);
  flags.add("-f,--file FILE", &o->file, "Text to run; - for standard input");
  flags.add("-o,--output FILE", &o->output, "Importance file to write; appears only when it is complete").required();
  o->cut.add(flags);
  flags.add("--merge FILE", &o->merge, "Add the sums of these importance files; without a model and a text, only them")
      .lists();
  flags.add("--parse-special", &o->parse_special,
            "Read special tokens in the text as such, for texts that hold chat templates");
  flags.add("--json", &o->json, "Print one JSON object");
  return [o] { return collect(*o); };
}

}  // namespace quire::cli
