#include "engine/loaded_model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "arch/tensors.h"
#include "convert/open.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/output.h"
#include "engine/model_parts.h"
#include "engine/tensor_samples.h"

namespace quire {
namespace {

// What of the metadata steers the computation of some models alone: of the others it adds nothing.
uint64_t add_rarer(uint64_t h, const ModelConfig& c) {
  const auto add = [&](auto x) { h = fnv1a(h, &x, sizeof x); };
  const AttentionSpec& a = c.attention;
  if (a.scale != 1.0f / std::sqrt(static_cast<float>(a.head_dim))) add(a.scale);
  if (c.embedding_scale != 1) add(c.embedding_scale);
  const RopeSpec usual;
  for (const auto member : {&RopeSpec::extrapolation, &RopeSpec::beta_fast, &RopeSpec::beta_slow})
    if (a.rope.*member != usual.*member) add(a.rope.*member);
  if (c.logit_soft_cap != 0) add(c.logit_soft_cap);
  if (a.window_heads.head_dim > 0)
    for (const int32_t n : {a.window_heads.kv_heads, a.window_heads.head_dim, a.local_rope.n_rot}) add(n);
  if (const int64_t windows = std::count(c.mixers.begin(), c.mixers.end(), Mixer::kWindowAttention); windows > 0) {
    add(a.window);
    add(a.local_rope.freq_base);
    for (const Mixer m : c.mixers) add(m);
  }
  if (a.shared_kv_layers > 0) add(a.shared_kv_layers);
  if (const ExpertChoice& e = c.experts.choice; !e.plain()) {
    add(e.scores);
    add(e.normalised);
    add(e.scale);
    add(e.groups);
    add(e.used_groups);
  }
  return h;
}

// The tensors' names, types and shapes and samples of their bytes, and what of the metadata steers the computation
// beyond them.
uint64_t identity_of(const gguf::File& file, const ModelConfig& c) {
  const AttentionSpec& a = c.attention;
  const RopeSpec& rope = a.rope;
  uint64_t h = fnv1a(kFnvStart, c.architecture);
  for (const int64_t n : {int64_t{c.layers}, c.context_length, int64_t{a.heads}, int64_t{a.kv_heads},
                          int64_t{a.head_dim}, int64_t{c.experts.top_k}, int64_t{rope.n_rot}, rope.original_context,
                          static_cast<int64_t>(rope.style), static_cast<int64_t>(rope.scaling)})
    h = fnv1a_number(h, n);
  for (const float x : {c.eps, rope.freq_base, rope.factor, rope.attn_factor}) h = fnv1a(h, &x, sizeof x);
  h = add_rarer(h, c);
  return add_tensors(h, file);
}

// Matrices in NVFP4 whose factor is not in the file count as having 1, as in other programs; of a file whose encoder
// wrote factors and that has lost some, only the text would tell.
void say_missing_scales(const gguf::File& file, const std::string& name) {
  std::string first;
  int64_t missing = 0, all = 0;
  for (const gguf::TensorInfo& t : file.tensors()) {
    const std::string_view stem = without_weight(t.name);
    const std::optional<TensorId> id = find_tensor_spec(t.name);
    const bool table = id && id->spec->kind == TensorKind::kTable;  // other programs know no scale for these
    if (t.dtype != DType::kNVFP4 || stem == t.name || table) continue;
    ++all;
    if (find_scale(file, stem) != nullptr) continue;
    if (missing++ == 0) first = fmt::format("{}.scale", stem);
  }
  if (missing > 0)
    log_warning(fmt::format("{}: {} of {} matrices in nvfp4 have no scale in the file (the first is {}): 1 is taken",
                            name, missing, all, gguf::printable(first)));
}

}  // namespace

// What follows once the file is open and its pages are asked for.
Status LoadedModel::make_ready(const std::string& name) {
  QUIRE_TRY(ModelParts parts, load_parts(file).context(name));
  model = std::move(parts.model);
  tokenizer = std::move(parts.tokenizer);
  say_missing_scales(file, name);
  identity_ = identity_of(file, model->config());
  return {};
}

// A tower that was named must load. One that was found a model can do without, unless something is asked of it.
Status LoadedModel::take_vision(const std::string& path, const LoadOptions& o) {
  const auto load = [&](gguf::File from) {
    return load_vision(std::move(from), model->config(), tokenizer ? &*tokenizer : nullptr, o.pictures);
  };
  if (!o.mmproj.empty()) {
    QUIRE_TRY(gguf::File from, gguf::File::open(o.mmproj));
    QUIRE_TRY(vision, load(std::move(from)).context(o.mmproj));
    return {};
  }
  const auto take_found = [&]() -> Status {
    QUIRE_TRY(std::optional<gguf::File> from, open_tower_of(path));
    if (!from) return {};
    QUIRE_TRY(vision, load(std::move(*from)).context(path));
    return {};
  };
  const Status taken = take_found();
  if (taken.ok() || o.pictures.pan_and_scan) return taken;
  log_warning(fmt::format("images are not taken: {}", taken.error().message));
  return {};
}

Result<std::shared_ptr<const LoadedModel>> load_model(const std::string& path, const LoadOptions& o) {
  const auto start = std::chrono::steady_clock::now();
  QUIRE_TRY(gguf::File file, convert::open_model(path));
  auto m = std::make_shared<LoadedModel>(std::move(file));
  m->file.prefetch();
  if (o.rope.any()) {
    QUIRE_TRY(m->rope, replace_rope(o.rope, m->file).context(path));
  }
  if (!o.mtp.empty()) {
    QUIRE_TRY(m->mtp_file, convert::open_model(o.mtp));
  }
  QUIRE_CHECKED(m->make_ready(path));
  if (o.vision) QUIRE_CHECKED(m->take_vision(path, o));
  if (o.rope.any() && o.rope.scaling != "none")
    tell(
        "positions are scaled at every length: prompts that fit the context of the training are answered a little "
        "worse than without --rope-scaling");
  m->load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return std::shared_ptr<const LoadedModel>(std::move(m));
}

Result<std::shared_ptr<const LoadedModel>> load_model(gguf::File file, const std::string& name,
                                                      std::shared_ptr<const void> memory) {
  const auto start = std::chrono::steady_clock::now();
  auto m = std::make_shared<LoadedModel>(std::move(file), std::move(memory));
  QUIRE_CHECKED(m->make_ready(name));
  m->load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return std::shared_ptr<const LoadedModel>(std::move(m));
}

Result<const MtpBlock*> LoadedModel::mtp() const {
  const std::lock_guard lock(copies_mutex_);
  if (!mtp_) mtp_.emplace(model->mtp(mtp_file ? *mtp_file : file));
  if (!mtp_->ok()) return mtp_->error();
  return static_cast<const MtpBlock*>(&**mtp_);
}

std::shared_ptr<const RepackedWeights> LoadedModel::repacked(ThreadPool& pool, int64_t beside) const {
  const std::lock_guard lock(copies_mutex_);
  if (auto made = repacked_.lock()) return made;
  const std::vector<Weight> weights = model->matrices();
  const int64_t copies = RepackedWeights::bytes_for(weights), available = available_memory() - beside;
  if (copies + static_cast<int64_t>(file.mapped_bytes()) - file.made_bytes() > available) return nullptr;
  Result<std::unique_ptr<RepackedWeights>> made = RepackedWeights::create(weights, pool);
  if (!made.ok()) return nullptr;  // no memory after all: as above, the text is the same without
  std::shared_ptr<const RepackedWeights> shared = std::move(made).value();
  repacked_ = shared;
  return shared;
}

}  // namespace quire
