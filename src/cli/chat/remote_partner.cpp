#include "cli/chat/remote_partner.h"

#include <fmt/ranges.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "cli/run.h"
#include "core/escape.h"
#include "core/output.h"
#include "server/protocol/event_reader.h"
#include "server/protocol/json.h"

namespace quire::cli {
namespace {

using server::Json;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kMaxAnswerBytes = uint64_t{64} << 20, kMaxErrorBytes = uint64_t{256} << 10;
constexpr int64_t kMaxContext = int64_t{1} << 40, kAnyVocabulary = INT32_MAX;

// While it lives, Ctrl-C sets `stop`, which ends what waits for the server.
class StopKey {
 public:
  explicit StopKey(std::atomic<bool>& stop) : stop_(stop), thread_([this] { watch(); }) {}
  ~StopKey() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  StopKey(const StopKey&) = delete;
  StopKey& operator=(const StopKey&) = delete;

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, std::chrono::milliseconds(20), [this] { return done_; }))
      if (CancelKey::take() != 0) stop_ = true;
  }

  std::atomic<bool>& stop_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

const Json* member(const Json& object, const char* key) {
  const auto at = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && at != object.end() ? &*at : nullptr;
}

std::string text_at(const Json& object, const char* key) {
  const Json* const v = member(object, key);
  return v != nullptr && v->is_string() ? v->get<std::string>() : std::string();
}

int64_t count_at(const Json& object, const char* key) {
  const Json* const v = member(object, key);
  if (v == nullptr || !v->is_number_integer()) return 0;
  const int64_t n = v->is_number_unsigned() && v->get<uint64_t>() > kMaxContext ? 0 : v->get<int64_t>();
  return n > 0 && n <= kMaxContext ? n : 0;
}

Result<std::string> whole_body(hub::Response& answer, uint64_t most) {
  std::string text;
  std::vector<std::byte> piece(size_t{16} << 10);
  for (;;) {
    QUIRE_TRY(const size_t n, answer.read(piece));
    if (n == 0) return text;
    text.append(reinterpret_cast<const char*>(piece.data()), n);
    if (text.size() > most) return request_error("{} sends more than {} bytes", answer.url().origin(), most);
  }
}

struct Refused {
  std::string message, code;
};

// {"error": {"message", "code"}}, or {"error": "..."}, or {"message"}, as servers have it.
Refused refusal_of(const Json& body) {
  const Json* const error = member(body, "error");
  if (error != nullptr && error->is_string()) return {error->get<std::string>(), ""};
  const Json& where = error != nullptr ? *error : body;
  return {text_at(where, "message"), text_at(where, "code")};
}

bool is_too_long(const Refused& r) {
  if (r.code == "context_length_exceeded") return true;
  for (const char* words : {"maximum context length", "exceeds the available context size", "context_length_exceeded"})
    if (r.message.find(words) != std::string::npos) return true;
  return false;
}

Error status_error(const std::string& origin, int status, const Refused& r, bool with_key) {
  const std::string said = r.message.empty() ? "" : ": " + escaped(r.message, 500);
  if ((status == 401 || status == 403) && !with_key)
    return request_error("{} wants a key ({}){}; give one with --api-key-file", origin, status, said);
  if (status == 404)
    return request_error("{} answers 404{}; is it the address of a server of the OpenAI API?", origin, said);
  return request_error("{} answers with status {}{}", origin, status, said);
}

// What the pieces of a streamed answer add up to.
struct Streamed {
  std::string finish;
  int64_t prompt_tokens = 0, tokens = 0, pieces = 0;
  Clock::time_point first, last;
  std::string error;
  bool done = false;

  void take(const std::string& event, Console& console);
};

