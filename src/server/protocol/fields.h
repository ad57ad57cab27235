// Reads the members of a JSON object by name, type and range. The first thing wrong is kept and told at the end, so
// that a parser of a request is a list of its fields. Whatever was not asked for by then is left alone and noted by
// name, or refused. A member that is null counts as absent, whatever its name.
//
//   Fields f(body, ignored);
//   f.number("temperature", p.temperature, 0, 100);
//   f.boolean("stream", p.stream);
//   f.refuse("tools", "tool calls are not supported by this server");
//   QUIRE_CHECKED(f.finish());
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/id.h"
#include "server/protocol/json.h"

namespace quire::server {

// What of one request had no effect, which the client is told: fields, and parts of messages that are no text. Requests
// name whatever they like, so that only so many names of so many bytes are kept.
struct IgnoredFields {
  static constexpr size_t kMostNames = 16;

  bool strict = false;             // fields that nobody knows are refused instead
  std::vector<std::string> names;  // "stream_options.x": the first ones, cut short where they are long
  size_t count = 0;                // how many there are in all
  // Parts in whose place words stand: the first ones, "messages[0].content[1]:image".
  std::vector<std::string> left_out;
  size_t left_out_count = 0;
  std::map<std::string, size_t, std::less<>> left_out_kinds;  // "image": how many; of few kinds

  // `kind`: one of few, whatever clients send.
  void note_left_out(std::string_view where, std::string_view kind);
  // The names for a header: separated by commas, with everything but letters, digits and "_-.[]" (and ":" of what was
  // left out) percent-encoded, and "..." at the end if there are more. Empty: nothing was ignored.
  std::string header() const;
  std::string left_out_header() const;
};

class Fields {
 public:
  // `object` must be a JSON object and outlive this, as must `ignored`. `prefix` stands before names in messages:
  // "stream_options.".
  Fields(Json& object, IgnoredFields& ignored, std::string prefix = "")
      : object_(object), ignored_(ignored), prefix_(std::move(prefix)) {}

  // Each leaves `out` as it is if the member is absent or null, or something was wrong before.
  void boolean(std::string_view name, bool& out);
  void integer(std::string_view name, int64_t& out, int64_t low, int64_t high);
  void integer(std::string_view name, int& out, int low, int high);
  void integer(std::string_view name, std::optional<int64_t>& out, int64_t low, int64_t high);
  // Any 64 bits, written as a number with a sign or without one.
  void bits(std::string_view name, std::optional<uint64_t>& out);
  void integers(std::string_view name, std::vector<int64_t>& out, size_t max_count, int64_t low, int64_t high);
  void number(std::string_view name, float& out, float low, float high);
  // Texts are moved out of the object, which keeps empty ones.
  void text(std::string_view name, std::string& out, size_t max_bytes = kMaxText);
  // A string or an array of strings.
  void texts(std::string_view name, std::vector<std::string>& out, size_t max_count, size_t max_bytes);
  void tokens(std::string_view name, std::vector<TokenId>& out, size_t max_count, int64_t vocab);

  // A member of any type, or null. For fields whose parser stands elsewhere, which may move its value away.
  Json* take(std::string_view name);
  Json* take_object(std::string_view name);
  // A known field that is not supported: it may be absent, null, or one of the neutral values.
  void refuse(std::string_view name, std::string_view why, std::initializer_list<Json> neutral = {});
  // The same of a field whose other values change no text, or that clients send to every kind of server: such a value
  // is noted as ignored, and refused only where unknown fields are.
  void unserved(std::string_view name, std::string_view why, std::initializer_list<Json> neutral = {});
  // A field that changes nothing here; any value is fine.
  void ignore(std::string_view name) { take(name); }
  // Notes that a field, which was read, had no effect.
  void note_ignored(std::string_view name);
  IgnoredFields& ignored() { return ignored_; }

  void fail(ApiError error);
  bool failed() const { return error_.has_value(); }
  std::string qualified(std::string_view name) const { return prefix_ + std::string(name); }

  // The first error; else, where unknown fields are refused, one for the first member that nobody asked for.
  ApiStatus finish();

 private:
  static constexpr size_t kMaxText = 4096;
  void wrong_type(std::string_view name, std::string_view expected, const Json& found);
  // An array of at most `max_count`; null where there is none, or an error was set.
  const Json* list(std::string_view name, std::string_view expected, size_t max_count);
  // An integral number within the range; an error was set otherwise.
  std::optional<int64_t> integral(std::string_view name, int64_t low, int64_t high);

  Json& object_;
  IgnoredFields& ignored_;
  std::string prefix_;
  std::vector<std::string_view> known_;
  std::optional<ApiError> error_;
};

}  // namespace quire::server
