// quire snapshot: its files, its gates, what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/snapshot/charts.h"
#include "cli/snapshot/child.h"
#include "cli/snapshot/gates.h"
#include "cli/snapshot/hardware.h"
#include "cli/snapshot/page.h"
#include "cli/snapshot/record.h"
#include "cli/snapshot/serving.h"
#include "support/program.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

using namespace quire::cli::snapshot;
using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

const std::string kModels = QUIRE_SOURCE_DIR "/models/";

Snapshot sample() {
  Snapshot s{.program = "quire 0", .model = "<b>m</b>.gguf", .device = "cpu", .fingerprint = "f\"1'&", .time = "t"};
  s.hardware.cpu = "<script>alert(1)</script>";
  s.gates = {{.name = "a", .what = "</td><img src=x>", .result = GateResult::kPassed, .detail = "\x1b[31m\xff"},
             {.name = "b", .what = "b", .result = GateResult::kFailed, .detail = "because"},
             {.name = "c", .what = "c", .result = GateResult::kSkipped, .detail = "no <model>"}};
  s.figures = {{.name = "npl2 decode", .unit = "tokens/s", .readings = {{10, 1, 2}, {11, 1, 2}, {9, 1, 2}}},
               {.name = "npl8 decode", .unit = "tokens/s", .readings = {{20, 1, 2}, {21, 1, 2}, {19, 1, 2}}},
               {.name = "decode moe", .unit = "s", .more_is_better = false, .readings = {{0.1, 1, 2}}}};
  s.buckets = {{.phase = "decode", .op = "<op>", .calls = 3, .seconds = 0.1, .bytes = 1000, .flops = 5}};
  s.loads = {{"<peer>", {.load = "4 clients", .requests = 8, .seconds = 1, .tokens = 80}}};
  s.memory = {{0, "start", 1000000, 0}, {1, "<stage>", 2000000, 0}};
  s.quality = {.text = "<text>", .windows = 2, .window = 512, .perplexity = 1.5, .reference = "<r>"};
  return s;
}

TEST(SnapshotPage, EscapesEverything) {
  EXPECT_EQ(html("<a href=\"x\" id='y'>&\n"), "&lt;a href=&quot;x&quot; id=&#39;y&#39;&gt;&amp;\\n");
  const std::string page = snapshot_page(sample());
  for (const char* const markup :
       {"<script", "<img", "<b>m", "<op>", "<peer>", "<stage>", "<text>", "<r>", "<model>", "\x1b"})
    EXPECT_THAT(page, Not(HasSubstr(markup))) << markup;
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;alert(1)&lt;/script&gt;"));
  EXPECT_THAT(page, HasSubstr("1 of 2 gates failed"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
  // Nothing is fetched from anywhere, and nothing runs.
  for (const char* const foreign : {"http://", "https://", "src=\"", "<link", "url(", "@import", "onload"})
    EXPECT_THAT(page, Not(HasSubstr(foreign))) << foreign;
}

TEST(SnapshotPage, OfNothingIsAPage) {
  const std::string page = snapshot_page({});
  EXPECT_THAT(page, HasSubstr("no model"));
  EXPECT_THAT(page, HasSubstr("</html>"));
}

TEST(SnapshotRecord, ReadsWhatItWrites) {
  const Snapshot s = sample();
  const auto read =
      parse_snapshot(to_json(s).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace), "s");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->model, s.model);
  EXPECT_EQ(read->fingerprint, s.fingerprint);
  ASSERT_EQ(read->figures.size(), 3u);
  EXPECT_EQ(read->figures[0].values(), s.figures[0].values());
  EXPECT_EQ(read->figures[0].readings[2].memory, 2);
  EXPECT_FALSE(read->figures[2].more_is_better);
  ASSERT_EQ(read->gates.size(), 3u);
  EXPECT_EQ(read->gates[1].result, GateResult::kFailed);
}

