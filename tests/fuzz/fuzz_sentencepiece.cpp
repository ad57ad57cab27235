// Any bytes as tokenizer.model: read, and made a tokenizer of as a folder with that file alone would be.
//   build/fuzz/fuzz_sentencepiece -max_total_time=600 -rss_limit_mb=2048 tests/data/tokenizer
#include <cstdint>
#include <cstdlib>

#include "convert/hf_tokenizer.h"
#include "convert/sentencepiece_model.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace quire::convert {
namespace {

void require(bool ok) {
  if (!ok) std::abort();
}

void run(std::string_view bytes) {
  const Result<SentencePieceModel> model = parse_sentencepiece_model(bytes);
  if (!model.ok()) return require(!model.error().message.empty() && model.error().fault == Fault::kModelFile);
  HfConfig config;
  config.vocab = std::ssize(model->pieces) + 1;
  TokenizerFiles files;
  files.model = bytes;
  const Result<HfTokenizer> read = read_hf_tokenizer(files, config);
  if (!read.ok()) return require(read.error().fault == Fault::kModelFile);
  require(std::ssize(read->tokens) == config.vocab && read->scores.size() == read->tokens.size());
  const Result<Tokenizer> made = Tokenizer::create(read->view());
  require(made.ok());
  const std::string_view text = bytes.substr(0, 200);
  for (const TokenId id : made->encode(text)) require(made->vocab().contains(id));
  require(unicode::is_valid_utf8(made->decode(made->encode(text), true)));
}

}  // namespace
}  // namespace quire::convert

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quire::convert::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
