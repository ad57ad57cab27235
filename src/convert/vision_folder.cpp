#include "convert/vision_folder.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>

#include "convert/json.h"
#include "convert/matrix.h"
#include "convert/type_choice.h"
#include "gguf/metadata.h"

namespace quire::convert {
namespace {

namespace fs = std::filesystem;
using enum VisionRole;

// What stands before a tower's names, and before its projector's; the first that the folder has. A tower is there where
// its first block is.
constexpr std::string_view kQwenPrefixes[] = {"model.visual.", "visual."};
constexpr std::string_view kGemmaPrefixes[] = {"vision_tower.vision_model.", "model.vision_tower.vision_model.",
                                               "vision_tower.", "model.vision_tower."};
constexpr std::string_view kProjectorPrefixes[] = {"multi_modal_projector.", "model.multi_modal_projector."};
constexpr std::string_view kGemma4Prefixes[] = {"model.vision_tower.", "vision_tower."};
constexpr std::string_view kEmbedderPrefixes[] = {"model.embed_vision.", "embed_vision."};

std::string_view prefix_of(const Source& source, std::span<const std::string_view> prefixes, std::string_view of) {
  for (const std::string_view p : prefixes)
    if (source.has_any(std::string(p).append(of))) return p;
  return {};
}

class VisionPlanner {
 public:
  VisionPlanner(Source& source, const HfVision& vision, const PlanOptions& options)
      : source_(source), v_(vision), types_(options) {
    constexpr std::string_view kFirst = "encoder.layers.0.";
    tower_ = v_.family == VisionFamily::kQwen3    ? prefix_of(source, kQwenPrefixes, "blocks.0.")
             : v_.family == VisionFamily::kGemma3 ? prefix_of(source, kGemmaPrefixes, kFirst)
                                                  : prefix_of(source, kGemma4Prefixes, kFirst);
    projector_ = v_.family == VisionFamily::kGemma4 ? prefix_of(source, kEmbedderPrefixes, "")
                                                    : prefix_of(source, kProjectorPrefixes, "");
  }

  bool any() const { return !tower_.empty(); }

  Result<Plan> run() {
    QUIRE_CHECKED(v_.family == VisionFamily::kGemma4 ? gemma4() : others());
    QUIRE_CHECKED(check_unused());
    for (const auto& [what, count] : types_.decoded)
      plan_.notes.push_back(fmt::format("{} {} matrices of the vision tower are decoded to bf16", count, what));
    find_main_type();
    return std::move(plan_);
  }

 private:
  OutTensor& add(std::string name, DType dtype, std::vector<int64_t> dims) {
    OutTensor& t = plan_.tensors.emplace_back();
    t.name = std::move(name);
    t.dtype = dtype;
    t.dims = std::move(dims);
    return t;
  }
  std::string source_stem(VisionRole role, int64_t number) const {
    const bool of_projector = role == kProjection || role == kProjectionNorm;
    return std::string(of_projector ? projector_ : tower_).append(vision_folder_stem(v_.family, role, number));
  }

  Status others() {
    QUIRE_CHECKED(patches());
    QUIRE_CHECKED(floats(kPositions, 0, ".weight", v_.positions, v_.width));
    for (int64_t i = 0; i < v_.blocks; ++i) QUIRE_CHECKED(block(i));
    return v_.family == VisionFamily::kQwen3 ? mergers() : projection();
  }

