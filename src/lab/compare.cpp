// quire compare: how far a model's predictions are from a reference model's, position by position.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "command/display.h"
#include "command/options.h"
#include "command/text_input.h"
#include "command/windows.h"
#include "core/atomic_file.h"
#include "core/cpu.h"
#include "core/escape.h"
#include "core/output.h"
#include "core/progress.h"
#include "eval/logits_file.h"
#include "eval/scorer.h"
#include "lab/commands.h"
#include "lab/compare.h"
#include "lab/compare_report.h"
#include "lab/divergence_plot.h"

namespace quire::cli {
namespace {

constexpr int64_t kDefaultWindow = 512;
constexpr int64_t kShownTokens = 4;     // likeliest tokens of a disagreement
constexpr int64_t kContextTokens = 24;  // of the text before it
constexpr int64_t kPlotBins = 64;

}  // namespace

Status CompareOptions::check() const {
  if (models.empty() || models.size() > 2)
    return request_error("give two models, the reference and the one to judge: quire compare REFERENCE MODEL -f TEXT");
  if (!logits.empty() && models.size() != 1)
    return request_error("with --logits, give only the model to judge: quire compare MODEL --logits FILE");
  if (!logits.empty() && !save_logits.empty())
    return request_error("--logits and --save-logits exclude each other: the logits are in a file already");
  if (saving_only() && save_logits.empty())
    return request_error("give two models, the reference and the one to judge; or one, with the reference's --logits");
  if (saving_only() && !svg.empty())
    return request_error("--svg: there is nothing to plot with one model and --save-logits");
  if (saving_only() && kv_cache.type != KvCacheType::kAuto)
    return request_error("--kv-cache-dtype is for the model that is judged, and there is only a reference");
  if (saving_only() && activations.activations != PromptActivations::kAuto)
    return request_error("--activations is for the model that is judged, and there is only a reference");
  if (window->given()) QUIRE_CHECKED(cut.check());
  QUIRE_CHECKED(
      (WindowOptions{.window = cut.window == 0 ? kDefaultWindow : cut.window, .windows = cut.windows}.check()));
  return {};
}

namespace {

Result<std::shared_ptr<const LoadedModel>> load_with_tokenizer(const std::string& path) {
  QUIRE_TRY(std::shared_ptr<const LoadedModel> model, load_model(path, {.vision = false}));
  if (!model->tokenizer) return request_error("{}: comparing needs a tokenizer, and this file has none", path);
  return model;
}

// What is being judged is the model, with its kernels for generated tokens, its cache and its activations; a reference
// has bf16 ones.
enum class Role { kReference, kJudged };

Result<std::unique_ptr<Scorer>> make_scorer(const CompareOptions& o, std::shared_ptr<const LoadedModel> model,
                                            int64_t window, Role role) {
  ScorerOptions s{.gpu = o.compute.gpu, .threads = o.compute.threads, .window = window};
  if (role == Role::kJudged) {
    s.generated = o.generated;
    s.kv_cache = o.kv_cache.type;
    s.activations = o.activations.activations;
  }
  QUIRE_TRY(const Place place, o.compute.place());
  s.device = place.device;
  s.kernels = place.kernels;
  return Scorer::create(std::move(model), std::move(s));
}

// Two models are comparable where token i means the same to both.
Status check_same_vocabulary(const Tokenizer& reference, const Tokenizer& model) {
  if (reference.size() != model.size())
    return request_error("the models have different vocabularies: {} and {} tokens", reference.size(), model.size());
  for (TokenId t = 0; t < model.size(); ++t)
    if (reference.token_text(t) != model.token_text(t))
      return request_error("the models have different vocabularies: token {} is \"{}\" and \"{}\"", t,
                           escaped(reference.token_text(t), 60), escaped(model.token_text(t), 60));
  return {};
}

// The reference's predictions: from the model, window by window, or from a file saved earlier.
class Reference {
 public:
  explicit Reference(std::unique_ptr<Scorer> scorer) : scorer_(std::move(scorer)) {}
  explicit Reference(LogitsReader file) : file_(std::move(file)) {}

  // Logits after each of `tokens`, which begin at `position` of the window. Windows and positions in order.
  Result<std::span<const float>> logits(int64_t window, int64_t position, std::span<const TokenId> tokens) {
    if (file_) return file_->read(window, position, static_cast<int64_t>(tokens.size()));
    if (position == 0) scorer_->restart();
    return scorer_->extend(tokens);
  }
  std::span<const ForcedCount> forced_kernels() const {
    return scorer_ ? scorer_->forced_kernels() : std::span<const ForcedCount>{};
  }

 private:
  std::unique_ptr<Scorer> scorer_;
  std::optional<LogitsReader> file_;
};

// The text as both see it: whole windows.
struct Text {
  std::vector<TokenId> tokens;
  int64_t window = 0, windows = 0;

