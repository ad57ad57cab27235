#include "lab/load/load.h"

#include <cmath>
#include <memory>
#include <random>

#include "lab/load/http_client.h"
#include "server/protocol/event_reader.h"
#include "server/protocol/json.h"

namespace quire::cli::load {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

std::string body_of(const LoadOptions& o, const WorkItem& item) {
  server::Json b = {{"model", o.model}};
  if (o.chat)
    b["messages"] = server::Json::array({{{"role", "user"}, {"content", item.prompt}}});
  else
    b["prompt"] = item.prompt;
  b["max_tokens"] = item.max_tokens;
  b["temperature"] = o.temperature;
  b["seed"] = o.seed;
  if (o.ignore_eos) b["ignore_eos"] = true;
  b["stream"] = true;
  b["stream_options"] = {{"include_usage", true}};
  return server::dump(b);
}

class Load {
 public:
  Load(const LoadOptions& o, const std::vector<WorkItem>& items, const std::function<void()>& progress)
      : options_(o), items_(items), progress_(progress), samples_(items.size()), arrival_(io_) {}

  Result<std::vector<Sample>> run();

 private:
  struct Lane {
    explicit Lane(std::unique_ptr<HttpClient> c) : client(std::move(c)) {}
    std::unique_ptr<HttpClient> client;
    server::EventReader reader;
    size_t item = 0;
    std::string plain;  // a body that is no stream
  };
  double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  Lane& lane();
  void send(Lane& lane, size_t item);
  void on_body(Lane& lane, int status, std::string_view piece);
  void on_event(Sample& s, const std::string& data);
  void on_done(Lane& lane, int status, std::string error);
  void schedule_arrivals();
  void arrive();

  const LoadOptions& options_;
  const std::vector<WorkItem>& items_;
  const std::function<void()>& progress_;
  std::vector<Sample> samples_;
  asio::io_context io_;
  asio::ip::tcp::resolver::results_type addresses_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Lane*> idle_;
  asio::steady_timer arrival_;
  std::vector<double> arrivals_;  // seconds; empty: closed loop
  size_t next_ = 0;
  Clock::time_point start_;
};

Load::Lane& Load::lane() {
  if (idle_.empty()) {
    lanes_.push_back(std::make_unique<Lane>(std::make_unique<HttpClient>(io_, options_.url, addresses_)));
    return *lanes_.back();
  }
  Lane& l = *idle_.back();
  idle_.pop_back();
  return l;
}

void Load::send(Lane& lane, size_t item) {
  lane.item = item;
  lane.reader = server::EventReader();
  lane.plain.clear();
  samples_[item].sent = now();
  lane.client->start({.path = options_.chat ? "/v1/chat/completions" : "/v1/completions",
                      .body = body_of(options_, items_[item]),
                      .authorization = options_.authorization,
                      .timeout = options_.timeout,
                      .on_body = [this, &lane](int status, std::string_view p) { on_body(lane, status, p); },
                      .on_done = [this, &lane](int status, std::string e) { on_done(lane, status, std::move(e)); }});
}

void Load::on_body(Lane& lane, int status, std::string_view piece) {
  if (status != 200) {
    lane.plain += piece.substr(0, 4096);
    return;
  }
  for (const std::string& data : lane.reader.feed(piece)) on_event(samples_[lane.item], data);
}

void Load::on_event(Sample& s, const std::string& data) {
  if (data == "[DONE]") return;
  const server::Json j = server::Json::parse(data, nullptr, false);
  if (!j.is_object()) {
    s.error = "an event that is no JSON object";
    return;
  }
  if (j.contains("error")) s.error = "the server reports: " + server::dump(j["error"]);
  if (const auto usage = j.find("usage"); usage != j.end() && usage->is_object()) {
    s.prompt_tokens = usage->value("prompt_tokens", int64_t{0});
    s.tokens = usage->value("completion_tokens", int64_t{0});
  }
  const auto choices = j.find("choices");
  if (choices == j.end() || !choices->is_array() || choices->empty()) return;
  const server::Json& choice = choices->front();
  std::string text;
  const auto add = [&](const server::Json& from, const char* name) {
    const auto at = from.find(name);
    if (at != from.end() && at->is_string()) text += at->get_ref<const std::string&>();
  };
  add(choice, "text");
  if (const auto delta = choice.find("delta"); delta != choice.end() && delta->is_object()) {
    add(*delta, "reasoning_content");
    add(*delta, "content");
  }
  if (const auto f = choice.find("finish_reason"); f != choice.end() && f->is_string()) s.finish = *f;
  if (text.empty()) return;
  const double t = now();
  if (s.text.empty())
    s.first = t;
  else
    s.gaps.push_back(t - s.last);
  s.last = t;
  s.text += text;
}

void Load::on_done(Lane& lane, int status, std::string error) {
  Sample& s = samples_[lane.item];
  s.status = status;
  s.end = now();
  if (!error.empty()) s.error = std::move(error);
  if (status != 0 && status != 200) s.error = fmt::format("status {}: {}", status, lane.plain.substr(0, 200));
  if (s.error.empty() && s.finish.empty()) s.error = "the stream ended without a finish reason";
  if (s.tokens == 0 && !s.text.empty()) s.tokens = static_cast<int64_t>(s.gaps.size()) + 1;
  progress_();
  if (arrivals_.empty() && next_ < items_.size()) return send(lane, next_++);
  idle_.push_back(&lane);
}

void Load::schedule_arrivals() {
  std::mt19937_64 random(options_.seed + 77);
  double at = 0;
  for (const WorkItem& item : items_) {
    if (item.at >= 0) {
      at = item.at;
    } else {
      const double u = (static_cast<double>(random() >> 11) + 0.5) * 0x1.0p-53;
      at += -std::log(u) / options_.rate;
    }
    arrivals_.push_back(at);
  }
}

void Load::arrive() {
  while (next_ < items_.size() && arrivals_[next_] <= now()) {
    send(lane(), next_);
    ++next_;
  }
  if (next_ == items_.size()) return;
  arrival_.expires_at(start_ +
                      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(arrivals_[next_])));
  arrival_.async_wait([this](const boost::system::error_code& ec) {
    if (!ec) arrive();
  });
}

Result<std::vector<Sample>> Load::run() {
  QUIRE_TRY(addresses_, resolve(io_, options_.url));
  const bool timed = !items_.empty() && items_.front().at >= 0;
  if (options_.rate > 0 || timed) schedule_arrivals();
  start_ = Clock::now();
  if (!arrivals_.empty()) {
    arrive();
  } else {
    for (int i = 0; i < options_.clients && next_ < items_.size(); ++i) send(lane(), next_++);
  }
  while (next_ < items_.size() || idle_.size() < lanes_.size()) {
    io_.restart();
    if (io_.run_one() == 0) break;
  }
  return std::move(samples_);
}

}  // namespace

Result<std::vector<Sample>> run_load(const LoadOptions& options, const std::vector<WorkItem>& items,
                                     const std::function<void()>& progress) {
  return Load(options, items, progress).run();
}

Result<std::string> first_model(const Url& url, const std::string& authorization) {
  QUIRE_TRY(const std::string body, fetch(url, "GET", "/v1/models", "", authorization));
  const server::Json j = server::Json::parse(body, nullptr, false);
  if (j.is_object() && j.contains("data") && j["data"].is_array() && !j["data"].empty() && j["data"][0].is_object() &&
      j["data"][0].contains("id") && j["data"][0]["id"].is_string())
    return j["data"][0]["id"].get<std::string>();
  return request_error("{}/v1/models lists no model", url.text());
}

}  // namespace quire::cli::load
