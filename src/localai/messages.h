// Messages between the bytes of gRPC and their classes. What a message takes of memory has little to do with its
// length: two bytes make an empty conversation turn of some 150. So the bytes are counted before anything is made of
// them.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <string>
#include <string_view>

#include "server/protocol/json.h"

namespace quire::localai {

// 400 unless the bytes are a message of this type, with as many fields at most as a body of HTTP has strings, arrays,
// objects and members (JsonLimits), and as many numbers in lists as that has values. A message within another counts
// as the members that are made of it.
server::ApiStatus check_message(std::string_view bytes, const google::protobuf::Descriptor& type);

inline grpc::ByteBuffer to_buffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

template <class Message>
server::ApiStatus read_message(const grpc::ByteBuffer& buffer, Message& message) {
  grpc::Slice slice;
  if (buffer.Length() > 0 && !buffer.DumpToSingleSlice(&slice).ok()) return server::out_of_memory();
  const std::string_view bytes(reinterpret_cast<const char*>(slice.begin()), slice.size());
  QUIRE_CHECKED(check_message(bytes, *Message::descriptor()));
  if (message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return {};
  return server::bad_request("the message cannot be read: a text in it is not valid UTF-8");
}

}  // namespace quire::localai
