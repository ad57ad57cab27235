// quire snapshot: its files, its gates, what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "lab/snapshot/child.h"
#include "lab/snapshot/gates.h"
#include "lab/snapshot/hardware.h"
#include "lab/snapshot/published.h"
#include "lab/snapshot/serving.h"
#include "support/program.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

using namespace quire::cli::snapshot;
using nlohmann::json;
using testing::HasSubstr;

const std::string kModels = QUIRE_SOURCE_DIR "/models/";

TEST(SnapshotHardware, ReadsCaches) {
  EXPECT_EQ(parse_cache_size("32K"), 32768);
  EXPECT_EQ(parse_cache_size("105M"), int64_t{105} << 20);
  for (const char* const bad : {"", "K", "x", "-1K", "1.5M", "99999999999999999999K"})
    EXPECT_EQ(parse_cache_size(bad), 0);
  const Hardware h = look_at_machine();
  EXPECT_GT(h.cpus, 0);
  EXPECT_GT(h.memory, 0);
  const Hardware nothing = look_at_machine({.cpuinfo = "/nowhere", .cpus = "/nowhere", .meminfo = "/nowhere"});
  EXPECT_EQ(nothing.cpu, "");
  EXPECT_TRUE(nothing.caches.empty());
  EXPECT_EQ(nothing.memory, 0);
}

TEST(SnapshotSpeeds, ArePrintedBesideWhatOthersPublishedForTheCard) {
  Snapshot s;
  EXPECT_EQ(speeds_text(s), "");
  s.device = "cuda";
  s.figures.push_back(
      {.name = "pp2048", .unit = "tokens/s", .readings = {{.value = 30}, {.value = 10}, {.value = 20}}});
  s.figures.push_back({.name = "decode linear", .unit = "s", .more_is_better = false, .readings = {{.value = 1}}});
  s.hardware.gpus.push_back({.name = "NVIDIA H100 80GB HBM3"});
  const std::string alone = speeds_text(s);
  EXPECT_THAT(alone, HasSubstr("pp2048"));
  EXPECT_THAT(alone, HasSubstr("20.0 tokens/s"));
  EXPECT_THAT(alone, testing::Not(HasSubstr("decode linear")));
  EXPECT_THAT(alone, testing::Not(HasSubstr("published")));
  s.hardware.gpus.front().name = "NVIDIA GB10";
  const std::string beside = speeds_text(s);
  EXPECT_TRUE(beside.starts_with(alone));
  for (const char* const said : {"Qwen3.6-35B-A3B NVFP4", "6265", "97.7", "llama.cpp", "3441", "50 to 56", "9155"})
    EXPECT_THAT(beside, HasSubstr(said));
  s.device = "cpu";
  EXPECT_EQ(speeds_text(s), alone);
  EXPECT_TRUE(published_for("NVIDIA GB200").empty());
}

TEST(SnapshotChild, IsReadInLinesAndTellsItsEnd) {
  auto child = Child::start({"sh", "-c", "cat; echo one; printf two"});
  ASSERT_TRUE(child.ok());
  EXPECT_EQ((*child)->read_line(), "one");
  EXPECT_EQ((*child)->read_line(), std::nullopt) << "a line that does not end";
  EXPECT_EQ((*child)->wait(), 0);
  auto ends = Child::start({"sh", "-c", "exit 7"});
  ASSERT_TRUE(ends.ok());
  EXPECT_EQ((*ends)->read_line(), std::nullopt);
  EXPECT_EQ((*ends)->wait(), 7);
  EXPECT_FALSE(Child::start({"/nowhere/at/all"}).ok());
}

TEST(SnapshotGates, BitsOfTheDemoModels) {
  for (const std::string name : {"demo-dense-nvfp4", "demo-moe-nvfp4"}) {
    const auto model = load_or_die(kModels + name + ".gguf");
    EXPECT_EQ(demo_model_name(model->identity()), name) << std::hex << "identity " << model->identity();
    const std::vector<Gate> gates = check_bits(model, Device::kCpu, 0, numerics_table());
    EXPECT_EQ(gates.size(), 4u);
    for (const Gate& g : gates) EXPECT_NE(g.result, GateResult::kFailed) << g.name << ": " << g.detail;
    // A table that says something else.
    std::string wrong(numerics_table());
    for (size_t at = 0; (at = wrong.find(name + " ", at)) != wrong.npos; ++at) wrong[at + name.size() + 1] ^= 1;
    const std::vector<Gate> others = check_bits(model, Device::kCpu, 0, wrong);
    for (size_t i = 0; i < gates.size(); ++i)
      if (gates[i].result == GateResult::kPassed) {
        EXPECT_EQ(others[i].result, GateResult::kFailed);
      }
    for (const Gate& g : check_bits(model, Device::kCpu, 0, "")) EXPECT_EQ(g.result, GateResult::kSkipped) << g.detail;
  }
  const TinyModelFile tiny(tiny_models().front());
  const std::vector<Gate> none = check_bits(load_or_die(tiny.path()), Device::kCpu, 0, numerics_table());
  ASSERT_EQ(none.size(), 1u);
  EXPECT_EQ(none[0].result, GateResult::kSkipped);
}

