// quire bench-serve: how fast a server is for many users, any server of the OpenAI API.
#include <cstdio>
#include <fstream>
#include <optional>

#include "command/api_key.h"
#include "command/options.h"
#include "command/text_input.h"
#include "core/atomic_file.h"
#include "core/output.h"
#include "core/progress.h"
#include "lab/commands.h"
#include "lab/load/load_report.h"

namespace quire::cli {
namespace {

using load::LoadSummary;
using server::Json;

struct BenchServeOptions {
  std::string url, model, key_file, prompt_tokens = "256", output_tokens = "128", trace, json, check;
  std::vector<int> clients = {1, 8, 32};
  std::vector<double> rates;
  size_t requests = 0;
  double timeout = 600;
  bool chat = false, respect_eos = false, texts = false;
  load::WorkloadOptions workload;
  load::LoadOptions load;

  void add(Flags& flags);
};

void BenchServeOptions::add(Flags& flags) {
  flags.add("-u,--url,URL", &url, "The server: http://host:port").required();
  flags.add("--model", &model, "Name of the model there (default: the first it lists)");
  flags.add("--api-key-file FILE", &key_file, "File with keys as `quire serve` has it; the first is used");
  flags.add("--chat", &chat, "Use /v1/chat/completions instead of /v1/completions");
  flags.add("--clients", &clients, between(1, 10000),
            "Closed loops with so many requests at any time, one after the other");
  flags.add("--rate", &rates, above(0, 1e5), "Instead of --clients: Poisson arrivals of so many requests a second");
  flags.add("--requests", &requests, "Requests for each of these; 0: four a client, at least 16, or 64");
  flags.add("--prompt-tokens", &prompt_tokens,
            "N, uniform:LOW:HIGH, normal:MEAN:DEVIATION or exponential:MEAN; about a word a token");
  flags.add("--output-tokens", &output_tokens, "The same for answers");
  flags.add("--trace FILE", &trace, "JSON lines with prompt or prompt_tokens, output_tokens, at (seconds)");
  flags.add("--shared-prefix", &workload.shared_prefix, "Tokens of the prompt that requests have in common");
  flags.add("--prefixes", &workload.prefixes, "How many different ones there are");
  flags.add("--temperature", &load.temperature, "Of every request");
  flags.add("-s,--seed", &workload.seed, "Of prompts, lengths, arrivals and sampling").any_bits();
  flags.add("--respect-eos", &respect_eos, "Let answers end before their length (ignore_eos is not sent)");
  flags.add("--timeout", &timeout, above(0, 1e6, "seconds"), "Seconds for one request");
  flags.add("--json FILE", &json, "Write all results into this file; - for standard output instead of the table");
  flags.add("--texts", &texts, "Put the texts into the JSON, for --check");
  flags.add("--check URL|FILE", &check, "Compare the texts with those of another server's URL or of a run's JSON file");
}

struct Level {
  LoadSummary summary;
  std::vector<std::string> texts;
};

// Everything but the server: what is sent.
Result<std::vector<load::WorkItem>> items_for(const BenchServeOptions& o, int clients) {
  if (!o.trace.empty()) {
    QUIRE_TRY(const std::string text, read_text(o.trace));
    return load::parse_trace(text, o.workload);
  }
  const size_t automatic = clients > 0 ? std::max<size_t>(16, 4 * static_cast<size_t>(clients)) : 64;
  return load::make_workload(o.workload, o.requests > 0 ? o.requests : automatic);
}

Result<Level> run_level(const BenchServeOptions& o, const load::LoadOptions& load) {
  QUIRE_TRY(const std::vector<load::WorkItem> items, items_for(o, load.rate > 0 ? 0 : load.clients));
  const std::string name = load.rate > 0 ? fmt::format("{} requests/s", load.rate)
                                         : fmt::format("{} client{}", load.clients, load.clients == 1 ? "" : "s");
  Progress progress(name, static_cast<int64_t>(items.size()));
  QUIRE_TRY(const std::vector<load::Sample> samples, load::run_load(load, items, [&] { progress.add(1); }));
  Level level{.summary = load::summarize(name, samples), .texts = {}};
  for (const load::Sample& s : samples) level.texts.push_back(s.text);
  return level;
}

Result<std::vector<Level>> run_levels(const BenchServeOptions& o, const load::Url& url,
                                      const std::string& authorization) {
  load::LoadOptions load = o.load;
  load.url = url;
  load.authorization = authorization;
  load.model = o.model;
  if (load.model.empty()) {
    QUIRE_TRY(load.model, load::first_model(url, authorization).context("no --model is given"));
  }
  std::vector<Level> levels;
  for (const double rate : o.rates) {
    load.rate = rate;
    QUIRE_TRY(Level l, run_level(o, load));
    levels.push_back(std::move(l));
  }
  if (!levels.empty()) return levels;
  for (const int n : o.clients) {
    load.clients = n;
    QUIRE_TRY(Level l, run_level(o, load));
    levels.push_back(std::move(l));
  }
  return levels;
}

// The texts of another run, level by level.
Result<std::vector<std::vector<std::string>>> texts_to_check(const BenchServeOptions& o,
                                                             const std::string& authorization) {
  std::vector<std::vector<std::string>> texts;
  if (o.check.starts_with("http")) {
    QUIRE_TRY(const load::Url other, load::Url::parse(o.check));
    BenchServeOptions there = o;
    there.model.clear();
    QUIRE_TRY(std::vector<Level> levels, run_levels(there, other, authorization));
    for (Level& l : levels) texts.push_back(std::move(l.texts));
    return texts;
  }
  QUIRE_TRY(const std::string file, read_text(o.check));
  const Json j = Json::parse(file, nullptr, false);
  if (!j.is_object() || !j.contains("levels") || !j["levels"].is_array())
    return request_error("--check {}: not written by bench-serve --json", o.check);
  for (const Json& level : j["levels"]) {
    if (!level.is_object() || !level.contains("texts") || !level["texts"].is_array())
      return request_error("--check {}: holds no texts; write it with --texts", o.check);
    std::vector<std::string>& list = texts.emplace_back();
    for (const Json& t : level["texts"]) {
      if (!t.is_string()) return request_error("--check {}: a text that is no string", o.check);
      list.push_back(t);
    }
  }
  return texts;
}

// One line a level; an error if a text differs.
Status check_levels(const BenchServeOptions& o, const std::vector<Level>& levels, const std::string& authorization) {
  QUIRE_TRY(const auto others, texts_to_check(o, authorization));
  if (others.size() != levels.size())
    return request_error("--check {}: {} loads there, {} here", o.check, others.size(), levels.size());
  bool all = true;
  for (size_t i = 0; i < levels.size(); ++i) {
    const load::Agreement a = load::compare_texts(levels[i].texts, others[i]);
    tell_line(fmt::format("{}: {} of {} texts are the same{}{}", levels[i].summary.load, a.equal, a.compared,
                          a.first_difference.empty() ? "" : "; ", a.first_difference));
    all = all && a.equal == a.compared && levels[i].texts.size() == others[i].size();
  }
  if (!all) return request_error("the texts differ from those of {}", o.check);
  return {};
}

Status write_json(const BenchServeOptions& o, const std::vector<Level>& levels) {
  Json j = {{"url", o.url},
            {"prompt_tokens", o.prompt_tokens},
            {"output_tokens", o.output_tokens},
            {"shared_prefix", o.workload.shared_prefix},
            {"seed", o.workload.seed},
            {"levels", Json::array()}};
  for (const Level& l : levels) {
    Json entry = load::load_json(l.summary);
    if (o.texts) entry["texts"] = l.texts;
    j["levels"].push_back(std::move(entry));
  }
  const std::string text = j.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  if (o.json == "-") {
    write_out(text);
    return {};
  }
  return write_file(o.json, text);
}

Status bench_serve(BenchServeOptions o) {
  std::optional<PlannedOutput> planned;
  if (!o.json.empty() && o.json != "-") {
    QUIRE_TRY(PlannedOutput output, PlannedOutput::create(o.json));
    planned.emplace(std::move(output));
  }
  QUIRE_TRY(const load::Url url, load::Url::parse(o.url));
  QUIRE_TRY(o.workload.prompt_tokens, load::LengthSpec::parse(o.prompt_tokens));
  QUIRE_TRY(o.workload.output_tokens, load::LengthSpec::parse(o.output_tokens));
  o.load.chat = o.chat;
  o.load.ignore_eos = !o.respect_eos;
  o.load.seed = o.workload.seed;
  o.load.timeout = std::chrono::milliseconds(static_cast<int64_t>(o.timeout * 1000));
  std::string authorization;
  if (!o.key_file.empty()) {
    QUIRE_TRY(const std::string key, first_key(o.key_file));
    authorization = "Bearer " + key;
  }
  QUIRE_TRY(const std::vector<Level> levels, run_levels(o, url, authorization));
  std::vector<LoadSummary> summaries;
  size_t errors = 0;
  for (const Level& l : levels) {
    summaries.push_back(l.summary);
    errors += l.summary.errors;
    if (l.summary.errors > 0)
      tell_line(fmt::format("{}: {} errors; the first: {}", l.summary.load, l.summary.errors, l.summary.first_error));
  }
  if (o.json != "-") write_out(load::load_table(summaries));
  if (!o.json.empty()) QUIRE_CHECKED(write_json(o, levels));
  if (!o.check.empty()) QUIRE_CHECKED(check_levels(o, levels, authorization));
  if (errors > 0) return request_error("{} requests failed", errors);
  return {};
}

}  // namespace

Action add_bench_serve(Flags& flags) {
  auto o = std::make_shared<BenchServeOptions>();
  o->add(flags);
  return [o] { return bench_serve(*o); };
}

}  // namespace quire::cli
