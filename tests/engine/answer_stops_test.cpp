// Stop texts are looked for in an answer and not in the reasoning before it, however the text is cut.
#include "engine/answer_stops.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

struct Found {
  std::string text;
  int stop = -1;
  bool operator==(const Found&) const = default;
};
void PrintTo(const Found& f, std::ostream* to) {
  *to << '"' << f.text << "\" ended by " << f.stop;
}

const std::vector<std::string> kStops = {"END", "stop", "<"};
const ReasoningMarks kThink = {.open = "<think>", .close = "</think>"};
const ReasoningMarks kInside = {.open = "<think>", .close = "</think>", .inside = true};
const ReasoningMarks kAnywhere = {.open = "<think>", .close = "</think>", .inside = false, .anywhere = true};
const ReasoningMarks kHarmony = {.open = "<|channel|>analysis", .close = "<|end|>", .inside = false, .anywhere = true};

Found run(const std::vector<std::string>& pieces, const std::optional<ReasoningMarks>& marks,
          const std::vector<std::string>& stops) {
  AnswerStops s(std::move(StopMatcher::create(stops)).value(), marks);
  Found f;
  for (const std::string& piece : pieces) f.text += s.push(piece);
  if (!s.stopped()) f.text += s.flush();
  f.stop = s.stop_index();
  return f;
}

// Cut in two at every place, and into single bytes.
void expect(const std::string& text, const std::optional<ReasoningMarks>& marks, const Found& wanted,
            const std::vector<std::string>& stops = kStops) {
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  EXPECT_EQ(run(bytes, marks, stops), wanted) << text;
  for (size_t at = 0; at <= text.size(); ++at)
    EXPECT_EQ(run({text.substr(0, at), text.substr(at)}, marks, stops), wanted) << text << " cut at " << at;
}

TEST(AnswerStops, WithoutMarksAllTextIsLookedAt) {
  expect("one END two", std::nullopt, {"one ", 0});
  expect("<think>END</think>", std::nullopt, {"", 2});
  expect("nothing", std::nullopt, {"nothing", -1});
}

TEST(AnswerStops, ReasoningPassesAsItIs) {
  expect("<think>END of stop</think>so END more", kThink, {"<think>END of stop</think>so ", 0});
  expect("\n \n<think>\nstop < END\n</think>\n\nwell, stop", kThink,
         {"\n \n<think>\nstop < END\n</think>\n\nwell, ", 1});
  expect("stop</think>fine END", kInside, {"stop</think>fine ", 0});
  expect("stop and END", kInside, {"stop and END", -1});
  expect("<think>a</think>EN", kThink, {"<think>a</think>EN", -1});
}

TEST(AnswerStops, OnlyTheBeginningIsReasoningUnlessItMayStandAnywhere) {
  expect("see: <think>END</think>", kThink, {"see: <think>", 0}, {"END"});
  expect("see: <think>END</think> END", kAnywhere, {"see: <think>END</think> ", 0}, {"END"});
  expect("<think>END</think>a<think>END</think>b", kThink, {"<think>END</think>a<think>", 0}, {"END"});
  expect("<think>END</think>a<think>END</think>b", kAnywhere, {"<think>END</think>a<think>END</think>b", -1}, {"END"});
}

TEST(AnswerStops, WhatOnlyBeginsLikeAMarkIsAnswer) {
  expect("<thi", kThink, {"", 2});
  expect("<thinks>", kThink, {"<think", 0}, {"s>"});
  expect("<<think>END</think>", kAnywhere, {"<<think>END</think>", -1}, {"END"});
  expect("  <thEND", kAnywhere, {"  <th", 0}, {"END"});
  expect("a <th", kAnywhere, {"a <th", -1}, {"END"});
  expect("   ", kThink, {"   ", -1});
  expect(" \n END", kThink, {" \n ", 0});
}

TEST(AnswerStops, ChannelsAreReasoningOrNot) {
  expect("<|channel|>analysis<|message|>END<|end|><|start|>assistant<|channel|>final<|message|>so END", kHarmony,
         {"<|channel|>analysis<|message|>END<|end|><|start|>assistant<|channel|>final<|message|>so ", 0}, {"END"});
  expect("<|channel|>final<|message|>so END", kHarmony, {"<|channel|>final<|message|>so ", 0}, {"END"});
}

// A stop text that has begun before reasoning is none.
TEST(AnswerStops, NoneReachesAcrossReasoning) {
  expect("EN<think>a</think>D", kAnywhere, {"EN<think>a</think>D", -1}, {"END"});
}

TEST(AnswerStops, WhereNothingIsLookedForReasoningIsStillSeen) {
  AnswerStops s(std::move(StopMatcher::create(kStops)).value(), kThink);
  EXPECT_EQ(s.push("<think>a", false), "<think>a");
  EXPECT_EQ(s.push("END"), "END");
  EXPECT_EQ(s.push("</think>b"), "</think>b");
  EXPECT_EQ(s.push("END"), "");
  EXPECT_EQ(s.stop_index(), 0);
  AnswerStops answer(std::move(StopMatcher::create(kStops)).value(), kThink);
  EXPECT_EQ(answer.push("END", false), "END");
  EXPECT_FALSE(answer.stopped());
}

}  // namespace
}  // namespace quire
