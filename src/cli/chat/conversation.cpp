#include "cli/chat/conversation.h"

#include <filesystem>

#include "cli/chat/chat_prompt.h"
#include "convert/json.h"
#include "core/atomic_file.h"

namespace quire::cli {
namespace {

using convert::find_member;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kFormat = "quire conversation";

std::string text_at(const json& object, std::string_view key) {
  const json* v = find_member(object, key);
  return v != nullptr && v->is_string() ? v->get<std::string>() : std::string();
}

// A text, or what content_of() made of one with pictures.
bool read_content(const json& content, Turn& turn) {
  if (content.is_string()) {
    turn.content = content.get<std::string>();
    return true;
  }
  if (!content.is_array()) return false;
  for (const json& part : content) {
    ordered_json own = part;
    if (text_at(part, "type") == "text") {
      turn.content += text_at(part, "text");
      continue;
    }
    if (!server::is_picture(own)) return false;
    server::ApiResult<server::Json> picture = server::picture_part(own, "the conversation");
    if (!picture.ok()) return false;
    turn.pictures.push_back(server::take_picture(*picture));
    if (!turn.pictures.back()->url.empty()) return false;  // a file of ours has the pictures themselves
  }
  return true;
}

Result<Conversation> parse(const json& document) {
  if (text_at(document, "format") != kFormat) return file_error("is no conversation that /save wrote");
  const json* messages = find_member(document, "messages");
  if (messages == nullptr || !messages->is_array()) return file_error("has no list of messages");
  Conversation c;
  for (size_t i = 0; i < messages->size(); ++i) {
    const json& m = (*messages)[i];
    const std::string role = text_at(m, "role");
    const json* content = find_member(m, "content");
    Turn turn{.user = role == "user", .content = "", .thinking = text_at(m, "reasoning_content")};
    if (content == nullptr || !read_content(*content, turn)) return file_error("message {} has no content", i);
    if (role == "system" && i == 0)
      c.system = turn.content;
    else if (role == (c.turns.size() % 2 == 0 ? "user" : "assistant"))
      c.turns.push_back(std::move(turn));
    else
      return file_error("message {} is not where its role can be: users and answers take turns", i);
  }
  if (c.turns.size() % 2 != 0) return file_error("ends with a question that has no answer");
  return c;
}

}  // namespace

ordered_json Conversation::messages() const {
  ordered_json list = ordered_json::array();
  if (!system.empty()) list.push_back({{"role", "system"}, {"content", system}});
  for (const Turn& t : turns) {
    list.push_back({{"role", t.user ? "user" : "assistant"}, {"content", content_of(t.pictures, t.content)}});
    if (!t.thinking.empty()) list.back()["reasoning_content"] = t.thinking;
  }
  return list;
}

bool Conversation::drop_oldest() {
  if (turns.size() < 3) return false;
  turns.erase(turns.begin(), turns.begin() + 2);
  return true;
}

Status Conversation::save(const std::string& path, const std::string& model) const {
  std::error_code error;
  if (std::filesystem::exists(path, error) && !load(path).ok())
    return request_error("{}: exists and is no conversation; choose another name", path);
  const ordered_json document = {{"format", kFormat}, {"version", 1}, {"model", model}, {"messages", messages()}};
  QUIRE_TRY(AtomicFile file, AtomicFile::create(path, 0, 0600));
  QUIRE_CHECKED(file.write(document.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n"));
  return file.commit();
}

Result<Conversation> Conversation::load(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return request_error("{}: no such file", path);
  QUIRE_TRY(const json document, convert::read_json_object(path));
  return parse(document).context(path);
}

}  // namespace quire::cli
