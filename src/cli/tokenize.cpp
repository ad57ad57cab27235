// quire tokenize: what a model makes of a text, or which text a list of tokens is.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "command/options.h"
#include "command/text_input.h"
#include "convert/open.h"
#include "core/output.h"
#include "gguf/reader.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace quire::cli {
namespace {

struct TokenizeOptions {
  std::string model, file;
  std::optional<std::string> text;
  bool json = false, jsonl = false, no_bos = false, no_special = false, decode = false;
};

// Token ids separated by spaces, commas or line breaks; a JSON array or {"tokens": [...]} is fine too.
Result<std::vector<TokenId>> parse_ids(std::string_view text, const Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  const auto fail = [](std::string_view what) {
    return request_error("--decode takes token ids such as '1,2,3' or the output of --json; it got {}", what);
  };
  if (const std::size_t key = text.find("\"tokens\""); key != std::string_view::npos) text.remove_prefix(key + 8);
  for (std::size_t i = 0; i < text.size();) {
    if (std::string_view(" ,:[]{}\t\r\n").find(text[i]) != std::string_view::npos) {
      ++i;
      continue;
    }
    int64_t id = 0;
    const std::size_t begin = i;
    for (; i < text.size() && text[i] >= '0' && text[i] <= '9' && i - begin < 11; ++i) id = 10 * id + (text[i] - '0');
    if (i == begin) return fail(fmt::format("the byte 0x{:02x} at offset {}", static_cast<uint8_t>(text[i]), i));
    if (id >= tokenizer.size()) return fail(fmt::format("{}, but the vocabulary has {} tokens", id, tokenizer.size()));
    ids.push_back(static_cast<TokenId>(id));
  }
  return ids;
}

// The text of one token for people: control bytes and halves of characters as escapes.
std::string readable(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const unicode::Decoded d = unicode::decode(bytes);
    const std::string_view c = bytes.substr(0, d.length);
    if (c == "\n") {
      out += "\\n";
    } else if (d.status != unicode::Utf8::kValid || d.code_point < 0x20 ||
               (d.code_point >= 0x7F && d.code_point < 0xA0)) {
      for (const char b : c) out += fmt::format("\\x{:02x}", static_cast<uint8_t>(b));
    } else {
      out += c;
    }
    bytes.remove_prefix(d.length);
  }
  return out;
}

void print_tokens(std::span<const TokenId> tokens, const Tokenizer& tokenizer, bool json) {
  if (json) {
    write_out(nlohmann::json{{"tokens", tokens}}.dump() + "\n");
    return;
  }
  for (const TokenId id : tokens) {
    print_out("{:>7}  '{}'\n", id, readable(tokenizer.token_bytes(id, true)));
  }
}

// One answer for each line: the tokens of a JSON text, or with --decode the text of a JSON list of tokens.
Status tokenize_lines(const TokenizeOptions& o, const Tokenizer& tokenizer, std::string_view input,
                      const EncodeOptions& options) {
  for (int64_t number = 1; !input.empty(); ++number) {
    const size_t end = std::min(input.find('\n'), input.size());
    const auto line = nlohmann::json::parse(input.substr(0, end), nullptr, false);
    input.remove_prefix(std::min(end + 1, input.size()));
    if (o.decode) {
      if (!line.is_array()) return request_error("line {}: is not a JSON list of tokens", number);
      QUIRE_TRY(const std::vector<TokenId> ids,
                parse_ids(line.dump(), tokenizer).context(fmt::format("line {}", number)));
      write_out(nlohmann::json{{"text", tokenizer.decode(ids, !o.no_special)}}.dump() + "\n");
      continue;
    }
    if (!line.is_string()) return request_error("line {}: is not a JSON text", number);
    print_tokens(tokenizer.encode(line.get_ref<const std::string&>(), options), tokenizer, true);
  }
  return {};
}

Status tokenize(const TokenizeOptions& o) {
  QUIRE_TRY(const gguf::File file, convert::open_model(o.model, {.matrices = false}));
  QUIRE_TRY(const Tokenizer tokenizer, Tokenizer::load(file).context(o.model));
  std::string input;
  if (o.text) {
    if (!o.file.empty()) return request_error("give one of --prompt and --file");
    input = *o.text;
  } else {
    QUIRE_TRY(input, read_text(o.file.empty() ? "-" : o.file));
    if (input.size() > Tokenizer::kMaxTextBytes)
      return request_error("the text is longer than {} bytes; tokenize it in parts", Tokenizer::kMaxTextBytes);
  }
  const EncodeOptions options{.add_special = !o.no_special && !o.no_bos, .parse_special = !o.no_special};
  if (o.jsonl) return tokenize_lines(o, tokenizer, input, options);
  if (o.decode) {
    QUIRE_TRY(const std::vector<TokenId> ids, parse_ids(input, tokenizer));
    const std::string text = tokenizer.decode(ids, !o.no_special);
    if (o.json) {
      write_out(nlohmann::json{{"text", text}}.dump() + "\n");
    } else {
      write_out(text);
    }
    return {};
  }
  print_tokens(tokenizer.encode(input, options), tokenizer, o.json);
  return {};
}

}  // namespace

Action add_tokenize(Flags& flags) {
  auto o = std::make_shared<TokenizeOptions>();
  flags.add(kModelNames, &o->model, "Model with the vocabulary: a GGUF file or a Hugging Face folder").required();
  flags.add("-p,--prompt,PROMPT", &o->text, "Text to tokenize (default: all of standard input)").may_be_empty();
  flags.add("-f,--file FILE", &o->file, "Text to tokenize; - for standard input");
  flags.add("--json", &o->json, "Print one object, {\"tokens\": [...]}");
  flags.add("--jsonl", &o->jsonl, "Each line of the input is a text as JSON, or with --decode a list of token ids");
  flags.add("--no-bos", &o->no_bos, "Do not add the tokens that the model wants at the beginning and end");
  flags.add("--no-special", &o->no_special,
            "Also take texts such as <|im_start|> literally; with --decode, leave them out");
  flags.add("--decode", &o->decode, "The other way: read token ids, print their text");
  return [o] { return tokenize(*o); };
}

}  // namespace quire::cli
