// The gate: what it rewrites, what it tells, what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "constraint/schema_gate.h"
#include "constraint/string_pattern.h"
#include "support/sanitizers.h"

namespace quire::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Json = nlohmann::ordered_json;

GatedSchema gate(const char* schema) {
  auto gated = gate_schema(Json::parse(schema));
  EXPECT_TRUE(gated.ok()) << (gated.ok() ? "" : gated.error().message);
  return gated.ok() ? *gated : GatedSchema{};
}
std::string refusal(const char* schema) {
  const auto gated = gate_schema(Json::parse(schema));
  return gated.ok() ? "" : gated.error().message;
}

TEST(SchemaGate, PlainSchemasStayAsTheyAre) {
  const char* const schema =
      R"({"type":"object","properties":{"a":{"type":"string"},"b":{"type":"array","items":{"type":"integer"}}},)"
      R"("required":["a"],"additionalProperties":false})";
  const GatedSchema g = gate(schema);
  EXPECT_EQ(Json::parse(g.text), Json::parse(schema));
  EXPECT_THAT(g.unenforced, IsEmpty());
}

TEST(SchemaGate, PartsOfAllOfBecomeOne) {
  const GatedSchema g = gate(R"({"allOf":[{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]},
      {"properties":{"b":{"type":"integer"}},"required":["b"]}],"additionalProperties":true})");
  const Json out = Json::parse(g.text);
  EXPECT_EQ(out["properties"].size(), 2u);
  EXPECT_EQ(out["required"], Json({"a", "b"}));
  EXPECT_THAT(g.unenforced, IsEmpty());
}

TEST(SchemaGate, WhatStandsBesideAnyOfIsPartOfEachOption) {
  const Json out = Json::parse(gate(R"({"type":"object","properties":{"k":{"type":"string"}},"required":["k"],
      "anyOf":[{"properties":{"a":{"type":"null"}},"required":["a"]},{"required":["b"]}]})")
                                   .text);
  ASSERT_EQ(out["anyOf"].size(), 2u) << out;
  EXPECT_EQ(out["anyOf"][0]["required"], Json({"k", "a"}));
  EXPECT_EQ(out["anyOf"][1]["required"], Json({"k", "b"}));
}

TEST(SchemaGate, ValuesAreThoseThatTheirTypeHas) {
  EXPECT_EQ(Json::parse(gate(R"({"type":"string","enum":["a",1,null,"b"]})").text), Json({{"enum", {"a", "b"}}}));
  EXPECT_EQ(Json::parse(gate(R"({"enum":[1,5,9],"minimum":4,"maximum":6})").text), Json({{"const", 5}}));
}

