// Files of a card's costs, and the commands that write and take them.
#include "command/card_costs.h"

#include <gmock/gmock.h>

#include "support/program.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

cli::CostsFile example() {
  cli::CostsFile f{.card = "Some \"card\"", .limits = {}, .costs = {}};
  f.limits.major = 8;
  f.limits.minor = 6;
  f.limits.multiprocessors = 84;
  f.costs.column_ns = 2.25;
  f.costs.stream_rows = 12;
  return f;
}

TEST(CostsFile, IsReadAsItWasWritten) {
  const cli::CostsFile f = example();
  const auto read = cli::parse_costs(cli::costs_json(f), "costs.json");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->card, f.card);
  EXPECT_EQ(read->limits.major, 8);
  EXPECT_EQ(read->limits.minor, 6);
  EXPECT_EQ(read->limits.multiprocessors, 84);
  EXPECT_EQ(read->costs.column_ns, 2.25);
  EXPECT_EQ(read->costs.stream_rows, 12);
}

std::string refusal(const std::string& text) {
  const auto read = cli::parse_costs(text, "costs.json");
  return read.ok() ? "taken" : read.error().message;
}
std::string edited(std::string_view from, std::string_view to) {
  std::string text = cli::costs_json(example());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return refusal(at == std::string::npos ? text : text.replace(at, from.size(), to));
}

TEST(CostsFile, SaysWhatIsWrongAndWhere) {
  EXPECT_EQ(edited("", ""), "taken");
  EXPECT_THAT(refusal(""), HasSubstr("costs.json: is no JSON as `quire tune --out` writes it"));
  EXPECT_THAT(refusal("[]"), HasSubstr("must be an object"));
  EXPECT_THAT(refusal("{\"card\": {}}"), HasSubstr("lacks 'costs'"));
  EXPECT_THAT(refusal(std::string(100000, '[')), HasSubstr("is no JSON"));
  EXPECT_THAT(edited("\"8.6\"", "\"eight\""), HasSubstr("compute_capability 'eight'"));
  EXPECT_THAT(edited("\"multiprocessors\": 84", "\"multiprocessors\": 0"), HasSubstr("must be 1 to 4096"));
  EXPECT_THAT(edited("column_ns", "colum_ns"), HasSubstr("there is no cost 'colum_ns'"));
  EXPECT_THAT(edited("stream_rows_small", "stream_rows"), HasSubstr("a key stands twice"));
  EXPECT_THAT(edited("2.25", "-1"), HasSubstr("'column_ns' is -1: must be a number from"));
  EXPECT_THAT(edited("\"unit\": \"ns\"", "\"unit\": \"us\""), HasSubstr("is counted in \"ns\""));
  EXPECT_THAT(edited("\"value\": 12,", "\"value\": 12.5,"), HasSubstr("must be an integer"));
  EXPECT_THAT(edited("\"value\": 12,", "\"value\": 12, \"more\": 1,"), HasSubstr("unknown key 'more'"));
}

class CardCostsOption : public ProgramTest {};

TEST_F(CardCostsOption, IsForTheCardThatWasMeasured) {
  write("costs.json", cli::costs_json(example()));
  const std::string file = path("costs.json");
  Outcome o = quire("explain --costs --card sm_86:84 --card-costs " + file);
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out, HasSubstr("2.25  ns"));
  o = quire("explain --costs --card sm_90:132 --card-costs " + file);
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.err, HasSubstr("compute capability 8.6, 84 multiprocessors"));
  o = quire("run -m " QUIRE_SOURCE_DIR "/models/demo-moe-nvfp4.gguf -p x --device cpu --card-costs " + file);
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.err, HasSubstr("add --device cuda"));
}

TEST_F(CardCostsOption, TuneNeedsAGpu) {
  Outcome o = quire("tune --device cpu");
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.err, HasSubstr("only the kernels of a GPU"));
  o = quire("tune --gpu 4096");
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.err, HasSubstr("GPU"));
}

}  // namespace
}  // namespace quire::test