  Status gemma4() {
    QUIRE_CHECKED(rows_of_pixels());
    QUIRE_TRY(Matrix tables, source_.tensor(source_stem(kPositions, 0), 2 * v_.positions, v_.width));
    add(vision_stem(kPositions) + ".weight", DType::kF32, {v_.width, v_.positions, 2})
        .parts.push_back(std::move(tables));
    for (int64_t i = 0; i < v_.blocks; ++i) QUIRE_CHECKED(gemma4_block(i));
    for (const VisionRole role : {kPooledShift, kPooledScale})
      if (v_.scaled) QUIRE_CHECKED(floats(role, 0, "", 1, v_.width));
    return matrix(kProjection, 0, "", v_.out, v_.width);
  }
  // A patch is pixels of colours; files have planes of a colour.
  Status rows_of_pixels() {
    const int64_t plane = v_.patch * v_.patch;
    QUIRE_TRY(Matrix m, source_.tensor(source_stem(kPatch, 0).append(".weight"), v_.width, 3 * plane));
    OutTensor& t = add(vision_stem(kPatch) + ".weight", types_.given == DType::kF16 ? DType::kF16 : DType::kF32,
                       {v_.patch, v_.patch, 3, v_.width});
    t.parts.push_back(std::move(m));
    for (int64_t i = 0; i < 3 * plane; ++i) t.column_order.push_back(i % plane * 3 + i / plane);
    return {};
  }
  Status gemma4_block(int64_t i) {
    const int64_t head = v_.width / v_.heads;
    QUIRE_CHECKED(floats(kNorm1, i, ".weight", 1, v_.width));
    for (const VisionRole role : {kQuery, kKey, kValue}) QUIRE_CHECKED(bounded(role, i, v_.width, v_.width));
    for (const VisionRole role : {kQueryNorm, kKeyNorm}) QUIRE_CHECKED(floats(role, i, ".weight", 1, head));
    QUIRE_CHECKED(bounded(kAttnOut, i, v_.width, v_.width));
    for (const VisionRole role : {kAttnOutNorm, kNorm2}) QUIRE_CHECKED(floats(role, i, ".weight", 1, v_.width));
    for (const VisionRole role : {kGate, kUp}) QUIRE_CHECKED(bounded(role, i, v_.ffn, v_.width));
    QUIRE_CHECKED(bounded(kDown, i, v_.width, v_.ffn));
    return floats(kFfnOutNorm, i, ".weight", 1, v_.width);
  }
  Status bounded(VisionRole role, int64_t number, int64_t rows, int64_t cols) {
    QUIRE_CHECKED(matrix(role, number, ".linear", rows, cols));
    for (const char* which : {".input_min", ".input_max", ".output_min", ".output_max"})
      if (v_.bounded) QUIRE_CHECKED(bound(role, number, which));
    return {};
  }
  // Infinity is no bound, which files write as the largest number.
  Status bound(VisionRole role, int64_t number, std::string_view which) {
    const std::string name = source_stem(role, number).append(which);
    QUIRE_TRY(const Matrix m, source_.tensor(name, 1, 1));
    double x = 0;
    decode_row(m, 0, &x);
    if (std::isnan(x)) return file_error("tensor {}: is no number", name);
    constexpr auto kMost = static_cast<double>(std::numeric_limits<float>::max());
    add(vision_stem(role, number).append(which), DType::kF32, {1}).values = {
        static_cast<float>(std::clamp(x, -kMost, kMost))};
    return {};
  }

  // `number`: the folder's, which for mergers of blocks is another one than the file's.
  Status floats(VisionRole role, int64_t number, std::string_view suffix, int64_t rows, int64_t cols,
                std::optional<int64_t> block = {}, ValueChange change = ValueChange::kNone) {
    QUIRE_TRY(Matrix m, source_.tensor(source_stem(role, number).append(suffix), rows, cols));
    OutTensor& t = add(vision_stem(role, block.value_or(number)).append(suffix), DType::kF32,
                       rows == 1 ? std::vector<int64_t>{cols} : std::vector<int64_t>{cols, rows});
    t.parts.push_back(std::move(m));
    t.change = change;
    return {};
  }
  Status norm(VisionRole role, int64_t number, int64_t width, std::optional<int64_t> block = {}) {
    QUIRE_CHECKED(floats(role, number, ".weight", 1, width, block));
    return floats(role, number, ".bias", 1, width, block);
  }
  // `within`: what stands between the stem of a folder's name and ".weight".
  Status matrix(VisionRole role, int64_t number, std::string_view within, int64_t rows, int64_t cols,
                std::optional<int64_t> block = {}) {
    QUIRE_TRY(Matrix m, source_.linear(source_stem(role, number).append(within), rows, cols));
    std::vector<Matrix> parts;
    parts.push_back(std::move(m));
    DType type = types_.choose(parts, false, 1);
    if (type == DType::kNVFP4) {  // whose factors would be tensors that no other reader looks for
      type = DType::kBF16;
      ++types_.decoded["NVFP4"];
    }
    add(vision_stem(role, block.value_or(number)) + ".weight", type, {cols, rows}).parts = std::move(parts);
    return {};
  }
  Status linear(VisionRole role, int64_t number, int64_t rows, int64_t cols, std::optional<int64_t> block = {}) {
    QUIRE_CHECKED(matrix(role, number, "", rows, cols, block));
    return floats(role, number, ".bias", 1, rows, block);
  }

  // A convolution for each frame that a patch covers, in float32 unless half precision is asked for: other readers
  // take no bf16 there.
  Status patches() {
    const int64_t frames = vision_row(v_.family).frames, lines = v_.width * 3 * v_.patch;
    QUIRE_TRY(const Matrix all, source_.tensor(source_stem(kPatch, 0).append(".weight"), lines * frames, v_.patch));
    for (int64_t f = 0; f < frames; ++f) {
      const std::string name = vision_stem(kPatch) + ".weight";
      OutTensor& t = add(f == 0 ? name : fmt::format("{}.{}", name, f),
                         types_.given == DType::kF16 ? DType::kF16 : DType::kF32, {v_.patch, v_.patch, 3, v_.width});
      t.parts.push_back(all);
      // Line y of colour c of output w.
      for (int64_t i = 0; frames > 1 && i < lines; ++i)
        t.row_order.push_back((i / v_.patch * frames + f) * v_.patch + i % v_.patch);
    }
    return floats(kPatch, 0, ".bias", 1, v_.width);
  }