TEST(SchemaGate, ReferencesAreFollowed) {
  const GatedSchema g = gate(R"({"$ref":"#/definitions/a~1b","definitions":{"a/b":{"type":"object","properties":
      {"next":{"$ref":"#"}}}}})");
  EXPECT_THAT(g.text, HasSubstr("$defs"));
  EXPECT_THAT(refusal(R"({"$ref":"#/nowhere"})"), HasSubstr("which does not exist"));
  EXPECT_THAT(refusal(R"({"$ref":"other.json"})"), HasSubstr("only references within the schema"));
}

TEST(SchemaGate, WhatIsNotEnforcedIsTold) {
  const auto told = [](const char* schema) { return gate(schema).unenforced; };
  EXPECT_THAT(told(R"({"type":"array","uniqueItems":true})"), ElementsAre("#: 'uniqueItems' is not enforced"));
  EXPECT_THAT(told(R"({"type":"object","properties":{"a":{"type":"string","not":{"const":"x"}}}})"),
              ElementsAre("#/properties/a: 'not' is not enforced"));
  EXPECT_THAT(told(R"({"type":"array","contains":{"type":"string"}})"), ElementsAre(HasSubstr("'contains'")));
  EXPECT_THAT(told(R"({"type":"number","multipleOf":0.01})"), ElementsAre(HasSubstr("'multipleOf'")));
  EXPECT_THAT(told(R"({"type":"string","format":"iri"})"), ElementsAre(HasSubstr("'format' iri")));
  EXPECT_THAT(told(R"({"type":"string","pattern":"^(a|b)+$","minLength":3})"), ElementsAre(HasSubstr("'minLength'")));
  EXPECT_THAT(told(R"({"type":"string","pattern":"^[a-z]+$","minLength":3,"maxLength":9})"), IsEmpty());
  EXPECT_THAT(told(R"({"if":{"required":["a"]},"then":{"required":["b"]}})"), ElementsAre(HasSubstr("'if'")));
}

TEST(SchemaGate, WhatCannotBeIsRefused) {
  EXPECT_THAT(refusal("false"), HasSubstr("nothing can satisfy it"));
  EXPECT_THAT(refusal(R"({"allOf":[{"type":"string"},{"type":"integer"}]})"), HasSubstr("nothing can satisfy it"));
  EXPECT_THAT(refusal(R"({"type":"strange"})"), HasSubstr("there is no type"));
  EXPECT_THAT(refusal(R"({"anyOf":5})"), HasSubstr("'anyOf' must be an array"));
  EXPECT_THAT(refusal(R"({"type":"object","properties":5})"), HasSubstr("'properties' must be an object"));
  EXPECT_THAT(refusal("[]"), HasSubstr("must be an object"));
}

TEST(SchemaGate, KeywordsHaveValuesThatTheyCanHave) {
  struct Case {
    const char *schema, *says;
  };
  for (const Case& c : {
           Case{R"({"type":"array","minItems":-1})",
                "#: 'minItems' must be a whole number that is not negative, not -1"},
           Case{R"({"type":"object","required":"a"})", "#: 'required' must be an array of strings, not \"a\""},
           Case{R"({"properties":{"a":{"maxLength":1.5}}})", "#/properties/a: 'maxLength' must be a whole number"},
           Case{R"({"items":{"minProperties":"2"}})", "#/items: 'minProperties' must be"},
           Case{R"({"required":[1]})", "'required' must be an array of strings, not an array"},
           Case{R"({"anyOf":[{"minimum":"1"}]})", "#/anyOf/0: 'minimum' must be a number, not \"1\""},
           Case{R"({"anyOf":[]})", "'anyOf' must be an array that is not empty"},
           Case{R"({"multipleOf":0})", "'multipleOf' must be a number above 0, not 0"},
           Case{R"({"uniqueItems":1})", "'uniqueItems' must be true or false"},
           Case{R"({"pattern":5})", "'pattern' must be a string, not 5"},
           Case{R"({"enum":{"a":1}})", "'enum' must be an array, not an object"},
           Case{R"({"type":[]})", "'type' must be the name of a type"},
           Case{R"({"properties":{"a":5}})", "#: 'properties' must be an object of schemas, for a too, not 5"},
           Case{R"({"prefixItems":[true,null]})", "'prefixItems' must be an array of schemas, at 1 too, not null"},
           Case{R"({"dependentRequired":{"a":"b"}})", "'dependentRequired' must be an object of arrays of strings"},
           Case{R"({"$defs":{"a":{"not":[1]}}})", "#/$defs/a: 'not' must be a schema"},
           Case{R"({"$ref":5})", "'$ref' must be a string"},
           Case{R"({"$ref":"#/x/y","x":{"y":{"minLength":-2}}})", "#/$ref: 'minLength' must be"},
           Case{R"({"properties":{"minItems":{"minItems":-1}}})", "#/properties/minItems: 'minItems'"},
       })
    EXPECT_THAT(refusal(c.schema), HasSubstr(c.says)) << c.schema;
  for (const char* schema : {R"({"properties":{"minItems":{"const":{"minItems":-1}},"required":{"type":"string"}}})",
                             R"({"type":"integer","minimum":0,"exclusiveMinimum":true})",
                             R"({"properties":{"a":{"type":"string","required":true}}})",
                             R"({"type":"string","minLength":2.0,"default":{"maxLength":"x"}})",
                             R"({"items":[{"type":"string"}],"dependencies":{"a":["b"],"c":{"required":["d"]}}})"})
    EXPECT_EQ(refusal(schema), "") << schema;
  // A path that nobody would read to its end is shown by its end.
  std::string deep = R"({"minItems":-1})";
  for (int i = 0; i < 20'000; ++i) deep = R"({"items":)" + deep + "}";
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(refusal(deep.c_str()), HasSubstr("#/.../items/items"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST(SchemaGate, WhatNothingFiniteSatisfiesIsRefused) {
  for (const char* schema :
       {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})",
        R"({"$ref":"#/$defs/x","$defs":{"x":{"type":"array","items":{"$ref":"#/$defs/y"},"minItems":1},
            "y":{"type":"object","properties":{"z":{"$ref":"#/$defs/x"}},"required":["z"]}}})",
        R"({"anyOf":[{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]},
            {"type":"array","prefixItems":[{"$ref":"#"}],"minItems":1}]})",
        R"({"type":"string","minLength":3,"maxLength":2})", R"({"type":"number","minimum":3,"exclusiveMaximum":3})",
        R"({"type":"array","minItems":3,"maxItems":2})",
        R"({"type":"object","properties":{"a":{"type":"array","minItems":2,"maxItems":1}},"required":["a"]})",
        R"({"type":"object","required":["a","b"],"maxProperties":1})"})
    EXPECT_THAT(refusal(schema), HasSubstr("nothing can satisfy it")) << schema;
}

