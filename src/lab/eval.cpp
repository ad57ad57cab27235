// quire eval: greedy answers to the tasks of a file, many at a time, counted where they are exactly right.
#include <algorithm>
#include <memory>
#include <optional>

#include "command/display.h"
#include "command/options.h"
#include "command/text_input.h"
#include "core/atomic_file.h"
#include "core/escape.h"
#include "core/output.h"
#include "core/progress.h"
#include "engine/engine.h"
#include "lab/commands.h"
#include "lab/eval_tasks.h"

namespace quire::cli {
namespace {

using nlohmann::ordered_json;

// Beyond the tokens of the expected answer: the end token, and room for the same text in other tokens. A
// longer answer is wrong anyway.
constexpr int64_t kMargin = 16;
constexpr size_t kShownBytes = 160;

struct EvalOptions {
  ModelOptions model{.device = Device::kCpu};
  KvCacheOption kv_cache;
  ActivationsOption activations;
  std::string file, output;
  std::vector<std::string> types;
  int64_t max_tasks = 0, failures = 10;
  int32_t batch = 16;
  bool json = false;
};

std::string dumped(const ordered_json& j, int indent) {
  return j.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

// The prompts speak the model's own language: control tokens in them are meant.
Result<std::vector<Request>> make_requests(const std::vector<EvalTask>& tasks, const LoadedModel& model,
                                           const std::string& name) {
  const Tokenizer& t = *model.tokenizer;
  const int64_t context = model.model->config().context_length;
  std::vector<Request> requests;
  for (const EvalTask& task : tasks) {
    Request r;
    r.prompt = t.encode(task.prompt, {.add_special = true, .parse_special = true});
    const auto prompt = static_cast<int64_t>(r.prompt.size());
    r.max_tokens =
        static_cast<int64_t>(t.encode(task.expected, {.add_special = false, .parse_special = true}).size()) + kMargin;
    if (prompt + r.max_tokens > context)
      return request_error("{}: line {}: a prompt of {} tokens and an answer of up to {} exceed the context of {}",
                           name, task.line, prompt, r.max_tokens, context);
    requests.push_back(std::move(r));
  }
  return requests;
}

// Answers in the order of the requests. A few more than run at once are queued, so that none waits for us.
Result<std::vector<EvalAnswer>> answer_all(Engine& engine, std::vector<Request> requests) {
  const Tokenizer& tokenizer = *engine.model().tokenizer;
  const size_t queued = static_cast<size_t>(engine.plan().max_sequences) * 2;
  std::vector<EvalAnswer> answers(requests.size());
  std::vector<TextPart> parts;
  for (const Request& r : requests) parts.push_back(tokenizer.part_after(r.prompt));
  Progress progress("answering", static_cast<int64_t>(requests.size()));
  size_t next = 0, done = 0;
  std::optional<Error> error;
  while (done < requests.size() && !error) {
    for (; next < requests.size() && next < done + queued; ++next) {
      QUIRE_CHECKED(engine.submit(std::move(requests[next]), [&, i = next](const TokenEvent& e) {
        if (e.token() >= 0) answers[i].ids.push_back(e.token());
        if (e.finish() == FinishReason::kNone) return;
        answers[i].ended = e.finish() == FinishReason::kStop;
        if (e.error() != nullptr && !error) error = *e.error();
        ++done;
      }));
    }
    engine.step();
    progress.set(static_cast<int64_t>(done));
  }
  if (error) return *error;
  for (size_t i = 0; i < answers.size(); ++i) {
    EvalAnswer& a = answers[i];
    const std::span<const TokenId> ids(a.ids);
    a.text = tokenizer.decode(a.ended ? ids.first(ids.size() - 1) : ids, true, parts[i]);
  }
  return answers;
}

struct Evaluation {
  std::vector<EvalTask> tasks;
  std::vector<EvalAnswer> answers;
  std::vector<EvalScore> scores;
  EvalScore total;
};

Evaluation evaluated(std::vector<EvalTask> tasks, std::vector<EvalAnswer> answers) {
  Evaluation e{std::move(tasks), std::move(answers), {}, {.type = "all"}};
  e.scores = scores_by_type(e.tasks, e.answers);
  for (const EvalScore& s : e.scores) {
    e.total.n += s.n;
    e.total.correct += s.correct;
  }
  return e;
}

// The first `limit` wrong answers, as indices.
std::vector<size_t> failures(const Evaluation& e, int64_t limit) {
  std::vector<size_t> out;
  for (size_t i = 0; i < e.tasks.size() && static_cast<int64_t>(out.size()) < limit; ++i)
    if (!is_correct(e.tasks[i], e.answers[i])) out.push_back(i);
  return out;
}

ordered_json score_json(const EvalScore& s) {
  ordered_json j = {{"n", s.n}, {"correct", s.correct}};
  if (s.json_type) j["valid_json"] = s.valid_json;
  j["accuracy"] = s.accuracy();
  return j;
}

ordered_json evaluation_json(const EvalOptions& o, const Evaluation& e) {
  ordered_json j = {{"model", o.model.model}, {"tasks", o.file}};
  j.update(score_json(e.total));
  ordered_json& types = j["by_type"] = ordered_json::object();
  for (const EvalScore& s : e.scores) types[s.type] = score_json(s);
  ordered_json& list = j["failures"] = ordered_json::array();
  for (const size_t i : failures(e, o.failures))
    list.push_back({{"id", e.tasks[i].id},
                    {"type", e.tasks[i].type},
                    {"expected", e.tasks[i].expected},
                    {"output", e.answers[i].text},
                    {"ended", e.answers[i].ended}});
  return j;
}

std::string evaluation_table(const EvalOptions& o, const Evaluation& e) {
  const bool json_types = std::any_of(e.scores.begin(), e.scores.end(), [](const EvalScore& s) { return s.json_type; });
  std::string out =
      fmt::format("{:<20} {:>6} {:>8} {:>9}{}\n", "type", "n", "correct", "accuracy", json_types ? "  valid JSON" : "");
  const auto row = [&](const EvalScore& s) {
    out += fmt::format("{:<20} {:>6} {:>8} {:>8.2f}%", escaped(s.type, 40), s.n, s.correct, 100.0 * s.accuracy());
    out += s.json_type ? fmt::format("  {:>10}\n", s.valid_json) : "\n";
  };
  for (const EvalScore& s : e.scores) row(s);
  row(e.total);
  const std::vector<size_t> wrong = failures(e, o.failures);
  const auto all_wrong = static_cast<size_t>(e.total.n - e.total.correct);
  if (!wrong.empty())
    out += fmt::format("\nwrong answers{}\n",
                       wrong.size() < all_wrong ? fmt::format(" (the first {} of {})", wrong.size(), all_wrong) : "");
  for (const size_t i : wrong)
    out += fmt::format("  {} {}\n    expected  {}\n    answered  {}{}\n", e.tasks[i].id.dump(),
                       escaped(e.tasks[i].type, 40), escaped(e.tasks[i].expected, kShownBytes),
                       escaped(e.answers[i].text, kShownBytes), e.answers[i].ended ? "" : "  (and did not end)");
  return out;
}

std::string answers_jsonl(const Evaluation& e) {
  std::string out;
  for (size_t i = 0; i < e.tasks.size(); ++i)
    out += dumped({{"id", e.tasks[i].id},
                   {"type", e.tasks[i].type},
                   {"output", e.answers[i].text},
                   {"output_ids", e.answers[i].ids},
                   {"ended", e.answers[i].ended},
                   {"correct", is_correct(e.tasks[i], e.answers[i])}},
                  -1) +
           "\n";
  return out;
}

Status eval(const EvalOptions& o) {
  std::optional<PlannedOutput> planned;
  if (!o.output.empty()) {
    QUIRE_TRY(PlannedOutput output, PlannedOutput::create(o.output));
    planned.emplace(std::move(output));
  }
  EngineOptions options{.max_sequences = o.batch};
  QUIRE_CHECKED(o.model.apply(options));
  options.kv_cache = o.kv_cache.type;
  options.activations = o.activations.activations;
  QUIRE_TRY(const std::string text, read_text(o.file));
  QUIRE_TRY(std::vector<EvalTask> tasks, parse_eval_tasks(text, o.file));
  QUIRE_TRY(tasks, select_tasks(std::move(tasks), o.types, o.max_tasks));
  QUIRE_TRY(const std::shared_ptr<const LoadedModel> model, load_model(o.model.model, {.vision = false}));
  if (!model->tokenizer) return request_error("{}: eval needs a tokenizer, and this file has none", o.model.model);
  QUIRE_TRY(std::vector<Request> requests, make_requests(tasks, *model, o.file));
  options.context = 0;
  for (const Request& r : requests)
    options.context = std::max(options.context, static_cast<int64_t>(r.prompt.size()) + r.max_tokens);
  options.kv_tokens = options.context * o.batch;
  QUIRE_TRY(const std::unique_ptr<Engine> engine, Engine::create(model, std::move(options)));
  QUIRE_TRY(std::vector<EvalAnswer> answers, answer_all(*engine, std::move(requests)));
  report_forced(engine->forced_kernels());
  const Evaluation e = evaluated(std::move(tasks), std::move(answers));
  if (!o.output.empty()) QUIRE_CHECKED(write_file(o.output, answers_jsonl(e)));
  const std::string out = o.json ? dumped(evaluation_json(o, e), 1) + "\n" : evaluation_table(o, e);
  write_out(out);
  return {};
}

}  // namespace

Action add_eval(Flags& flags) {
  auto o = std::make_shared<EvalOptions>();
  o->model.add(flags);
  o->kv_cache.add(flags);
  o->activations.add(flags);
  flags
      .add("-f,--file FILE", &o->file,
           "Tasks, a JSON object a line: id, type, prompt (with its control tokens), expected; - for "
           "standard input")
      .required();
  flags.add("--types A,B", &o->types, "Only tasks of these types").separated();
  flags.add("--max-tasks", &o->max_tasks, at_least(0), "Only the first N of them; 0: all");
  flags.add("--batch", &o->batch, between(1, 4096), "Tasks in work at once. The answers do not depend on it");
  flags.add("-o,--output FILE", &o->output, "Write every answer, a JSON object a line");
  flags.add("--failures", &o->failures, at_least(0), "How many wrong answers to show");
  flags.add("--json", &o->json, "Print one JSON object");
  flags.footer(
      "Answers are greedy and end with an end-of-generation token; correct is what equals `expected` to the "
      "byte.");
  return [o] { return eval(*o); };
}

}  // namespace quire::cli
