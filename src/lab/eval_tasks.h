// Tasks of `quire eval`: a prompt and the one answer that counts.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/id.h"
#include "core/result.h"

namespace quire::cli {

struct EvalTask {
  int64_t line = 0;   // in the file, from 1
  nlohmann::json id;  // a number or a text
  std::string type, prompt, expected;
};

// JSON Lines: one object {"id", "type", "prompt", "expected"} a line; other keys and empty lines are ignored.
// An error names the file (`name`) and the line.
Result<std::vector<EvalTask>> parse_eval_tasks(std::string_view text, const std::string& name);

// Those of the given types (empty: all), of these the first `max` (0: all). An unknown type is an error that
// lists what there is.
Result<std::vector<EvalTask>> select_tasks(std::vector<EvalTask> tasks, const std::vector<std::string>& types,
                                           int64_t max);

struct EvalAnswer {
  std::vector<TokenId> ids;  // with the end token
  std::string text;          // before the end token
  bool ended = false;        // by an end-of-generation token
};

struct EvalScore {
  std::string type;
  int64_t n = 0, correct = 0;
  // Answers that are JSON, for types all of whose expected answers are.
  int64_t valid_json = 0;
  bool json_type = false;

  double accuracy() const { return n == 0 ? 0.0 : static_cast<double>(correct) / static_cast<double>(n); }
};

// The answer ended and is the expected one to the byte.
bool is_correct(const EvalTask& task, const EvalAnswer& answer);

// Whether a text is a JSON object or array, possibly within <tool_call> and </tool_call>.
bool is_json_answer(std::string_view text);

// In order of first appearance. `answers` belong to `tasks`.
std::vector<EvalScore> scores_by_type(const std::vector<EvalTask>& tasks, const std::vector<EvalAnswer>& answers);

}  // namespace quire::cli
