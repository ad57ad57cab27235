// Reads the members of a JSON object by name, type and range. The first thing wrong is kept and told at the end, so that
// a parser of a request is a list of its fields. Whatever was not asked for by then is refused by name.
//
//   Fields f(body);
//   f.number("temperature", p.temperature, 0, 100);
//   f.boolean("stream", p.stream);
//   f.refuse("tools", "tool calls are not supported by this server");
//   QUIRE_CHECKED(f.finish());
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/id.h"
#include "server/protocol/json.h"

namespace quire::server {

class Fields {
 public:
  // `object` must be a JSON object and outlive this. `prefix` stands before names in messages: "stream_options.".
  explicit Fields(const Json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  // Each leaves `out` as it is if the member is absent or null, or something was wrong before.
  void boolean(std::string_view name, bool& out);
  void integer(std::string_view name, int64_t& out, int64_t low, int64_t high);
  void integer(std::string_view name, int& out, int low, int high);
  void integer(std::string_view name, std::optional<int64_t>& out, int64_t low, int64_t high);
  void integers(std::string_view name, std::vector<int64_t>& out, size_t max_count, int64_t low,
                int64_t high);
  void number(std::string_view name, float& out, float low, float high);
  void text(std::string_view name, std::string& out, size_t max_bytes = kMaxText);
  // A string or an array of strings.
  void texts(std::string_view name, std::vector<std::string>& out, size_t max_count, size_t max_bytes);
  void tokens(std::string_view name, std::vector<TokenId>& out, size_t max_count, int64_t vocab);

  // A member of any type, or null. For fields whose parser stands elsewhere.
  const Json* take(std::string_view name);
  const Json* take_object(std::string_view name);
  // A known field that is not supported: it may be absent, null, or one of the neutral values.
  void refuse(std::string_view name, std::string_view why, std::initializer_list<Json> neutral = {});
  // A field that changes nothing here; any value is fine.
  void ignore(std::string_view name) { take(name); }

  void fail(ApiError error);
  bool failed() const { return error_.has_value(); }
  std::string qualified(std::string_view name) const { return prefix_ + std::string(name); }

  // The first error; else one for the first member that nobody asked for.
  ApiStatus finish();

 private:
  static constexpr size_t kMaxText = 4096;
  void wrong_type(std::string_view name, std::string_view expected, const Json& found);
  // An array of at most `max_count`; null where there is none, or an error was set.
  const Json* list(std::string_view name, std::string_view expected, size_t max_count);
  // An integral number within the range; an error was set otherwise.
  std::optional<int64_t> integral(std::string_view name, int64_t low, int64_t high);

  const Json& object_;
  std::string prefix_;
  std::vector<std::string_view> known_;
  std::optional<ApiError> error_;
};

}  // namespace quire::server
