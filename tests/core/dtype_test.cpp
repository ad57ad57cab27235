#include "core/dtype.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "core/float.h"
#include "core/id.h"

namespace quire {
namespace {

TEST(DType, TableAgreesWithTheFormat) {
  const struct {
    uint32_t id;
    const char* name;
    int elems, bytes;
  } types[] = {
      {0, "f32", 1, 4},         {1, "f16", 1, 2},         {2, "q4_0", 32, 18},      {3, "q4_1", 32, 20},
      {6, "q5_0", 32, 22},      {7, "q5_1", 32, 24},      {8, "q8_0", 32, 34},      {9, "q8_1", 32, 36},
      {10, "q2_k", 256, 84},    {11, "q3_k", 256, 110},   {12, "q4_k", 256, 144},   {13, "q5_k", 256, 176},
      {14, "q6_k", 256, 210},   {15, "q8_k", 256, 292},   {16, "iq2_xxs", 256, 66}, {17, "iq2_xs", 256, 74},
      {18, "iq3_xxs", 256, 98}, {19, "iq1_s", 256, 50},   {20, "iq4_nl", 32, 18},   {21, "iq3_s", 256, 110},
      {22, "iq2_s", 256, 82},   {23, "iq4_xs", 256, 136}, {24, "i8", 1, 1},         {25, "i16", 1, 2},
      {26, "i32", 1, 4},        {27, "i64", 1, 8},        {28, "f64", 1, 8},        {29, "iq1_m", 256, 56},
      {30, "bf16", 1, 2},       {34, "tq1_0", 256, 54},   {35, "tq2_0", 256, 66},   {39, "mxfp4", 32, 17},
      {40, "nvfp4", 64, 36},    {41, "q1_0", 128, 18},    {42, "q2_0", 64, 18},
  };
  std::set<uint32_t> known;
  for (const auto& t : types) {
    known.insert(t.id);
    const auto found = find_dtype(t.id);
    ASSERT_TRUE(found) << t.name;
    EXPECT_EQ(found->name, t.name);
    EXPECT_EQ(found->block_elems, t.elems) << t.name;
    EXPECT_EQ(found->block_bytes, t.bytes) << t.name;
    const auto by_name = find_dtype(std::string_view(t.name));
    ASSERT_TRUE(by_name) << t.name;
    EXPECT_EQ(static_cast<uint32_t>(by_name->type), t.id);
    EXPECT_EQ(dtype_name(found->type), t.name);
    EXPECT_EQ(dtype_bytes(found->type, 512), 512 / t.elems * t.bytes);
  }
  for (uint32_t id = 0; id < 300; ++id) EXPECT_EQ(find_dtype(id).has_value(), known.contains(id)) << "id " << id;
  EXPECT_FALSE(find_dtype(~0u));
  EXPECT_EQ(find_dtype(std::string_view("Q8_0"))->type, DType::kQ8_0) << "in any case";
  EXPECT_FALSE(find_dtype(std::string_view("q8_0 ")));
  EXPECT_FALSE(find_dtype(std::string_view("")));
}

TEST(DType, CodesOfCachesAreNoTypeOfFiles) {
  EXPECT_EQ(dtype_name(DType::kF8E4M3), "f8_e4m3");
  EXPECT_EQ(dtype_bytes(DType::kF8E4M3, 17), 17);
  EXPECT_FALSE(find_dtype(static_cast<uint32_t>(DType::kF8E4M3)));
  EXPECT_FALSE(find_dtype(std::string_view("f8_e4m3")));
}

TEST(Id, IsInvalidUntilGivenAndDoesNotMix) {
  EXPECT_FALSE(SeqId{}.valid());
  EXPECT_TRUE(SeqId{0}.valid());
  EXPECT_LT(SeqId{1}, SeqId{2});
  static_assert(!std::is_convertible_v<SeqId, BlockId>);
  static_assert(!std::is_convertible_v<int, SeqId>);
  EXPECT_EQ(std::hash<SeqId>{}(SeqId{7}), std::hash<int32_t>{}(7));
}

}  // namespace
}  // namespace quire