// A text that began it could not end.
TEST(SchemaGate, WhatIsEndlessIsLeftOutWhereNothingNeedsIt) {
  const auto out = [](const char* schema) { return Json::parse(gate(schema).text); };
  constexpr const char* kEndless =
      R"("$defs":{"x":{"type":"object","properties":{"x":{"$ref":"#/$defs/x"}},"required":["x"]}})";
  Json left = out(fmt::format(R"({{"type":"object","properties":{{"a":{{"type":"null"}},"b":{{"$ref":"#/$defs/x"}}}},
      {}}})",
                              kEndless)
                      .c_str());
  EXPECT_EQ(left["properties"], Json({{"a", {{"type", "null"}}}}));
  EXPECT_FALSE(left.contains("$defs"));
  left = out(fmt::format(R"({{"anyOf":[{{"$ref":"#/$defs/x"}},{{"type":"null"}}],{}}})", kEndless).c_str());
  EXPECT_EQ(left["anyOf"], Json::array({{{"type", "null"}}}));
  left = out(fmt::format(R"({{"type":"array","items":{{"$ref":"#/$defs/x"}},{}}})", kEndless).c_str());
  EXPECT_EQ(left, Json({{"type", "array"}, {"maxItems", 0}}));
  left = out(fmt::format(R"({{"type":"array","prefixItems":[{{"type":"null"}},{{"$ref":"#/$defs/x"}}],{}}})", kEndless)
                 .c_str());
  EXPECT_EQ(left["items"], false);
  EXPECT_EQ(left["prefixItems"].size(), 1u);
  const GatedSchema open = gate(fmt::format(R"({{"type":"object","properties":{{"b":{{"$ref":"#/$defs/x"}}}},
      "additionalProperties":true,{}}})",
                                            kEndless)
                                    .c_str());
  EXPECT_THAT(open.unenforced, ElementsAre("#: that there is no property b is not enforced"));
  // What ends is left as it is.
  left = out(R"({"type":"object","properties":{"next":{"anyOf":[{"$ref":"#"},{"type":"null"}]}},"required":["next"]})");
  EXPECT_EQ(left["properties"]["next"]["anyOf"].size(), 2u);
}

TEST(SchemaGate, ObjectsHaveThePropertiesThatTheyName) {
  const auto additional = [](const char* schema, GateOptions options = {}) {
    const Json out = Json::parse(gate_schema(Json::parse(schema), options).value().text);
    return out.contains("additionalProperties") ? out["additionalProperties"].dump() : "";
  };
  constexpr const char* kPlain = R"({"type":"object","properties":{"a":{"type":"string"}}})";
  EXPECT_EQ(additional(kPlain), "false");
  EXPECT_EQ(additional(kPlain, {.additional_properties = true}), "");
  EXPECT_EQ(additional(R"({"properties":{}})"), "false");
  for (const char* open :
       {R"({"properties":{"a":{}},"additionalProperties":true})", R"({"type":"object"})",
        R"({"properties":{"a":{}},"unevaluatedProperties":true})", R"({"type":"object","required":["a"]})",
        R"({"properties":{"a":{}},"patternProperties":{"^x":{}}})", R"({"patternProperties":{"^x":{}}})",
        R"({"properties":{"a":{}},"minProperties":2})"})
    EXPECT_NE(additional(open), "false") << open;
}

// Closing comes behind merging: what several schemas name together is there.
TEST(SchemaGate, MergedObjectsHaveThePropertiesOfAll) {
  const auto out = [](const char* schema) {
    const GatedSchema g = gate(schema);
    EXPECT_THAT(g.unenforced, testing::Not(testing::Contains(HasSubstr("properties")))) << schema;
    return Json::parse(g.text);
  };
  const auto names = [](const Json& object) {
    std::vector<std::string> all;
    for (const auto& [name, property] : object["properties"].items()) all.push_back(name);
    return all;
  };
  Json both = out(R"({"allOf":[{"properties":{"a":{"type":"string"}}},{"$ref":"#/$defs/b"}],
      "$defs":{"b":{"properties":{"b":{"type":"null"}},"required":["b"]}}})");
  EXPECT_THAT(names(both), ElementsAre("a", "b"));
  EXPECT_EQ(both["additionalProperties"], false);
  Json either = out(R"({"properties":{"k":{}},"anyOf":[{"properties":{"a":{}}},{"required":["b"]}]})");
  EXPECT_THAT(names(either["anyOf"][0]), ElementsAre("k", "a"));
  EXPECT_THAT(names(either["anyOf"][1]), ElementsAre("k", "b"));
  // What is asked for is there, though no schema describes it.
  EXPECT_THAT(names(out(R"({"properties":{"a":{}},"required":["b"]})")), ElementsAre("a", "b"));
  const Json needs = out(R"({"properties":{"a":{}},"dependentRequired":{"a":["b"]}})");
  EXPECT_THAT(names(needs["anyOf"][0]), ElementsAre("a", "b"));
  const Json then = Json::parse(gate(R"({"properties":{"a":{}},"if":{"required":["a"]},
      "then":{"properties":{"b":{}}},"else":{"required":["c"]}})")
                                    .text);
  EXPECT_THAT(names(then), ElementsAre("a", "b", "c"));
}

