// quire eval: reading tasks, counting, and the program on a demo model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "lab/eval_tasks.h"
#include "support/program.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

using cli::EvalAnswer;
using cli::EvalScore;
using cli::EvalTask;
using nlohmann::json;
using testing::HasSubstr;

EvalTask task(const std::string& type, const std::string& expected) {
  return {.line = 1, .id = 1, .type = type, .prompt = "p", .expected = expected};
}

TEST(EvalTasks, Lines) {
  const auto tasks = cli::parse_eval_tasks(
      "\n{\"id\": 7, \"type\": \"a\", \"prompt\": \"p\\n\", \"expected\": \"\", \"more\": []}\r\n  \n"
      "{\"id\": \"x\", \"type\": \"b\", \"prompt\": \"q\", \"expected\": \"e\"}",
      "t.jsonl");
  ASSERT_TRUE(tasks.ok()) << tasks.error().message;
  ASSERT_EQ(tasks->size(), 2u);
  EXPECT_EQ((*tasks)[0].line, 2);
  EXPECT_EQ((*tasks)[0].id, 7);
  EXPECT_EQ((*tasks)[0].prompt, "p\n");
  EXPECT_EQ((*tasks)[1].line, 4);
  EXPECT_EQ((*tasks)[1].id, "x");
  EXPECT_EQ((*tasks)[1].expected, "e");
}

TEST(EvalTasks, BadLinesAreNamed) {
  const std::string good = "{\"id\": 1, \"type\": \"a\", \"prompt\": \"p\", \"expected\": \"e\"}\n";
  const std::pair<std::string, std::string> cases[] = {
      {"", "t.jsonl: no tasks"},
      {"\n \n", "t.jsonl: no tasks"},
      {good + "{", "t.jsonl: line 2: is not JSON"},
      {good + "\n" + "\"text\"", "t.jsonl: line 3: must be an object"},
      {good + good.substr(0, 20), "t.jsonl: line 2: is not JSON"},
      {good + std::string(100000, '['), "t.jsonl: line 2: is not JSON"},
      {"{\"type\": \"a\", \"prompt\": \"p\", \"expected\": \"e\"}", "line 1: \"id\" is missing"},
      {"{\"id\": [], \"type\": \"a\", \"prompt\": \"p\", \"expected\": \"e\"}", "\"id\" must be a number or a text"},
      {"{\"id\": 1, \"prompt\": \"p\", \"expected\": \"e\"}", "\"type\" is missing"},
      {"{\"id\": 1, \"type\": 2, \"prompt\": \"p\", \"expected\": \"e\"}", "\"type\" must be a text"},
      {"{\"id\": 1, \"type\": \"a\", \"expected\": \"e\"}", "\"prompt\" is missing"},
      {"{\"id\": 1, \"type\": \"a\", \"prompt\": \"\", \"expected\": \"e\"}", "\"prompt\" is empty"},
      {"{\"id\": 1, \"type\": \"a\", \"prompt\": \"p\", \"expected\": null}", "\"expected\" must be a text"},
      {"{\"id\": 1, \"type\": \"\xff\", \"prompt\": \"p\", \"expected\": \"e\"}", "line 1: is not JSON"}};
  for (const auto& [text, reason] : cases) {
    const auto tasks = cli::parse_eval_tasks(text, "t.jsonl");
    ASSERT_FALSE(tasks.ok()) << reason;
    EXPECT_EQ(tasks.error().fault, Fault::kRequest);
    EXPECT_THAT(tasks.error().message, HasSubstr(reason));
  }
}

TEST(EvalTasks, Selection) {
  const std::vector<EvalTask> all{task("a", "1"), task("b", "2"), task("a", "3"), task("c", "4")};
  const auto expected = [](const Result<std::vector<EvalTask>>& tasks) {
    std::string out;
    for (const EvalTask& t : *tasks) out += t.expected;
    return out;
  };
  EXPECT_EQ(expected(cli::select_tasks(all, {}, 0)), "1234");
  EXPECT_EQ(expected(cli::select_tasks(all, {"c", "a"}, 0)), "134");
  EXPECT_EQ(expected(cli::select_tasks(all, {"a"}, 1)), "1");
  EXPECT_EQ(expected(cli::select_tasks(all, {}, 9)), "1234");
  const auto unknown = cli::select_tasks(all, {"a", "d"}, 0);
  ASSERT_FALSE(unknown.ok());
  EXPECT_THAT(unknown.error().message, HasSubstr("--types d: there are no such tasks; there are a, b, c"));
}

TEST(EvalTasks, ScoresByType) {
  EXPECT_TRUE(cli::is_correct(task("a", "x"), {.text = "x", .ended = true}));
  EXPECT_FALSE(cli::is_correct(task("a", "x"), {.text = "x", .ended = false})) << "went on";
  EXPECT_FALSE(cli::is_correct(task("a", "x"), {.text = "x ", .ended = true}));
  EXPECT_FALSE(cli::is_correct(task("a", "x"), {.text = "", .ended = true}));

  const std::vector<EvalTask> tasks{task("json", "{\"a\": 1}"), task("sum", "12"),
                                    task("json", "<tool_call>\n{}\n</tool_call>"), task("sum", "{}")};
  const std::vector<EvalAnswer> answers{{.text = "{\"a\": 2}", .ended = true},
                                        {.text = "12", .ended = true},
                                        {.text = "<tool_call>{</tool_call>", .ended = true},
                                        {.text = "{}", .ended = true}};
  const std::vector<EvalScore> scores = cli::scores_by_type(tasks, answers);
  ASSERT_EQ(scores.size(), 2u);
  EXPECT_EQ(scores[0].type, "json");
  EXPECT_TRUE(scores[0].json_type);
  EXPECT_EQ(scores[0].n, 2);
  EXPECT_EQ(scores[0].correct, 0);
  EXPECT_EQ(scores[0].valid_json, 1);
  EXPECT_FALSE(scores[1].json_type) << "numbers alone are no JSON answers";
  EXPECT_EQ(scores[1].accuracy(), 1.0);
}

