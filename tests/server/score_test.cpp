// /v1/score and /v1/rerank: cosines of what /v1/embeddings answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/client.h"
#include "server/demo_server.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

const std::vector<std::string> kTexts = {"a cat", "the cat sat", "12 + 30", "a cat"};

// The cosine of each text with the first, from their embeddings.
std::vector<double> cosines() {
  const Json data = ask(demo_server().port(), post("/v1/embeddings", Json{{"input", kTexts}})).json()["data"];
  std::vector<double> all;
  for (const Json& d : data) {
    double sum = 0;
    for (size_t i = 0; i < d["embedding"].size(); ++i)
      sum += d["embedding"][i].get<double>() * data[0]["embedding"][i].get<double>();
    all.push_back(sum);
  }
  return all;
}

TEST(Scores, AreCosines) {
  const std::vector<double> want = cosines();
  const Json one = ask(demo_server().port(), post("/v1/score", Json{{"text_1", kTexts[0]}, {"text_2", kTexts}})).json();
  ASSERT_EQ(one["data"].size(), kTexts.size()) << one;
  for (size_t i = 0; i < kTexts.size(); ++i) EXPECT_NEAR(one["data"][i]["score"].get<double>(), want[i], 1e-5);
  EXPECT_GT(one["usage"]["total_tokens"], 0);
  const Json pairs = ask(demo_server().port(),
                         post("/score", Json{{"text_1", {kTexts[0], kTexts[0]}}, {"text_2", {kTexts[2], kTexts[3]}}}))
                         .json();
  ASSERT_EQ(pairs["data"].size(), 2u);
  EXPECT_NEAR(pairs["data"][0]["score"].get<double>(), want[2], 1e-5);
  EXPECT_NEAR(pairs["data"][1]["score"].get<double>(), 1, 1e-5);
}

TEST(Scores, RankDocuments) {
  const std::vector<double> want = cosines();
  const Json documents = {kTexts[2], {{"text", kTexts[3]}}, kTexts[1]};
  const Json all =
      ask(demo_server().port(), post("/v1/rerank", Json{{"query", kTexts[0]}, {"documents", documents}})).json();
  ASSERT_EQ(all["results"].size(), 3u) << all;
  EXPECT_EQ(all["results"][0]["index"], 1);
  EXPECT_EQ(all["results"][0]["document"]["text"], kTexts[3]);
  EXPECT_GE(all["results"][1]["relevance_score"], all["results"][2]["relevance_score"]);
  const Json top =
      ask(demo_server().port(),
          post("/v1/rerank",
               Json{{"query", kTexts[0]}, {"documents", documents}, {"top_n", 1}, {"return_documents", false}}))
          .json();
  ASSERT_EQ(top["results"].size(), 1u);
  EXPECT_FALSE(top["results"][0].contains("document"));
}

TEST(Scores, BadRequestsAreToldWhy) {
  const auto error_of = [](const char* path, const Json& body) {
    const Reply r = ask(demo_server().port(), post(path, body));
    EXPECT_EQ(r.status, 400);
    return r.error();
  };
  EXPECT_EQ(error_of("/v1/score", {{"text_1", "a"}}), "'text_2' is missing");
  EXPECT_THAT(error_of("/v1/score", {{"text_1", {"a", "b"}}, {"text_2", {"a"}}}), HasSubstr("one, or as many of both"));
  EXPECT_THAT(error_of("/v1/rerank", {{"query", "a"}, {"documents", {1}}}), HasSubstr("must hold strings"));
  EXPECT_THAT(error_of("/v1/rerank", {{"query", "a"}}), HasSubstr("'documents' must be an array"));
}

}  // namespace
}  // namespace quire::test
