#include "server/cache_marks.h"

#include <algorithm>

#include "server/random_id.h"

namespace quire::server {
namespace {

constexpr std::string_view kSpace = " \t\r\n\f\v";

// Templates may trim a content: a word behind its white space would keep that.
size_t without_trailing_space(const std::string& content, size_t offset) {
  const size_t last = std::string_view(content).substr(0, offset).find_last_not_of(kSpace);
  return last == std::string_view::npos ? 0 : last + 1;
}

// Takes the words out of a text. The places of those that it had once, in its order.
std::vector<size_t> take_out(std::string& text, std::span<const std::string> words) {
  struct Hit {
    size_t at, word;
  };
  std::vector<Hit> hits;
  std::vector<int> counts(words.size());
  for (size_t w = 0; w < words.size(); ++w)
    for (size_t at = text.find(words[w]); at != std::string::npos; at = text.find(words[w], at + 1)) {
      hits.push_back({at, w});
      ++counts[w];
    }
  std::sort(hits.begin(), hits.end(), [](const Hit& a, const Hit& b) { return a.at < b.at; });
  std::string left;
  std::vector<size_t> places;
  size_t from = 0;
  for (const Hit& h : hits) {
    left.append(text, from, h.at - from);
    if (counts[h.word] == 1) places.push_back(left.size());
    from = h.at + words[h.word].size();
  }
  text = left.append(text, from);
  return places;
}

}  // namespace

std::vector<size_t> find_marks(Conversation& conversation, const std::string& text, const RenderMessages& render) {
  Json& messages = *conversation.messages;
  std::vector<std::string> words;
  // The last one first, so that the offsets of the others stand.
  for (auto mark = conversation.marks.rbegin(); mark != conversation.marks.rend(); ++mark) {
    auto& content = messages[mark->message]["content"].get_ref<std::string&>();
    const size_t at = without_trailing_space(content, mark->offset);
    if (at == 0) continue;
    words.push_back("mark" + random_hex());
    content.insert(at, words.back());
  }
  if (words.empty()) return {};
  Result<RenderedPrompt> marked = render(messages);
  if (!marked.ok()) return {};
  std::vector<size_t> places = take_out(marked->text, words);
  if (marked->text != text) return {};
  return places;
}

int64_t tokens_before(const Tokenizer& tokenizer, const RenderedPrompt& prompt, size_t bytes,
                      std::span<const TokenId> tokens) {
  std::vector<jinja::ByteRange> foreign = prompt.foreign;
  while (!foreign.empty() && foreign.back().begin >= bytes) foreign.pop_back();
  if (!foreign.empty()) foreign.back().end = std::min(foreign.back().end, bytes);
  const std::vector<TokenId> beginning = tokenizer.encode(
      std::string_view(prompt.text).substr(0, bytes), {.add_special = false, .parse_special = true, .plain = foreign});
  return std::ranges::mismatch(beginning, tokens).in1 - beginning.begin();
}

}  // namespace quire::server
