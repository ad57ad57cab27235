#include "convert/convert.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include "convert/hf_config.h"
#include "convert/hf_tokenizer.h"
#include "convert/json.h"
#include "convert/matrix.h"
#include "convert/metadata.h"
#include "convert/plan.h"
#include "convert/produce.h"
#include "core/progress.h"
#include "gguf/metadata.h"
#include "gguf/reader.h"
#include "gguf/writer.h"

namespace quire::convert {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFiles = 500;  // all are open at once
constexpr size_t kShownNames = 8;  // of tensors in a message

Status check_folder(const std::string& folder) {
  std::error_code error;
  if (!fs::exists(folder, error)) return request_error("{}: no such folder", folder);
  if (!fs::is_directory(folder, error))
    return request_error("{}: is not a folder; give the one with config.json and the .safetensors files", folder);
  if (!fs::exists(fs::path(folder) / "config.json", error)) return request_error("{}: has no config.json", folder);
  return {};
}

Status read_templates(const fs::path& folder, TokenizerFiles& files) {
  std::error_code error;
  if (const fs::path main = folder / "chat_template.jinja"; fs::exists(main, error)) {
    QUIRE_TRY(files.template_file, read_text_file(main));
  } else if (const fs::path older = folder / "chat_template.json"; fs::exists(older, error)) {
    QUIRE_TRY(const nlohmann::json document, read_json_object(older));
    const nlohmann::json* text = find_member(document, "chat_template");
    if (text != nullptr && text->is_string()) files.template_file = text->get<std::string>();
  }
  for (fs::directory_iterator at(folder / "additional_chat_templates", error), end; !error && at != end;
       at.increment(error)) {
    if (at->path().extension() != ".jinja") continue;
    QUIRE_TRY(files.more_templates[at->path().stem()], read_text_file(at->path()));
  }
  return {};
}

Result<TokenizerFiles> read_tokenizer_files(const fs::path& folder) {
  std::error_code error;
  TokenizerFiles files;
  if (!fs::exists(folder / "tokenizer.json", error)) {
    if (fs::exists(folder / "tokenizer.model", error))
      return request_error(
          "{}: has a SentencePiece tokenizer.model but no tokenizer.json; only byte-level BPE from "
          "tokenizer.json is supported",
          folder.string());
    return request_error("{}: has no tokenizer.json", folder.string());
  }
  QUIRE_TRY(files.tokenizer, read_json_object(folder / "tokenizer.json"));
  QUIRE_TRY(files.tokenizer_config, read_json_object_or_empty(folder / "tokenizer_config.json"));
  QUIRE_TRY(files.generation_config, read_json_object_or_empty(folder / "generation_config.json"));
  QUIRE_CHECKED(read_templates(folder, files));
  return files;
}

// The number of each tensor's file: in order, each as full as the limit allows.
std::vector<size_t> assign_files(const Plan& plan, uint64_t limit) {
  std::vector<size_t> file_of;
  size_t file = 0;
  uint64_t filled = 0;
  for (const OutTensor& t : plan.tensors) {
    const auto bytes = static_cast<uint64_t>(t.bytes());
    if (limit > 0 && filled > 0 && filled + bytes > limit) {
      ++file;
      filled = 0;
    }
    filled += bytes;
    file_of.push_back(file);
  }
  return file_of;
}

// The writers of all files of one model.
class Output {
 public:
  Output(const ConvertOptions& options, const Plan& plan)
      : plan_(plan), file_of_(assign_files(plan, options.split_max_bytes)) {
    const size_t count = file_of_.back() + 1;
    std::string prefix = options.output;
    if (prefix.ends_with(".gguf")) prefix.resize(prefix.size() - 5);
    for (size_t i = 0; i < count; ++i) {
      writers_.push_back(std::make_unique<gguf::Writer>());
      paths_.push_back(count == 1 ? options.output
                                  : gguf::shard_path(prefix, static_cast<uint32_t>(i), static_cast<uint32_t>(count)));
    }
  }

  gguf::Writer& first() { return *writers_.front(); }
  const std::vector<std::string>& paths() const { return paths_; }

