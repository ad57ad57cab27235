// quire convert: a Hugging Face model folder to GGUF.
#include "convert/convert.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "command/display.h"
#include "core/count.h"
#include "core/cpu.h"
#include "core/escape.h"
#include "core/output.h"

namespace quire::cli {
namespace {

using nlohmann::ordered_json;

struct ConvertCommand {
  std::string folder, output, split, name;
  std::optional<DType> type;  // of the matrices; none: as they are
  int threads = 0;
  bool json = false, no_mmproj = false;
};

constexpr Named<std::optional<DType>> kTypes[] = {
    {"auto", std::nullopt}, {"bf16", DType::kBF16}, {"f16", DType::kF16}, {"f32", DType::kF32}};

// "4G", also "4GB".
Result<uint64_t> parse_size(std::string_view text) {
  uint64_t value = 0;
  const std::string_view number = text.substr(0, text.size() - (text.ends_with('B') ? 1 : 0));
  if (parse_count(number, value) != CountError::kNone || value == 0)
    return request_error(
        "'{}' is not a size; write a number of bytes, or one with k, m or g (thousands), K, M or G "
        "(1024)",
        escaped(text, 40));
  return value;
}

Result<convert::ConvertOptions> checked(const ConvertCommand& o) {
  convert::ConvertOptions c{.folder = o.folder, .output = o.output, .name = o.name};
  c.threads = o.threads == 0 ? available_cpus() : o.threads;
  c.type = o.type;
  c.mmproj = !o.no_mmproj;
  if (!o.split.empty()) {
    QUIRE_TRY(c.split_max_bytes, parse_size(o.split).context("--split-max-size"));
  }
  return c;
}

ordered_json to_json(const convert::ConvertSummary& s) {
  ordered_json out = {{"architecture", s.architecture}, {"class", s.class_name}, {"name", s.name}};
  out["files"] = s.files;
  out["bytes"] = s.file_bytes;
  out["tensors"] = s.tensors;
  out["source_bytes"] = s.source_bytes;
  out["source_tensors"] = s.source_tensors;
  out["types"] = ordered_json::array();
  for (const auto& t : s.types)
    out["types"].push_back({{"type", dtype_name(t.type)}, {"tensors", t.tensors}, {"bytes", t.bytes}});
  if (!s.mmproj.empty()) out["mmproj"] = {{"file", s.mmproj}, {"tensors", s.mmproj_tensors}, {"bytes", s.mmproj_bytes}};
  out["notes"] = s.notes;
  return out;
}

void print(const convert::ConvertSummary& s) {
  print_out("{} ({} in the folder), named {}\n", s.architecture, s.class_name, escaped(s.name, 80));
  for (const auto& t : s.types)
    print_out("  {:<8} {:>5} tensors  {:>9}\n", dtype_name(t.type), t.tensors,
              human_bytes(static_cast<uint64_t>(t.bytes)));
  for (const std::string& note : s.notes) print_out("note: {}\n", escaped(note, 300));
  print_out("{} from {} tensors ({}) to {} in {} ({})\n", s.files.front(), s.source_tensors,
            human_bytes(s.source_bytes), s.tensors,
            s.files.size() == 1 ? "one file" : fmt::format("{} files", s.files.size()), human_bytes(s.file_bytes));
  if (!s.mmproj.empty())
    print_out("{}: the vision tower, {} tensors ({})\n", s.mmproj, s.mmproj_tensors, human_bytes(s.mmproj_bytes));
}

Status run_convert(const ConvertCommand& o) {
  QUIRE_TRY(const convert::ConvertOptions options, checked(o));
  QUIRE_TRY(const convert::ConvertSummary summary, convert::convert(options));
  if (o.json)
    print_out("{}\n", to_json(summary).dump(2, ' ', false, ordered_json::error_handler_t::replace));
  else
    print(summary);
  return {};
}

}  // namespace

Action add_convert(Flags& flags) {
  auto o = std::make_shared<ConvertCommand>();
  flags.add("-m,--model,FOLDER DIR", &o->folder, "Folder with config.json, tokenizer.json and the .safetensors files")
      .required();
  flags.add("-o,--output,OUTPUT FILE", &o->output, "GGUF file to write; appears only when it is complete").required();
  flags.add("--outtype", chosen(&o->type, kTypes),
            "Type of the matrices: auto (as they are; FP8 becomes bf16), bf16, f16 or f32");
  flags.add("--split-max-size", &o->split, "Write several files, each with at most so many bytes of tensors: 4g, 500m");
  flags.add("--name", &o->name, "The model's name in the file (default: the folder's)");
  flags.add("-t,--threads", &o->threads, between(0, 1024), "Threads (default: all CPUs)").default_text("");
  flags.add("--no-mmproj", &o->no_mmproj, "Do not write the vision tower beside the model, as mmproj-OUTPUT");
  flags.add("--json", &o->json, "Print the summary as one JSON object");
  return [o] { return run_convert(*o); };
}

}  // namespace quire::cli
