#include "lab/load/workload.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/count.h"
#include "server/protocol/fields.h"

namespace quire::cli::load {
namespace {

constexpr const char* kWords[] = {
    "the",   "of",   "and",  "to",   "in",   "is",   "was",   "he",    "for",   "it",    "with",  "as",   "his",
    "on",    "be",   "at",   "by",   "had",  "not",  "are",   "but",   "from",  "or",    "have",  "an",   "they",
    "which", "one",  "you",  "were", "her",  "all",  "she",   "there", "would", "their", "we",    "him",  "been",
    "has",   "when", "who",  "will", "more", "no",   "if",    "out",   "so",    "said",  "what",  "up",   "its",
    "about", "into", "than", "them", "can",  "only", "other", "new",   "some",  "time",  "could", "these"};

// The same on every machine, unlike std::uniform_int_distribution.
size_t below(std::mt19937_64& random, size_t n) {
  return static_cast<size_t>(random() % n);
}
double unit(std::mt19937_64& random) {
  return (static_cast<double>(random() >> 11) + 0.5) * 0x1.0p-53;
}

std::string words(std::mt19937_64& random, int64_t count) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0) text += ' ';
    text += kWords[below(random, std::size(kWords))];
  }
  return text;
}

std::string make_prompt(const WorkloadOptions& o, size_t number, int64_t length, std::mt19937_64& random) {
  const int64_t shared = std::min(o.shared_prefix, length - 1);
  if (shared <= 0) return words(random, length);
  const auto group = static_cast<int64_t>(number) % std::max<int64_t>(1, o.prefixes);
  std::mt19937_64 prefix(o.seed * 1000003 + static_cast<uint64_t>(group) + 1);
  return words(prefix, shared) + " " + words(random, length - shared);
}

}  // namespace

Result<LengthSpec> LengthSpec::parse(std::string_view text) {
  LengthSpec s;
  std::string_view rest = text;
  const auto number = [&](double& out) {
    uint64_t count = 0;
    const std::string_view digits = rest.substr(0, rest.find(':'));
    const bool ok = parse_count(digits, count) == CountError::kNone && count <= 10'000'000;
    out = static_cast<double>(count);
    rest.remove_prefix(digits.size());
    return ok;
  };
  const auto take = [&](std::string_view what) {
    if (!rest.starts_with(what)) return false;
    rest.remove_prefix(what.size());
    return true;
  };
  bool ok = false;
  if (take("uniform:")) {
    s.kind = Kind::kUniform;
    ok = number(s.a) && take(":") && number(s.b) && s.a <= s.b;
  } else if (take("normal:")) {
    s.kind = Kind::kNormal;
    ok = number(s.a) && take(":") && number(s.b);
  } else if (take("exponential:")) {
    s.kind = Kind::kExponential;
    ok = number(s.a);
  } else {
    ok = number(s.a);
  }
  if (ok && rest.empty()) return s;
  return request_error("a length of '{}': write N, uniform:LOW:HIGH, normal:MEAN:DEVIATION or exponential:MEAN", text);
}

int64_t LengthSpec::draw(std::mt19937_64& random) const {
  double x = a;
  switch (kind) {
    case Kind::kFixed:
      break;
    case Kind::kUniform:
      x = a + std::floor(unit(random) * (b - a + 1));
      break;
    case Kind::kNormal:  // Box and Muller
      x = a + b * std::sqrt(-2 * std::log(unit(random))) * std::cos(2 * 3.14159265358979323846 * unit(random));
      break;
    case Kind::kExponential:
      x = -a * std::log(unit(random));
      break;
  }
  return std::max<int64_t>(1, std::llround(std::min(x, 1e7)));
}

std::vector<WorkItem> make_workload(const WorkloadOptions& o, size_t requests) {
  std::mt19937_64 random(o.seed);
  std::vector<WorkItem> items;
  for (size_t i = 0; i < requests; ++i) {
    WorkItem item;
    const int64_t length = o.prompt_tokens.draw(random);
    item.prompt = make_prompt(o, i, length, random);
    item.max_tokens = o.output_tokens.draw(random);
    items.push_back(std::move(item));
  }
  return items;
}

Result<std::vector<WorkItem>> parse_trace(std::string_view text, const WorkloadOptions& o) {
  std::mt19937_64 random(o.seed);
  std::vector<WorkItem> items;
  size_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    server::ApiResult<server::JsonDocument> j = server::parse_json_object(line);
    if (!j.ok()) return request_error("trace, line {}: {}", number, j.error().message);
    WorkItem item;
    int64_t length = o.prompt_tokens.draw(random);
    item.max_tokens = o.output_tokens.draw(random);
    float at = -1;
    server::IgnoredFields none{.strict = true};
    server::Fields f(**j, none);
    f.text("prompt", item.prompt, SIZE_MAX);
    f.integer("prompt_tokens", length, 1, 10'000'000);
    f.integer("output_tokens", item.max_tokens, 1, 10'000'000);
    f.number("at", at, 0, 1e9f);
    if (server::ApiStatus s = f.finish(); !s.ok())
      return request_error("trace, line {}: {}", number, s.error().message);
    if (item.prompt.empty()) item.prompt = make_prompt(o, items.size(), length, random);
    item.at = at;
    items.push_back(std::move(item));
  }
  if (items.empty()) return request_error("the trace has no requests");
  return items;
}

}  // namespace quire::cli::load