  Status open() {
    if (writers_.size() > kMaxFiles)
      return request_error("--split-max-size: {} files are more than {}; choose a larger size", writers_.size(),
                           kMaxFiles);
    for (size_t i = 0; i < writers_.size() && writers_.size() > 1; ++i) {
      writers_[i]->add("split.no", static_cast<uint16_t>(i));
      writers_[i]->add("split.count", static_cast<uint16_t>(writers_.size()));
      writers_[i]->add("split.tensors.count", static_cast<int32_t>(plan_.tensors.size()));
    }
    for (size_t i = 0; i < plan_.tensors.size(); ++i) {
      const OutTensor& t = plan_.tensors[i];
      QUIRE_CHECKED(writers_[file_of_[i]]->add_tensor(t.name, t.dtype, t.dims));
    }
    for (size_t i = 0; i < writers_.size(); ++i) QUIRE_CHECKED(writers_[i]->open(paths_[i]));
    return {};
  }
  Status write(size_t tensor, std::span<const std::byte> bytes) {
    return writers_[file_of_[tensor]]->write_tensor(bytes);
  }
  // Without its first file a split model cannot be opened: that one gets its name last.
  Status finish() {
    for (size_t i = writers_.size(); i-- > 0;) QUIRE_CHECKED(writers_[i]->finish());
    return {};
  }
  uint64_t file_bytes() const {
    uint64_t sum = 0;
    for (const auto& w : writers_) sum += w->file_bytes();
    return sum;
  }

 private:
  const Plan& plan_;
  std::vector<size_t> file_of_;
  std::vector<std::unique_ptr<gguf::Writer>> writers_;
  std::vector<std::string> paths_;
};

Status refuse_not_finite(const std::set<std::string>& tensors) {
  if (tensors.empty()) return {};
  std::string names;
  size_t shown = 0;
  for (const std::string& name : tensors) {
    if (shown++ == kShownNames) break;
    names.append(names.empty() ? "" : ", ").append(gguf::printable(name));
  }
  return file_error("{} {} NaN or infinity: {}{}; if the original has none, copy the folder again", tensors.size(),
                    tensors.size() == 1 ? "tensor holds" : "tensors hold", names,
                    tensors.size() > kShownNames ? ", ..." : "");
}

// Every tensor is looked at even after a bad one, so that one message names them all.
Status write_tensors(const Plan& plan, const ConvertOptions& o, Output& out) {
  std::set<std::string> not_finite;
  int64_t total = 0;
  for (const OutTensor& t : plan.tensors) total += t.bytes();
  Producer producer(o.threads);
  Progress progress("converting", total, Progress::Unit::kBytes);
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    if (o.stop && o.stop()) return request_error("interrupted; nothing was written");
    QUIRE_TRY(const std::span<const std::byte> bytes, producer.run(plan.tensors[i], not_finite));
    if (not_finite.empty()) QUIRE_CHECKED(out.write(i, bytes));
    progress.add(plan.tensors[i].bytes());
  }
  QUIRE_CHECKED(refuse_not_finite(not_finite));
  return out.finish();
}

ConvertSummary summarise(const HfConfig& config, const HfTokenizer& tokenizer, const Checkpoint& checkpoint,
                         const Plan& plan) {
  ConvertSummary s;
  s.architecture = config.row->name;
  s.class_name = config.class_name;
  s.source_bytes = checkpoint.bytes();
  s.source_tensors = static_cast<int64_t>(checkpoint.tensors().size());
  s.tensors = static_cast<int64_t>(plan.tensors.size());
  std::map<DType, ConvertSummary::TypeSum> sums;
  for (const OutTensor& t : plan.tensors) {
    ConvertSummary::TypeSum& sum = sums[t.dtype];
    sum.type = t.dtype;
    ++sum.tensors;
    sum.bytes += t.bytes();
  }
  for (const auto& [type, sum] : sums) s.types.push_back(sum);
  std::stable_sort(s.types.begin(), s.types.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  for (const auto* notes : {&config.notes, &plan.notes, &tokenizer.notes})
    s.notes.insert(s.notes.end(), notes->begin(), notes->end());
  s.unused = plan.unused;
  return s;
}

}  // namespace

Result<ConvertSummary> convert(const ConvertOptions& o) {
  QUIRE_CHECKED(check_folder(o.folder));
  const fs::path folder(o.folder);
  const std::string config_path = folder / "config.json";
  QUIRE_TRY(const nlohmann::json config_file, read_json_object(config_path));
  QUIRE_TRY(HfConfig config, read_hf_config(config_file).context(config_path));
  QUIRE_TRY(const Checkpoint checkpoint, Checkpoint::open(o.folder));
  Source source(checkpoint);
  QUIRE_TRY(const Plan plan, make_plan(source, config, o.type).context(o.folder));
  QUIRE_TRY(const TokenizerFiles files, read_tokenizer_files(folder));
  QUIRE_TRY(const HfTokenizer tokenizer, read_hf_tokenizer(files, config).context(o.folder));

  const std::string name = o.name.empty() ? model_name(o.folder) : o.name;
  Output out(o, plan);
  write_metadata(config, tokenizer, files.generation_config, plan, name, out.first());
  QUIRE_CHECKED(out.open());
  QUIRE_CHECKED(write_tensors(plan, o, out).context(o.folder));
  ConvertSummary s = summarise(config, tokenizer, checkpoint, plan);
  s.name = name;
  s.files = out.paths();
  s.file_bytes = out.file_bytes();
  return s;
}

}  // namespace quire::convert