  Status block(int64_t i) {
    QUIRE_CHECKED(norm(kNorm1, i, v_.width));
    if (vision_row(v_.family).fused_qkv) {
      QUIRE_CHECKED(linear(kQkv, i, 3 * v_.width, v_.width));
    } else {
      for (const VisionRole role : {kQuery, kKey, kValue}) QUIRE_CHECKED(linear(role, i, v_.width, v_.width));
    }
    QUIRE_CHECKED(linear(kAttnOut, i, v_.width, v_.width));
    QUIRE_CHECKED(norm(kNorm2, i, v_.width));
    QUIRE_CHECKED(linear(kUp, i, v_.ffn, v_.width));
    return linear(kDown, i, v_.width, v_.ffn);
  }

  Status mergers() {
    const int64_t merged = v_.width * v_.merge * v_.merge;
    QUIRE_CHECKED(norm(kPostNorm, 0, v_.width));
    QUIRE_CHECKED(linear(kMergeUp, 0, merged, merged));
    QUIRE_CHECKED(linear(kMergeDown, 0, v_.out, merged));
    for (size_t i = 0; i < v_.deepstack.size(); ++i) {
      const auto number = static_cast<int64_t>(i);
      const int64_t at = v_.deepstack[i];
      QUIRE_CHECKED(norm(kStackNorm, number, merged, at));
      QUIRE_CHECKED(linear(kStackUp, number, merged, merged, at));
      QUIRE_CHECKED(linear(kStackDown, number, v_.out, merged, at));
    }
    return {};
  }

  // The product's matrix is the transpose of what it is elsewhere, and stays so: files have it like that.
  Status projection() {
    QUIRE_CHECKED(norm(kPostNorm, 0, v_.width));
    QUIRE_CHECKED(floats(kProjectionNorm, 0, ".weight", 1, v_.width, {}, ValueChange::kAddOne));
    QUIRE_TRY(Matrix m, source_.tensor(source_stem(kProjection, 0), v_.width, v_.out));
    add(vision_stem(kProjection) + ".weight", types_.given == DType::kF16 ? DType::kF16 : DType::kF32,
        {v_.out, v_.width})
        .parts.push_back(std::move(m));
    return {};
  }

  Status check_unused() const {
    for (const std::string& name : source_.unused())
      if (name.starts_with(tower_) || (!projector_.empty() && name.starts_with(projector_)))
        return file_error("tensor {} of the vision tower would not be computed: this family has no place for it",
                          gguf::printable(name));
    return {};
  }

  void find_main_type() {
    std::map<DType, int64_t> elems;
    for (const OutTensor& t : plan_.tensors)
      if (t.dims.size() == 2) elems[t.dtype] += t.elems();
    int64_t most = 0;
    for (const auto& [type, count] : elems)
      if (count > most) most = count, plan_.mostly = type;
  }

  Source& source_;
  const HfVision& v_;
  TypeChoice types_;
  std::string_view tower_, projector_;
  Plan plan_;
};

// Where transformers looks for them, in this order.
Result<nlohmann::json> read_processor(const fs::path& folder) {
  QUIRE_TRY(const nlohmann::json all, read_json_object_or_empty(folder / "processor_config.json"));
  const nlohmann::json* const images = find_member(all, "image_processor");
  if (images == nullptr) return read_json_object_or_empty(folder / "preprocessor_config.json");
  if (!images->is_object()) return file_error("processor_config.json: image_processor: is not an object");
  nlohmann::json own = *images;
  // Gemma's is a number of the whole processor there.
  constexpr char kTokens[] = "image_seq_length";
  if (const nlohmann::json* const tokens = find_member(all, kTokens); tokens != nullptr && !own.contains(kTokens))
    own[kTokens] = *tokens;
  return own;
}

}  // namespace

Result<std::optional<VisionFolder>> VisionFolder::read(const std::string& path, const PlanOptions& options) {
  const fs::path folder(path);
  const std::string config_path = folder / "config.json";
  QUIRE_TRY(const nlohmann::json root, read_json_object(config_path));
  QUIRE_TRY(const nlohmann::json processor, read_processor(folder));
  QUIRE_TRY(std::optional<HfVision> vision, read_hf_vision(root, processor).context(config_path));
  if (!vision) return std::optional<VisionFolder>();
  QUIRE_TRY(FolderWeights weights, FolderWeights::open(path));
  Source source(weights);
  VisionPlanner planner(source, *vision, options);
  if (!planner.any()) return std::optional<VisionFolder>();
  QUIRE_TRY(Plan plan, planner.run().context(path));
  return std::optional(VisionFolder{std::move(*vision), std::move(weights), std::move(plan)});
}

std::string mmproj_path(const std::string& model_file) {
  const fs::path file(model_file);
  return file.parent_path() / ("mmproj-" + file.filename().string());
}

}  // namespace quire::convert
