#include "cli/chat/chat_prompt.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/escape.h"
#include "core/input_file.h"
#include "server/protocol/base64.h"
#include "server/protocol/conversation.h"
#include "tokenizer/chat_template.h"

namespace quire::cli {
namespace {

using nlohmann::ordered_json;

Error as_error(const server::ApiError& e) {
  return e.status == 503 ? capacity_error("{}", e.message) : request_error("{}", e.message);
}

bool has_parts(const ordered_json& messages) {
  return std::any_of(messages.begin(), messages.end(), [](const ordered_json& m) { return m["content"].is_array(); });
}

// Contents become texts, with words in the place of pictures.
Result<server::Conversation> read_parts(const ordered_json& messages) {
  server::RequestLimits limits;
  limits.images = true;
  server::IgnoredFields ignored;
  server::JsonDocument body(ordered_json{{"messages", messages}});
  server::Fields fields(*body, ignored);
  server::Conversation c;
  server::read_conversation(fields, limits, c);
  server::ApiStatus read = fields.finish();
  if (!read.ok()) return as_error(read.error());
  return c;
}

// As servers want it named that go by the name.
std::string_view media_type(const server::PictureFile& file) {
  const Result<image::ImageHeader> header = image::read_header(std::as_bytes(std::span(file.bytes)), {});
  const image::Format format = header.ok() ? header->format : image::Format::kPng;
  switch (format) {
    case image::Format::kPng:
      return "image/png";
    case image::Format::kJpeg:
      return "image/jpeg";
    case image::Format::kWebp:
      return "image/webp";
    case image::Format::kGif:
      return "image/gif";
  }
  return "image/png";
}

}  // namespace

Result<ChatPrompt> encode_chat(const LoadedModel& model, const ordered_json& messages, bool think) {
  if (!model.tokenizer || model.tokenizer->chat_template().empty())
    return request_error("this model file has no chat template; give a plain prompt without --chat");
  QUIRE_TRY(const ChatTemplate chat, ChatTemplate::parse(model.tokenizer->chat_template()));
  const Tokenizer& t = *model.tokenizer;
  const ordered_json extra = {{"enable_thinking", think}};
  TemplateOptions o;
  o.add_generation_prompt = true;
  if (t.bos()) o.bos_token = t.token_text(*t.bos());
  if (t.eos()) o.eos_token = t.token_text(*t.eos());
  o.extra = &extra;
  const std::time_t now = std::time(nullptr);
  localtime_r(&now, &o.now.emplace());
  const server::RenderMessages render = [&](const ordered_json& m) { return chat.render(m, nullptr, o); };
  const auto encoded = [&](const RenderedPrompt& p) {
    return t.encode(p.text, {.add_special = false, .parse_special = true, .plain = p.foreign});
  };
  ChatPrompt prompt;
  if (!has_parts(messages)) {
    QUIRE_TRY(const RenderedPrompt rendered, render(messages));
    prompt.tokens = encoded(rendered);
    return prompt;
  }
  if (model.vision == nullptr)
    return request_error("the model takes no pictures: no vision tower was loaded with it (--mmproj names a file)");
  const LoadedVision& vision = *model.vision;
  QUIRE_TRY(const server::Conversation c, read_parts(messages));
  const server::PictureTemplate with_pictures(render, t, vision);
  server::ApiResult<std::vector<server::PlacedPicture>> planned =
      server::plan_pictures(*c.messages, c.pictures, vision.spec, {});
  if (!planned.ok()) return as_error(planned.error());
  prompt.pictures = std::move(*planned);
  QUIRE_TRY(const RenderedPrompt rendered, with_pictures.render(*c.messages, c.pictures, prompt.pictures, render));
  prompt.tokens = encoded(rendered);
  std::vector<int64_t> none;
  const server::ApiStatus placed =
      server::expand_pictures(prompt.tokens, vision.token, with_pictures.pad(), prompt.pictures, none);
  if (!placed.ok()) return as_error(placed.error());
  return prompt;
}

Result<server::PicturePtr> read_picture(const std::string& path) {
  QUIRE_TRY(const std::string text, read_input_file(path, image::ImageLimits{}.max_bytes));
  const image::Bytes bytes = std::as_bytes(std::span(text));
  const Result<image::ImageHeader> header = image::read_header(bytes, {});
  if (!header.ok()) return request_error("{}: {}", escaped(path, 200), header.error().message);
  auto file = std::make_shared<server::PictureFile>();
  file->bytes.assign(text.begin(), text.end());
  file->where = path;
  return server::PicturePtr(std::move(file));
}

Result<std::vector<server::PicturePtr>> read_pictures(const std::vector<std::string>& paths) {
  std::vector<server::PicturePtr> all;
  for (const std::string& path : paths) {
    QUIRE_TRY(server::PicturePtr picture, read_picture(path));
    all.push_back(std::move(picture));
  }
  return all;
}

ordered_json content_of(const std::vector<server::PicturePtr>& pictures, const std::string& text) {
  if (pictures.empty()) return text;
  ordered_json parts = ordered_json::array();
  for (const server::PicturePtr& p : pictures) {
    const std::string data = server::base64(std::as_bytes(std::span(p->bytes)));
    const std::string url = fmt::format("data:{};base64,{}", media_type(*p), data);
    parts.push_back({{"type", "image_url"}, {"image_url", {{"url", url}}}});
  }
  if (!text.empty()) parts.push_back({{"type", "text"}, {"text", text}});
  return parts;
}

PictureDecoder::PictureDecoder(const LoadedModel& model) {
  if (model.vision == nullptr) return;
  constexpr size_t kMost = size_t{2} << 30;
  store_ = std::make_unique<server::PictureStore>(model.vision->spec, image::ImageLimits{}, kMost);
}

Result<std::shared_ptr<const PromptImages>> PictureDecoder::decode(const std::vector<server::PlacedPicture>& pictures) {
  if (pictures.empty()) return std::shared_ptr<const PromptImages>();
  server::ApiResult<std::shared_ptr<const PromptImages>> decoded = store_->decode(pictures);
  if (!decoded.ok()) return as_error(decoded.error());
  return std::move(*decoded);
}

}  // namespace quire::cli
