// What is enforced of many schemas, counted: those of shared/data, whose instances are walked byte by byte. Prints a
// table. Skipped where the data is not at hand.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "constraint/grammar.h"
#include "constraint/schema_gate.h"

namespace quire::test {
namespace {

using Json = nlohmann::ordered_json;

struct Instance {
  Json data;
  bool valid = false;
};
struct Case {
  std::string name;
  Json schema;
  std::vector<Instance> instances;
};

// Schemas by what became of them, and instances of those that were compiled.
struct Table {
  int schemas = 0, right = 0, refused = 0, noted = 0;
  int valid = 0, valid_rejected = 0, invalid = 0, accepted_with_note = 0, accepted_silently = 0;
  int wrong_valid = 0;  // schemas
  std::string details;

  void print(std::string_view what) const {
    fmt::print(
        "{}: {} schemas\n"
        "  all instances right            {:5} ({:.1f}%)\n"
        "  refused                        {:5}\n"
        "  enforced in part, and said so  {:5}\n"
        "  valid instances rejected       {:5} of {}, of {} schemas\n"
        "  invalid accepted, with a note  {:5} of {}\n"
        "  invalid accepted, silently     {:5}\n{}",
        what, schemas, right, 100.0 * right / std::max(schemas, 1), refused, noted, valid_rejected, valid, wrong_valid,
        accepted_with_note, invalid, accepted_silently, details);
  }
};

const GrammarCompiler& compiler() {
  static const std::unique_ptr<GrammarCompiler> kCompiler = [] {
    Vocabulary v;
    for (int i = 0; i < 256; ++i) v.bytes.emplace_back(1, static_cast<char>(i));
    v.bytes.emplace_back();
    v.ends = {256};
    return make_grammar_compiler(v);
  }();
  return *kCompiler;
}

bool accepts(const Grammar& grammar, const Json& data) {
  const auto matcher = grammar.begin();
  return matcher->accept_bytes(data.dump(-1, ' ', false, Json::error_handler_t::replace)) && matcher->completed();
}

void walk(const Case& c, Table& t) {
  ++t.schemas;
  const Result<GatedSchema> gated = gate_schema(c.schema, {.additional_properties = true});  // the standard's letter
  const auto refused = [&](const std::string& why) {
    ++t.refused;
    // Right where nothing is valid.
    bool any = false;
    for (const Instance& i : c.instances) any |= i.valid;
    if (!any && why.find("nothing can satisfy") != std::string::npos) ++t.right;
    t.details += fmt::format("    refused {}: {}\n", c.name, why.substr(0, 160));
  };
  if (!gated.ok()) return refused(gated.error().message);
  const auto grammar = compiler().compile({GrammarKind::kJsonSchema, gated->text}, {});
  if (!grammar.ok()) return refused(grammar.error().message);
  std::vector<std::string> notes = gated->unenforced;
  for (const std::string& w : (*grammar)->unenforced()) notes.push_back(w);
  for (const std::string& s : gated->shapes) notes.push_back("format " + s);
  if (!notes.empty()) ++t.noted;
  bool right = true, rejected = false;
  for (const Instance& i : c.instances) {
    const bool accepted = accepts(**grammar, i.data);
    ++(i.valid ? t.valid : t.invalid);
    if (accepted == i.valid) continue;
    right = false;
    if (i.valid) {
      ++t.valid_rejected;
      rejected = true;
      t.details += fmt::format("    valid rejected {}: {}\n", c.name, i.data.dump().substr(0, 160));
    } else if (!notes.empty()) {
      ++t.accepted_with_note;
    } else {
      ++t.accepted_silently;
      t.details += fmt::format("    ACCEPTED SILENTLY {}: {}\n", c.name, i.data.dump().substr(0, 160));
    }
  }
  t.right += right;
  t.wrong_valid += rejected;
}

std::string data(std::string_view name) {
  return fmt::format("{}/../shared/data/{}", QUIRE_SOURCE_DIR, name);
}

class SchemaTable : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_grammars()) GTEST_SKIP() << "built without XGrammar";
  }
};

TEST_F(SchemaTable, ToolsAndFiles) {
  std::ifstream file(data("maskbench-600.jsonl"));
  if (!file) GTEST_SKIP() << data("maskbench-600.jsonl") << " is not there";
  Table table;
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line);
    Case c{json["name"], json["schema"], {}};
    for (const Json& test : json["tests"]) c.instances.push_back({test["data"], test["valid"]});
    walk(c, table);
  }
  table.print("schemas of tools and files");
  EXPECT_EQ(table.accepted_silently, 0);
  EXPECT_GE(table.right, table.schemas * 0.88);
}

TEST_F(SchemaTable, TestSuite) {
  const std::string folder = data("json-schema-2020-12/tests/draft2020-12");
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not there";
  Table table;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const auto& path : files) {
    std::ifstream file(path);
    for (const Json& group : Json::parse(file)) {
      Case c{path.stem().string() + ": " + group["description"].get<std::string>(), group["schema"], {}};
      for (const Json& test : group["tests"]) c.instances.push_back({test["data"], test["valid"]});
      walk(c, table);
    }
  }
  table.print("JSON-Schema-Test-Suite, draft 2020-12");
  EXPECT_EQ(table.accepted_silently, 0);
}

}  // namespace
}  // namespace quire::test
