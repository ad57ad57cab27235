#include "convert/sentencepiece_model.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "gguf/metadata.h"

namespace quire::convert {
namespace {

using gguf::printable;

// Protobuf's wire format: fields, each a number and a value of one of four kinds.
class Message {
 public:
  struct Field {
    uint32_t number = 0;
    uint32_t kind = 0;
    uint64_t integer = 0;    // kinds 0 (varint), 1 (8 bytes) and 5 (4 bytes)
    std::string_view bytes;  // kind 2
  };

  // `offset`: of the message in the file, for errors.
  Message(std::string_view bytes, size_t offset) : bytes_(bytes), offset_(offset) {}

  // The next field; nothing at the end.
  Result<std::optional<Field>> next() {
    if (at_ == bytes_.size()) return std::optional<Field>();
    Field f;
    QUIRE_TRY(const uint64_t tag, varint());
    f.number = static_cast<uint32_t>(tag >> 3);
    f.kind = static_cast<uint32_t>(tag & 7);
    if (f.number == 0 || tag >> 32 != 0) return fail("is no field");
    if (f.kind == 0) {
      QUIRE_TRY(f.integer, varint());
    } else if (f.kind == 1 || f.kind == 5) {
      QUIRE_TRY(f.bytes, take(f.kind == 1 ? 8 : 4));
      for (size_t i = f.bytes.size(); i-- > 0;) f.integer = f.integer << 8 | static_cast<uint8_t>(f.bytes[i]);
    } else if (f.kind == 2) {
      QUIRE_TRY(const uint64_t length, varint());
      QUIRE_TRY(f.bytes, take(length));
    } else {
      return fail("has a field of an unknown kind");
    }
    return std::optional(f);
  }
  size_t offset_of(std::string_view field) const { return offset_ + static_cast<size_t>(field.data() - bytes_.data()); }

 private:
  Error fail(std::string_view what) const { return file_error("byte {}: {}", offset_ + at_, what); }

  Result<uint64_t> varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) return fail("the file ends within a number");
      const auto byte = static_cast<uint8_t>(bytes_[at_++]);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
    return fail("has a number of more than 64 bits");
  }
  Result<std::string_view> take(uint64_t length) {
    if (length > bytes_.size() - at_) return fail("has a field that is longer than what holds it");
    const std::string_view taken = bytes_.substr(at_, length);
    at_ += length;
    return taken;
  }

  std::string_view bytes_;
  size_t offset_, at_ = 0;
};

// Calls `take` for each field; it says no by an error.
template <class Take>
Status for_fields(Message message, Take&& take) {
  for (;;) {
    QUIRE_TRY(const std::optional<Message::Field> field, message.next());
    if (!field) return {};
    QUIRE_CHECKED(take(*field, message));
  }
}

int64_t id_of(const Message::Field& f) {
  return static_cast<int32_t>(static_cast<uint32_t>(f.integer));
}

class Parser {
 public:
  Result<SentencePieceModel> run(std::string_view bytes) {
    QUIRE_CHECKED(for_fields(Message(bytes, 0), [&](const Message::Field& f, const Message& m) -> Status {
      if (f.number == 0 || f.number > 5) return {};
      if (f.kind != 2) return file_error("field {} is no message", f.number);
      const Message inner(f.bytes, m.offset_of(f.bytes));
      if (f.number == 1) return read_piece(inner);
      if (f.number == 2) return read_trainer(inner);
      if (f.number == 3) return read_normalizer(inner);
      return f.number == 5 ? read_denormalizer(inner) : Status();
    }));
    if (out_.pieces.empty()) return file_error("has no pieces: this is no model of SentencePiece");
    QUIRE_CHECKED(check());
    return std::move(out_);
  }

 private:
  Status read_piece(const Message& message) {
    SentencePieceModel::Piece p;
    QUIRE_CHECKED(for_fields(message, [&](const Message::Field& f, const Message&) -> Status {
      if (f.number == 1 && f.kind == 2) p.text = f.bytes;
      if (f.number == 2 && f.kind == 5) p.score = std::bit_cast<float>(static_cast<uint32_t>(f.integer));
      if (f.number == 3 && f.kind == 0) p.type = static_cast<int32_t>(std::min<uint64_t>(f.integer, 7));
      return {};
    }));
    if (p.text.empty()) return file_error("piece {} has no text", out_.pieces.size());
    if (p.type < SentencePieceModel::kNormal || p.type > SentencePieceModel::kByte)
      return file_error("piece {}, {}, is of an unknown type", out_.pieces.size(), printable(p.text));
    out_.pieces.push_back(std::move(p));
    return {};
  }

  Status read_trainer(const Message& message) {
    return for_fields(message, [&](const Message::Field& f, const Message&) -> Status {
      if (f.kind != 0) return {};
      if (f.number == 3) model_type_ = f.integer;
      if (f.number == 24) suffix_ = f.integer != 0;
      if (f.number == 40) out_.unknown = id_of(f);
      if (f.number == 41) out_.bos = id_of(f);
      if (f.number == 42) out_.eos = id_of(f);
      if (f.number == 43) out_.pad = id_of(f);
      return {};
    });
  }

  Status read_normalizer(const Message& message) {
    return for_fields(message, [&](const Message::Field& f, const Message&) -> Status {
      if (f.number == 1 && f.kind == 2) rule_ = f.bytes;
      if (f.number == 2 && f.kind == 2) has_rules_ = !f.bytes.empty();
      if (f.number == 3 && f.kind == 0) out_.add_dummy_prefix = f.integer != 0;
      if (f.number == 4 && f.kind == 0) out_.remove_extra_whitespaces = f.integer != 0;
      if (f.number == 5 && f.kind == 0) escapes_ = f.integer != 0;
      return {};
    });
  }

  Status read_denormalizer(const Message& message) {
    return for_fields(message, [&](const Message::Field& f, const Message&) -> Status {
      if (f.number == 2 && f.kind == 2 && !f.bytes.empty()) return file_error("a denormalizer is not supported");
      return {};
    });
  }

  Status check() const {
    constexpr std::string_view kTypes[] = {"", "Unigram", "BPE", "words", "characters"};
    if (model_type_ != 2)
      return file_error("a model of type {} is not supported (BPE is)",
                        model_type_ >= 1 && model_type_ <= 4 ? kTypes[model_type_] : std::to_string(model_type_));
    if (has_rules_)
      return file_error("the normalizer {} is not supported: the model would see other text than it knows",
                        printable(rule_));
    if (suffix_) return file_error("treat_whitespace_as_suffix is not supported");
    if (!escapes_) return file_error("escape_whitespaces = false is not supported");
    for (const SentencePieceModel::Piece& p : out_.pieces) {
      if (p.type == SentencePieceModel::kUnused)
        return file_error("unused pieces, such as {}, are not supported", printable(p.text));
      if (p.type == SentencePieceModel::kUserDefined && out_.add_dummy_prefix && p.text.starts_with("\xE2\x96\x81"))
        return file_error(
            "add_dummy_prefix with the user-defined piece {}, which begins with a space, is not supported",
            printable(p.text));
    }
    return {};
  }

  SentencePieceModel out_;
  uint64_t model_type_ = 1;
  std::string_view rule_ = "identity";
  bool has_rules_ = false, suffix_ = false, escapes_ = true;
};

}  // namespace

Result<SentencePieceModel> parse_sentencepiece_model(std::string_view bytes) {
  return Parser().run(bytes);
}

}  // namespace quire::convert
