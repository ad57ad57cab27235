// Model folders of weights in blocks of up to 128 columns.
#pragma once

#include "convert/open.h"
#include "convert/support.h"

namespace quire::test {

// Wide enough for blocks of 128 columns, with what puts rows, columns and experts in order.
inline TinyModel wide(const std::string& name) {
  TinyModel m = model(name);
  m.hidden = 256;
  m.ffn = m.ffn > 0 ? 384 : 0;
  if (m.expert_ffn > 0) m.expert_ffn = 128;
  if (m.shared_ffn > 0) m.shared_ffn = 128;
  if (m.hybrid()) {
    m.k_heads = 2;
    m.v_heads = 4;
    m.state = 128;
  }
  return m;
}

inline gguf::File open(const HfFolder& folder, bool keep_fp8 = true) {
  Result<gguf::File> f = convert::open_model(folder.path(), {.keep_fp8 = keep_fp8, .threads = 2});
  QUIRE_CHECK(f.ok(), "{}", f.error().message);
  return std::move(f).value();
}

}  // namespace quire::test