  std::span<const TokenId> of_window(int64_t w) const {
    return std::span(tokens).subspan(static_cast<size_t>(w * window), static_cast<size_t>(window));
  }
};

// Tokens 1 ... n-1 of each window are predicted from those before, as `quire perplexity` does it.
Result<Text> cut_text(const CompareOptions& o, const std::string& text, const Tokenizer& tokenizer, int64_t window) {
  Text t{.tokens = tokenizer.encode(text, {.add_special = false, .parse_special = false}), .window = window};
  const WindowOptions cut{.window = window, .windows = o.cut.windows};
  QUIRE_TRY(t.windows, cut.count(o.text, std::ssize(t.tokens)));
  t.tokens.resize(static_cast<size_t>(t.windows * window));
  return t;
}

class Comparer {
 public:
  Comparer(const CompareOptions& o, const Text& text, Reference reference, std::unique_ptr<Scorer> model)
      : options_(o),
        text_(text),
        reference_(std::move(reference)),
        model_(std::move(model)),
        vocab_(static_cast<size_t>(model_->model().model->config().vocab)),
        pool_(o.compute.threads == 0 ? available_cpus() : o.compute.threads),
        scratch_(static_cast<size_t>(pool_.size())),
        stats_(text.window - 1),
        largest_(o.top) {}

  // `writer`, if not null, receives the reference's logits.
  Status run(LogitsWriter* writer) {
    Progress progress("comparing", text_.windows);
    for (int64_t w = 0; w < text_.windows; ++w) {
      QUIRE_CHECKED(run_window(w, writer));
      progress.add(1);
    }
    report_forced(reference_.forced_kernels());
    report_forced(model_->forced_kernels());
    return {};
  }
  Comparison result(std::string reference_name) const {
    return {.reference = std::move(reference_name),
            .model = options_.models.back(),
            .text = options_.text,
            .window = text_.window,
            .windows = text_.windows,
            .summary = stats_.summary(),
            .by_position = stats_.by_position(kPlotBins),
            .disagreements = largest_.list()};
  }

 private:
  // The last token is predicted but predicts nothing, so it is never fed.
  Status run_window(int64_t w, LogitsWriter* writer) {
    const std::span<const TokenId> fed = text_.of_window(w).first(static_cast<size_t>(text_.window - 1));
    model_->restart();
    for (size_t begin = 0; begin < fed.size();) {
      const auto n = std::min(static_cast<size_t>(model_->chunk_tokens()), fed.size() - begin);
      const std::span<const TokenId> tokens = fed.subspan(begin, n);
      QUIRE_TRY(const std::span<const float> p, reference_.logits(w, static_cast<int64_t>(begin), tokens));
      if (writer != nullptr) QUIRE_CHECKED(writer->write(p));
      QUIRE_TRY(const std::span<const float> q, model_->extend(tokens));
      QUIRE_CHECKED(compare_rows(w, begin, n, p, q));
      begin += n;
    }
    return {};
  }

  // Each position on one thread, then collected in order: the result does not depend on the threads.
  Status compare_rows(int64_t w, size_t begin, size_t n, std::span<const float> p, std::span<const float> q) {
    const std::span<const TokenId> window = text_.of_window(w);
    found_.resize(n);
    pool_.parallel_for(static_cast<int64_t>(n), 1, [&](int64_t first, int64_t, int thread) {
      const auto i = static_cast<size_t>(first);
      found_[i] = diverge(p.subspan(i * vocab_, vocab_), q.subspan(i * vocab_, vocab_), window[begin + i + 1],
                          scratch_[static_cast<size_t>(thread)]);
    });
    for (size_t i = 0; i < n; ++i) {
      const Divergence& d = found_[i];
      if (std::isnan(d.logprob_reference) || std::isnan(d.logprob_model))
        return file_error("the {}'s logits are not numbers (window {}, position {}): its file is damaged",
                          std::isnan(d.logprob_reference) ? "reference" : "model", w, begin + i);
      stats_.add(d);
      if (largest_.wants(d.kl)) note(w, begin + i, d, p.subspan(i * vocab_, vocab_), q.subspan(i * vocab_, vocab_));
    }
    return {};
  }

  void note(int64_t w, size_t position, const Divergence& d, std::span<const float> p, std::span<const float> q) {
    const std::span<const TokenId> window = text_.of_window(w);
    const size_t shown = std::min<size_t>(position + 1, kContextTokens);
    largest_.add({.window = w,
                  .position = static_cast<int64_t>(position),
                  .token = window[position + 1],
                  .divergence = d,
                  .reference = likeliest(p, kShownTokens),
                  .model = likeliest(q, kShownTokens),
                  .before = model_->model().tokenizer->decode(window.subspan(position + 1 - shown, shown), true,
                                                              TextPart::kContinuation)});
  }

