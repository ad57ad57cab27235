#include "server/picture_prompt.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace quire::server {
namespace {

constexpr char kBefore[] = "quire-asks-for-this-text", kBehind[] = "quire-asks-for-that-text";

Json text_message(const char* role, const char* content) {
  return {{"role", role}, {"content", content}};
}

// Conversations of which the message with a picture is a part as it usually is.
Json conversation_with(const std::string& role, Json content) {
  Json message = {{"role", role}, {"content", std::move(content)}};
  Json user = text_message("user", "u");
  if (role == "user") return Json::array({std::move(message)});
  if (role == "system") return Json::array({std::move(message), std::move(user)});
  if (role == "assistant") return Json::array({user, std::move(message), user});
  Json call = text_message("assistant", "");
  call["tool_calls"] = {
      {{"id", "abcdefghi"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", Json::object()}}}}};
  message["tool_call_id"] = "abcdefghi";
  message["name"] = "f";
  return Json::array({std::move(user), std::move(call), std::move(message)});
}

bool is_own(const RenderedPrompt& prompt, size_t begin, size_t end) {
  return std::none_of(prompt.foreign.begin(), prompt.foreign.end(),
                      [&](const jinja::ByteRange& r) { return r.begin < end && r.end > begin; });
}

// What stands between two texts for the picture that is between them; nothing if that is not the marker, once, written
// by the template.
std::optional<std::string> written_for_picture(const std::string& role, const RenderMessages& render,
                                               const std::string& marker) {
  const Json parts = {
      {{"type", "text"}, {"text", kBefore}}, {{"type", "image"}}, {{"type", "text"}, {"text", kBehind}}};
  const Result<RenderedPrompt> prompt = render(conversation_with(role, parts));
  if (!prompt.ok()) return std::nullopt;
  const std::string& text = prompt->text;
  const size_t before = text.find(kBefore), at = text.find(marker, before), behind = text.find(kBehind, at);
  if (before == std::string::npos || at == std::string::npos || behind == std::string::npos) return std::nullopt;
  if (text.find(marker) != at || text.rfind(marker) != at || !is_own(*prompt, at, at + marker.size()))
    return std::nullopt;
  const size_t begin = before + sizeof kBefore - 1;
  return text.substr(begin, behind - begin);
}

// The number of the picture whose word stands at `at`; nothing if there is none.
std::optional<size_t> number_at(std::string_view text, size_t at, const Pictures& pictures) {
  const size_t digits = at + pictures.word.size();
  if (digits + Pictures::kDigits > text.size()) return std::nullopt;
  size_t number = 0;
  const char* const end = text.data() + digits + Pictures::kDigits;
  const auto [stop, failed] = std::from_chars(text.data() + digits, end, number);
  if (failed != std::errc() || stop != end || number >= pictures.files.size()) return std::nullopt;
  return number;
}

// Calls each(text before it, number) for each word in a text; returns what is behind the last one.
template <class Each>
std::string_view each_word(std::string_view text, const Pictures& pictures, const Each& each) {
  size_t from = 0;
  for (size_t at = text.find(pictures.word); at != std::string_view::npos; at = text.find(pictures.word, at)) {
    const std::optional<size_t> number = number_at(text, at, pictures);
    if (!number) {
      at += pictures.word.size();
      continue;
    }
    each(text.substr(from, at - from), *number);
    from = at += pictures.word.size() + Pictures::kDigits;
  }
  return text.substr(from);
}

const std::string* content_with(const Json& message, const Pictures& pictures) {
  const auto content = message.find("content");
  if (content == message.end() || !content->is_string()) return nullptr;
  const auto& text = content->get_ref<const std::string&>();
  return text.find(pictures.word) == std::string::npos ? nullptr : &text;
}

Json parts_of(const std::string& content, const Pictures& pictures) {
  Json parts = Json::array();
  const auto add_text = [&](std::string_view text) {
    if (!text.empty()) parts.push_back({{"type", "text"}, {"text", std::string(text)}});
  };
  add_text(each_word(content, pictures, [&](std::string_view before, size_t) {
    add_text(before);
    parts.push_back({{"type", "image"}});
  }));
  return parts;
}

// A prompt of pieces of another one, and of what is put between them: the template's text, whatever is around it.
class Replaced {
 public:
  explicit Replaced(const RenderedPrompt& of) : of_(of) {
    for (const jinja::ByteRange& r : of.foreign) all_.add(r.begin, r.end);
  }
  void add(std::string_view piece) {
    const size_t begin = static_cast<size_t>(piece.data() - of_.text.data());
    foreign_.add_piece(all_, begin, begin + piece.size(), out_.text.size());
    out_.text += piece;
  }
  void add_own(std::string_view own) { out_.text += own; }
  RenderedPrompt take() {
    out_.foreign = foreign_.all();
    return std::move(out_);
  }

 private:
  const RenderedPrompt& of_;
  jinja::ByteRanges all_, foreign_;
  RenderedPrompt out_;
};

// Puts `own` in the place of each word.
RenderedPrompt with_words_replaced(const RenderedPrompt& prompt, const Pictures& pictures, const std::string& own) {
  Replaced out(prompt);
  out.add(each_word(prompt.text, pictures, [&](std::string_view before, size_t) {
    out.add(before);
    out.add_own(own);
  }));
  return out.take();
}

// What stands for each picture, in their order: for one that is seen in pieces too, the sentence that Gemma's processor
// writes around them.
std::vector<std::string> written_for(std::span<const PlacedPicture> planned, const std::string& written) {
  std::vector<std::string> all;
  size_t pieces = 0;
  for (const PlacedPicture& p : planned) {
    pieces = p.crop.whole() ? 0 : pieces + 1;
    if (p.crop.whole())
      all.push_back(written);
    else if (pieces == 1)
      all.back() = fmt::format("Here is the original image {} and here are some crops to help you see better {}",
                               written, written);
    else
      all.back() += " " + written;
  }
  return all;
}

// Puts what is written for each picture, or for `one`, in the place of each marker that the template wrote.
RenderedPrompt with_markers_replaced(const RenderedPrompt& prompt, const std::string& marker, const std::string& one,
                                     std::span<const std::string> written) {
  Replaced out(prompt);
  const std::string_view text = prompt.text;
  auto foreign = prompt.foreign.begin();
  size_t from = 0, next = 0;
  for (size_t at = text.find(marker); at != std::string_view::npos; at = text.find(marker, at + marker.size())) {
    while (foreign != prompt.foreign.end() && foreign->end <= at) ++foreign;
    if (foreign != prompt.foreign.end() && foreign->begin < at + marker.size()) continue;
    out.add(text.substr(from, at - from));
    // More than there are pictures: expand_pictures() refuses that.
    out.add_own(next < written.size() ? written[next++] : one);
    from = at + marker.size();
  }
  out.add(text.substr(from));
  return out.take();
}

}  // namespace

PictureTemplate::PictureTemplate(const RenderMessages& render, const Tokenizer& tokenizer, const LoadedVision& vision)
    : pad_(tokenizer.token_text(vision.token)), marker_(vision.marker), written_(vision.written) {
  for (const char* role : {"user", "tool", "assistant", "system"}) {
    const std::optional<std::string> written = written_for_picture(role, render, marker_);
    parts_[role] = written.has_value();
    if (usual_.empty() && written) usual_ = *written;
  }
  constexpr std::string_view kStart = "<|vision_start|>", kEnd = "<|vision_end|>";
  const bool enclosed = marker_ == written_ && tokenizer.find_token(kStart) && tokenizer.find_token(kEnd);
  if (usual_.empty()) usual_ = enclosed ? fmt::format("{}{}{}", kStart, marker_, kEnd) : marker_;
}

bool PictureTemplate::takes_parts(const Json& message) const {
  const auto at = parts_.find(message["role"].get_ref<const std::string&>());
  return at != parts_.end() && at->second;
}

Result<RenderedPrompt> PictureTemplate::render(const Json& messages, const Pictures& pictures,
                                               std::span<const PlacedPicture> planned,
                                               const RenderMessages& render) const {
  JsonDocument shaped{Json(messages)};
  for (Json& message : *shaped)
    if (const std::string* const content = content_with(message, pictures); content != nullptr && takes_parts(message))
      message["content"] = parts_of(*content, pictures);
  QUIRE_TRY(RenderedPrompt prompt, render(*shaped));
  if (prompt.text.find(pictures.word) != std::string::npos) prompt = with_words_replaced(prompt, pictures, usual_);
  if (marker_ == written_) return prompt;
  return with_markers_replaced(prompt, marker_, written_, written_for(planned, written_));
}

namespace {

// What is wrong with a picture, by its place in the request.
ApiError about(const PictureFile& file, const Error& error) {
  ApiError e = to_api_error(error);
  if (e.status != 400) return e;
  e.message = fmt::format("'{}': {}", file.where, e.message);
  e.param = file.where;
  e.code = "invalid_image";
  return e;
}

// Appends the views of a picture.
ApiStatus plan_picture(const PicturePtr& file, const image::ImageSpec& spec, const image::ImageLimits& limits,
                       std::vector<PlacedPicture>& placed) {
  const Result<image::ImageHeader> header = image::read_header(std::as_bytes(std::span(file->bytes)), limits);
  if (!header.ok()) return about(*file, header.error());
  const int64_t width = header->shown_width(), height = header->shown_height();
  for (const image::Crop& crop : image::views_of(spec, width, height)) {
    const Result<image::ImagePlan> plan =
        crop.whole() ? image::plan_image(spec, width, height) : image::plan_image(spec, crop.width, crop.height);
    if (!plan.ok()) return about(*file, plan.error());
    placed.push_back({.file = file, .plan = *plan, .crop = crop});
  }
  return {};
}

}  // namespace

ApiResult<std::vector<PlacedPicture>> plan_pictures(const Json& messages, const Pictures& pictures,
                                                    const image::ImageSpec& spec, const image::ImageLimits& limits) {
  std::vector<PlacedPicture> placed;
  std::vector<size_t> numbers;
  for (const Json& message : messages)
    if (const std::string* const content = content_with(message, pictures))
      each_word(*content, pictures, [&](std::string_view, size_t number) { numbers.push_back(number); });
  for (const size_t number : numbers) QUIRE_CHECKED(plan_picture(pictures.files[number], spec, limits, placed));
  return placed;
}

ApiStatus expand_pictures(std::vector<TokenId>& tokens, TokenId pad, std::string_view pad_text,
                          std::vector<PlacedPicture>& pictures, std::vector<int64_t>& positions) {
  const auto found = static_cast<size_t>(std::count(tokens.begin(), tokens.end(), pad));
  if (found < pictures.size())
    return bad_field("messages", "invalid_value",
                     "this model's chat template leaves out pictures: {} of {} are in what it writes", found,
                     pictures.size());
  if (found > pictures.size())
    return bad_field("messages", "invalid_value",
                     "the conversation has {} pictures, but {} tokens {}, which stand for them: no text may have these",
                     pictures.size(), found, pad_text);
  size_t more = 0;
  for (const PlacedPicture& p : pictures) more += static_cast<size_t>(p.plan.tokens) - 1;
  std::vector<TokenId> all;
  all.reserve(tokens.size() + more);
  std::vector<int64_t> moved = positions;
  size_t next = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] != pad) {
      all.push_back(tokens[i]);
      continue;
    }
    PlacedPicture& picture = pictures[next++];
    picture.position = std::ssize(all);
    all.insert(all.end(), static_cast<size_t>(picture.plan.tokens), pad);
    for (size_t p = 0; p < positions.size(); ++p)
      if (positions[p] > static_cast<int64_t>(i)) moved[p] += picture.plan.tokens - 1;
  }
  tokens = std::move(all);
  positions = std::move(moved);
  return {};
}

}  // namespace quire::server
