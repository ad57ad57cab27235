// A model of known shapes and random weights: which tensors of which types, and their bytes. `quire synth` writes it
// into a file; --synth of the benchmarks lays it out in memory (synth_image.h).
#pragma once

#include <functional>

#include "command/flags.h"
#include "lab/synth_shapes.h"

namespace quire::cli {

struct SynthOptions {
  std::string preset = "0.6b", type = "bf16", ffn_type, head_type;
  std::optional<int64_t> layers, vocab;  // the model's own if not given
  uint64_t seed = 1;
  bool mtp = false, images = false;

  // --type, --ffn-type, --head-type, --layers, --vocab, --mtp. `needed`: the flag without which they make no sense.
  void add(Flags& flags, const std::string& needed = "");
};

// "0.6b (qwen3, dense), ...", for --help.
std::string synth_presets();

// The largest page that Linux has: 4 KiB on x86-64; 4, 16 or 64 on ARM.
inline constexpr size_t kLargestPage = size_t{64} << 10;

// Bytes of a tensor: `pattern` from `begin` on, again and again. `begin` is a multiple of kLargestPage, and so is the
// length of a pattern that is repeated; both are whole blocks.
struct SynthPayload {
  std::span<const std::byte> pattern;
  size_t begin = 0, bytes = 0;

  void copy_to(std::byte* out) const;
};

class SynthModel {
 public:
  static Result<SynthModel> choose(const SynthOptions& o);

  // Metadata and tensors, all but their payloads.
  Status declare(gguf::Writer& w) const;
  // The payloads of those tensors, in order; each is valid until the next one.
  using Sink = std::function<Status(const SynthPayload&)>;
  Status fill(const Sink& sink) const;

  const SynthShape& shape() const { return shape_; }

 private:
  struct Types {
    DType projection = DType::kBF16, ffn = DType::kBF16, head = DType::kBF16;
    DType of(const SynthTensor& t) const;
  };
  static Result<Types> choose_types(const SynthOptions& o);
  SynthModel(SynthShape shape, Types types, uint64_t seed)
      : shape_(shape), types_(types), seed_(seed), tensors_(synth_tensors(shape_)) {}

  SynthShape shape_;
  Types types_;
  uint64_t seed_;
  std::vector<SynthTensor> tensors_;
};

}  // namespace quire::cli