  const CompareOptions& options_;
  const Text& text_;
  Reference reference_;
  std::unique_ptr<Scorer> model_;
  size_t vocab_;
  ThreadPool pool_;
  std::vector<std::vector<double>> scratch_;  // one per thread
  std::vector<Divergence> found_;
  DivergenceStats stats_;
  LargestDisagreements largest_;
};

Result<LogitsWriter> create_writer(const CompareOptions& o, const Text& text, const Tokenizer& tokenizer) {
  const LogitsHeader header{.vocab = tokenizer.size(),
                            .window = text.window,
                            .windows = text.windows,
                            .tokens_hash = token_ids_hash(text.tokens),
                            .vocabulary_hash = vocabulary_hash(tokenizer),
                            .model = std::filesystem::path(o.models.front()).filename().string()};
  QUIRE_TRY(LogitsWriter writer, LogitsWriter::create(o.save_logits, header));
  // Before the work: this is four bytes for every token of the vocabulary at every position.
  tell_line(fmt::format("{}: {} of reference logits to write", o.save_logits,
                        human_bytes(static_cast<uint64_t>(header.file_bytes().value_or(0)))));
  return writer;
}

Status save_only(const CompareOptions& o) {
  QUIRE_TRY(const std::shared_ptr<const LoadedModel> model, load_with_tokenizer(o.models.front()));
  QUIRE_TRY(const std::string bytes, read_text(o.text));
  QUIRE_TRY(const Text text, cut_text(o, bytes, *model->tokenizer, o.cut.window == 0 ? kDefaultWindow : o.cut.window));
  QUIRE_TRY(const std::unique_ptr<Scorer> scorer, make_scorer(o, model, text.window, Role::kReference));
  QUIRE_TRY(LogitsWriter writer, create_writer(o, text, *model->tokenizer));
  Progress progress("scoring", text.windows);
  for (int64_t w = 0; w < text.windows; ++w) {
    Status failed;
    QUIRE_CHECKED(scorer->run(text.of_window(w).first(static_cast<size_t>(text.window - 1)),
                              [&](int64_t, std::span<const float> logits) {
                                if (failed.ok()) failed = writer.write(logits);
                              }));
    QUIRE_CHECKED(std::move(failed));
    progress.add(1);
  }
  report_forced(scorer->forced_kernels());
  return writer.finish();
}

Status report(const CompareOptions& o, const Comparison& c, const Tokenizer& tokenizer) {
  if (!o.svg.empty()) {
    const std::string title =
        fmt::format("KL divergence of {} from {}", std::filesystem::path(c.model).filename().string(),
                    std::filesystem::path(c.reference).filename().string());
    const std::string subtitle =
        fmt::format("{}: {} windows of {} tokens; mean {:.3g}, 99th percentile {:.3g}, same top token {:.2f}%",
                    std::filesystem::path(c.text).filename().string(), c.windows, c.window, c.summary.mean,
                    c.summary.p99, 100.0 * c.summary.top1_agreement);
    QUIRE_CHECKED(write_file(o.svg, divergence_plot(c.by_position, title, subtitle)));
  }
  const std::string out =
      o.json
          ? comparison_json(c, tokenizer).dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n"
          : comparison_table(c, tokenizer);
  write_out(out);
  return {};
}

Status compare_models(const CompareOptions& o) {
  QUIRE_TRY(const std::shared_ptr<const LoadedModel> a, load_with_tokenizer(o.models.front()));
  QUIRE_TRY(const std::shared_ptr<const LoadedModel> b, load_with_tokenizer(o.models.back()));
  QUIRE_CHECKED(check_same_vocabulary(*a->tokenizer, *b->tokenizer));
  const int64_t window = o.cut.window == 0 ? kDefaultWindow : o.cut.window;
  QUIRE_TRY(const std::string bytes, read_text(o.text));
  QUIRE_TRY(const Text text, cut_text(o, bytes, *a->tokenizer, window));
  QUIRE_TRY(const Text text_b, cut_text(o, bytes, *b->tokenizer, window));
  if (text.tokens != text_b.tokens)
    return request_error("the models' tokenizers cut {} differently, so they cannot be compared", o.text);
  QUIRE_TRY(std::unique_ptr<Scorer> scorer_a, make_scorer(o, a, window, Role::kReference));
  QUIRE_TRY(std::unique_ptr<Scorer> scorer_b, make_scorer(o, b, window, Role::kJudged));
  std::optional<LogitsWriter> writer;
  if (!o.save_logits.empty()) {
    QUIRE_TRY(LogitsWriter w, create_writer(o, text, *a->tokenizer));
    writer.emplace(std::move(w));
  }
  Comparer comparer(o, text, Reference(std::move(scorer_a)), std::move(scorer_b));
  QUIRE_CHECKED(comparer.run(writer ? &*writer : nullptr));
  if (writer) QUIRE_CHECKED(writer->finish());
  return report(o, comparer.result(o.models.front()), *b->tokenizer);
}

// What the file was made from must be what the model is given now.
Status check_saved(const CompareOptions& o, const LogitsHeader& h, const LoadedModel& model,
                   std::span<const TokenId> tokens) {
  if (o.cut.window != 0 && o.cut.window != h.window)
    return request_error("{}: was saved with --window {}, not {}", o.logits, h.window, o.cut.window);
  if (o.cut.windows > h.windows)
    return request_error("{}: holds {} windows, --windows asks for {}", o.logits, h.windows, o.cut.windows);
  if (h.vocab != model.tokenizer->size())
    return request_error("{}: was saved for a vocabulary of {} tokens, {} has {}", o.logits, h.vocab, o.models.back(),
                         model.tokenizer->size());
  if (h.vocabulary_hash != vocabulary_hash(*model.tokenizer))
    return request_error("{}: was saved for another vocabulary than that of {}", o.logits, o.models.back());
  const auto all = static_cast<int64_t>(tokens.size());
  if (all / h.window < h.windows ||
      token_ids_hash(tokens.first(static_cast<size_t>(h.windows * h.window))) != h.tokens_hash)
    return request_error("{}: was saved for another text than {}", o.logits, o.text);
  return {};
}

}  // namespace

Result<Comparison> compare_with_saved(const CompareOptions& o, const std::shared_ptr<const LoadedModel>& model) {
  QUIRE_TRY(LogitsReader file, LogitsReader::open(o.logits));
  const LogitsHeader header = file.header();
  CompareOptions all = o;
  all.cut.windows = 0;
  QUIRE_TRY(const std::string bytes, read_text(o.text));
  QUIRE_TRY(Text text, cut_text(all, bytes, *model->tokenizer, header.window));
  QUIRE_CHECKED(check_saved(o, header, *model, text.tokens));
  text.windows = o.cut.windows > 0 ? o.cut.windows : header.windows;
  QUIRE_TRY(std::unique_ptr<Scorer> scorer, make_scorer(o, model, header.window, Role::kJudged));
  Comparer comparer(o, text, Reference(std::move(file)), std::move(scorer));
  QUIRE_CHECKED(comparer.run(nullptr));
  return comparer.result(header.model);
}

namespace {

Status compare_with_file(const CompareOptions& o) {
  QUIRE_TRY(const std::shared_ptr<const LoadedModel> model, load_with_tokenizer(o.models.front()));
  QUIRE_TRY(const Comparison c, compare_with_saved(o, model));
  return report(o, c, *model->tokenizer);
}

Status compare(CompareOptions& o) {
  if (!o.judged.empty()) o.models.push_back(o.judged);
  QUIRE_CHECKED(o.check());
  std::vector<PlannedOutput> planned;
  for (const std::string* output : {&o.svg, &o.save_logits}) {
    if (output->empty()) continue;
    QUIRE_TRY(PlannedOutput one, PlannedOutput::create(*output));
    planned.push_back(std::move(one));
  }
  if (!o.logits.empty()) return compare_with_file(o);
  return o.saving_only() ? save_only(o) : compare_models(o);
}

}  // namespace

Action add_compare(Flags& flags) {
  auto o = std::make_shared<CompareOptions>();
  flags
      .add("models REFERENCE MODEL", &o->models,
           "The reference model and the model to judge; with --logits only the latter, and only the "
           "former to do no more than --save-logits")
      .words(1, 2);
  flags.add("-m,--model FILE", &o->judged, "The model to judge, instead of giving it by position");
  flags.add("-f,--file,--text FILE", &o->text, "Text to compare on; - for standard input").required();
  o->cut.add(flags);
  o->window = &flags.find("--window")->default_text("512, or that of --logits");
  flags.add("--save-logits FILE", &o->save_logits,
            "Keep the reference's logits: 4 bytes per position and token of the vocabulary");
  flags.add("--logits FILE", &o->logits, "Saved logits instead of the reference model");
  flags.add("--svg FILE", &o->svg, "Plot the divergence by position in the window");
  flags.add("--top", &o->top, between(0, 10000), "How many of the largest disagreements to show");
  flags.add("--generated", &o->generated,
            "Judge the model as `quire run` computes what it generates: with block formats other kernels than a "
            "prompt's");
  flags.add("--json", &o->json, "Print one JSON object");
  o->compute.add_compute(flags);
  o->kv_cache.add(flags);
  o->activations.add(flags);
  return [o] { return compare(*o); };
}

}  // namespace quire::cli
