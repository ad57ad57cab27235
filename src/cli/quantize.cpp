// quire quantize: re-encodes the matrices of a model, one tensor at a time. The work is in quantize/: which
// type each tensor gets (mix), what becomes of it (plan), the bytes (encoder), and the summary (report).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <memory>

#include "cli/commands.h"
#include "cli/quantize/encoder.h"
#include "cli/quantize/mix.h"
#include "cli/quantize/plan.h"
#include "cli/quantize/report.h"
#include "command/display.h"
#include "command/encoding.h"
#include "command/options.h"
#include "convert/open.h"
#include "core/cpu.h"
#include "core/progress.h"
#include "gguf/reader.h"
#include "gguf/writer.h"

namespace quire::cli {
namespace {

struct QuantizeOptions {
  std::string input, output, type, head_type, projection_type, importance;
  std::vector<std::string> overrides;
  int threads = 0;
  bool rtn = false, json = false;

  std::string_view search_name() const { return rtn ? "nearest" : "best"; }
};

struct Source {
  gguf::File file;
  PlannedOutput output;
  std::optional<quant::Importance> importance;
  Mix mix;
  std::vector<Job> jobs;
};

Result<PlannedOutput> plan_output(const QuantizeOptions& o, const gguf::File& in) {
  std::error_code ignored;
  for (const auto& shard : in.shards())
    if (std::filesystem::equivalent(shard.path, o.output, ignored))
      return request_error("{} is the input itself; give another name for the output", o.output);
  return PlannedOutput::create(o.output);
}

Result<Mix> choose_mix(const QuantizeOptions& o, const gguf::File& f) {
  QUIRE_TRY(const DType type, parse_encodable(o.type));
  Mix mix = default_mix(type, f);
  if (o.projection_type == "keep") {
    mix.projection.reset();
    mix.value.reset();
  } else if (!o.projection_type.empty()) {
    QUIRE_TRY(mix.projection, parse_encodable(o.projection_type));
    mix.value.reset();
  }
  if (o.head_type.empty()) return mix;
  QUIRE_TRY(mix.head, parse_encodable(o.head_type));
  if (mix.head == DType::kNVFP4)
    return request_error("--head-type nvfp4 is not supported, an embedding has no scale: choose q8_0");
  return mix;
}

Result<Source> prepare(const QuantizeOptions& o) {
  QUIRE_CHECKED(parse_encodable(o.type));
  QUIRE_TRY(const std::vector<Override> overrides, parse_overrides(o.overrides));
  QUIRE_TRY(gguf::File f, convert::open_model(o.input, {.keep_fp8 = false}));
  QUIRE_TRY(PlannedOutput output, plan_output(o, f));
  Source s{std::move(f), std::move(output), {}, {}, {}};
  if (!o.importance.empty()) {
    QUIRE_TRY(s.importance, quant::Importance::open(o.importance));
  }
  QUIRE_TRY(s.mix, choose_mix(o, s.file));
  QUIRE_TRY(const std::vector<Choice> choices, choose_types(s.file, s.mix, overrides));
  auto jobs = plan(s.file, choices, s.importance ? &*s.importance : nullptr);
  if (!jobs.ok()) return jobs.take_error().context(o.input);
  s.jobs = std::move(jobs).value();
  return s;
}

// All of the input's metadata but what describes its encoding; then that of the new one.
Status write_metadata(const QuantizeOptions& o, const Source& s, gguf::Writer& w) {
  constexpr std::array<std::string_view, 6> kReplaced = {
      "general.alignment",  // the writer's own
      "general.file_type", "general.quantization_version", "split.no", "split.count", "split.tensors.count"};
  for (const auto& [key, value] : s.file.entries())
    if (std::find(kReplaced.begin(), kReplaced.end(), key) == kReplaced.end() && !key.starts_with("quire.quantize.") &&
        !key.starts_with("quantize.imatrix."))
      w.add_value(key, value);
  QUIRE_TRY(const DType type, parse_encodable(o.type));
  w.add("general.file_type", gguf::file_type_code(type));
  w.add("general.quantization_version", uint32_t{2});
  w.add_string("quire.quantize.mix", s.mix.text());
  w.add_string("quire.quantize.search", o.search_name());
  if (!o.overrides.empty()) {
    const std::vector<std::string_view> texts(o.overrides.begin(), o.overrides.end());
    w.add_strings("quire.quantize.overrides", texts);
  }
  if (!s.importance) return {};
  // The names that other programs look for.
  std::string datasets;
  for (const std::string& d : s.importance->origin().datasets) datasets += (datasets.empty() ? "" : ", ") + d;
  w.add_string("quantize.imatrix.file", std::filesystem::path(o.importance).filename().string());
  w.add_string("quantize.imatrix.dataset", datasets);
  w.add("quantize.imatrix.entries_count", static_cast<uint32_t>(s.importance->entries().size()));
  w.add("quantize.imatrix.chunks_count", s.importance->origin().chunk_count);
  return {};
}

Status write_tensors(const QuantizeOptions& o, const Source& s, TensorEncoder& encoder, QuantizeReport& report,
                     gguf::Writer& w) {
  Progress progress("quantizing", s.file.tensor_bytes(), Progress::Unit::kBytes);
  const auto done = [&](int64_t bytes) {
    progress.add(bytes);
    return true;
  };
  for (const Job& job : s.jobs) {
    if (!job.encoded()) {
      QUIRE_CHECKED(w.write_tensor({job.in->data, static_cast<size_t>(job.in->bytes)}));
      report.add(job, nullptr);
      progress.add(job.in->bytes);
      continue;
    }
    QUIRE_CHECKED(encoder.run(job, done).context(o.input));
    QUIRE_CHECKED(w.write_tensor(encoder.out()));
    if (job.has_scale()) QUIRE_CHECKED(w.write_tensor(std::as_bytes(encoder.scales())));
    report.add(job, &encoder.stats());
  }
  return w.finish();
}

Status quantize(const QuantizeOptions& o) {
  const auto start = std::chrono::steady_clock::now();
  QUIRE_TRY(const Source s, prepare(o));
  gguf::Writer w;
  QUIRE_CHECKED(write_metadata(o, s, w));
  for (const Job& job : s.jobs) QUIRE_CHECKED(declare(job, w).context(o.input));
  QUIRE_CHECKED(w.open(o.output));
  TensorEncoder encoder(o.threads == 0 ? available_cpus() : o.threads,
                        o.rtn ? quant::Search::kNearest : quant::Search::kBest,
                        s.importance ? &*s.importance : nullptr);
  QuantizeReport report;
  QUIRE_CHECKED(write_tensors(o, s, encoder, report, w));
  const QuantizeReport::Whole whole{
      .input = o.input,
      .output = o.output,
      .type = o.type,
      .mix = s.mix.text(),
      .search = std::string(o.search_name()),
      .importance = o.importance,
      .bytes_before = s.file.mapped_bytes(),
      .bytes_after = w.file_bytes(),
      .buffer_bytes = encoder.buffer_bytes(),
      .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
  o.json ? report.print_json(whole) : report.print(whole);
  return {};
}

}  // namespace

Action add_quantize(Flags& flags) {
  auto o = std::make_shared<QuantizeOptions>();
  flags.add(kModelNames, &o->input, kModelHelp).required();
  flags.add("-o,--output,OUTPUT FILE", &o->output, "File to write; appears only when it is complete").required();
  flags
      .add("--type", &o->type,
           "Type of most matrices: nvfp4, mxfp4, iq4_nl, q3_k, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, "
           "q8_0, bf16, f16 or f32. Some tensors get another one: see the mixes below")
      .required();
  flags.add("--head-type", &o->head_type, "Another type for the token embedding and the output head");
  flags.add("--projection-type", &o->projection_type,
            "Another type for the projections of attention and delta net; `keep` for as in the input");
  flags.add("--tensor REGEX=TYPE", &o->overrides,
            "Type of the matrices whose name a regular expression (PCRE) matches anywhere; `keep` for as in "
            "the input. Repeatable: of several that match, the last decides");
  flags.add("--imatrix FILE", &o->importance,
            "Importance file (of `quire imatrix`): errors in columns with large inputs weigh more");
  flags.add("--rtn", &o->rtn,
            "Round to nearest: scales by the plain rule of each format, without search or importance; quick, "
            "and what the search is measured against");
  flags.add("--json", &o->json, "Print the summary as one JSON object");
  flags
      .add("-t,--threads", &o->threads, between(0, 1024),
           "Threads (default: all CPUs). The output does not depend on it")
      .default_text("");
  flags.footer(mixes_help());
  return [o] { return quantize(*o); };
}

}  // namespace quire::cli
