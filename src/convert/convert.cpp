#include "convert/convert.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "convert/folder.h"
#include "convert/metadata.h"
#include "convert/produce.h"
#include "convert/vision_folder.h"
#include "core/progress.h"
#include "gguf/reader.h"
#include "gguf/writer.h"

namespace quire::convert {
namespace {

constexpr size_t kMaxFiles = 500;  // all are open at once

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

ConvertSummary summarise(const ModelFolder& folder) {
  const auto& [config, weights, plan, tokenizer, generation_config] = folder;
  ConvertSummary s;
  s.architecture = config.row->name;
  s.class_name = config.class_name;
  s.source_bytes = weights.bytes();
  s.source_tensors = static_cast<int64_t>(weights.tensors().size());
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
  return s;
}

// The tower's file, in one piece.
Status write_tower(const VisionFolder& vision, const ConvertOptions& o, ConvertSummary& s) {
  ConvertOptions own = o;
  own.output = mmproj_path(o.output);
  own.split_max_bytes = 0;
  Output out(own, vision.plan);
  vision.write_metadata(s.name, out.first());
  QUIRE_CHECKED(out.open());
  QUIRE_CHECKED(write_tensors(vision.plan, own, out).context(o.folder));
  s.mmproj = own.output;
  s.mmproj_tensors = std::ssize(vision.plan.tensors);
  s.mmproj_bytes = out.file_bytes();
  s.notes.insert(s.notes.end(), vision.plan.notes.begin(), vision.plan.notes.end());
  return {};
}

}  // namespace

Result<ConvertSummary> convert(const ConvertOptions& o) {
  QUIRE_TRY(const ModelFolder folder, ModelFolder::read(o.folder, {.type = o.type}));
  std::optional<VisionFolder> vision;
  if (o.mmproj) {
    auto read = VisionFolder::read(o.folder, {.type = o.type});
    if (!read.ok()) {
      Error error = read.take_error();
      error.message += "; --no-mmproj converts the text model alone";
      return error;
    }
    vision = std::move(read).value();
  }
  const Plan& plan = folder.plan;
  ConvertSummary s = summarise(folder);
  s.name = o.name.empty() ? model_name(o.folder) : o.name;
  if (vision) QUIRE_CHECKED(write_tower(*vision, o, s));
  Output out(o, plan);
  folder.write_metadata(s.name, out.first());
  QUIRE_CHECKED(out.open());
  QUIRE_CHECKED(write_tensors(plan, o, out).context(o.folder));
  s.files = out.paths();
  s.file_bytes = out.file_bytes();
  return s;
}

}  // namespace quire::convert
