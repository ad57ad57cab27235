// What the tests of options that a model is computed with have in common: a model, and a text to compare it with.
#pragma once

#include <string>

namespace quire::test {

inline const std::string kModelFile = QUIRE_SOURCE_DIR "/models/demo-dense-nvfp4.gguf";
inline const std::string kText = QUIRE_SOURCE_DIR "/tests/data/golden/ppl.txt";

}  // namespace quire::test
