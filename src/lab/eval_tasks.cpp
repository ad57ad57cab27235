#include "lab/eval_tasks.h"

#include <algorithm>

#include "command/display.h"
#include "core/escape.h"

namespace quire::cli {
namespace {

std::string_view trimmed(std::string_view s) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = s.find_first_not_of(kSpace);
  return begin == s.npos ? std::string_view() : s.substr(begin, s.find_last_not_of(kSpace) - begin + 1);
}

Result<std::string> text_member(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end()) return request_error("\"{}\" is missing", key);
  if (!it->is_string()) return request_error("\"{}\" must be a text", key);
  return it->get<std::string>();
}

Result<EvalTask> parse_task(std::string_view line) {
  const nlohmann::json j = nlohmann::json::parse(line, nullptr, false);
  if (j.is_discarded()) return request_error("is not JSON");
  if (!j.is_object()) return request_error("must be an object with \"id\", \"type\", \"prompt\" and \"expected\"");
  EvalTask t;
  const auto id = j.find("id");
  if (id == j.end()) return request_error("\"id\" is missing");
  if (!id->is_number() && !id->is_string()) return request_error("\"id\" must be a number or a text");
  t.id = *id;
  QUIRE_TRY(t.type, text_member(j, "type"));
  QUIRE_TRY(t.prompt, text_member(j, "prompt"));
  QUIRE_TRY(t.expected, text_member(j, "expected"));
  if (t.prompt.empty()) return request_error("\"prompt\" is empty");
  return t;
}

std::vector<std::string> types_of(const std::vector<EvalTask>& tasks) {
  std::vector<std::string> types;
  for (const EvalTask& t : tasks)
    if (std::find(types.begin(), types.end(), t.type) == types.end()) types.push_back(t.type);
  return types;
}

}  // namespace

Result<std::vector<EvalTask>> parse_eval_tasks(std::string_view text, const std::string& name) {
  std::vector<EvalTask> tasks;
  for (int64_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    if (line.empty()) continue;
    Result<EvalTask> task = parse_task(line);
    if (!task.ok()) return task.take_error().context(fmt::format("{}: line {}", name, number));
    tasks.push_back(std::move(task).value());
    tasks.back().line = number;
  }
  if (tasks.empty()) return request_error("{}: no tasks", name);
  return tasks;
}

Result<std::vector<EvalTask>> select_tasks(std::vector<EvalTask> tasks, const std::vector<std::string>& types,
                                           int64_t max) {
  const std::vector<std::string> known = types_of(tasks);
  for (const std::string& wanted : types)
    if (std::find(known.begin(), known.end(), wanted) == known.end()) {
      std::string list;
      for (const std::string& k : known) list += fmt::format("{}{}", list.empty() ? "" : ", ", escaped(k));
      return request_error("--types {}: there are no such tasks; there are {}", wanted, list);
    }
  if (!types.empty())
    std::erase_if(tasks,
                  [&](const EvalTask& t) { return std::find(types.begin(), types.end(), t.type) == types.end(); });
  if (max > 0 && static_cast<size_t>(max) < tasks.size())
    tasks.erase(tasks.begin() + static_cast<std::ptrdiff_t>(max), tasks.end());
  return tasks;
}

bool is_correct(const EvalTask& task, const EvalAnswer& answer) {
  return answer.ended && answer.text == task.expected;
}

bool is_json_answer(std::string_view text) {
  constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>";
  text = trimmed(text);
  if (text.starts_with(kOpen) && text.ends_with(kClose) && text.size() >= kOpen.size() + kClose.size())
    text = text.substr(kOpen.size(), text.size() - kOpen.size() - kClose.size());
  const nlohmann::json j = nlohmann::json::parse(text, nullptr, false);
  return j.is_object() || j.is_array();
}

std::vector<EvalScore> scores_by_type(const std::vector<EvalTask>& tasks, const std::vector<EvalAnswer>& answers) {
  std::vector<EvalScore> scores;
  for (const std::string& type : types_of(tasks)) {
    EvalScore s{.type = type, .json_type = true};
    for (size_t i = 0; i < tasks.size(); ++i) {
      if (tasks[i].type != type) continue;
      ++s.n;
      s.correct += is_correct(tasks[i], answers[i]);
      s.json_type = s.json_type && is_json_answer(tasks[i].expected);
      s.valid_json += is_json_answer(answers[i].text);
    }
    scores.push_back(std::move(s));
  }
  return scores;
}

}  // namespace quire::cli
