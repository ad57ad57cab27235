// Random bytes as text for a fixed vocabulary, and as a vocabulary of their own.
#include <bit>
#include <cstdlib>
#include <deque>
#include <string>

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/stop_matcher.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

constexpr std::string_view kSplitters[] = {"gpt-2", "llama-bpe", "qwen2", "qwen35"};

// Takes values off the front of the input.
class Input {
 public:
  Input(const uint8_t* data, std::size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}
  uint8_t byte() {
    if (rest_.empty()) return 0;
    const char b = rest_.front();
    rest_.remove_prefix(1);
    return static_cast<uint8_t>(b);
  }
  std::string_view text(std::size_t max) {
    const std::string_view t = rest_.substr(0, byte() % (max + 1));
    rest_.remove_prefix(std::min(t.size(), rest_.size()));
    return t;
  }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

// Byte tokens (one may be missing), then tokens and merges from the input.
struct Config {
  std::deque<std::string> texts;
  TokenizerConfig config;

  explicit Config(Input& in) {
    const ByteAlphabet& alphabet = ByteAlphabet::get();
    config.pre = kSplitters[in.byte() % std::size(kSplitters)];
    for (int b = 0; b < 256; ++b) add(std::string(alphabet.letter(static_cast<uint8_t>(b))), 1);
    const uint8_t flags = in.byte();
    for (int n = in.byte() % 12; n > 0; --n) {
      const int32_t type = in.byte() % 8;
      const std::string_view text = in.text(12);
      add(type == 1 ? alphabet.encode(text) : std::string(text), type);
    }
    for (int n = in.byte() % 16; n > 0; --n) {
      const std::string left = alphabet.encode(in.text(3)), right = alphabet.encode(in.text(3));
      config.merges.push_back(texts.emplace_back(left + " " + right));
      if ((flags & 1) != 0) add(left + right, 1);
    }
    if ((flags & 2) != 0) config.bos = in.byte() * 2, config.add_bos = true;
    if ((flags & 4) != 0) config.eos = in.byte() * 2, config.add_eos = true;
    if ((flags & 8) != 0) config.merges.push_back(in.text(8));
    if ((flags & 16) != 0) config.tokens[in.byte()] = in.text(4);
    if ((flags & 32) != 0) config.token_types[in.byte()] = static_cast<int32_t>(in.byte()) - 1;
  }
  void add(std::string text, int32_t type) {
    config.tokens.push_back(texts.emplace_back(std::move(text)));
    config.token_types.push_back(type);
  }
};

// A vocabulary of SentencePiece: byte tokens, the rest from the input, with scores or merges that may be wrong.
struct PieceConfig {
  std::deque<std::string> texts;
  TokenizerConfig config;

  explicit PieceConfig(Input& in) {
    const uint8_t flags = in.byte();
    config.model = (flags & 1) != 0 ? "gemma4" : "llama";
    add("<unk>", 2, 0);
    for (int b = 0; b < 256; ++b) add(fmt::format("<0x{:02X}>", b), 6, 0);
    for (int n = in.byte() % 24; n > 0; --n) {
      const int32_t type = in.byte() % 4 == 0 ? in.byte() % 8 : 1;
      const float score = static_cast<float>(in.byte() % 16);
      const std::string_view text = in.text(8);
      add(in.byte() % 3 == 0 ? "▁" + std::string(text) : std::string(text), type, score);
    }
    for (int n = (flags & 2) != 0 || (flags & 1) != 0 ? in.byte() % 8 : 0; n > 0; --n) {
      const std::string left(in.text(3)), right(in.text(3));
      config.merges.push_back(texts.emplace_back(left + " " + right));
      if (in.byte() % 8 != 0) add(left, 1, 0), add(right, 1, 0), add(left + right, 1, 0);
    }
    config.space_prefix = static_cast<SpacePrefix>(in.byte() % 5);
    config.remove_extra_spaces = (flags & 4) != 0;
    config.controls_strip_behind = (flags & 8) != 0;
    if ((flags & 16) != 0) config.strip_before.push_back(in.byte() * 2);
    if ((flags & 32) != 0) config.scores[in.byte()] = std::bit_cast<float>(in.byte() << 23 | 0x7F800000);
    if ((flags & 64) != 0) config.token_types[in.byte()] = static_cast<int32_t>(in.byte()) - 1;
  }
  void add(std::string text, int32_t type, float score) {
    config.tokens.push_back(texts.emplace_back(std::move(text)));
    config.token_types.push_back(type);
    config.scores.push_back(score);
  }
};

void check_text(const Tokenizer& t, std::string_view text, bool plain_bytes) {
  for (const bool parse_special : {false, true}) {
    const auto ids = t.encode(text, {.add_special = true, .parse_special = parse_special});
    for (const TokenId id : ids) require(t.vocab().contains(id));
    const std::string whole = t.decode(ids, true);
    require(unicode::is_valid_utf8(whole));
    StreamDetokenizer stream(t, true);
    std::string streamed;
    for (const TokenId id : ids) {
      streamed += stream.push(id);
      require(stream.held_bytes() <= 3);
    }
    require(streamed + stream.flush() == whole);
  }
  if (!plain_bytes) return;  // tokens that spell other bytes than their text would fail here
  std::u32string code_points;
  unicode::append_code_points(text, code_points);
  if (t.nfc()) unicode::nfc(code_points);
  std::string want;
  for (const char32_t c : code_points) unicode::append_utf8(c, want);
  require(t.decode(t.encode(text, {.add_special = false, .parse_special = false})) == want);
}

void check_stops(Input& in) {
  std::vector<std::string> stops;
  for (int n = in.byte() % 4; n > 0; --n) stops.emplace_back(in.text(6));
  auto matcher = StopMatcher::create(stops);
  if (!matcher.ok()) return;
  const std::string text(in.rest());
  std::string emitted;
  for (const char c : text) emitted += matcher->push(std::string_view(&c, 1)).text;
  emitted += matcher->flush();
  require(text.starts_with(emitted) && (matcher->stopped() || emitted == text));
  for (const std::string& s : stops) require(emitted.find(s) == std::string::npos);
}

}  // namespace
}  // namespace quire

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace quire;
  Input in(data, size);
  if (in.byte() % 4 == 0) {
    check_stops(in);
    return 0;
  }
  if (in.byte() % 2 == 0) {
    const PieceConfig c(in);
    const auto t = Tokenizer::create(c.config);
    if (t.ok())
      check_text(*t, in.rest(), false);
    else
      require(!t.error().message.empty() && t.error().fault == Fault::kModelFile);
    return 0;
  }
  const Config c(in);
  const auto t = Tokenizer::create(c.config);
  if (!t.ok()) {
    require(!t.error().message.empty() && t.error().fault == Fault::kModelFile);
    return 0;
  }
  bool plain_bytes = true;
  for (TokenId id = 256; id < t->size(); ++id) plain_bytes &= t->vocab().type(id) != TokenType::kUserDefined;
  check_text(*t, in.rest(), plain_bytes);
  return 0;
}
