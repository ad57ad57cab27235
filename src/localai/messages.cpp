#include "localai/messages.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <array>

namespace quire::localai {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using server::ApiStatus;

constexpr size_t kMostLevels = 8;        // of messages within messages; the interface has two
constexpr size_t kMembersOfMessage = 5;  // beside itself: what becomes of a turn of a conversation has so many
constexpr server::JsonLimits kLimits;

class Counter {
 public:
  Counter(std::string_view bytes, const Descriptor& type) : at_(bytes.data()) {
    levels_[0] = {&type, bytes.data() + bytes.size()};
  }

  ApiStatus count() {
    for (;;) {
      while (depth_ > 0 && at_ == end()) --depth_;
      if (at_ == end()) return {};
      QUIRE_CHECKED(field());
      if (parts_ > kLimits.max_blocks)
        return server::bad_request("the message has more than {} fields and parts", kLimits.max_blocks);
      if (numbers_ > kLimits.max_values)
        return server::bad_request("the message has more than {} numbers in lists", kLimits.max_values);
    }
  }

 private:
  struct Level {
    const Descriptor* type;
    const char* end;
  };
  const char* end() const { return levels_[depth_].end; }
  size_t left() const { return static_cast<size_t>(end() - at_); }
  static ApiStatus no_message() { return server::bad_request("the message cannot be read: its bytes are none"); }

  bool varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == end()) return false;
      const auto byte = static_cast<unsigned char>(*at_++);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }
  bool skip(size_t bytes) {
    if (bytes > left()) return false;
    at_ += bytes;
    return true;
  }

  // One tag with its value; of a message within this one the beginning alone.
  ApiStatus field() {
    uint64_t tag = 0, length = 0;
    if (!varint(tag) || tag >> 32 != 0 || tag >> 3 == 0) return no_message();
    ++parts_;
    switch (tag & 7) {
      case 0:
        return varint(length) ? ApiStatus() : no_message();
      case 1:
        return skip(8) ? ApiStatus() : no_message();
      case 5:
        return skip(4) ? ApiStatus() : no_message();
      case 2:
        break;
      default:  // groups, which this version of the language has not
        return no_message();
    }
    if (!varint(length) || length > left()) return no_message();
    const FieldDescriptor* const f = levels_[depth_].type->FindFieldByNumber(static_cast<int>(tag >> 3));
    if (f != nullptr && f->type() == FieldDescriptor::TYPE_MESSAGE) return enter(*f->message_type(), length);
    if (f != nullptr && f->is_packable())
      numbers_ += static_cast<size_t>(std::count_if(at_, at_ + length, [](char c) { return (c & 0x80) == 0; }));
    at_ += length;
    return {};
  }

  ApiStatus enter(const Descriptor& type, uint64_t length) {
    if (depth_ + 1 == kMostLevels) return server::bad_request("the message has messages {} levels deep", kMostLevels);
    parts_ += kMembersOfMessage;
    levels_[++depth_] = {&type, at_ + length};
    return {};
  }

  const char* at_;
  std::array<Level, kMostLevels> levels_{};
  size_t depth_ = 0, parts_ = 0, numbers_ = 0;
};

}  // namespace

ApiStatus check_message(std::string_view bytes, const Descriptor& type) {
  return Counter(bytes, type).count();
}

}  // namespace quire::localai
