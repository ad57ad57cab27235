#include "server/protocol/content_part.h"

#include <algorithm>
#include <iterator>

#include "gguf/metadata.h"
#include "server/protocol/chat_body.h"
#include "server/protocol/picture.h"
#include "tokenizer/unicode.h"

namespace quire::server {
namespace {

constexpr size_t kMostShown = 64;  // bytes of a type or name that a client chose
constexpr int kDeepest = 8;        // levels of parts within parts that texts are looked for in

// The texts that a plain part has, and under which name.
struct TextType {
  std::string_view type, member;
  bool reasoning = false;
};
constexpr TextType kTexts[] = {
    {"text", "text"},
    {"input_text", "text"},
    {"output_text", "text"},
    {"summary_text", "text"},
    {"refusal", "refusal"},
    {"thinking", "thinking", true},
    {"reasoning", "reasoning", true},
    {"reasoning_text", "text", true},
};

struct MediaType {
  std::string_view type, kind;
};
constexpr MediaType kMedia[] = {
    {"image", "image"}, {"image_url", "image"}, {"input_image", "image"},     {"input_audio", "audio"},
    {"audio", "audio"}, {"audio_url", "audio"}, {"video", "video"},           {"video_url", "video"},
    {"file", "file"},   {"input_file", "file"}, {"container_upload", "file"},
};

const Json* member(const Json& object, std::string_view name) {
  const auto at = object.find(name);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

std::string text_at(const Json& object, std::string_view name) {
  const Json* const v = member(object, name);
  return v != nullptr && v->is_string() ? v->get<std::string>() : "";
}

// Fit for a message: what a client chose may be long, and no character may be cut.
std::string shown(std::string text) {
  if (text.size() > kMostShown) text.resize(kMostShown);
  return unicode::replace_invalid(text);
}

std::string words_for(std::string_view what, bool images = false) {
  return fmt::format("[{} left out: this model reads text {}]", what, images ? "and images of messages" : "only");
}

class PartReader {
 public:
  PartReader(std::string where, bool images, IgnoredFields& ignored)
      : where_(std::move(where)), images_(images), ignored_(ignored) {}

  // A part of another kind than a plain text.
  std::string other(const Json& part, const std::string& type) {
    std::string text;
    std::string_view kind = "other";
    for (const MediaType& m : kMedia)
      if (m.type == type) kind = m.kind;
    if (type == "document") kind = "document";
    if (kind != "other" && kind != "document") return leave_out(kind, named(kind, part));
    if (type == "tool_reference") return fmt::format("[tool: {}]", text_at(part, "tool_name"));
    if (type == "server_tool_use" || type == "mcp_tool_use") {
      const Json* const input = member(part, "input");
      return fmt::format("[call of {}: {}]", text_at(part, "name"), input == nullptr ? "{}" : dump(*input));
    }
    gather(part, text, 0);
    if (text.empty() || (kind == "document" && !has_text_source(part)))
      return leave_out(kind, kind == "other" ? shown(type.empty() ? "a part" : type) : named(kind, part));
    constexpr std::string_view kResult = "_tool_result";
    return type.ends_with(kResult)
               ? fmt::format("[result of {}]\n{}", type.substr(0, type.size() - kResult.size()), text)
               : text;
  }

  std::string leave_out(std::string_view kind, const std::string& what) {
    ignored_.note_left_out(where_, kind);
    return words_for(what, images_);
  }

 private:
  static std::string named(std::string_view kind, const Json& part) {
    const Json* const file = member(part, "file");
    std::string name = text_at(file != nullptr && file->is_object() ? *file : part, "filename");
    if (name.empty() && kind == "document") name = text_at(part, "title");
    return name.empty() ? std::string(kind) : fmt::format("{} \"{}\"", kind, shown(std::move(name)));
  }

  static bool has_text_source(const Json& document) {
    const Json* const source = member(document, "source");
    return source != nullptr && source->is_object() &&
           (text_at(*source, "type") == "text" || text_at(*source, "type") == "content");
  }

  // What there is to read, a line each: in the order in which people would read it.
  void gather(const Json& value, std::string& to, int depth) {
    if (depth > kDeepest) return;
    if (value.is_string()) return add_line(to, value.get_ref<const std::string&>());
    if (value.is_array()) {
      for (const Json& item : value) gather(item, to, depth + 1);
      return;
    }
    if (!value.is_object()) return;
    const std::string type = text_at(value, "type");
    if (depth > 0)
      if (const auto* m = std::find_if(std::begin(kMedia), std::end(kMedia), [&](auto& x) { return x.type == type; });
          m != std::end(kMedia))
        return add_line(to, leave_out(m->kind, named(m->kind, value)));
    if (type == "text")  // of a document: its source
      if (const Json* const data = member(value, "data")) gather(*data, to, depth + 1);
    for (const char* name : {"title", "url", "source", "text", "reasoning", "thinking", "summary", "stdout", "stderr",
                             "content", "error_code"})
      if (const Json* const v = member(value, name)) gather(*v, to, depth + 1);
  }
  static void add_line(std::string& to, std::string_view line) {
    if (line.empty()) return;
    if (!to.empty()) to += '\n';
    to += line;
  }

  std::string where_;
  bool images_;
  IgnoredFields& ignored_;
};

ApiError text_only(const std::string& where, const std::string& type, bool images) {
  return bad_field(where + ".type", "unsupported_parameter", "'{}.type' is {}: this server reads text {}", where,
                   gguf::printable(type.substr(0, kMostShown)), images ? "and images" : "only");
}

}  // namespace

ApiResult<PartText> read_part_text(Json& part, const std::string& where, bool images, IgnoredFields& ignored) {
  if (!part.is_object())
    return bad_field(where, "invalid_type", "'{}' must be an object, not {}", where, json_kind(part));
  if (Json* const type = part.contains("type") ? &part["type"] : nullptr; type != nullptr && !type->is_string())
    return bad_field(where + ".type", "invalid_type", "'{}.type' must be a string, not {}", where, json_kind(*type));
  const std::string type = text_at(part, "type");
  const auto* const text =
      std::find_if(std::begin(kTexts), std::end(kTexts), [&](const TextType& t) { return t.type == type; });
  if (text != std::end(kTexts)) {
    const auto at = part.find(text->member);
    if (at != part.end() && at->is_string())
      return PartText{std::move(at->get_ref<std::string&>()), text->reasoning, true};
    if (!text->reasoning)
      return bad_field(fmt::format("{}.{}", where, text->member), "invalid_type", "'{}.{}' must be a string", where,
                       text->member);
  }
  const size_t before = ignored.left_out_count;
  PartText read{PartReader(where, images, ignored).other(part, type), text != std::end(kTexts)};
  if (ignored.strict && ignored.left_out_count > before) return text_only(where, type, images);
  return read;
}

ApiResult<Json> read_chat_part(Json& part, const std::string& where, const RequestLimits& limits,
                               IgnoredFields& ignored) {
  if (limits.images && is_picture(part)) return picture_part(part, where);
  QUIRE_TRY(PartText read, read_part_text(part, where, limits.images, ignored));
  const auto mark = part.find("cache_control");
  return text_part(std::move(read.text), mark == part.end() ? nullptr : &*mark);
}

ApiResult<std::string> words_for_images(const Json* images, const std::string& where, IgnoredFields& ignored) {
  if (images == nullptr || images->is_null() || (images->is_array() && images->empty())) return std::string();
  if (ignored.strict)
    return bad_field(where, "unsupported_parameter", "'{}' is not supported: this server reads text only", where);
  ignored.note_left_out(where, "image");
  const size_t count = images->is_array() ? images->size() : 1;
  return words_for(count == 1 ? "image" : fmt::format("{} images", count));
}

}  // namespace quire::server
