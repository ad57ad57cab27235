// Which model it is: fingerprints and files of prefixes rely on it. Weights that somebody changed are another model.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "engine/loaded_model.h"

namespace quire::test {
namespace {

uint64_t identity_of(const std::string& bytes) {
  const std::string path = testing::TempDir() + "identity.gguf";
  std::ofstream(path, std::ios::binary) << bytes;
  const auto model = load_model(path);
  EXPECT_TRUE(model.ok()) << model.error().message;
  return model.ok() ? (*model)->identity() : 0;
}

TEST(Identity, ShowsAChangeInsideATensor) {
  std::ifstream in(QUIRE_SOURCE_DIR "/models/demo-dense-nvfp4.gguf", std::ios::binary);
  std::string bytes = (std::ostringstream() << in.rdbuf()).str();
  const auto file = gguf::File::open(QUIRE_SOURCE_DIR "/models/demo-dense-nvfp4.gguf");
  ASSERT_TRUE(file.ok()) << file.error().message;
  const gguf::TensorInfo* const tensor = file->find_tensor("token_embd.weight");
  ASSERT_NE(tensor, nullptr);
  const auto size = static_cast<size_t>(tensor->bytes);
  ASSERT_GT(size, size_t{1} << 16) << "of a few pages all bytes count";
  const std::string_view weights(reinterpret_cast<const char*>(tensor->data), size);
  const size_t at = bytes.find(weights);
  ASSERT_NE(at, std::string::npos);

  const uint64_t known = identity_of(bytes);
  EXPECT_EQ(identity_of(bytes), known);
  // Neither its first nor its last third.
  for (size_t i = at + size / 3; i < at + size - size / 3; ++i) bytes[i] = static_cast<char>(bytes[i] ^ 1);
  EXPECT_NE(identity_of(bytes), known);
}

}  // namespace
}  // namespace quire::test