TEST(SnapshotPeers, AreNamedAndChecked) {
  const auto peer = parse_peer("vllm=http://127.0.0.1:8000/v1");
  ASSERT_TRUE(peer.ok());
  EXPECT_EQ(peer->name, "vllm");
  EXPECT_EQ(peer->url.text(), "http://127.0.0.1:8000");
  for (const char* const bad : {"", "x", "=http://a", "quire=http://a", "x=ftp://a", "x="})
    EXPECT_FALSE(parse_peer(bad).ok()) << bad;
  // Nobody listens there: a gate that failed, and no error.
  const Sweep s = sweep("x", {.host = "127.0.0.1", .port = "1"}, {});
  EXPECT_EQ(s.answered.result, GateResult::kFailed);
  EXPECT_EQ(s.same_texts.result, GateResult::kSkipped);
}

class SnapshotProgram : public ProgramTest {};

TEST_F(SnapshotProgram, TakesOneOfATinyModel) {
  const TinyModelFile tiny(tiny_models().back());
  const Outcome o = quire("snapshot --quick --skip conformance -m " + tiny.path() + " --out " + path("s.json") +
                          " --peer gone=http://127.0.0.1:1");
  EXPECT_EQ(o.code, 1) << o.err;  // the peer is not there
  EXPECT_THAT(o.out, HasSubstr("failed  gone answers"));
  EXPECT_THAT(o.err, HasSubstr(" left\n"));
  const json j = json::parse(read_whole_file(path("s.json")));
  EXPECT_EQ(j["schema"], "quire-snapshot/1");
  std::map<std::string, std::string> gates;
  for (const json& g : j["gates"]) gates[g["name"]] = g["result"];
  EXPECT_EQ(gates["company"], "passed");
  EXPECT_EQ(gates["speed"], "passed");
  EXPECT_EQ(gates["conformance"], "skipped");
  EXPECT_EQ(gates["bits"], "skipped");
  for (const char* const key : {"cpu", "caches", "memory", "read_bandwidth", "gpus"})
    EXPECT_TRUE(j["hardware"].contains(key));
  std::set<std::string> figures;
  for (const json& f : j["figures"]) {
    figures.insert(f["name"]);
    EXPECT_GE(f["values"].size(), 5u);
    EXPECT_EQ(f["values"].size(), f["compute"].size());
    for (const json& v : f["values"]) EXPECT_GT(v.get<double>(), 0);
  }
  EXPECT_THAT(figures, testing::IsSupersetOf({"npl8 prompts", "npl8 decode"}));
  EXPECT_FALSE(j["buckets"].empty());
  EXPECT_FALSE(j["memory"].empty());
}

TEST_F(SnapshotProgram, HoldsAModelAgainstAReference) {
  const std::string model = kModels + "demo-dense-nvfp4.gguf", text = QUIRE_SOURCE_DIR "/tests/data/golden/ppl.txt";
  ASSERT_EQ(quire("compare " + model + " -f " + text + " --windows 2 --save-logits " + path("l")).code, 0);
  const std::string rest = " --quick --skip conformance,speed,serving -m " + model + " --text " + text +
                           " --reference " + path("l") + " --out " + path("s.json");
  const Outcome o = quire("snapshot --max-kl 0.001" + rest);
  EXPECT_EQ(o.code, 0) << o.out << o.err;
  const json q = json::parse(read_whole_file(path("s.json")))["quality"];
  EXPECT_LT(q["reference"]["kl_mean"], 1e-6);  // it is the same model
  EXPECT_NEAR(q["perplexity"].get<double>(), 1.85, 0.2);
}

TEST_F(SnapshotProgram, AnswersTurns) {
  const TinyModelFile tiny(tiny_models().front());
  const auto turns = [&](const std::string& lines) {
    write("lines", lines);
    const std::string command = QUIRE_LAB " snapshot --turns --quick -m " + tiny.path() + " <" + path("lines") + " >" +
                                path("out") + " 2>" + path("err");
    const int status = std::system(command.c_str());
    return Outcome{WEXITSTATUS(status), read_whole_file(path("out")), read_whole_file(path("err"))};
  };
  const Outcome o = turns("0\n0\n");
  ASSERT_EQ(o.code, 0) << o.err;
  std::istringstream lines(o.out);
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  const json hello = json::parse(line);
  EXPECT_EQ(hello["schema"], "quire-turns/1");
  const size_t figures = hello["tasks"][0]["figures"].size();
  EXPECT_GT(figures, 0u);
  for (int turn = 0; turn < 2; ++turn) {
    ASSERT_TRUE(std::getline(lines, line));
    const json values = json::parse(line);
    EXPECT_EQ(values.size(), figures);
    for (const json& v : values) EXPECT_GT(v.get<double>(), 0);
  }
  EXPECT_FALSE(std::getline(lines, line));
  const Outcome odd = turns("1000\n");
  EXPECT_EQ(odd.code, 2);
  EXPECT_THAT(odd.err, HasSubstr("--turns: '1000' is the number of no task"));
}

TEST_F(SnapshotProgram, RefusesWhatMakesNoSense) {
  expect_refused("snapshot --turns", "give a model");
  expect_refused("snapshot --skip nothing", "--skip nothing: the parts are machine, ");
  expect_refused("snapshot --reference r", "as --text");
  expect_refused("snapshot --max-kl 1", "--reference");
  expect_refused("snapshot --rounds -1", "--rounds -1");
  expect_refused("snapshot --peer x", "NAME=URL");
  expect_refused("snapshot --out /nowhere/x.json", "/nowhere/x.json");
}

}  // namespace
}  // namespace quire::test
