// The demo models, where they are present: every tensor decodes to finite values, and the sizes add up to the
// byte.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "gguf/reader.h"
#include "quant/format.h"

namespace quire {
namespace {

class DemoModel : public testing::TestWithParam<const char*> {};

TEST_P(DemoModel, DecodesAndAddsUp) {
  const std::string path = std::string(QUIRE_SOURCE_DIR "/../shared/models/gguf/") + GetParam();
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not present";
  const auto f = gguf::File::open(path);
  ASSERT_TRUE(f.ok()) << f.error().message;
  EXPECT_EQ(f->mapped_bytes(), std::filesystem::file_size(path));

  const auto& shard = f->shards()[0];
  uint64_t end = shard.data_begin;
  for (const gguf::TensorInfo& t : f->tensors()) {
    EXPECT_EQ(t.bytes, t.rows() * t.row_bytes()) << t.name;
    end += (static_cast<uint64_t>(t.bytes) + shard.alignment - 1) / shard.alignment * shard.alignment;
    ASSERT_TRUE(quant::can_decode(t.dtype)) << t.name;
    std::vector<float> row(static_cast<size_t>(t.dims[0]));
    double sum = 0;
    for (int64_t r = 0; r < t.rows(); ++r) {
      quant::decode_row(t.dtype, t.data + r * t.row_bytes(), t.dims[0], row.data());
      for (const float x : row) sum += std::fabs(x);
    }
    EXPECT_TRUE(std::isfinite(sum) && sum > 0) << t.name;
  }
  EXPECT_EQ(end, shard.bytes) << "header, metadata and padded tensors are the whole file";
}

INSTANTIATE_TEST_SUITE_P(Gguf, DemoModel, testing::Values("demo-dense-bf16.gguf", "demo-moe-bf16.gguf"));

}  // namespace
}  // namespace quire
