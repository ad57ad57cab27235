#include "support/sentencepiece_gguf.h"

#include <unistd.h>

#include <filesystem>
#include <vector>

#include "gguf/reader.h"
#include "support/gguf_edit.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;

constexpr std::string_view kLlamaTemplate =
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST]' + m['content'] + '[/INST]' }}"
    "{% else %}{{ m['content'] + eos_token }}{% endif %}{% endfor %}";
constexpr std::string_view kGemmaTemplate =
    "{{ bos_token }}{% for m in messages %}{{ '<|turn>' + m['role'] + '\\n' + m['content'] + '<turn|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|turn>model\\n' }}{% endif %}";

// Single characters, and what they merge to in this order. The rest of the characters are bytes.
constexpr std::string_view kCharacters[] = {"▁", "e", "t", "a",  "o", "i", "n", "h",  "r",  "s",
                                            "d", "1", "2", "\"", ",", ":", "é", "中", "文", "\n"};
struct Merge {
  std::string_view left, right;
};
constexpr Merge kMerges[] = {{"▁", "t"},  {"h", "e"}, {"▁t", "he"}, {"a", "n"},   {"an", "d"}, {"▁", "a"}, {"i", "n"},
                             {"o", "n"},  {"e", "r"}, {"▁", "▁"},   {"中", "文"}, {"\"", ":"}, {"t", "é"}, {"1", "2"},
                             {"▁", "中"}, {"s", "▁"}, {"\n", "\n"}, {"▁\"", "a"}, {"▁", "\""}};

struct Pieces {
  std::vector<std::string> texts;
  std::vector<int32_t> types;
  std::vector<float> scores;
  std::vector<std::string> merges;

  void add(std::string text, int32_t type = kNormal, float score = 0) {
    texts.push_back(std::move(text));
    types.push_back(type);
    scores.push_back(score);
  }
};

Pieces pieces(SmallVocabulary which, size_t size) {
  Pieces p;
  p.add("<unk>", kUnknown), p.add("<s>", kControl), p.add("</s>", kControl);
  for (int b = 0; b < 256; ++b) p.add(fmt::format("<0x{:02X}>", b), kByte);
  for (const std::string_view c : kCharacters) p.add(std::string(c), kNormal, -100);
  for (const Merge& m : kMerges) {
    p.add(std::string(m.left).append(m.right), kNormal, -static_cast<float>(p.merges.size()));
    p.merges.push_back(fmt::format("{} {}", m.left, m.right));
  }
  const bool gemma = which == SmallVocabulary::kGemma4;
  for (const char* text : {gemma ? "<|turn>" : "[INST]", gemma ? "<turn|>" : "[/INST]"}) p.add(text, kControl);
  p.add("<think>", kUserDefined);
  QUIRE_CHECK(p.texts.size() <= size, "{} tokens of {}", p.texts.size(), size);
  while (p.texts.size() < size) p.add(fmt::format("[PAD{}]", p.texts.size()), kUnused);
  return p;
}

void add_tokenizer(SmallVocabulary which, const Pieces& p, gguf::Writer& w) {
  const bool gemma = which == SmallVocabulary::kGemma4;
  const auto views = [](const std::vector<std::string>& texts) {
    return std::vector<std::string_view>(texts.begin(), texts.end());
  };
  w.add_string("tokenizer.ggml.model", gemma ? "gemma4" : "llama");
  w.add_strings("tokenizer.ggml.tokens", views(p.texts));
  w.add_array("tokenizer.ggml.token_type", std::span<const int32_t>(p.types));
  if (gemma)
    w.add_strings("tokenizer.ggml.merges", views(p.merges));
  else
    w.add_array("tokenizer.ggml.scores", std::span<const float>(p.scores));
  w.add("tokenizer.ggml.unknown_token_id", uint32_t{0});
  w.add("tokenizer.ggml.bos_token_id", uint32_t{1});
  w.add("tokenizer.ggml.eos_token_id", uint32_t{2});
  w.add("tokenizer.ggml.add_bos_token", true);
  w.add("tokenizer.ggml.add_space_prefix", !gemma);
  w.add_string("tokenizer.chat_template", gemma ? kGemmaTemplate : kLlamaTemplate);
}

}  // namespace

SentencePieceModelFile::SentencePieceModelFile(SmallVocabulary which) {
  const std::string_view base = which == SmallVocabulary::kGemma4 ? "tiny-gemma4" : "tiny-mistral";
  std::string pattern = (std::filesystem::temp_directory_path() / "quire-sentencepiece-XXXXXX").string();
  const int fd = mkstemp(pattern.data());
  QUIRE_CHECK(fd >= 0, "{}", pattern);
  close(fd);
  path_ = pattern;
  for (const TinyModel& m : tiny_models()) {
    if (m.name != base) continue;
    const TinyModelFile file(m);
    const gguf::File in = std::move(gguf::File::open(file.path())).value();
    GgufEdit edit;
    for (const gguf::Metadata::Entry& e : in.entries())
      if (e.key.starts_with("tokenizer.")) edit.drop.insert(std::string(e.key));
    const Pieces p = pieces(which, static_cast<size_t>(m.vocab));
    edit.metadata = [&](gguf::Writer& w) { add_tokenizer(which, p, w); };
    edit_gguf(file.path(), path_, edit);
  }
}

SentencePieceModelFile::~SentencePieceModelFile() {
  std::filesystem::remove(path_);
}

}  // namespace quire::test