void Streamed::take(const std::string& event, Console& console) {
  if (event == "[DONE]") {
    done = true;
    return;
  }
  auto parsed = server::parse_json(event);
  if (!parsed.ok()) {
    error = "an event that is no JSON: " + escaped(event, 200);
    return;
  }
  const Json& body = **parsed;
  if (member(body, "error") != nullptr) {
    error = escaped(refusal_of(body).message, 500);
    return;
  }
  if (const Json* const usage = member(body, "usage"); usage != nullptr && usage->is_object()) {
    prompt_tokens = count_at(*usage, "prompt_tokens");
    tokens = count_at(*usage, "completion_tokens");
  }
  const Json* const choices = member(body, "choices");
  if (choices == nullptr || !choices->is_array() || choices->empty()) return;
  const Json& choice = (*choices)[0];
  if (const std::string reason = text_at(choice, "finish_reason"); !reason.empty()) finish = reason;
  const Json* const delta = member(choice, "delta");
  if (delta == nullptr) return;
  std::string thinking = text_at(*delta, "reasoning_content");
  if (thinking.empty()) thinking = text_at(*delta, "reasoning");
  const std::string content = text_at(*delta, "content") + text_at(*delta, "refusal");
  if (thinking.empty() && content.empty()) return;
  last = Clock::now();
  if (pieces++ == 0) first = last;
  if (!thinking.empty()) console.answer_parts(thinking, "");
  if (!content.empty()) console.answer(content);
}

}  // namespace

Result<std::unique_ptr<RemotePartner>> RemotePartner::connect(const ServerOptions& options) {
  std::unique_ptr<RemotePartner> partner(new RemotePartner(options));
  QUIRE_CHECKED(partner->open());
  QUIRE_CHECKED(partner->choose_model());
  return partner;
}

Status RemotePartner::open() {
  const std::string& url = options_.url;
  QUIRE_TRY(base_, hub::Url::parse(url.find("://") == url.npos ? "http://" + url : url));
  std::string& path = base_.target;
  path.erase(std::min(path.find('?'), path.size()));
  const auto strip = [&](std::string_view end) {
    if (path.ends_with(end)) path.resize(path.size() - end.size());
  };
  strip("/");
  strip("/chat/completions");
  strip("/v1");
  http_.hub = base_;
  http_.token = options_.key;
  QUIRE_TRY(http_.tls, hub::TlsContext::create(options_.ca_file));
  // A long prompt may take its time; who does not want to wait has Ctrl-C.
  http_.patience = {.head = std::chrono::hours(1), .stall = std::chrono::hours(1), .stall_bytes = 1, .attempts = 1};
  if (!options_.key.empty() && !base_.tls && base_.host != "localhost" && base_.host != "::1" &&
      base_.host != "127.0.0.1")
    tell(fmt::format("the key goes to {} without TLS: whoever is on the way can read it", base_.origin()));
  return {};
}

hub::Url RemotePartner::url_of(std::string_view path) const {
  hub::Url url = base_;
  url.target += path;
  return url;
}

Status RemotePartner::choose_model() {
  std::atomic<bool> stop{false};
  const StopKey key(stop);
  hub::HttpOptions quick = http_;
  quick.patience = {.attempts = 1};
  hub::HttpClient client(quick, &stop);
  QUIRE_TRY(hub::Response answer, client.fetch({.url = url_of("/v1/models")}));
  QUIRE_TRY(const std::string text, whole_body(answer, kMaxErrorBytes * 16));
  auto body = server::parse_json(text);
  if (answer.status() != 200)
    return status_error(base_.origin(), answer.status(), body.ok() ? refusal_of(**body) : Refused{},
                        !options_.key.empty());
  const Json* const list = body.ok() ? member(**body, "data") : nullptr;
  if (list == nullptr || !list->is_array())
    return request_error("{}: /v1/models is no list of models; is it a server of the OpenAI API?", base_.origin());
  std::vector<std::string> names;
  model_ = options_.model;
  for (const Json& m : *list) {
    const std::string id = text_at(m, "id");
    if (id.empty()) continue;
    names.push_back(escaped(id, 100));
    if (model_.empty()) model_ = id;
    if (id != model_) continue;
    context_ = count_at(m, "max_model_len");
    if (const Json* const meta = member(m, "meta"); context_ == 0 && meta != nullptr)
      context_ = count_at(*meta, "n_ctx");
    return {};
  }
  if (model_.empty()) return request_error("{} lists no model; name one with --model", base_.origin());
  if (names.size() > 20) names.resize(20);
  return request_error("{} has no model '{}'; there are {}", base_.origin(), escaped(model_, 100),
                       fmt::join(names, ", "));
}

std::string RemotePartner::name() const {
  return fmt::format("{} at {}", escaped(model_, 80), base_.origin());
}

