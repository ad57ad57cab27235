// quire inspect: what a model file holds. One function per section, each in a form for people and one for
// programs.
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/forecast.h"
#include "cli/inspect_cards.h"
#include "cli/inspect_hub.h"
#include "cli/inspect_vision.h"
#include "command/display.h"
#include "command/options.h"
#include "convert/open.h"
#include "core/escape.h"
#include "core/output.h"
#include "engine/card_plan.h"
#include "engine/engine.h"
#include "engine/model_parts.h"
#include "gguf/reader.h"
#include "model/config.h"
#include "model/memory.h"
#include "quant/format.h"

namespace quire::cli {
namespace {

using nlohmann::ordered_json;

struct InspectOptions {
  std::string file;
  RemoteInspection remote;
  bool json = false, metadata = false, tensors = false, chat_template = false, check = false;
  int64_t context = 4096, sequences = 1;
  std::vector<int32_t> cards = {std::begin(kCommonCards), std::end(kCommonCards)};

  // Without a choice, everything but the template's text; of what is not here the lists only if asked for.
  bool everything() const { return !metadata && !tensors && !is_remote(file); }
};

constexpr int64_t kShownElements = 8;  // of an array of metadata
constexpr size_t kShownBytes = 100;    // of a string of metadata

// ---- What the file is ----

struct Totals {
  int64_t tensors = 0, parameters = 0, bytes = 0;
  void add(const gguf::TensorInfo& t) {
    ++tensors;
    parameters += t.elems();
    bytes += t.bytes;
  }
  double bits_per_weight() const {
    return parameters == 0 ? 0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(parameters);
  }
};

Totals totals_of(const gguf::File& f) {
  Totals sum;
  for (const auto& t : f.tensors()) sum.add(t);
  return sum;
}

struct ByName {
  bool operator()(DType a, DType b) const { return dtype_name(a) < dtype_name(b); }
};
std::map<DType, Totals, ByName> totals_by_type(const gguf::File& f) {
  std::map<DType, Totals, ByName> out;
  for (const auto& t : f.tensors()) out[t.dtype].add(t);
  return out;
}

// A string of the metadata for showing; absent or of another type, it is empty.
std::string_view text_of(const gguf::File& f, std::string_view key) {
  const auto text = f.get_string(key);
  return text.ok() ? *text : std::string_view();
}

// Bytes of the files that are neither tensors nor the padding up to the data: alignment between and after
// tensors.
uint64_t padding_of(const gguf::File& f) {
  uint64_t data = 0;
  for (const auto& s : f.shards()) data += s.bytes - s.data_begin;
  return data - static_cast<uint64_t>(f.tensor_bytes());
}

void print_file(const gguf::File& f) {
  const Totals t = totals_of(f);
  for (const auto& s : f.shards())
    print_out("{}\n  {}, {} ({} bytes), {} tensors\n", s.path.empty() ? "the file" : escaped(s.path),
              f.assembled() ? "Hugging Face folder" : fmt::format("GGUF version {}", s.version), human_bytes(s.bytes),
              s.bytes, s.tensors);
  print_out("  architecture   {}\n", escaped(text_of(f, "general.architecture"), kShownBytes));
  print_out("  name           {}\n", escaped(text_of(f, "general.name"), kShownBytes));
  print_out("  parameters     {} ({}) in {} tensors\n", human_count(t.parameters), t.parameters, t.tensors);
  print_out("  tensor data    {} ({} bytes), {:.2f} bits per weight\n", human_bytes(static_cast<uint64_t>(t.bytes)),
            t.bytes, t.bits_per_weight());
  print_out("  metadata       {}, padding {}\n",
            human_bytes(f.mapped_bytes() - static_cast<uint64_t>(t.bytes) - padding_of(f)), human_bytes(padding_of(f)));
  const std::string_view chat = text_of(f, "tokenizer.chat_template");
  print_out("  chat template  {}\n",
            chat.empty() ? "none" : fmt::format("{} (--template prints it)", human_bytes(chat.size())));
}

void add_file(const gguf::File& f, ordered_json& out) {
  const Totals t = totals_of(f);
  for (const auto& s : f.shards())
    out["shards"].push_back({{"path", s.path},  // of a folder: one, with what its GGUF file would have
                             {"version", s.version},
                             {"bytes", s.bytes},
                             {"alignment", s.alignment},
                             {"data_begin", s.data_begin},
                             {"tensors", s.tensors}});
  out["bytes"] = f.mapped_bytes();
  if (f.assembled()) out["made_bytes"] = f.made_bytes();
  out["architecture"] = text_of(f, "general.architecture");
  out["name"] = text_of(f, "general.name");
  out["parameters"] = t.parameters;
  out["tensor_count"] = t.tensors;
  out["tensor_bytes"] = t.bytes;
  out["bits_per_weight"] = t.bits_per_weight();
}

// ---- Bytes by type ----

void print_types(const gguf::File& f) {
  const Totals all = totals_of(f);
  print_out("\n{:<8} {:>8} {:>12} {:>10} {:>7} {:>12}\n", "type", "tensors", "parameters", "bytes", "share",
            "bits/weight");
  for (const auto& [type, t] : totals_by_type(f))
    print_out("{:<8} {:>8} {:>12} {:>10} {:>6.1f}% {:>12.2f}\n", dtype_name(type), t.tensors, human_count(t.parameters),
              human_bytes(static_cast<uint64_t>(t.bytes)),
              all.bytes == 0 ? 0 : 100.0 * static_cast<double>(t.bytes) / static_cast<double>(all.bytes),
              t.bits_per_weight());
  for (const auto& t : f.tensors())
    if (const Status s = quant::check_decodable(t.name, t.dtype); !s.ok()) {
      print_out("note: {}\n", s.error().message);
      break;
    }
}

void add_types(const gguf::File& f, ordered_json& out) {
  out["types"] = ordered_json::array();
  for (const auto& [type, t] : totals_by_type(f))
    out["types"].push_back({{"type", dtype_name(type)},
                            {"tensors", t.tensors},
                            {"parameters", t.parameters},
                            {"bytes", t.bytes},
                            {"bits_per_weight", t.bits_per_weight()},
                            {"computable", quant::can_decode(type)}});
}

// ---- What a model of it has ----

// Weights and tokenizer as an engine finds them, or why it would not run.
using LoadedParts = Result<ModelParts>;

// Why the multi-token-prediction block cannot be used; empty: it is whole.
std::string mtp_problem(const Model& model) {
  const auto block = model.mtp();
  return block.ok() ? std::string() : block.error().message;
}

void print_model(const LoadedParts& loaded) {
  if (!loaded.ok()) {
    print_out("\nnote: cannot be run: {}\n", escaped(loaded.error().message));
    return;
  }
  const Model& model = *loaded->model;
  if (model.config().mtp_layers > 0) {
    const std::string problem = mtp_problem(model);
    print_out("\nmulti-token prediction: {}\n",
              problem.empty() ? "one block, whole" : fmt::format("cannot be used: {}", escaped(problem)));
  }
  if (const auto& unread = model.unread(); !unread.empty())
    print_out("\nnote: nothing reads {} of the tensors; the first is {}\n", unread.size(), escaped(unread.front()));
}

void add_model(const LoadedParts& loaded, ordered_json& out) {
  if (!loaded.ok()) {
    out["problem"] = loaded.error().message;
    return;
  }
  const Model& model = *loaded->model;
  if (model.config().mtp_layers > 0) {
    const std::string problem = mtp_problem(model);
    out["mtp"] = {{"blocks", model.config().mtp_layers}, {"whole", problem.empty()}};
    if (!problem.empty()) out["mtp"]["problem"] = problem;
  }
  out["unread_tensors"] = model.unread();
}

// ---- Memory ----

// Of architectures that can be run; others have no such section.
Result<MemoryEstimate> memory_of(const gguf::File& f, const LoadedParts& model, const InspectOptions& o) {
  QUIRE_TRY(const ModelConfig config, read_config(f));
  QUIRE_TRY(MemoryEstimate m, estimate_memory(f, config, o.context, o.sequences, kForecastRows));
  if (o.sequences <= kFewSequences && model.ok()) m.repacked = RepackedWeights::bytes_for(model->model->matrices());
  return m;
}

void print_memory(const gguf::File& f, const LoadedParts& model, const InspectOptions& o) {
  const auto m = memory_of(f, model, o);
  print_out("\nmemory to run {} of {} tokens{}\n",
            o.sequences == 1 ? "one sequence" : fmt::format("{} sequences", o.sequences), o.context,
            o.sequences == 1 ? "" : " each");
  if (!m.ok()) {
    print_out("  unknown        {}\n", escaped(m.error().message));
    return;
  }
  const auto line = [](const char* what, int64_t bytes, const char* note) {
    print_out("  {:<14} {:>9}  {}\n", what, human_bytes(static_cast<uint64_t>(bytes)), note);
  };
  line("weights", m->weights - f.made_bytes(), "mapped, shared between processes");
  if (f.made_bytes() > 0) line("made", f.made_bytes(), "weights that the folder has in another form; each process");
  if (m->repacked > 0) line("repacked", m->repacked, "copies of weights for one or two sequences; --no-repack");
  for (const MemoryEstimate::Pool& pool : m->caches)
    line(fmt::format("{} cache", pool.spec.name).c_str(), pool.bytes,
         pool.spec.unit == CachePoolSpec::Unit::kSequence ? "as much for each sequence, however long it is"
         : pool.spec.is_window() ? "of layers that attend to a window: no more, however long the context"
                                 : "grows with the tokens really there");
  line("activations", m->activations, "about, of one step");
  line("total", m->total(), "");
}

void add_memory(const gguf::File& f, const LoadedParts& model, const InspectOptions& o, ordered_json& out) {
  const auto m = memory_of(f, model, o);
  if (!m.ok()) return;
  ordered_json caches = ordered_json::object();
  for (const MemoryEstimate::Pool& pool : m->caches) caches[pool.spec.name] = pool.bytes;
  out["memory"] = {{"context", o.context},    {"sequences", o.sequences},    {"weights", m->weights},
                   {"repacked", m->repacked}, {"caches", std::move(caches)}, {"activations", m->activations},
                   {"total", m->total()}};
}

// ---- Metadata ----

std::string element_text(const gguf::Value& v, int64_t i) {
  if (v.type == gguf::ValueType::kString) {
    const std::string text = escaped(v.strings[static_cast<size_t>(i)], kShownBytes);
    return v.is_array ? "\"" + text + "\"" : text;
  }
  if (v.type == gguf::ValueType::kBool) return v.as_int(i) != 0 ? "true" : "false";
  if (v.type == gguf::ValueType::kFloat32) return fmt::format("{}", static_cast<float>(v.as_double(i)));
  if (gguf::is_float(v.type)) return fmt::format("{}", v.as_double(i));
  if (v.type == gguf::ValueType::kUint64) return fmt::format("{}", static_cast<uint64_t>(v.as_int(i)));
  return fmt::format("{}", v.as_int(i));
}

std::string value_text(const gguf::Value& v) {
  if (!v.is_array) return element_text(v, 0);
  std::string out = "[";
  for (int64_t i = 0; i < std::min(v.count, kShownElements); ++i) out += (i == 0 ? "" : ", ") + element_text(v, i);
  return out + (v.count > kShownElements ? fmt::format(", ... {} in all]", v.count) : "]");
}

ordered_json element_json(const gguf::Value& v, int64_t i) {
  if (v.type == gguf::ValueType::kString) return v.strings[static_cast<size_t>(i)];
  if (v.type == gguf::ValueType::kBool) return v.as_int(i) != 0;
  if (gguf::is_float(v.type)) return v.as_double(i);
  if (v.type == gguf::ValueType::kUint64) return static_cast<uint64_t>(v.as_int(i));
  return v.as_int(i);
}

void print_metadata(const gguf::File& f) {
  print_out("\nmetadata ({} keys)\n", f.entries().size());
  for (const auto& [key, value] : f.entries())
    print_out("  {:<44} {:<16} {}\n", escaped(key, kShownBytes), value.type_name(), value_text(value));
}

// Strings are whole; of an array only the first elements are given, beside the count.
void add_metadata(const gguf::File& f, ordered_json& out) {
  out["metadata"] = ordered_json::array();
  for (const auto& [key, value] : f.entries()) {
    ordered_json e = {{"key", key}, {"type", value.type_name()}};
    if (value.is_array) {
      e["count"] = value.count;
      e["first"] = ordered_json::array();
      for (int64_t i = 0; i < std::min(value.count, kShownElements); ++i) e["first"].push_back(element_json(value, i));
    } else {
      e["value"] = element_json(value, 0);
    }
    out["metadata"].push_back(std::move(e));
  }
}

// ---- Tensors ----

void print_tensors(const gguf::File& f) {
  size_t width = 4;
  for (const auto& t : f.tensors()) width = std::max(width, t.name.size());
  width = std::min<size_t>(width, 64);
  print_out("\n{:<{}} {:<8} {:>12}  {}\n", "tensor", width, "type", "bytes", "shape (contiguous dimension first)");
  for (const auto& t : f.tensors())
    print_out("{:<{}} {:<8} {:>12}  {}\n", escaped(t.name), width, dtype_name(t.dtype), t.bytes, gguf::shape_text(t));
}

void add_tensors(const gguf::File& f, ordered_json& out) {
  out["tensors"] = ordered_json::array();
  for (const auto& t : f.tensors()) {
    ordered_json shape = ordered_json::array();
    for (int i = 0; i < t.n_dims; ++i) shape.push_back(t.dims[static_cast<size_t>(i)]);
    out["tensors"].push_back({{"name", t.name},
                              {"type", dtype_name(t.dtype)},
                              {"shape", std::move(shape)},
                              {"bytes", t.bytes},
                              {"shard", t.shard}});
  }
}

// ---- The deep check ----

// Decodes every element. An error names the first tensor with a NaN or an infinity.
Status check_tensor(const gguf::TensorInfo& t) {
  if (t.bytes == 0) return {};  // its rows may be of any length
  std::vector<float> row(static_cast<size_t>(t.dims[0]));
  for (int64_t r = 0; r < t.rows(); ++r) {
    quant::decode_row(t.dtype, t.data + r * t.row_bytes(), t.dims[0], row.data());
    for (size_t i = 0; i < row.size(); ++i)
      if (!std::isfinite(row[i]))
        return file_error("tensor {} is {} at row {}, element {}; the file is damaged, copy it again",
                          gguf::printable(t.name), row[i], r, i);
  }
  return {};
}

Status print_check(const gguf::File& f) {
  size_t decoded = 0;
  for (const auto& t : f.tensors()) {
    if (!quant::can_decode(t.dtype)) continue;
    QUIRE_CHECKED(check_tensor(t));
    ++decoded;
  }
  print_out("checked: {} of {} tensors decoded, all values finite\n", decoded, f.tensors().size());
  return {};
}

Status print_template(const gguf::File& f) {
  QUIRE_TRY(const std::string_view text, f.get_string("tokenizer.chat_template"));
  // Line breaks stay; what else could steer a terminal is escaped.
  std::string shown;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    shown += escaped(text.substr(at, end - at), 0);
    if (end < text.size()) shown += '\n';
    at = end + 1;
  }
  print_out("{}\n", shown);
  return {};
}

// Everything that the file says; `out` has what was found out before.
Status print_all(const gguf::File& f, const InspectOptions& o, ordered_json out) {
  if (o.check) return print_check(f);
  if (o.chat_template && !o.json) return print_template(f);
  if (o.json) {
    add_file(f, out);
    add_types(f, out);
    const LoadedParts model = load_parts(f);
    add_model(model, out);
    if (model.ok() && !is_remote(o.file)) report_vision(o.file, *model, &out);
    add_memory(f, model, o, out);
    if (model.ok()) report_cards(f, model->model->config(), o.context, o.cards, &out);
    if (o.chat_template) out["chat_template"] = text_of(f, "tokenizer.chat_template");
    if (o.metadata || o.everything()) add_metadata(f, out);
    if (o.tensors || o.everything()) add_tensors(f, out);
    // A file's strings may be no valid UTF-8; JSON must be.
    print_out("{}\n", out.dump(2, ' ', false, ordered_json::error_handler_t::replace));
    return {};
  }
  print_file(f);
  print_types(f);
  const LoadedParts model = load_parts(f);
  print_model(model);
  if (model.ok() && !is_remote(o.file)) report_vision(o.file, *model, nullptr);
  print_memory(f, model, o);
  if (model.ok()) report_cards(f, model->model->config(), o.context, o.cards, nullptr);
  if (o.metadata || o.everything()) print_metadata(f);
  if (o.tensors || o.everything()) print_tensors(f);
  return {};
}

Status inspect_elsewhere(const InspectOptions& o) {
  if (o.check) return request_error("--check decodes weights, and {} is not here; quire pull fetches it", o.file);
  RemoteInspection remote = o.remote;
  remote.model = o.file;
  remote.context = o.context;
  ordered_json out;
  QUIRE_TRY(const auto found, inspect_remote(remote, o.json || o.chat_template ? &out : nullptr));
  if (found) return print_all(found->file, o, std::move(out));
  if (o.json) print_out("{}\n", out.dump(2, ' ', false, ordered_json::error_handler_t::replace));
  return {};
}

// A name without "hf:" gets it; a short one of the cache becomes the path of what is there.
Status resolve_name(InspectOptions& o) {
  if (is_remote(o.file)) return {};
  QUIRE_TRY(const std::optional<NamedModel> named, named_model(o.remote.flags, o.file));
  if (!named) return {};
  if (!named->cached) {
    o.file = "hf:" + named->name.text();
    return {};
  }
  HubFlags flags = o.remote.flags;
  flags.offline = true;
  QUIRE_TRY(hub::HubOptions options, flags.parsed());
  QUIRE_TRY(options.place, place_of(o.remote.device, o.remote.gpu));
  QUIRE_TRY(const hub::Pulled pulled, hub::pull(named->name, options));
  tell(fmt::format("{}: {} ({})", named->name.text(), pulled.kind, pulled.why));
  o.file = pulled.path;
  return {};
}

Status inspect(InspectOptions& o) {
  QUIRE_CHECKED(resolve_name(o));
  if (is_remote(o.file)) return inspect_elsewhere(o);
  QUIRE_TRY(const gguf::File f, convert::open_model(o.file, {.matrices = o.check}));
  ordered_json out;
  if (!o.check && (o.json || !o.chat_template)) {
    QUIRE_TRY(const ThisMachine here, ThisMachine::measure(o.remote.device, o.remote.gpu));
    report_machine(here, o.json ? &out : nullptr);
    report_forecast(ModelNeeds::of(f), here, o.context, o.json ? &out : nullptr);
    if (!o.json) print_out("\n");
  }
  return print_all(f, o, std::move(out));
}

}  // namespace