TEST(SchemaGate, HostileSchemasEnd) {
  std::string deep = "{}";
  for (int i = 0; i < 2000; ++i) deep = R"({"allOf":[)" + deep + "]}";
  EXPECT_THAT(refusal(deep.c_str()), HasSubstr("nested too deeply"));
  // Each definition asks for the next one twice.
  std::string wide = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < 40; ++i)
    wide += fmt::format(
        R"("d{0}":{{"allOf":[{{"$ref":"#/$defs/d{1}"}},{{"$ref":"#/$defs/d{1}"}},{{"minimum":{0}}}]}},)", i, i + 1);
  wide += R"("d40":{"anyOf":[{"type":"integer"},{"type":"string"}]}}})";
  for (const std::string& schema :
       {wide, std::string(R"({"$ref":"#/$defs/a","$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"},{"minimum":1}]}}})"),
        std::string(R"({"$ref":"#"})")}) {
    const auto begin = std::chrono::steady_clock::now();
    const auto gated = gate_schema(Json::parse(schema));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
    if (gated.ok()) {
      EXPECT_LT(gated->text.size(), 1u << 20);
    }
  }
}

// Work that grows with the square of a schema is counted, and whoever leaves ends it.
TEST(SchemaGate, WorkIsBounded) {
  std::string names, more, properties;
  for (int i = 0; i < 60'000; ++i) names += fmt::format("{}\"n{}\"", i == 0 ? "" : ",", i);
  for (int i = 0; i < 60'000; ++i) more += fmt::format("{}\"m{}\"", i == 0 ? "" : ",", i);
  for (int i = 0; i < 40'000; ++i) properties += fmt::format("{}\"p{}\":{{}}", i == 0 ? "" : ",", i);
  std::string references = R"({"$defs":{"a":{"properties":{)" + properties + R"(}}},"allOf":[)";
  for (int i = 0; i < 100; ++i) references += fmt::format(R"({}{{"$ref":"#/$defs/a"}})", i == 0 ? "" : ",");
  const std::string schemas[] = {
      R"({"allOf":[{"type":"object","required":[)" + names + R"(]},{"type":"object","required":[)" + more + "]}]}",
      references + "]}",
      R"({"type":"object","properties":{)" + properties + R"(},"required":[)" + names + "]}",
      R"({"enum":[)" + names + R"(],"allOf":[{"enum":[)" + more + "]}]}",
      R"({"type":"object","dependentRequired":{"p0":[)" + names + R"(]},"properties":{)" + properties + "}}",
  };
  for (const std::string& schema : schemas) {
    SCOPED_TRACE(schema.substr(0, 60));
    const Json read = Json::parse(schema);
    const auto begin = std::chrono::steady_clock::now();
    const auto gated = gate_schema(read);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(kSlow ? 90 : 20));  // quiet: under one
    if (!gated.ok()) {
      EXPECT_THAT(gated.error().message, HasSubstr("too large where its keywords are combined"));
    }
    int asked = 0;
    const auto left = gate_schema(read, {.stop = [&] { return ++asked > 1; }});
    ASSERT_FALSE(left.ok());
    EXPECT_THAT(left.error().message, HasSubstr("nobody waits"));
  }
  // What people write is far from it.
  std::string large = R"({"type":"object","properties":{)";
  for (int i = 0; i < 2'000; ++i)
    large += fmt::format(R"({}"p{}":{{"type":"string","description":"what it is","maxLength":{}}})", i == 0 ? "" : ",",
                         i, i + 1);
  EXPECT_EQ(refusal((large + "}}").c_str()), "");
}

TEST(StringPattern, LengthsBecomePartOfThePattern) {
  EXPECT_EQ(pattern_of_length("^[a-z]+$", 3, 9), "^[a-z]{3,9}$");
  EXPECT_EQ(pattern_of_length("^[a-z][a-z0-9-]*$", 1, 63), "^[a-z][a-z0-9-]{0,62}$");
  EXPECT_EQ(pattern_of_length("^\\d*$", 2, std::nullopt), "^\\d{2,}$");
  EXPECT_EQ(pattern_of_length("^(a|b)*$", 2, 3), std::nullopt);
  EXPECT_EQ(pattern_of_length("a+", 2, 3), std::nullopt);
}

}  // namespace
}  // namespace quire::test