std::string RemotePartner::about() const {
  return fmt::format(
      "  model                {}\n"
      "  server               {}\n",
      escaped(model_, 200), base_.origin() + base_.target);
}

int64_t RemotePartner::vocabulary() const {
  return kAnyVocabulary;
}

Result<std::string> RemotePartner::chat_template() const {
  return request_error("/show template: the template is the server's, which does not tell it");
}

// Nothing that was not asked for is sent: every server has its own defaults, and not all know more than OpenAI's
// fields.
std::string RemotePartner::request_body(const Conversation& conversation, const ChatSettings& settings) const {
  Json body = {{"model", model_}, {"messages", Json::array()}, {"stream", true}};
  body["stream_options"] = {{"include_usage", true}};
  for (Json m : conversation.messages()) {
    m.erase("reasoning_content");
    body["messages"].push_back(std::move(m));
  }
  if (settings.max_tokens > 0) body["max_tokens"] = settings.max_tokens;
  if (!options_.stop.empty()) body["stop"] = options_.stop;
  const auto add = [&](std::string_view field, const auto& value) {
    const std::string name(field);
    if (!settings.given.contains(name)) return;
    body[name] = Json::parse(fmt::format("{}", value));  // 0.7 as it was typed, and not the digits of a float
  };
  each_sampling_field(settings.sampling, [&](const SamplingField& field, auto value) { add(field.name, value); });
  add("seed", settings.sampling.seed);
  if (settings.given.contains("think")) body["chat_template_kwargs"] = {{"enable_thinking", settings.think}};
  return server::dump(body);
}

Result<std::variant<ChatAnswer, ChatTooLong>> RemotePartner::answer(const Conversation& conversation,
                                                                    const ChatSettings& settings, Console& console) {
  using Answered = std::variant<ChatAnswer, ChatTooLong>;
  (void)CancelKey::take();  // typed before there was anything to stop
  std::atomic<bool> stop{false};
  const StopKey key(stop);
  hub::HttpClient client(http_, &stop);
  Result<hub::Response> response =
      client.fetch({.url = url_of("/v1/chat/completions"), .post = request_body(conversation, settings)});
  console.begin_answer(false);
  if (!response.ok() && !stop) return response.take_error();
  if (!response.ok()) return Answered(ChatAnswer{.finish = "cancelled"});
  if (response->status() != 200) {
    QUIRE_TRY(const std::string text, whole_body(*response, kMaxErrorBytes));
    auto body = server::parse_json(text);
    const Refused refused = body.ok() ? refusal_of(**body) : Refused{};
    if (is_too_long(refused)) return Answered(ChatTooLong{});
    return status_error(base_.origin(), response->status(), refused, !options_.key.empty());
  }
  server::EventReader events;
  Streamed streamed;
  std::vector<std::byte> piece(size_t{16} << 10);
  std::string broken;
  for (uint64_t bytes = 0; !streamed.done && streamed.error.empty() && !output_is_lost();) {
    Result<size_t> n = response->read(piece);
    if (!n.ok() && !stop) broken = n.error().message;
    if (!n.ok() || *n == 0) break;
    bytes += *n;
    if (bytes > kMaxAnswerBytes) streamed.error = "an answer that does not end";
    for (const std::string& event : events.feed({reinterpret_cast<const char*>(piece.data()), *n}))
      streamed.take(event, console);
  }
  console.end_answer();
  QUIRE_CHECKED(flush_output());
  if (!streamed.error.empty()) return request_error("{} sends {}", base_.origin(), streamed.error);
  if (!broken.empty()) return request_error("{}", broken);
  if (!stop && !streamed.done && streamed.finish.empty())
    return request_error("{}: the answer ended early", base_.origin());
  ChatAnswer a{.finish = stop ? "cancelled" : streamed.finish,
               .prompt_tokens = streamed.prompt_tokens,
               .tokens = streamed.tokens};
  const double seconds = std::chrono::duration<double>(streamed.last - streamed.first).count();
  if (a.tokens > 1 && streamed.pieces > 1 && seconds > 0) a.rate = static_cast<double>(a.tokens - 1) / seconds;
  a.context_full = context_ > 0 && a.finish == "length" && a.prompt_tokens + a.tokens >= context_;
  return Answered(std::move(a));
}

}  // namespace quire::cli