class Eval : public ProgramTest {
 protected:
  static constexpr const char* kDemo = QUIRE_SOURCE_DIR "/models/demo-moe-nvfp4.gguf";

  // One task a line, in the demo models' own format.
  static std::string line(int id, const std::string& type, const std::string& question, const std::string& expected) {
    return json{{"id", id},
                {"type", type},
                {"prompt",
                 "<|im_start|>user\n" + question + "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"},
                {"expected", expected}}
               .dump() +
           "\n";
  }
  std::string tasks() const {
    std::string text;
    for (int i = 0; i < 12; ++i) {
      const int a = 11 + 7 * i, b = 80 - 3 * i;
      text += line(i, "sum", std::to_string(a) + "+" + std::to_string(b), std::to_string(a + b));
    }
    text += line(12, "wrong", "11+80", "92");
    text += line(13, "json",
                 "Return a JSON object with product, stars and recommend from this text: I bought a violin and "
                 "give it 3 out of 5 stars. I would recommend it.",
                 R"({"product": "violin", "stars": 3, "recommend": true})");
    return write("tasks.jsonl", text);
  }
};

TEST_F(Eval, DemoModelAnswers) {
  const Outcome o = quire(std::string("eval --json -m ") + kDemo + " -f " + tasks());
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.err, "");
  const json j = json::parse(o.out);
  EXPECT_EQ(j.at("n"), 14);
  EXPECT_EQ(j.at("correct"), 13);
  EXPECT_EQ(j.at("accuracy"), 13.0 / 14);
  EXPECT_EQ(j.at("by_type").at("sum"), (json{{"n", 12}, {"correct", 12}, {"accuracy", 1.0}}));
  EXPECT_EQ(j.at("by_type").at("json"), (json{{"n", 1}, {"correct", 1}, {"valid_json", 1}, {"accuracy", 1.0}}));
  ASSERT_EQ(j.at("failures").size(), 1u);
  EXPECT_EQ(j["failures"][0].at("id"), 12);
  EXPECT_EQ(j["failures"][0].at("output"), "91");
  EXPECT_EQ(j["failures"][0].at("expected"), "92");
}

TEST_F(Eval, TheBatchChangesNothing) {
  const std::string common = std::string("eval -m ") + kDemo + " -f " + tasks() + " --output ";
  const Outcome one = quire(common + path("one.jsonl") + " --batch 1");
  const Outcome many = quire(common + path("many.jsonl") + " --batch 16 --threads 2");
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(one.out, many.out);
  EXPECT_THAT(one.out, HasSubstr("wrong answers\n  12 wrong\n    expected  92\n    answered  91\n"));
  const std::string answers = read_whole_file(path("one.jsonl"));
  EXPECT_EQ(answers, read_whole_file(path("many.jsonl")));
  std::istringstream lines(answers);
  std::string first;
  std::getline(lines, first);
  const json j = json::parse(first);
  EXPECT_EQ(j.at("id"), 0);
  EXPECT_EQ(j.at("type"), "sum");
  EXPECT_EQ(j.at("output"), "91");
  EXPECT_EQ(j.at("ended"), true);
  EXPECT_EQ(j.at("correct"), true);
  EXPECT_GT(j.at("output_ids").size(), 1u) << "with the end token";
  EXPECT_EQ(std::count(answers.begin(), answers.end(), '\n'), 14);
}

TEST_F(Eval, SelectedTasks) {
  const Outcome o =
      quire(std::string("eval --json -m ") + kDemo + " -f " + tasks() + " --types sum,wrong --max-tasks 3");
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(json::parse(o.out).at("n"), 3);
  EXPECT_FALSE(json::parse(o.out).at("by_type").contains("json"));
}

TEST_F(Eval, WhatIsRefused) {
  for (const TinyModel& m : tiny_models())
    if (m.name == "tiny-qwen3") {
      ASSERT_TRUE(m.write_gguf(path("tiny.gguf")).ok());
    }
  const std::string eval = "eval -m " + path("tiny.gguf") + " -f ";
  expect_refused(eval + path("none.jsonl"), "No such file or directory");
  expect_refused(eval + write("bad.jsonl", line(1, "a", "b", "c") + "x"), "bad.jsonl: line 2: is not JSON");
  expect_refused(eval + write("long.jsonl", line(1, "a", std::string(5000, '7'), "c")),
                 "long.jsonl: line 1: a prompt of ");
  expect_refused(eval + tasks() + " --types nope", "--types nope: there are no such tasks; there are sum, wrong, json");
  expect_refused(eval + tasks() + " --batch 0", "--batch 0");
  expect_refused(eval + tasks() + " --max-tasks -1", "--max-tasks -1");
  expect_refused(eval + tasks() + " --max-tasks 1 --output " + path("none/x"), "cannot create");
  const Outcome full = quire(eval + tasks() + " --max-tasks 1 --output /dev/full");
  EXPECT_EQ(full.code, 2);
  EXPECT_THAT(full.err, HasSubstr("cannot write /dev/full"));
}

}  // namespace
}  // namespace quire::test