Action add_inspect(Flags& flags) {
  auto o = std::make_shared<InspectOptions>();
  flags.add(kModelNames, &o->file, std::string(kModelHelp) + ", or a URL; of these headers alone are read").required();
  flags.add("--json", &o->json, "Print one JSON object; of arrays the count and the first elements");
  flags.add("--metadata", &o->metadata, "Of the lists, only the metadata");
  flags.add("--tensors", &o->tensors, "Of the lists, only the tensors");
  flags.add("--template", &o->chat_template, "Print the chat template and nothing else (with --json: include it)");
  flags.add("-c,--context", &o->context, at_least(1), "Tokens of a sequence, for the estimate of memory");
  flags.add("--sequences", &o->sequences, at_least(1), "Sequences at once, for the estimate of memory");
  flags.add("--cards", &o->cards, between(1, 4096),
            "GB of NVIDIA cards that need not be there, separated by commas: whether it would run on them");
  flags.add("--device", chosen_text(&o->remote.device, {{"auto"}, {"cpu"}, {"cuda"}}),
            "Where it is to run: auto (a GPU if there is one), cpu or cuda");
  flags.add("--gpu", &o->remote.gpu, "Which GPU, as `quire devices` counts them");
  o->remote.flags.add(flags);
  flags.add("--check", &o->check, "Decode every tensor and look for values that are not finite");
  return [o] { return inspect(*o); };
}

}  // namespace quire::cli