TEST(SnapshotRecord, HostileFilesEndWithAMessage) {
  const auto refused = [](const std::string& text, const char* why) {
    const auto read = parse_snapshot(text, "f.json");
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_THAT(read.error().message, testing::StartsWith("f.json: "));
    EXPECT_THAT(read.error().message, HasSubstr(why));
  };
  refused("", "syntax error");
  refused("[", "syntax error");
  refused("[]", "it is no object");
  refused("{}", "has no \"schema\"");
  refused("{\"schema\": 3}", "schema is no text");
  refused("{\"schema\": \"quire-snapshot/9\"}", "quire-snapshot/9");
  refused("{\"a\": 1, \"a\": 2}", "occurs twice");
  refused(std::string(100000, '['), "nested more than");
  json good = json::parse(to_json(sample()).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  const auto with = [&](const char* pointer, const json& value) {
    json j = good;
    j[json::json_pointer(pointer)] = value;
    return j.dump();
  };
  refused(with("/figures", 1), "figures is no array");
  refused(with("/figures/0", "x"), "figures[0] is no object");
  refused(with("/figures/0/values", {1, "x"}), "figures[0].values holds what is no number");
  refused(with("/figures/0/values", {1, -1, 2}), "no number of at least 0");
  refused(with("/figures/0/values", {1, 0, 2}), "holds a 0");
  refused(with("/figures/0/values", {1}), "different numbers");
  refused(with("/figures/0/name", std::string(5000, 'x')), "at most 4096");
  refused(with("/gates/0/result", "maybe"), "neither passed, failed nor skipped");
  refused(with("/hardware", json::array()), "hardware is no object");
  good.erase("model");
  refused(good.dump(), "has no \"model\"");
}

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

TEST(SnapshotChild, TalksInLinesAndTellsItsEnd) {
  auto child = Child::start({"cat"});
  ASSERT_TRUE(child.ok());
  EXPECT_TRUE((*child)->write_line("one"));
  EXPECT_EQ((*child)->read_line(), "one");
  EXPECT_EQ((*child)->wait(), 0);
  auto ends = Child::start({"sh", "-c", "exit 7"});
  ASSERT_TRUE(ends.ok());
  EXPECT_EQ((*ends)->read_line(), std::nullopt);
  EXPECT_EQ((*ends)->wait(), 7);
  EXPECT_FALSE((*ends)->write_line("x"));
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
                          " --html " + path("s.html") + " --peer gone=http://127.0.0.1:1");
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
  EXPECT_THAT(read_whole_file(path("s.html")), HasSubstr("</html>"));
  // Held against itself.
  const Outcome same = quire("snapshot --diff " + path("s.json") + " " + path("s.json"));
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_THAT(same.out, HasSubstr("0 slower, 0 faster"));
}

TEST_F(SnapshotProgram, HoldsAModelAgainstAReference) {
  const std::string model = kModels + "demo-dense-nvfp4.gguf", text = QUIRE_SOURCE_DIR "/tests/data/golden/ppl.txt";
  ASSERT_EQ(quire("compare " + model + " -f " + text + " --windows 2 --save-logits " + path("l")).code, 0);
  const std::string rest = " --quick --skip conformance,speed,serving -m " + model + " --text " + text +
                           " --reference " + path("l") + " --out " + path("s.json") + " --html " + path("s.html");
  const Outcome o = quire("snapshot --max-kl 0.001" + rest);
  EXPECT_EQ(o.code, 0) << o.out << o.err;
  const json q = json::parse(read_whole_file(path("s.json")))["quality"];
  EXPECT_LT(q["reference"]["kl_mean"], 1e-6);  // it is the same model
  EXPECT_NEAR(q["perplexity"].get<double>(), 1.85, 0.2);
}

TEST_F(SnapshotProgram, TakesTurnsWithAnother) {
  const TinyModelFile tiny(tiny_models().front());
  const Outcome o = quire("snapshot --quick --launches 3 --rounds 1 -m " + tiny.path() + " --against " QUIRE_PROGRAM);
  EXPECT_NE(o.code, 2) << o.err;
  EXPECT_THAT(o.out, HasSubstr("npl8 decode"));
  expect_refused("snapshot -m " + tiny.path() + " --against /bin/true", "instead of answering");
  expect_refused("snapshot -m " + tiny.path() + " --against /bin/echo", "is it a quire that has --turns?");
  expect_refused("snapshot -m " + tiny.path() + " --against /nowhere", "cannot be run");
}

TEST_F(SnapshotProgram, RefusesWhatMakesNoSense) {
  expect_refused("snapshot --against x", "give a model");
  expect_refused("snapshot --turns", "give a model");
  expect_refused("snapshot --diff a b -m c", "takes no model");
  expect_refused("snapshot --diff " + path("a") + " " + path("b"), path("a"));
  expect_refused("snapshot --diff " + write("a", "{}") + " " + path("b"), "has no \"schema\"");
  expect_refused("snapshot --skip nothing", "--skip nothing: the parts are machine, ");
  expect_refused("snapshot --reference r", "as --text");
  expect_refused("snapshot --max-kl 1", "--reference");
  expect_refused("snapshot --rounds -1", "--rounds -1");
  expect_refused("snapshot --launches 1", "--launches 1");
  expect_refused("snapshot --peer x", "NAME=URL");
  expect_refused("snapshot --out /nowhere/x.json", "/nowhere/x.json");
}

}  // namespace
}  // namespace quire::test
