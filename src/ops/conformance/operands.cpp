// Operands of a call: from the host's memory to the device's and back.
#include <algorithm>
#include <cstring>

#include "ops/attention/attention.h"
#include "ops/conformance/gpu.h"
#include "quant/format.h"

namespace quire::conformance {
namespace {

constexpr int64_t kAlign = 256;
constexpr int64_t kPad = 256;  // behind every operand
constexpr std::byte kUntouched{0xff}, kGarbage{0x5a};

int64_t round_up(int64_t n) {
  return (n + kAlign - 1) / kAlign * kAlign;
}

std::span<std::byte> writable(const void* p, int64_t bytes) {
  return {static_cast<std::byte*>(const_cast<void*>(p)), static_cast<size_t>(bytes)};
}

}  // namespace

Operands::Operands(Gpu& gpu) : gpu_(gpu) {}

int64_t Operands::reserve(int64_t bytes) {
  const int64_t at = used_;
  used_ += round_up(bytes) + kPad;
  QUIRE_CHECK(used_ <= std::ssize(gpu_.staging()), "a case's operands take more than {} bytes", gpu_.staging().size());
  return at;
}

Operands::Entry& Operands::entry_of(std::span<std::byte> host, bool buffer) {
  for (Entry& e : entries_)
    if (e.host.data() == host.data() && e.host.size() == host.size()) return e;
  return entries_.emplace_back(Entry{host, reserve(std::ssize(host)), buffer});
}

std::byte* Operands::place(const void* host, int64_t bytes) {
  const std::span<std::byte> buffer = Buffer::memory_around(host);
  if (buffer.empty()) return device(entry_of(writable(host, bytes), false).at);
  return device(entry_of(buffer, true).at) + (static_cast<const std::byte*>(host) - buffer.data());
}

void Operands::tensor(Tensor& t) {
  if (!t.empty()) t.data = place(t.data, dtype_bytes(t.dtype, t.elems()));
}

void Operands::segments(SegmentArray& s) {
  s.decode_rows = s.prompt_rows = 0;
  s.decode_keys = 0;
  s.most_rows = 1;
  for (int32_t i = 0; i < s.count; ++i) {
    const Segment& one = s.data[i];
    if (one.count == 0) continue;
    if (i >= s.decodes) {
      s.prompt_rows += one.count;
      continue;
    }
    s.decode_rows = std::max(s.decode_rows, one.row + one.count);  // with the rows of no segment among them
    s.decode_keys += int64_t{one.position} + one.count;
    s.most_rows = std::max(s.most_rows, one.count);
  }
  array(s.tables, int64_t{s.count} * s.pitch);
  array(s.data, s.count);
}

void Operands::kv(Tensor& t, int64_t d, bool value) {
  QUIRE_CHECK(t.dtype == DType::kBF16 && t.dim(2) == kBlockTokens * d, "KV of {}", dtype_name(t.dtype));
  const std::span<std::byte> buffer = Buffer::memory_around(t.data);
  QUIRE_CHECK(!buffer.empty(), "KV lies in no buffer");
  Entry& e = entry_of(buffer, true);
  e.head_dim = d;
  e.value = value;
  t.data = device(e.at) + (static_cast<std::byte*>(t.data) - buffer.data());
}

Weight Operands::raw(const Weight& w) {
  QUIRE_CHECK(w.expert_stride == 0, "a part of a fused matrix");
  Weight there = w;
  array(there.data, w.bytes());
  return there;
}

// Their factors, one after the other if one of them has any.
void Operands::scales(Weight& w, Weight* behind) {
  if (w.scale == nullptr && (behind == nullptr || behind->scale == nullptr)) return;
  std::vector<float> all(static_cast<size_t>(w.experts) + (behind == nullptr ? 0 : 1), 1.0f);
  if (w.scale != nullptr) std::copy_n(w.scale, w.experts, all.begin());
  if (behind != nullptr && behind->scale != nullptr) all.back() = *behind->scale;
  std::vector<std::byte>& kept = made_.emplace_back(all.size() * sizeof(float));
  std::memcpy(kept.data(), all.data(), kept.size());
  w.scale = reinterpret_cast<const float*>(place(kept.data(), std::ssize(kept)));
  if (behind != nullptr) behind->scale = w.scale + w.experts;
}

void Operands::pack(Weight& w, Weight* up, Weight* behind, Weight* behind_up) {
  const int64_t experts = w.experts + (behind == nullptr ? 0 : 1);
  Weight all = w;
  all.experts = experts;
  const int64_t bytes = gpu_.packed_bytes(all, up != nullptr), at = reserve(bytes);
  packed_.push_back(gpu_.staging().subspan(static_cast<size_t>(at), static_cast<size_t>(bytes)));
  std::byte* const to = device(at);
  const auto enqueue = [&](const Weight& one, const Weight* second, int64_t first) {
    const Weight source = raw(one), source_up = second == nullptr ? Weight{} : raw(*second);
    packs_.emplace_back([this, source, source_up, to, experts, first] {
      return gpu_.pack(source, source_up.empty() ? nullptr : &source_up, to, experts, first);
    });
  };
  enqueue(w, up, 0);
  if (behind != nullptr) enqueue(*behind, behind_up, w.experts);
  for (auto [first, second] : {std::pair{&w, behind}, std::pair{up, behind_up}}) {
    if (first == nullptr) continue;
    first->data = to;
    if (second != nullptr) second->data = to + bytes / experts * first->experts;
    scales(*first, second);
  }
}

void Operands::matrix(Weight& w) {
  if (!w.empty()) pack(w, nullptr, nullptr, nullptr);
}

void Operands::gate_up(Weight& gate, Weight& up) {
  if (!gate.empty()) pack(gate, &up, nullptr, nullptr);
}

void Operands::experts(Weight& gate, Weight& up, Weight& down, Weight& shared_gate, Weight& shared_up,
                       Weight& shared_down) {
  const auto alike = [](const Weight& a, const Weight& b) {
    return a.dtype == b.dtype && a.rows == b.rows && a.cols == b.cols && b.experts == 1;
  };
  const bool behind = gate.experts > 1 && !shared_gate.empty() && alike(gate, shared_gate) && alike(up, shared_up) &&
                      alike(down, shared_down);
  pack(gate, &up, behind ? &shared_gate : nullptr, behind ? &shared_up : nullptr);
  pack(down, nullptr, behind ? &shared_down : nullptr, nullptr);
  if (behind) return;
  gate_up(shared_gate, shared_up);
  matrix(shared_down);
}

void Operands::table(Weight& w) {
  if (gpu_.takes_table(w.dtype, w.cols)) {
    w = raw(w);
  } else {
    std::vector<float> row(static_cast<size_t>(w.cols));
    std::vector<std::byte>& halves = made_.emplace_back(static_cast<size_t>(dtype_bytes(DType::kF16, w.rows * w.cols)));
    auto* to = reinterpret_cast<half*>(halves.data());
    for (int64_t r = 0; r < w.rows; ++r) {
      quant::decode_row(w.dtype, w.row(r), w.cols, row.data());
      for (const float x : row) *to++ = to_half(x);
    }
    w.dtype = DType::kF16;
    w.data = place(halves.data(), std::ssize(halves));
  }
}

// Keys and values change their order on the way, and nothing else.
void Operands::copy(const Entry& e, bool to_device) const {
  const std::span<std::byte> there =
      gpu_.staging().subspan(static_cast<size_t>(e.at), static_cast<size_t>(round_up(std::ssize(e.host))));
  if (to_device) {
    std::memcpy(there.data(), e.host.data(), e.host.size());
  } else {
    std::memcpy(e.host.data(), there.data(), e.host.size());
  }
  if (e.head_dim == 0) return;
  constexpr int64_t kGuard = Buffer::kGuardBytes;
  const int64_t d = e.head_dim, head = kBlockTokens * d;
  const int64_t heads = (std::ssize(e.host) - 2 * kGuard) / (2 * head);
  for (int64_t h = 0; h < heads; ++h) {
    auto* const host = reinterpret_cast<uint16_t*>(e.host.data() + kGuard) + h * head;
    auto* const staged = reinterpret_cast<uint16_t*>(there.data() + kGuard) + h * head;
    for (int64_t t = 0; t < kBlockTokens; ++t)
      for (int64_t c = 0; c < d; ++c) {
        const int64_t here = e.value ? value_offset(t, c, d) : key_offset(t, c);
        const int64_t at = gpu_.kv_offset(t, c, d, e.value);
        to_device ? staged[at] = host[here] : host[here] = staged[at];
      }
  }
}

// What lies behind the operand; and of an array, all of it.
Status Operands::check(const Entry& e) const {
  const std::byte* const at = gpu_.staging().data() + e.at;
  const bool changed = !e.buffer && std::memcmp(at, e.host.data(), e.host.size()) != 0;
  const std::byte* const end = at + round_up(std::ssize(e.host)) + kPad;
  if (!changed && std::all_of(at + e.host.size(), end, [](std::byte b) { return b == kUntouched; })) return {};
  return Error{Fault::kBug, changed ? "an array that is only read has changed"
                                    : fmt::format("wrote behind an operand of {} bytes", e.host.size())};
}

Status Operands::run(const std::function<void(const OpContext&)>& op) {
  const std::span<std::byte> staging = gpu_.staging();
  for (const Entry& e : entries_) {
    std::byte* const at = staging.data() + e.at;
    std::fill(at + e.host.size(), at + round_up(std::ssize(e.host)) + kPad, kUntouched);
    copy(e, true);
  }
  // Packed weights must cover all of their memory: what packing forgets is NaN.
  for (const std::span<std::byte> p : packed_)
    std::fill(p.data(), p.data() + round_up(std::ssize(p)) + kPad, kUntouched);
  std::vector<std::vector<std::byte>> kept;
  for (const Entry& e : entries_) {
    if (!e.buffer) continue;
    kept.emplace_back(e.host.begin(), e.host.end());
    std::fill(e.host.begin(), e.host.end(), kGarbage);
  }
  Status done = gpu_.run(
      used_,
      [&]() -> Status {
        for (const auto& pack : packs_) QUIRE_CHECKED(pack());
        return {};
      },
      op);
  size_t next = 0;
  for (const Entry& e : entries_) {
    if (e.buffer) {
      std::copy(kept[next].begin(), kept[next].end(), e.host.begin());
      ++next;
    }
    if (!done.ok()) continue;
    if (Status s = check(e); !s.ok()) done = std::move(s);
    if (e.buffer) copy(e, false);
  }
  for (const std::span<std::byte> p : packed_)
    if (done.ok() && !std::all_of(p.data() + p.size(), p.data() + round_up(std::ssize(p)) + kPad,
                                  [](std::byte b) { return b == kUntouched; }))
      done = Error{Fault::kBug, fmt::format("wrote behind a packed weight of {} bytes", p.size())};
  return done;
}

}  // namespace quire::conformance
