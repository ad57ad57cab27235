#include "server/template_needs.h"

#include <algorithm>
#include <iterator>

namespace quire::server {
namespace {

constexpr const char* kReasoning[] = {"reasoning_content", "reasoning", "thinking"};
constexpr char kMarker[] = "quire-asks-for-this-text";

Json message(const char* role, const char* content) {
  return {{"role", role}, {"content", content}};
}

Json call_without_content(CallArguments takes) {
  Json m = {{"role", "assistant"}};
  const Json arguments = takes.objects ? Json::object() : Json("{}");
  m["tool_calls"] = {
      {{"id", "abcdefghi"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", arguments}}}}};
  return m;
}

Json tool_result() {
  return {{"role", "tool"}, {"tool_call_id", "abcdefghi"}, {"name", "f"}, {"content", "r"}};
}

bool is_system(const Json& m) {
  return m["role"] == "system";
}

// Names that stand before others in what a conversation is checked and printed by.
void take_reasoning(Json& m, const std::string& wanted) {
  if (wanted.empty()) return;
  const auto given = std::find_if(std::begin(kReasoning), std::end(kReasoning), [&](const char* name) {
    const auto at = m.find(name);
    return at != m.end() && at->is_string();
  });
  if (given == std::end(kReasoning) || m.contains(wanted)) return;
  Json text = std::move(m[*given]);
  m.erase(*given);
  m[wanted] = std::move(text);
}

}  // namespace

TemplateNeeds TemplateNeeds::probe(const Render& render, CallArguments takes) {
  const Json system = message("system", "s"), user = message("user", "u"), answer = message("assistant", "a"),
             marked = message("system", kMarker);
  const auto prints = [&](const Json& messages) {
    const Result<RenderedPrompt> prompt = render(messages);
    return prompt.ok() && prompt->text.find(kMarker) != std::string::npos;
  };
  TemplateNeeds needs;
  // A template that knows no system messages at all has refused them by their role.
  if (prints({marked, user}))
    needs.later_systems_ = prints({system, marked, user}) && prints({user, marked, user}) &&
                           prints({user, answer, marked, user}) && prints({system, user, answer, user, marked});
  if (render(Json::array({user})).ok())
    needs.no_user_ = render(Json::array({system})).ok() && render(Json::array({system, answer})).ok();
  Json with_content = call_without_content(takes);
  with_content["content"] = "";
  if (render({user, with_content, tool_result()}).ok()) {
    const Result<RenderedPrompt> without = render({user, call_without_content(takes), tool_result()});
    needs.content_may_be_missing_ = without.ok() && without->text.find("None") == std::string::npos;
  }
  for (const char* const name : kReasoning) {
    Json thought = message("assistant", "a"), called = call_without_content(takes);
    thought[name] = called[name] = kMarker;
    called["content"] = "";
    if (!prints({user, called, tool_result()}) && !prints({user, thought}) && !prints({user, thought, user})) continue;
    needs.reasoning_ = name;
    break;
  }
  return needs;
}

namespace {

// Later system messages as part of the first one, or as the first one.
void merge_systems(Conversation& c) {
  Json& all = *c.messages;
  const auto later = [&](size_t i) { return i > 0 && is_system(all[i]); };
  bool any = false;
  for (size_t i = 0; i < all.size(); ++i) any = any || later(i);
  if (!any) return;
  Json merged = Json::array();
  if (!is_system(all[0])) merged.push_back({{"role", "system"}, {"content", ""}});
  std::vector<std::pair<size_t, size_t>> moved(
      all.size());  // a message's new place, and where its content begins there
  std::vector<size_t> systems;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i > 0 && is_system(all[i])) {
      systems.push_back(i);
      continue;
    }
    moved[i] = {merged.size(), 0};
    merged.push_back(std::move(all[i]));
  }
  auto& text = merged[0]["content"].get_ref<std::string&>();
  for (const size_t i : systems) {
    const auto& more = all[i]["content"].get_ref<const std::string&>();
    if (!text.empty() && !more.empty()) text += "\n\n";
    moved[i] = {0, text.size()};
    text += more;
  }
  for (CacheMark& mark : c.marks) {
    const auto [place, begin] = moved[mark.message];
    mark = {place, begin + mark.offset};
  }
  std::stable_sort(c.marks.begin(), c.marks.end(), [](const CacheMark& a, const CacheMark& b) {
    return std::pair(a.message, a.offset) < std::pair(b.message, b.offset);
  });
  all = std::move(merged);
}

void add_user(Conversation& c) {
  Json& all = *c.messages;
  const auto role_is = [](const char* role) { return [role](const Json& m) { return m["role"] == role; }; };
  if (std::any_of(all.begin(), all.end(), role_is("user"))) return;
  const auto at = std::find_if_not(all.begin(), all.end(), role_is("system"));
  const auto index = static_cast<size_t>(at - all.begin());
  all.insert(at, Json{{"role", "user"}, {"content", ""}});
  for (CacheMark& mark : c.marks)
    if (mark.message >= index) ++mark.message;
}

}  // namespace

void TemplateNeeds::fit(Conversation& c) const {
  // An answer that goes on with the last message needs it where it is.
  if (!later_systems_ && !(c.continue_final && is_system(c.messages->back()))) merge_systems(c);
  if (!no_user_) add_user(c);
  for (Json& m : *c.messages) {
    const auto content = m.find("content");
    // An insertion moves the members: the iterator is not used behind it.
    if (content == m.end()) {
      if (!content_may_be_missing_) m["content"] = "";
    } else if (content->is_null()) {
      if (content_may_be_missing_)
        m.erase(content);
      else
        *content = "";
    }
    if (m["role"] == "assistant") take_reasoning(m, reasoning_);
  }
}

}  // namespace quire::server
